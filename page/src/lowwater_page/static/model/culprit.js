/** Finds the root cause of each computation: the walk upstream of `lowwater why`, in the page. */

import { duration } from "./time.js";
import { SILENT_SECONDS, hasNoPromise, isOld, newest, trouble } from "./lag.js";
import { sliceOf, slicesOf } from "./slices.js";

/** @type {import("./types.js").Watermark} */
const UNKNOWN = { micros: null, state: "unknown" };

/** Seconds after which a running operation is called long. */
export const RUNNING_SECONDS = 60;
/**
 * Lag that the rounding of a stage may explain when its worker does not report its own holdback:
 * the usual step.
 */
const STEP_MICROS = 3600 * 1e6;
/**
 * Factor by which an input must lag more than a computation at one long operation to be named
 * instead of it.
 */
const OUTWEIGHS = 10;

/**
 * Returns a number by which watermarks sort: unknown is before every time, finished after.
 *
 * @param {import("./types.js").Watermark} watermark
 * @returns {number}
 */
export function order(watermark) {
  if (watermark.micros !== null) return watermark.micros;
  return watermark.state === "finished" ? Infinity : -Infinity;
}

/**
 * Root cause of a computation: the end of the walk upstream from it.
 *
 * @typedef {object} Culprit
 * @property {string} guilty Name of the computation that is the root cause.
 * @property {string} by Input through which the walk goes on; empty where it ends.
 * @property {boolean} trouble True when no living worker is at the root cause: somebody has to act.
 * @property {number} lag Microseconds that the root cause adds itself; Infinity: it is not
 *   registered.
 */

/**
 * Returns the root cause of every computation, by the rules of `find_way` in
 * client/src/lowwater/core/why.py.
 *
 * A computation that is at the lowest of its inputs is held by that input. One that lags its inputs
 * adds that lag itself; a source adds its lag behind the clock. The root cause adds most, with two
 * exceptions. A computation in trouble comes first. A computation at one long operation comes
 * before an input that lags less than ten times as much. A lag below the worker's holdback adds
 * nothing. An input that is not registered is a root cause. A cut computation waits for its slowest
 * slice, and the slices wait for its inputs.
 *
 * A computation has one root cause for all of its readers, so the walk visits it once:
 * O(computations + edges). A cycle, read while the graph changed, ends the walk.
 *
 * @param {Map<string, import("./types.js").Computation>} computations
 * @param {number} now Authority's clock in microseconds; a worker gets silent as it passes.
 * @param {(name: string) => number | undefined} [frontOf] Result of `fronts`.
 * @returns {Map<string, Culprit>} Root causes by name, including those of inputs that are not
 *   registered.
 */
export function culprits(computations, now, frontOf = fronts(computations)) {
  const start = sourceReference(frontOf, now);
  const slices = slicesOf(computations.keys());
  /** @type {Map<string, Culprit>} */
  const result = new Map();
  /** @type {Set<string>} */
  const visited = new Set();
  for (const name of computations.keys()) {
    const pending = [name];
    while (pending.length > 0) {
      const here = pending[pending.length - 1];
      if (result.has(here)) {
        pending.pop();
        continue;
      }
      const computation = computations.get(here);
      const { lowest, ahead, held, lag } = inputsOf(computation, slices.get(here), computations, start(here));
      if (!visited.has(here)) {
        visited.add(here);
        const missing = lowest.filter((input) => !visited.has(input));
        for (const input of missing.reverse()) pending.push(input);
        if (missing.length > 0) continue;
      }
      const reason = reasonOf(computation, now);
      const own = { guilty: here, by: "", trouble: TROUBLE.has(reason), lag };
      const behind = lag > 0 || (own.trouble && held);
      let end = own;
      for (const input of ahead ? [] : lowest) {
        const inputEnd = result.get(input);
        const rounding = holdbackOf(computation) ? 0 : STEP_MICROS;
        if (inputEnd === undefined || (behind && !heldByInput(own, reason === "busy" && !slices.has(here), inputEnd, rounding))) continue;
        if (end === own || isWorse(inputEnd, end)) end = { ...inputEnd, by: input };
      }
      result.set(here, end);
    }
  }
  return result;
}

/**
 * Returns the microseconds by which a computation lags its inputs by design; 0 when unknown, and
 * when its worker has ended, which leaves what came since undone.
 *
 * @param {import("./types.js").Computation | undefined} computation
 */
function holdbackOf(computation) {
  const holder = computation?.holder;
  return !holder || holder.ended ? 0 : holder.holdback_micros;
}

/**
 * Returns true when `a` is the worse root cause: trouble comes first, then the larger lag.
 *
 * @param {Culprit} a
 * @param {Culprit} b
 */
function isWorse(a, b) {
  return a.trouble === b.trouble ? a.lag > b.lag : a.trouble;
}

/**
 * Returns true when a computation that lags its inputs is still held mostly by their root cause.
 *
 * @param {Culprit} own The computation as its own root cause.
 * @param {boolean} longOperation
 * @param {Culprit} end Root cause of its input.
 * @param {number} rounding Microseconds of its lag that its rounding may explain; 0 when the lag
 *   already leaves that out.
 */
function heldByInput(own, longOperation, end, rounding) {
  if (own.trouble) return false;
  if (end.lag > own.lag * (longOperation ? OUTWEIGHS : 1)) return true;
  return end.trouble && !longOperation && own.lag <= rounding;
}

/**
 * Returns a function that gives the newest event time of a computation's pipeline. A pipeline is a
 * connected part of the graph.
 *
 * @param {Map<string, import("./types.js").Computation>} computations
 * @returns {(name: string) => number | undefined} Microseconds; undefined: the pipeline has no time.
 */
export function fronts(computations) {
  /** @type {Map<string, string>} */
  const parents = new Map();
  const pipelineOf = (/** @type {string} */ name) => {
    let root = name;
    for (let next = parents.get(root); next !== undefined; next = parents.get(root)) root = next;
    for (let member = name; member !== root; ) {
      const next = /** @type {string} */ (parents.get(member));
      parents.set(member, root);
      member = next;
    }
    return root;
  };
  for (const { name, inputs } of computations.values()) {
    for (const input of [...inputs, sliceOf(name)].filter(Boolean)) {
      const [a, b] = [pipelineOf(input), pipelineOf(name)];
      if (a !== b) parents.set(a, b);
    }
  }
  /** @type {Map<string, number>} */
  const result = new Map();
  for (const computation of computations.values()) {
    const [root, micros] = [pipelineOf(computation.name), newest([computation])];
    if (micros !== null) result.set(root, Math.max(result.get(root) ?? -Infinity, micros));
  }
  return (name) => result.get(pipelineOf(name));
}

/**
 * Returns a function that gives the time with which a source is compared: the clock, or in a replay
 * the newest data of its pipeline.
 *
 * @param {(name: string) => number | undefined} frontOf Result of `fronts`.
 * @param {number} now
 * @returns {(name: string) => number} Microseconds.
 */
function sourceReference(frontOf, now) {
  return (name) => {
    const micros = frontOf(name) ?? now;
    return isOld(micros, now) ? micros : now;
  };
}

/**
 * Finds the lowest inputs or slices of a computation, and the lag that it adds itself.
 *
 * @param {import("./types.js").Computation | undefined} computation
 * @param {string[] | undefined} slices Its slices, when it is cut.
 * @param {Map<string, import("./types.js").Computation>} computations
 * @param {number} start Time with which a source is compared, in microseconds.
 * @returns {{lowest: string[], ahead: boolean, held: boolean, lag: number}} `ahead`: true for an
 *   estimate that does not wait for its inputs. `held`: true when it lags them. `lag`: microseconds
 *   that it adds; 0 when they are below its worker's holdback.
 */
function inputsOf(computation, slices, computations, start) {
  if (computation === undefined || !computation.registered) return { lowest: [], ahead: false, held: true, lag: Infinity };
  if (computation.low.state === "finished") return { lowest: [], ahead: false, held: false, lag: 0 };
  const sources = slices ?? computation.inputs;
  const lows = sources.map((name) => reliableLow(computations.get(name), slices && computation));
  const least = lows.reduce((a, b) => Math.min(a, b), Infinity);
  const own = order(computation.low);
  const lowest = sources.filter((_, index) => lows[index] === least);
  const ahead = computation.estimated && slices === undefined && lowest.length > 0 && own > least;
  const allowed = ahead || lowest.length === 0 ? start : least;
  const held = own < allowed;
  return { lowest, ahead, held, lag: held && allowed - own >= holdbackOf(computation) ? allowed - own : 0 };
}

/**
 * Returns the watermark that a reader of a computation can count on. For a slice that is the
 * watermark of its holder, even if the slice was further before. It is unknown while slice and
 * whole are of different incarnations: one of them was reset, and the other follows.
 *
 * @param {import("./types.js").Computation | undefined} computation
 * @param {import("./types.js").Computation | undefined} whole The cut computation, when
 *   `computation` is one of its slices.
 * @returns {number}
 */
function reliableLow(computation, whole) {
  if (computation === undefined || (whole && whole.incarnation !== computation.incarnation)) return order(UNKNOWN);
  const low = order(computation.low);
  return whole && computation.holder !== null ? Math.min(low, order(computation.holder.watermark)) : low;
}

/**
 * Reason why a computation does not move, decided as by `cause_of` in
 * client/src/lowwater/core/causes.py, which `lowwater status` shows.
 *
 * @typedef {"finished" | "not registered" | "never claimed" | "unowned" | "silent" | "stopped" | "failed" | "not begun" | "not heard of" | "busy" |
 *   "waiting" | "moving" | "moved on"} Reason
 */

/** Reasons that last until somebody acts: no living worker is at the computation. */
const TROUBLE = new Set(["not registered", "never claimed", "unowned", "silent", "failed", "not begun"]);

/**
 * @param {import("./types.js").Computation | undefined} computation
 * @param {number} now
 * @returns {Reason}
 */
export function reasonOf(computation, now) {
  if (computation === undefined || !computation.registered) return "not registered";
  if (computation.low.state === "finished") return "finished";
  const { holder, oldest_operation_micros: oldest } = computation;
  if (holder === null) return "moved on";
  const quiet = trouble(holder, now);
  if (quiet) return quiet;
  if (holder.state === "never claimed" || holder.state === "unowned") return holder.state;
  if (holder.state !== "owned") return "moved on";
  if (!holder.last_report_micros) return "not heard of";
  if (oldest && now - oldest > RUNNING_SECONDS * 1e6) return "busy";
  return !holder.since_micros || now - holder.since_micros > SILENT_SECONDS * 1e6 ? "waiting" : "moving";
}

/**
 * Names the worker and host of a key range.
 *
 * @param {import("./types.js").Range} range
 * @returns {string} "exec-7 on host-b"
 */
export function owner(range) {
  const worker = range.worker || "an unnamed worker";
  return range.host && range.host !== range.worker ? `${worker} on ${range.host}` : worker;
}

/**
 * Says what the owner of a key range does, by its last report.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @returns {string} "silent for 38 min"
 */
export function activity(range, now) {
  const since = (/** @type {number} */ micros) => duration(Math.max(0, now - micros) / 1e6);
  const quiet = trouble(range, now);
  switch (range.state) {
    case "never claimed":
      return "which no worker ever claimed";
    case "unowned":
      if (quiet) break;
      return `which nobody owns${range.last_report_micros ? `, silent for ${since(range.last_report_micros)}` : ""}`;
    case "owned":
      break;
    default:
      return range.state;
  }
  const ago = `${since(range.last_report_micros)} ago`;
  if (quiet === "failed") return `which failed ${ago}: ${range.failure}`;
  if (quiet === "stopped") return `which stopped ${ago}${range.waiting_for && ` and waited for ${range.waiting_for}`}`;
  if (quiet === "not begun" && range.claimed_micros) return `which claimed it ${ago} and has reported nothing yet`;
  if (quiet && hasNoPromise(range)) return `which claimed it and has promised nothing yet, last heard of ${ago}`;
  if (quiet) return `silent for ${since(range.last_report_micros)}`;
  if (!range.last_report_micros) return "of which the authority has not heard yet";
  const stands = range.since_micros && now - range.since_micros > SILENT_SECONDS * 1e6;
  const alive = stands ? `alive, standing there for ${since(range.since_micros)}` : "alive";
  return range.waiting_for ? `${alive}, waiting for ${range.waiting_for}` : alive;
}

/**
 * Names a key range, its owner, and what the owner does.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @param {string} [label] Name to use for the range.
 * @returns {string} "[40.., 44..) of exec-7, silent for 38 min"
 */
export function holding(range, now, label = range.label) {
  const owned = range.state === "owned" || (range.state === "unowned" && range.worker);
  const who = !owned ? "" : range.state === "owned" ? ` of ${owner(range)}` : ` left by ${owner(range)}`;
  return `${label}${who}, ${activity(range, now)}`;
}
