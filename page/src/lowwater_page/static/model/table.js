/** Rows of the table: which, in which order, and which of them must be in the document. */

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

/** Number of rows beyond which only those in sight are in the document. */
export const VIRTUAL_ROWS = 150;
/** Number of rows in the document above and below those in sight, so that Tab finds the next. */
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
 * @param {string} sort Column; with `-` in front, descending; empty: worst first.
 * @param {string} column
 * @returns {"ascending" | "descending" | "none"} Value of the heading's `aria-sort`.
 */
export function direction(sort, column) {
  if ((sort || "state") === column) return "ascending";
  return sort === `-${column}` ? "descending" : "none";
}

/**
 * @param {string} sort
 * @param {string} column
 * @returns {string} Order after a click on the column's heading.
 */
export function turned(sort, column) {
  const next = direction(sort, column) === "ascending" ? `-${column}` : column;
  return next === "state" ? "" : next;
}

/**
 * @param {Iterable<Verdict>} verdicts
 * @param {string} sort
 * @returns {Verdict[]} Rows that are equal in the column are sorted by name.
 */
export function sorted(verdicts, sort) {
  const by = BY[sort.replace(/^-/, "")] ?? BY.state;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...verdicts].sort((a, b) => sign * (by(a, b) || 0) || BY.name(a, b));
}

/**
 * Returns true when the name of a computation, or the root cause, worker, host or key range that
 * holds it, matches a query.
 *
 * @param {Verdict} verdict
 * @param {string} query Words that must all match.
 */
export function matches({ computation, range, guilty }, query) {
  return includesAll([computation.name, guilty, range?.worker, range?.host, range?.label].join(" "), query);
}

/**
 * Lists what a search found, in the order in which Enter goes from one to the next: names first,
 * then those whose own worker, host or key range matches, then those that such a one holds.
 *
 * @param {Verdict[]} rows What matches, in the order of the table.
 * @param {string} query
 * @returns {string[]} Names.
 */
export function found(rows, query) {
  const rank = (/** @type {Verdict} */ { computation: { name }, guilty }) => (includesAll(name, query) ? 0 : guilty === name ? 1 : 2);
  return [...rows].sort((a, b) => rank(a) - rank(b)).map(({ computation }) => computation.name);
}

/**
 * @param {string} text
 * @param {string} query
 * @returns {boolean} True when each word of the query is in the text.
 */
function includesAll(text, query) {
  return query.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
}

/**
 * Returns the rows that must be in the document.
 *
 * @param {number} rows Number of all rows.
 * @param {number} top Pixels by which they are scrolled.
 * @param {number} height Pixels of them that are in sight.
 * @param {number} row Pixels of one row's height.
 * @returns {{first: number, last: number}} Indexes; `last` is excluded.
 */
export function visible(rows, top, height, row) {
  const first = Math.min(Math.max(0, Math.floor(top / row) - OVERSCAN), Math.max(0, rows - 1));
  return { first, last: Math.min(rows, Math.ceil((top + height) / row) + OVERSCAN) };
}
