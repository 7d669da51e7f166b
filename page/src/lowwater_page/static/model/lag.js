/**
 * What counts as late.
 *
 * Lag is counted from the clock; in a replay of old data, where that says nothing, from the newest
 * event time. A promise is held against the clock, as by the alerts. Levels are steps of one
 * threshold, promised or chosen by the viewer, so they fit a pipeline of seconds and one of days.
 */

/**
 * "far": the newest event time of its whole pipeline is more than a week old, so it is a replay, or
 * it stopped long ago. It is told apart from what is late. `stopped`, `failed` and `unbegun` are
 * states of an owner, which say more than a lag.
 *
 * @typedef {"ontime" | "slow" | "late" | "verylate" | "far" | "unknown" | "finished" | "stopped" | "failed" | "unbegun"} Level
 */
/** @typedef {{name: "clock" | "data", micros: number}} Reference Time from which lag is counted. */

/** Thresholds that the page offers, in seconds of lag. */
export const LATE_SECONDS = [10, 60, 300, 1800, 7200, 86400];
/** Threshold by default, in seconds; the objective that the alerts come with. */
export const LATE_DEFAULT = 1800;
/**
 * Age of the newest data in seconds from which a pipeline counts as a replay: in a live pipeline
 * somebody would have noticed by now.
 */
const REPLAY_SECONDS = 7 * 86400;
/** Seconds without a report after which a worker is called silent, as by `lowwater why`. */
export const SILENT_SECONDS = 15;

/** @type {Record<Level, string>} */
export const WORDS = {
  ontime: "on time",
  slow: "nearly late",
  late: "late",
  verylate: "very late",
  far: "far behind",
  unknown: "no watermark",
  finished: "finished",
  stopped: "stopped",
  failed: "failed",
  unbegun: "not begun",
};

/** Levels explained. @type {Record<Level, string>} */
export const LEVELS = {
  ontime: "less behind than half of what counts as late",
  slow: "at least half of what counts as late",
  late: "up to four times what counts as late",
  verylate: "more than four times what counts as late",
  far: "the newest data of its whole pipeline is more than 7 days old: a replay, or a pipeline that stopped long ago; counted apart from late",
  unknown: "some key range was never reported, or an input is not registered or may not be read",
  finished: "nothing will ever come",
  stopped: "its worker was stopped in good order; late only by a promise",
  failed: "its worker ended by an error",
  unbegun: "its worker has reported nothing since its claim",
};

/**
 * Returns the newest event time that any watermark has passed; null when none has a time.
 *
 * @param {Iterable<import("./types.js").Computation>} computations
 * @returns {number | null}
 */
export function newest(computations) {
  let result = null;
  for (const computation of computations) {
    for (const { micros } of [computation.low, ...computation.shares.map((share) => share.watermark)]) {
      if (micros !== null && (result === null || micros > result)) result = micros;
    }
  }
  return result;
}

/**
 * Returns true when data is so old that a pipeline without newer data counts as a replay.
 *
 * @param {number} micros Newest event time.
 * @param {number} now
 */
export function isOld(micros, now) {
  return now - micros > REPLAY_SECONDS * 1e6;
}

/**
 * Chooses the reference of lags.
 *
 * @param {Iterable<import("./types.js").Computation>} computations
 * @param {number} now
 * @param {"clock" | "data" | ""} chosen Choice of the viewer; empty: none.
 * @returns {Reference}
 */
export function reference(computations, now, chosen) {
  const front = newest(computations);
  const data = chosen === "data" || (chosen === "" && front !== null && isOld(front, now));
  return data && front !== null ? { name: "data", micros: front } : { name: "clock", micros: now };
}

/**
 * Returns the seconds behind the reference; null without a time.
 *
 * @param {import("./types.js").Watermark} watermark
 * @param {Reference} from
 * @returns {number | null}
 */
export function behind(watermark, from) {
  return watermark.micros === null ? null : (from.micros - watermark.micros) / 1e6;
}

/**
 * @param {import("./types.js").Watermark} watermark
 * @param {Reference} from
 * @param {number} late Seconds.
 * @returns {Level}
 */
export function level(watermark, from, late) {
  const seconds = behind(watermark, from);
  if (seconds === null) return watermark.state === "finished" ? "finished" : "unknown";
  return levelOf(seconds, late);
}

/**
 * @param {number} seconds Behind.
 * @param {number} late Seconds.
 * @returns {"ontime" | "slow" | "late" | "verylate"}
 */
export function levelOf(seconds, late) {
  if (seconds < late / 2) return "ontime";
  if (seconds < late) return "slow";
  return seconds < 4 * late ? "late" : "verylate";
}

/**
 * Returns the length of a lag's bar, from 0 to 1. It is logarithmic, with the threshold at two
 * thirds, so that seconds and days both show.
 *
 * @param {number | null} seconds
 * @param {number} late Seconds.
 * @returns {number}
 */
export function extent(seconds, late) {
  if (seconds === null || seconds <= 0) return 0;
  const soon = late / 60; // a sixtieth of what is late is the length of the first step
  return Math.min(1, (Math.log1p(seconds / soon) / Math.log1p(60)) * (2 / 3));
}

/**
 * Says why there is no last report.
 *
 * @param {import("./types.js").Range} range
 * @returns {string}
 */
export function noReportWords(range) {
  return range.state === "never claimed" ? "never" : "not since the authority restarted";
}

/**
 * Says in a word why an owner does not report, by the authority's clock. A worker that never
 * reported since the authority started may be alive.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @returns {"" | "silent" | "stopped" | "failed" | "not begun"} Empty: it reports, or there is none.
 */
export function trouble(range, now) {
  const { ended, failure, last_report_micros: last, claimed_micros: claimed } = range;
  if (ended && (range.state === "owned" || range.state === "unowned")) return failure ? "failed" : "stopped";
  if (range.state !== "owned") return "";
  if (last === 0 || now - last <= SILENT_SECONDS * 1e6) return "";
  return (claimed ? last > claimed : !hasNoPromise(range)) ? "silent" : "not begun";
}

/**
 * Returns true when the owner of a range has promised nothing yet.
 *
 * @param {import("./types.js").Range} range
 */
export function hasNoPromise({ watermark, since_micros: since }) {
  return watermark.state === "unknown" && !since;
}
