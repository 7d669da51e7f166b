/** Data of the charts: the lag of the last hour, day or week. */

/** @typedef {"1h" | "6h" | "24h" | "7d"} Span */

/**
 * Spans to choose from, and the seconds of a heat map's column.
 *
 * @type {{name: Span, words: string, seconds: number, step: number}[]}
 */
export const SPANS = [
  { name: "1h", words: "hour", seconds: 3600, step: 60 },
  { name: "6h", words: "6 hours", seconds: 6 * 3600, step: 300 },
  { name: "24h", words: "24 hours", seconds: 86_400, step: 900 },
  { name: "7d", words: "7 days", seconds: 7 * 86_400, step: 7200 },
];

/** @param {Span} name */
export function spanOf(name) {
  return SPANS.find((span) => span.name === name) ?? SPANS[0];
}

/**
 * Sample: time, low watermark, and the watermark of the largest share, all in microseconds; null:
 * unknown.
 *
 * @typedef {[number, number | null, number | null]} Sample
 */

/** Seconds for which samples are kept, as by the authority. */
const KEPT_SECONDS = 3600;

/**
 * Adds a sample that the page took itself, at the authority's step, and drops old samples.
 *
 * @param {Sample[]} samples Oldest first.
 * @param {Sample} newest
 * @param {number} step Seconds between two samples.
 * @returns {Sample[]}
 */
export function extended(samples, newest, step) {
  const last = samples.at(-1);
  if (last !== undefined && newest[0] - last[0] < step * 1e6) return samples;
  const from = newest[0] - KEPT_SECONDS * 1e6;
  return [...samples.filter(([time]) => time >= from), newest];
}

/**
 * Returns the columns of the chart: times in seconds, and how far each watermark was behind the
 * clock then, in seconds. In a replay they are behind the newest data of now: older values of that
 * are not kept.
 *
 * @param {Sample[]} samples
 * @param {import("./lag.js").Reference} from
 * @returns {[number[], (number | null)[], (number | null)[]]}
 */
export function columns(samples, from) {
  const behind = (/** @type {number} */ time, /** @type {number | null} */ mark) =>
    mark === null ? null : Math.max(0, ((from.name === "clock" ? time : from.micros) - mark) / 1e6);
  return [
    samples.map(([time]) => time / 1e6),
    samples.map(([time, low]) => behind(time, low)),
    samples.map(([time, , most]) => behind(time, most)),
  ];
}

/**
 * Chooses the marks of an axis of durations: round seconds, minutes, hours or days.
 *
 * @param {number} least Seconds.
 * @param {number} most Seconds.
 * @param {number} room Number of marks that fit.
 * @returns {number[]}
 */
export function ticks(least, most, room) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
  const ideal = (most - least) / Math.max(1, room);
  const step = steps.find((size) => size >= ideal) ?? Math.ceil(ideal / 86_400) * 86_400;
  const marks = [];
  for (let at = Math.ceil(least / step) * step; at <= most; at += step) marks.push(at);
  return marks;
}
