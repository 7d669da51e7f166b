/** Who is to blame: the walk upstream that `lowwater why` makes, over what the page has. */

import { duration } from "./time.js";
import { REPLAY_SECONDS, SILENT_SECONDS, newest, silent } from "./lag.js";
import { sliceOf, slicesOf } from "./slices.js";

/** @type {import("./types.js").Watermark} */
const UNKNOWN = { micros: null, state: "unknown" };

/** Seconds that an operation runs until it is called long. */
export const RUNNING_SECONDS = 60;
/** Event time that a stage which rounds down may be behind its input: the usual step, for a stage whose worker does not tell its own. */
const STEP_MICROS = 3600 * 1e6;
/** How many times as far behind something upstream has to be to be named before a worker that is at one long operation. */
const OUTWEIGHS = 10;

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
 * @property {number} lag Microseconds that the guilty one is behind by its own doing.
 */

/**
 * For every computation the one that holds it, as `find_way` of the client has it, which says the rule in full. One that has come as far as the
 * least of its inputs is held by that input. One that has not is behind by its own doing, as far as it is behind them; a source, as far as it is
 * behind the clock. The one that adds most is to blame, but what is in trouble comes first, and one at a long operation before an input that is
 * less than ten times as far behind. One that is behind by less than it holds back by design adds nothing. An input that is not registered holds by its name. One that is cut into slices waits for the slowest of them,
 * and these for its inputs.
 *
 * Whoever leads to somebody leads to the same end whoever asks, so one end for each is enough: O(computations + edges) for all of
 * them. A circle, as two versions of a graph may make for a moment, is cut where the walk comes back.
 *
 * @param {Map<string, import("./types.js").Computation>} computations
 * @param {number} now By the authority's clock: silence begins with time alone.
 * @returns {Map<string, Culprit>} Of those, and of inputs that are not registered.
 */
export function culprits(computations, now) {
  const start = starts(computations, now);
  const slices = slicesOf(computations.keys());
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
      const { lowest, ahead, held, lag } = inputsOf(each, slices.get(here), computations, start(here));
      if (!begun.has(here)) {
        begun.add(here);
        const missing = lowest.filter((input) => !begun.has(input));
        for (const input of missing.reverse()) pending.push(input);
        if (missing.length > 0) continue;
      }
      const why = keeps(each, now);
      const own = { guilty: here, by: "", trouble: TROUBLE.has(why), lag };
      const behind = lag > 0 || (own.trouble && held);
      let end = own;
      for (const input of ahead ? [] : lowest) {
        const other = found.get(input);
        const rounding = each?.holder?.holdback_micros ? 0 : STEP_MICROS;
        if (other === undefined || (behind && !goesOn(own, why === "busy" && !slices.has(here), other, rounding))) continue;
        if (end === own || heavier(other, end)) end = { ...other, by: input };
      }
      found.set(here, end);
    }
  }
  return found;
}

/**
 * Whether one end weighs more than another: who has to be acted for comes first, then who is furthest behind.
 *
 * @param {Culprit} a
 * @param {Culprit} b
 * @returns {boolean}
 */
function heavier(a, b) {
  return a.trouble === b.trouble ? a.lag > b.lag : a.trouble;
}

/**
 * Whether one that is behind its inputs is where it is, most of all, for what holds them.
 *
 * @param {Culprit} own
 * @param {boolean} longOperation
 * @param {Culprit} end
 * @param {number} rounding How much of its lag its rounding may explain; 0 where that is known and left out already.
 * @returns {boolean}
 */
function goesOn(own, longOperation, end, rounding) {
  if (own.trouble) return false;
  if (end.lag > own.lag * (longOperation ? OUTWEIGHS : 1)) return true;
  return end.trouble && !longOperation && own.lag <= rounding;
}

/**
 * What the source of a pipeline is compared with: the clock, or its newest data when that is old, as in a replay. A pipeline is what is connected.
 *
 * @param {Map<string, import("./types.js").Computation>} computations
 * @param {number} now
 * @returns {(name: string) => number} Microseconds.
 */
function starts(computations, now) {
  /** @type {Map<string, string>} */
  const pipeline = new Map();
  const of = (/** @type {string} */ name) => {
    let top = name;
    for (let next = pipeline.get(top); next !== undefined; next = pipeline.get(top)) top = next;
    for (let each = name; each !== top; ) {
      const next = /** @type {string} */ (pipeline.get(each));
      pipeline.set(each, top);
      each = next;
    }
    return top;
  };
  for (const { name, inputs } of computations.values()) {
    for (const input of [...inputs, sliceOf(name)].filter(Boolean)) {
      const [a, b] = [of(input), of(name)];
      if (a !== b) pipeline.set(a, b);
    }
  }
  /** @type {Map<string, number>} */
  const front = new Map();
  for (const each of computations.values()) {
    const [top, micros] = [of(each.name), newest([each])];
    if (micros !== null) front.set(top, Math.max(front.get(top) ?? -Infinity, micros));
  }
  return (name) => {
    const micros = front.get(of(name)) ?? now;
    return now - micros > REPLAY_SECONDS * 1e6 ? micros : now;
  };
}

/**
 * The inputs or slices that allow no more, and how far a computation is behind by its own doing.
 *
 * @param {import("./types.js").Computation | undefined} each
 * @param {string[] | undefined} slices Its own, where it is cut.
 * @param {Map<string, import("./types.js").Computation>} computations
 * @param {number} start What a source is compared with.
 * @returns {{lowest: string[], ahead: boolean, held: boolean, lag: number}} `ahead`: an estimate that does not wait for them. `held`: whether it is
 *   below them. `lag` in microseconds: 0 for one that is behind by less than its worker holds back by design.
 */
function inputsOf(each, slices, computations, start) {
  if (each === undefined || !each.registered) return { lowest: [], ahead: false, held: true, lag: Infinity };
  if (each.low.state === "finished") return { lowest: [], ahead: false, held: false, lag: 0 };
  const waited = slices ?? each.inputs;
  const lows = waited.map((name) => has(computations.get(name), slices && each));
  const least = lows.reduce((a, b) => Math.min(a, b), Infinity);
  const own = order(each.low);
  const lowest = waited.filter((_, index) => lows[index] === least);
  const ahead = each.estimated && slices === undefined && lowest.length > 0 && own > least;
  const allowed = ahead || lowest.length === 0 ? start : least;
  const held = own < allowed;
  return { lowest, ahead, held, lag: held && allowed - own >= (each.holder?.holdback_micros ?? 0) ? allowed - own : 0 };
}

/**
 * How far somebody who waits for a computation can count on it. A slice tells where it is, even if it has been further; and nothing while one of the
 * two has not begun anew yet.
 *
 * @param {import("./types.js").Computation | undefined} each
 * @param {import("./types.js").Computation | undefined} whole What it is a slice of.
 * @returns {number}
 */
function has(each, whole) {
  if (each === undefined || (whole && whole.incarnation !== each.incarnation)) return order(UNKNOWN);
  const low = order(each.low);
  return whole && each.holder !== null ? Math.min(low, order(each.holder.watermark)) : low;
}

/**
 * What keeps a computation where it is, as `cause_of` of the client has it, which `lowwater status` shows: one decision for both.
 *
 * @typedef {"finished" | "not registered" | "never claimed" | "unowned" | "silent" | "stopped" | "failed" | "not heard of" | "busy" |
 *   "waiting" | "moving" | "moved on"} Keeps
 */

/** Of these, those after which somebody has to act: nobody that is alive works on it. */
const TROUBLE = new Set(["not registered", "never claimed", "unowned", "silent", "stopped", "failed"]);

/**
 * @param {import("./types.js").Computation | undefined} each
 * @param {number} now
 * @returns {Keeps}
 */
export function keeps(each, now) {
  if (each === undefined || !each.registered) return "not registered";
  if (each.low.state === "finished") return "finished";
  const { holder, oldest_operation_micros: oldest } = each;
  if (holder === null) return "moved on";
  if (holder.state === "never claimed" || holder.state === "unowned") return holder.state;
  if (holder.state !== "owned") return "moved on";
  if (holder.ended) return holder.failure ? "failed" : "stopped";
  if (!holder.last_report_micros) return "not heard of";
  if (silent(holder, now)) return "silent";
  if (oldest && now - oldest > RUNNING_SECONDS * 1e6) return "busy";
  return !holder.since_micros || now - holder.since_micros > SILENT_SECONDS * 1e6 ? "waiting" : "moving";
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
  if (range.ended) {
    const ago = `${since(range.last_report_micros)} ago`;
    return range.failure ? `which failed ${ago}: ${range.failure}` : `which stopped ${ago}`;
  }
  if (!range.last_report_micros) return "of which the authority has not heard yet";
  if (silent(range, now)) return `silent for ${since(range.last_report_micros)}`;
  const stands = range.since_micros && now - range.since_micros > SILENT_SECONDS * 1e6;
  const alive = stands ? `alive, standing there for ${since(range.since_micros)}` : "alive";
  return range.waiting_for ? `${alive}, waiting for ${range.waiting_for}` : alive;
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
