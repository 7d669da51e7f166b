/** Who is to blame: the walk upstream that `lowwater why` makes, over what the page has. */

import { duration } from "./time.js";
import { SILENT_SECONDS, silent } from "./lag.js";

/** @type {import("./types.js").Watermark} */
const UNKNOWN = { micros: null, state: "unknown" };

/** Seconds that an operation runs until it is called long. */
export const RUNNING_SECONDS = 60;
/** Event time that a stage which rounds down may be behind its input: the usual step, as `lowwater why` has it. */
const STEP_MICROS = 3600 * 1e6;

/**
 * Watermarks by their order: unknown is before every time, finished after.
 *
 * @param {import("./types.js").Watermark} watermark
 * @returns {number}
 */
export function order(watermark) {
  if (watermark.micros !== null) return watermark.micros;
  return watermark.state === "finished" ? Infinity : -Infinity;
}

/**
 * Where the walk from a computation ends.
 *
 * @typedef {object} Culprit
 * @property {string} guilty The computation that holds it.
 * @property {string} by The input by which the way goes on to that one; empty where it ends.
 * @property {boolean} trouble Whether nobody that is alive works on what holds it.
 */

/**
 * For every computation the one that holds it, as `find_way` of the client has it. One that has come as far as the least of its inputs is held by
 * that input; one that has not holds by itself, unless something upstream is in trouble and nothing else explains why it is behind: its worker is
 * alive and not at one long operation, and it is behind by an hour at most. A stage that rounds down to the hour is always a little behind, and
 * would be named for what a dead worker before it does. Of inputs that are equally low the first that leads to trouble is followed, else the
 * first. An input that is not registered holds by its name.
 *
 * Whoever leads to trouble leads to the same end whoever asks, so one end for each is enough: O(computations + edges) for all of
 * them. A circle, as two versions of a graph may make for a moment, is cut where the walk comes back.
 *
 * @param {Map<string, import("./types.js").Computation>} computations
 * @param {number} now By the authority's clock: silence begins with time alone.
 * @returns {Map<string, Culprit>} Of those, and of inputs that are not registered.
 */
export function culprits(computations, now) {
  /** @type {Map<string, Culprit>} */
  const found = new Map();
  /** @type {Set<string>} */
  const begun = new Set();
  for (const name of computations.keys()) {
    const pending = [name];
    while (pending.length > 0) {
      const here = pending[pending.length - 1];
      if (found.has(here)) {
        pending.pop();
        continue;
      }
      const each = computations.get(here);
      const { lowest, alone, behind } = inputsOf(each, computations);
      if (!begun.has(here)) {
        begun.add(here);
        const missing = lowest.filter((input) => !begun.has(input));
        for (const input of missing) pending.push(input);
        if (missing.length > 0) continue;
      }
      const trouble = troubled(each, now);
      let by = lowest.find((input) => found.get(input)?.trouble);
      if (!alone) by ??= lowest.find((input) => found.has(input));
      else if (trouble || behind <= 0 || behind > STEP_MICROS || busy(each, now)) by = undefined;
      const end = by === undefined ? undefined : found.get(by);
      found.set(here, by === undefined || end === undefined ? { guilty: here, by: "", trouble } : { ...end, by });
    }
  }
  return found;
}

/**
 * The inputs that allow no more, and whether a computation holds by itself: it is below them, or an estimate that does not wait for them.
 *
 * @param {import("./types.js").Computation | undefined} each
 * @param {Map<string, import("./types.js").Computation>} computations
 * @returns {{lowest: string[], alone: boolean, behind: number}} `behind`: these inputs, in microseconds.
 */
function inputsOf(each, computations) {
  if (each === undefined || !each.registered || each.low.state === "finished") return { lowest: [], alone: true, behind: 0 };
  const lows = each.inputs.map((input) => order(computations.get(input)?.low ?? UNKNOWN));
  const least = lows.reduce((a, b) => Math.min(a, b), Infinity);
  const own = order(each.low);
  const lowest = each.inputs.filter((_, index) => lows[index] === least);
  return { lowest, alone: lowest.length === 0 || own < least || (each.estimated && own > least), behind: least - own };
}

/**
 * Whether somebody has to act before a computation moves, as `causes.py` of the client has it: nobody that is alive works on what holds it.
 *
 * @param {import("./types.js").Computation | undefined} each
 * @param {number} now
 * @returns {boolean}
 */
function troubled(each, now) {
  if (each === undefined || !each.registered) return true;
  if (each.low.state === "finished" || each.holder === null) return false;
  const { state } = each.holder;
  return state === "never claimed" || state === "unowned" || silent(each.holder, now);
}

/**
 * Whether the worker that holds a computation has been at one operation for long; asked of one that is not in trouble.
 *
 * @param {import("./types.js").Computation | undefined} each
 * @param {number} now
 * @returns {boolean}
 */
function busy(each, now) {
  if (each === undefined || each.holder === null || each.holder.state !== "owned" || !each.holder.last_report_micros) return false;
  return each.oldest_operation_micros !== 0 && now - each.oldest_operation_micros > RUNNING_SECONDS * 1e6;
}

/**
 * Who answers for a key range, in a few words.
 *
 * @param {import("./types.js").Range} range
 * @returns {string} "exec-7 on host-b"
 */
export function owner(range) {
  const worker = range.worker || "an unnamed worker";
  return range.host && range.host !== range.worker ? `${worker} on ${range.host}` : worker;
}

/**
 * What a key range's owner does, as far as the authority was told.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @returns {string} "silent for 38 min"
 */
export function doing(range, now) {
  const since = (/** @type {number} */ micros) => duration(Math.max(0, now - micros) / 1e6);
  switch (range.state) {
    case "never claimed":
      return "which no worker ever claimed";
    case "unowned":
      return `which nobody owns${range.last_report_micros ? `, silent for ${since(range.last_report_micros)}` : ""}`;
    case "owned":
      break;
    default:
      return range.state;
  }
  if (!range.last_report_micros) return "of which the authority has not heard yet";
  if (silent(range, now)) return `silent for ${since(range.last_report_micros)}`;
  const stands = range.since_micros && now - range.since_micros > SILENT_SECONDS * 1e6;
  return stands ? `alive, standing there for ${since(range.since_micros)}` : "alive";
}

/**
 * A key range, who answers for it, and what that one does.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @param {string} [label] What to call it.
 * @returns {string} "[40.., 44..) of exec-7, silent for 38 min"
 */
export function holding(range, now, label = range.label) {
  const owned = range.state === "owned" || (range.state === "unowned" && range.worker);
  const who = !owned ? "" : range.state === "owned" ? ` of ${owner(range)}` : ` left by ${owner(range)}`;
  return `${label}${who}, ${doing(range, now)}`;
}
