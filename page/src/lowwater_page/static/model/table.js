/** Which rows the table shows, in which order, and which of them need to be in the document. */

import { badness } from "./verdict.js";
import { order } from "./culprit.js";

/** @typedef {import("./verdict.js").Verdict} Verdict */

/** @type {Record<string, (a: Verdict, b: Verdict) => number>} */
const BY = {
  name: (a, b) => compare(a.computation.name, b.computation.name),
  state: (a, b) => badness(b) - badness(a),
  lag: (a, b) => order(a.computation.low) - order(b.computation.low),
  most: (a, b) => (b.most ?? -Infinity) - (a.most ?? -Infinity),
  inputs: (a, b) => (b.computation.local_lag_seconds ?? -1) - (a.computation.local_lag_seconds ?? -1),
  guilty: (a, b) => compare(a.guilty, b.guilty),
};

/** Rows beyond which only those in sight are in the document. */
export const VIRTUAL_ROWS = 150;
/** Rows kept above and below those in sight, so that Tab always finds the next. */
const OVERSCAN = 8;

/**
 * @template {string | number} T
 * @param {T} a
 * @param {T} b
 * @returns {number}
 */
function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

/**
 * @param {string} sort A column; with `-` in front, the other way round; empty: worst first.
 * @param {string} column
 * @returns {"ascending" | "descending" | "none"} As the heading says it.
 */
export function direction(sort, column) {
  if ((sort || "state") === column) return "ascending";
  return sort === `-${column}` ? "descending" : "none";
}

/**
 * @param {string} sort
 * @param {string} column
 * @returns {string} What a click on the column's heading sorts by.
 */
export function turned(sort, column) {
  const next = direction(sort, column) === "ascending" ? `-${column}` : column;
  return next === "state" ? "" : next;
}

/**
 * @param {Iterable<Verdict>} verdicts
 * @param {string} sort
 * @returns {Verdict[]} Of the same, by name.
 */
export function sorted(verdicts, sort) {
  const by = BY[sort.replace(/^-/, "")] ?? BY.state;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...verdicts].sort((a, b) => sign * (by(a, b) || 0) || BY.name(a, b));
}

/**
 * Whether a computation is meant: by its name, or by the worker, host or key range that holds it.
 *
 * @param {Verdict} verdict
 * @param {string} query Words that must all be found.
 * @returns {boolean}
 */
export function matches({ computation, range, guilty }, query) {
  const text = [computation.name, guilty, range?.worker, range?.host, range?.label].join(" ").toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/**
 * The rows that need to be in the document.
 *
 * @param {number} rows How many there are.
 * @param {number} top How far they are scrolled, in pixels.
 * @param {number} height How much of them is seen, in pixels.
 * @param {number} row Height of one, in pixels.
 * @returns {{first: number, last: number}} `last` is behind them.
 */
export function visible(rows, top, height, row) {
  const first = Math.min(Math.max(0, Math.floor(top / row) - OVERSCAN), Math.max(0, rows - 1));
  return { first, last: Math.min(rows, Math.ceil((top + height) / row) + OVERSCAN) };
}
