/** What the charts draw: the lag of the last hour, day or week, and when steps of event time became complete. */

/** @typedef {"1h" | "6h" | "24h" | "7d"} Span */

/** How far back one may look, and how finely a heat map shows that. @type {{name: Span, words: string, seconds: number, step: number}[]} */
export const SPANS = [
  { name: "1h", words: "hour", seconds: 3600, step: 60 },
  { name: "6h", words: "6 hours", seconds: 6 * 3600, step: 300 },
  { name: "24h", words: "24 hours", seconds: 86_400, step: 900 },
  { name: "7d", words: "7 days", seconds: 7 * 86_400, step: 7200 },
];

/**
 * @param {Span} name
 */
export function spanOf(name) {
  return SPANS.find((each) => each.name === name) ?? SPANS[0];
}

/**
 * Samples as the API has them: time, low watermark, that of 99 % of the records lately seen.
 *
 * @typedef {[number, number | null, number | null]} Sample
 */

/** How long samples are kept, as by the authority. */
const KEPT_SECONDS = 3600;

/**
 * Adds what the page has heard itself, at the authority's step, and drops what is too old.
 *
 * @param {Sample[]} samples Oldest first.
 * @param {Sample} newest
 * @param {number} step Seconds between two.
 * @returns {Sample[]}
 */
export function extended(samples, newest, step) {
  const last = samples.at(-1);
  if (last !== undefined && newest[0] - last[0] < step * 1e6) return samples;
  const from = newest[0] - KEPT_SECONDS * 1e6;
  return [...samples.filter(([time]) => time >= from), newest];
}

/**
 * Columns for the chart: time in seconds, and how far each watermark was behind the clock then, in seconds. Against the newest
 * data of a replay there is no such curve to be had: the distance to that is counted from where it stands now.
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
 * Marks on an axis of lengths of time: at round seconds, minutes, hours or days.
 *
 * @param {number} least Seconds.
 * @param {number} most Seconds.
 * @param {number} room How many marks fit.
 * @returns {number[]}
 */
export function ticks(least, most, room) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400];
  const want = (most - least) / Math.max(1, room);
  const step = steps.find((each) => each >= want) ?? Math.ceil(want / 86_400) * 86_400;
  const found = [];
  for (let at = Math.ceil(least / step) * step; at <= most; at += step) found.push(at);
  return found;
}
