/** Judges each computation (level, lag, root cause), and sums all up in one sentence. */

import { behind, isOld, level, reference } from "./lag.js";
import { culprits, fronts, holding, reasonOf } from "./culprit.js";
import { heldInBrief } from "./headline.js";
import { slicesOf } from "./slices.js";
import { duration } from "./time.js";

/**
 * Seconds for which a low watermark without an owner may stand still before it is called stuck:
 * another worker usually takes over within them.
 */
const STUCK_SECONDS = 15;

/**
 * Reason why a computation is where it is.
 *
 * `waits`: for an input. `stuck`: no living worker is at it. `stopped`: its worker was stopped in
 * good order. `failed`: its worker ended by an error. `long`: at one operation for more than a
 * minute. `source`: a working injector with old data. `behind`: working on old data. `above`: cut,
 * and lagging its slices. `unclaimed`: no worker ever claimed it. `unbegun`: its worker has
 * reported nothing yet.
 *
 * @typedef {"" | "waits" | "stuck" | "stopped" | "failed" | "long" | "source" | "behind" | "above" | "unclaimed" | "unbegun"} Cause
 */

/**
 * @typedef {object} Verdict
 * @property {import("./types.js").Computation} computation
 * @property {import("./lag.js").Level} level
 * @property {number} late Seconds of lag from which it is late: as promised, else as the viewer
 *   chose.
 * @property {import("./lag.js").Reference} from Reference of its lag. For a promised computation
 *   that is the clock, unless the viewer chose otherwise.
 * @property {number | null} lag Seconds behind the reference; null: no watermark.
 * @property {number | null} most Seconds that the watermark of the largest share is behind; null:
 *   no such share.
 * @property {string} mostName Name of that share: "99 %".
 * @property {string} guilty Name of the root cause.
 * @property {string} by Input through which the root cause holds it; empty when it holds itself.
 * @property {boolean} trouble True when somebody has to act: no living worker is at the root cause.
 * @property {boolean} missing True when the root cause is not registered.
 * @property {import("./types.js").Range | null} range Key range of the root cause that holds it;
 *   null: not published.
 * @property {Cause} cause
 */

/**
 * @typedef {object} Settings
 * @property {number} late Seconds of lag from which a computation without a promise is late.
 * @property {"clock" | "data" | ""} from
 */

/**
 * @param {import("./board.js").Board} board
 * @param {number} now Authority's clock in microseconds.
 * @param {Settings} settings
 * @returns {{verdicts: Map<string, Verdict>, from: import("./lag.js").Reference}}
 */
export function judge(board, now, settings) {
  const from = reference(board.computations.values(), now, settings.from);
  const clock = reference([], now, "clock");
  const frontOf = fronts(board.computations);
  const rootCauses = culprits(board.computations, now, frontOf);
  const slices = slicesOf(board.computations.keys());
  const verdicts = new Map();
  for (const computation of board.computations.values()) {
    const { guilty: name, by, trouble } = /** @type {import("./culprit.js").Culprit} */ (rootCauses.get(computation.name));
    const holder = board.computations.get(name);
    const share = computation.shares[0];
    const promised = computation.promise?.late_seconds;
    const late = promised || settings.late;
    const own = promised && settings.from === "" ? clock : from;
    const lagLevel = level(computation.low, own, late);
    const why = cause(computation, name, lagLevel, now, slices.has(computation.name));
    const timed = lagLevel !== "unknown" && lagLevel !== "finished";
    const far = timed && settings.from === "" && own.name === "clock" && !promised && isOld(frontOf(computation.name) ?? now, now);
    const at = ownerLevel(why, lagLevel, Boolean(promised)) ?? (far ? "far" : lagLevel);
    verdicts.set(computation.name, {
      computation,
      level: at,
      late,
      from: own,
      lag: behind(computation.low, own),
      most: share === undefined ? null : behind(share.watermark, own),
      mostName: share === undefined ? "" : percent(share.share),
      guilty: name,
      by,
      trouble,
      missing: !holder?.registered,
      range: holder?.holder ?? null,
      cause: why,
    });
  }
  return { verdicts, from };
}

/**
 * @param {number} share
 * @returns {string} "99 %"
 */
export function percent(share) {
  return `${Number((share * 100).toFixed(4))} %`;
}

/**
 * Returns the level of a computation whose owner has ended or not begun; null: its lag says more. A
 * planned end is not late, unless that breaks a promise.
 *
 * @param {Cause} why
 * @param {import("./lag.js").Level} at Level by its lag.
 * @param {boolean} promised True when a lag was promised.
 * @returns {"stopped" | "failed" | "unbegun" | null}
 */
function ownerLevel(why, at, promised) {
  if (why === "stopped") return promised && isLate(at) ? null : why;
  return (why === "failed" || why === "unbegun") && !isLate(at) ? why : null;
}

/**
 * @param {import("./types.js").Computation} computation
 * @param {string} guilty
 * @param {import("./lag.js").Level} at
 * @param {number} now
 * @param {boolean} cut True when it has slices.
 * @returns {Cause}
 */
function cause(computation, guilty, at, now, cut) {
  const { name, holder, inputs, since_micros } = computation;
  if (at === "finished") return "";
  const why = reasonOf(computation, now);
  // Shown also while another computation holds it: it would hold next.
  if (why === "stopped" || why === "failed") return why;
  if (why === "not begun") return "unbegun";
  if (guilty !== name) return "waits";
  if (holder === null) return "";
  if (why === "never claimed") return "unclaimed";
  if (why === "silent" || (why === "unowned" && now - since_micros > STUCK_SECONDS * 1e6)) return "stuck";
  if (cut) return at === "ontime" ? "" : "above";
  if (why === "busy") return "long";
  if (at === "ontime") return "";
  return inputs.length === 0 ? "source" : "behind";
}

/**
 * Puts a cause in words.
 *
 * @param {Verdict} verdict
 * @returns {string} Empty: nothing worth saying.
 */
export function because({ cause: why, guilty }) {
  switch (why) {
    case "waits":
      return `waits for ${guilty}`;
    case "stuck":
    case "stopped":
    case "failed":
      return why;
    case "source":
      return "its data is old";
    case "long":
      return "at one long operation";
    case "behind":
      return "works on old data";
    case "above":
      return "behind its slices";
    case "unclaimed":
      return "never claimed";
    case "unbegun":
      return "not begun";
    default:
      return "";
  }
}

/**
 * Sorts computations, worst first: late and waiting for somebody to act, late, failed, without a
 * watermark, stuck, not begun, the rest, stopped, far behind, finished; within each by lag.
 *
 * @param {Iterable<Verdict>} verdicts
 * @returns {Verdict[]}
 */
export function ranked(verdicts) {
  return [...verdicts].sort((a, b) => badness(b) - badness(a));
}

/**
 * @param {Verdict} verdict
 * @returns {number}
 */
export function badness({ level: at, lag, cause: why, trouble }) {
  if (at === "finished") return -Infinity;
  if (at === "far" && !isStuck(why)) return (lag ?? 0) - 2e12;
  return (lag ?? 0) + (isLate(at) ? (trouble ? 3e12 : 2e12) : BADNESS[at] ?? (isStuck(why) ? 1e11 : 0));
}

/** @type {Partial<Record<import("./lag.js").Level, number>>} */
const BADNESS = { failed: 1.5e12, unknown: 1e12, unbegun: 5e10, stopped: -1e12 };

/**
 * @param {import("./lag.js").Level} at
 * @returns {boolean}
 */
function isLate(at) {
  return at === "late" || at === "verylate";
}

/** @typedef {"late" | "failed" | "stuck" | "far" | "unknown" | "unbegun" | "ontime" | "stopped" | "finished"} Kind */

/**
 * As what a computation is counted.
 *
 * @param {Verdict} verdict
 * @returns {Kind}
 */
export function kind({ level: at, cause: why }) {
  if (at === "late" || at === "verylate") return "late";
  if (at !== "ontime" && at !== "slow" && at !== "far") return at;
  if (isStuck(why)) return "stuck";
  return at === "far" ? "far" : "ontime";
}

/**
 * Whether a cause is a worker that should be there and is not. One that was stopped in good order
 * need not be.
 *
 * @param {Cause} why
 * @returns {boolean}
 */
export function isStuck(why) {
  return why === "stuck" || why === "failed";
}

/**
 * @typedef {object} Summary
 * @property {import("./lag.js").Level | "stuck" | "none"} tone
 * @property {string} text The sentence, without the root cause.
 * @property {string} held The root cause in words; empty when none need be named.
 * @property {string} worst Name of the computation that the sentence is about.
 * @property {string} guilty Name of its root cause.
 * @property {Record<Kind, number>} counts
 */

/**
 * Sums up computations in one sentence.
 *
 * @param {Map<string, Verdict>} verdicts Computations that the sentence counts.
 * @param {number} now
 * @param {Map<string, Verdict>} [all] All computations, since a root cause may be outside of
 *   `verdicts`.
 * @returns {Summary}
 */
export function summary(verdicts, now, all = verdicts) {
  const sorted = ranked(verdicts.values());
  const counts = { late: 0, failed: 0, stuck: 0, far: 0, unknown: 0, unbegun: 0, ontime: 0, stopped: 0, finished: 0 };
  for (const verdict of sorted) counts[kind(verdict)] += 1;
  // What is far behind is told below the sentence, unless there is nothing else.
  const total = sorted.length - counts.far || sorted.length;
  const none = { tone: /** @type {const} */ ("none"), held: "", worst: "", guilty: "", counts };
  if (total === 0) return { ...none, text: "No computation is registered yet." };
  const worst = furthestDown(sorted.filter((verdict) => badness(verdict) === badness(sorted[0])), all);
  const { name } = worst.computation;
  const about = { worst: name, guilty: worst.guilty, counts };
  const far = duration(worst.lag ?? 0);
  if (counts.finished === sorted.length) {
    const text = `${total === 1 ? `${name} is` : allAre(total)} finished: nothing will ever come.`;
    return { ...about, tone: "finished", text, held: "" };
  }
  if (counts.stopped > 0 && counts.stopped + counts.finished === total) {
    const many = total === 1 ? `${name} was` : someOf(counts.stopped, total, "were", "was");
    return { ...about, tone: "stopped", text: `${many} stopped in good order.`, held: "" };
  }
  if (worst.level === "far" && counts.stuck === 0) {
    const text = sorted.length === 1 ? `${name} is ${far} behind` : `${someOf(counts.far, sorted.length)} far behind, ${name} by ${far}`;
    return { ...about, tone: "far", text: `${text}.`, held: "" };
  }
  const held = heldInBrief(worst, now);
  if (counts.late > 0) {
    const last = furthestBehind(sorted.filter((verdict) => verdict.level !== "far"));
    return { ...about, tone: last.level, text: lateness(worst, last, counts.late, total), held };
  }
  if (counts.failed > 0) {
    const text = `${total === 1 ? "" : "Nothing is late yet, but "}${name} has failed${worst.lag === null ? "" : `, ${far} behind`}`;
    return { ...about, tone: "failed", text, held };
  }
  if (counts.unknown > 0) {
    const many = `${someOf(counts.unknown, total, "have", "has")} no watermark yet`;
    const text = total === 1 ? `${name} has no watermark yet` : `${many}${counts.unknown === 1 ? ":" : ", such as"} ${name}`;
    return { ...about, tone: "unknown", text, held };
  }
  if (counts.stuck > 0) {
    const text = `Nothing is late yet, but ${name} is stuck, ${far} behind`;
    return { ...about, tone: "stuck", text, held };
  }
  if (counts.unbegun > 0) {
    const many = `${someOf(counts.unbegun, total, "have", "has")} not begun`;
    const text = total === 1 ? `${name} has not begun` : `${many}${counts.unbegun === 1 ? ":" : ", such as"} ${name}`;
    return { ...about, tone: "unbegun", text, held };
  }
  if (worst.level === "slow") {
    const text = `${total === 1 ? "" : "Nothing is late yet, but "}${name} is nearly late, ${far} behind`;
    return { ...about, tone: "slow", text, held };
  }
  const { stopped } = counts;
  const many = stopped > 0 ? `${someOf(total - stopped, total)} on time, ${stopped.toLocaleString("en")} stopped` : `${allAre(total)} on time`;
  const text = total === 1 ? `${name} is on time, ${far} behind.` : `${many}; the furthest behind is ${name}, by ${far}.`;
  return { ...about, tone: worst.level, text, held: "" };
}

/**
 * Returns the one that is most steps downstream of its root cause: people wait for the results
 * there.
 *
 * @param {Verdict[]} equals Equally bad computations, at least one.
 * @param {Map<string, Verdict>} verdicts
 * @returns {Verdict}
 */
function furthestDown(equals, verdicts) {
  let furthest = equals[0];
  let mostSteps = 0;
  for (const verdict of equals.slice(0, 50)) {
    const steps = way(verdict.computation.name, verdicts).length;
    if (steps > mostSteps) [furthest, mostSteps] = [verdict, steps];
  }
  return furthest;
}

/**
 * Says how many are late, and which to look at.
 *
 * @param {Verdict} worst
 * @param {Verdict} last The computation that is furthest behind. It differs from `worst` when
 *   `worst` is in trouble and `last` is only slow.
 * @param {number} late
 * @param {number} total
 * @returns {string}
 */
function lateness({ computation: { name }, lag, guilty }, last, late, total) {
  const far = `${duration(lag ?? 0)} behind`;
  if (total === 1) return `${name} is ${far}`;
  const many = `${someOf(late, total)} late`;
  if (late === 1) return `${many}: ${name}, ${far}`;
  if ((last.lag ?? 0) <= (lag ?? 0)) return `${many}; the worst is ${name}, ${far}`;
  const stands = guilty === name ? "is stuck" : "waits";
  return `${many}, most of all ${last.computation.name}, by ${duration(last.lag ?? 0)}; ${name} ${stands}, ${far}`;
}

/**
 * @param {Verdict[]} verdicts At least one.
 * @returns {Verdict}
 */
function furthestBehind(verdicts) {
  return verdicts.reduce((a, b) => ((b.lag ?? -Infinity) > (a.lag ?? -Infinity) ? b : a));
}

/**
 * Lists the computations from a computation's input to its root cause; empty when it holds itself.
 *
 * @param {string} name
 * @param {Map<string, Verdict>} verdicts
 * @returns {string[]}
 */
export function way(name, verdicts) {
  const path = [];
  for (let by = verdicts.get(name)?.by; by; by = verdicts.get(by)?.by) path.push(by);
  return path;
}

/**
 * Names what holds a computation, without repeating its own name.
 *
 * @param {Verdict} verdict
 * @param {number} now
 * @returns {string}
 */
export function heldBy({ guilty, range, computation, missing }, now) {
  if (missing) return `held by ${guilty}, which is not registered or may not be read`;
  const own = guilty === computation.name;
  if (range === null) return `held by ${own ? "itself" : guilty}, and no key range says why`;
  if (!own) return `held by ${guilty} ${holding(range, now)}`;
  const only = range.start === "" && range.end === "";
  return `held by ${holding(range, now, only ? "its only key range" : `its key range ${range.label}`)}`;
}

/**
 * @param {number} total More than one.
 * @returns {string}
 */
function allOf(total) {
  return total === 2 ? "Both computations" : `All ${total.toLocaleString("en")} computations`;
}

/**
 * @param {number} total More than one.
 * @returns {string}
 */
function allAre(total) {
  return `${allOf(total)} are`;
}

/**
 * @param {number} count
 * @param {number} total
 * @param {string} [many]
 * @param {string} [one]
 * @returns {string}
 */
function someOf(count, total, many = "are", one = "is") {
  if (count === total) return `${allOf(total)} ${many}`;
  return `${count.toLocaleString("en")} of ${total.toLocaleString("en")} computations ${count === 1 ? one : many}`;
}
