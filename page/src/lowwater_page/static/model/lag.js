/**
 * What counts as late. Lag is counted from the clock; in a replay of old data, where that says nothing, from the newest event time there
 * is. What has a promise is held to it by the clock, as by the alerts. Levels are steps of one threshold, which was promised or the viewer chooses, so that one scale fits a pipeline of seconds and one of days.
 */

/** @typedef {"ontime" | "slow" | "late" | "verylate" | "unknown" | "finished"} Level */
/** @typedef {{name: "clock" | "data", micros: number}} Reference What lag is counted from. */

/** Seconds of lag from which a computation is late, to choose from. */
export const LATE_SECONDS = [10, 60, 300, 1800, 7200, 86400];
/** The objective that the alerts come with: complete by half an hour after the end. */
export const LATE_DEFAULT = 1800;
/** Data that is older than this, as a whole, is taken for a replay: somebody would have noticed by now. */
export const REPLAY_SECONDS = 7 * 86400;
/** Seconds without a report after which a worker is called silent, as `lowwater why` has it. */
export const SILENT_SECONDS = 15;

/** @type {Record<Level, string>} */
export const WORDS = {
  ontime: "on time",
  slow: "nearly late",
  late: "late",
  verylate: "very late",
  unknown: "no watermark",
  finished: "finished",
};

/**
 * The newest event time that any watermark has passed; null when none has a time.
 *
 * @param {Iterable<import("./types.js").Computation>} computations
 * @returns {number | null}
 */
export function newest(computations) {
  let found = null;
  for (const each of computations) {
    for (const { micros } of [each.low, ...each.shares.map((share) => share.watermark)]) {
      if (micros !== null && (found === null || micros > found)) found = micros;
    }
  }
  return found;
}

/**
 * What to count lag from.
 *
 * @param {Iterable<import("./types.js").Computation>} computations
 * @param {number} now
 * @param {"clock" | "data" | ""} chosen By the viewer; empty: whichever says more.
 * @returns {Reference}
 */
export function reference(computations, now, chosen) {
  const front = newest(computations);
  const data = chosen === "data" || (chosen === "" && front !== null && now - front > REPLAY_SECONDS * 1e6);
  return data && front !== null ? { name: "data", micros: front } : { name: "clock", micros: now };
}

/**
 * Seconds behind the reference; null for what has no time.
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
 * How long a lag is drawn, from 0 to 1: by its logarithm, with "late" at two thirds, so that seconds and days both show.
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
 * What stands in the place of the last report when there is none.
 *
 * @param {import("./types.js").Range} range
 * @returns {string}
 */
export function unheard(range) {
  return range.state === "never claimed" ? "never" : "not since the authority restarted";
}

/**
 * Whether an owner has not been heard of for too long, by the authority's clock. Of one never heard of nobody knows. One that has ended has said so.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @returns {boolean}
 */
export function silent(range, now) {
  const { state, ended, last_report_micros: last } = range;
  return state === "owned" && !ended && last !== 0 && now - last > SILENT_SECONDS * 1e6;
}

/**
 * What is wrong with an owner, in a word.
 *
 * @param {import("./types.js").Range} range
 * @param {number} now
 * @returns {"" | "silent" | "stopped" | "failed"} Empty: nothing, or it has no owner.
 */
export function trouble(range, now) {
  if (range.ended) return range.failure ? "failed" : "stopped";
  return silent(range, now) ? "silent" : "";
}
