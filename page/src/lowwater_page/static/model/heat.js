/** The heat map: how far each computation was behind over time, in units of its own threshold. */

import { extent, levelOf } from "./lag.js";

/** @typedef {import("./lag.js").Level} Level */
/** @typedef {import("./verdict.js").Verdict} Verdict */

/**
 * As the API has it. Lags are in seconds behind the clock, null where no time was known.
 *
 * @typedef {{from_micros: number, column_seconds: number, since_micros: number, total: number,
 *   lags: Record<string, (number | null)[]>}} Answer Lags over time. A lag is in seconds behind the
 *   clock, null where no watermark was known.
 */

/**
 * @typedef {object} Row
 * @property {Verdict} verdict
 * @property {(number | null)[]} lags Largest lag in each column, in seconds behind the reference of
 *   its verdict; null: no watermark was known.
 * @property {number} worst Index of the column with the largest lag; -1: none has a lag.
 * @property {number} lateSeconds Seconds for which it was late, in whole columns.
 */

/**
 * Returns the rows, largest lag in units of its threshold first, and what is far behind last.
 *
 * @param {Answer} answer
 * @param {Map<string, Verdict>} verdicts Computations that are shown.
 * @param {number} now
 * @returns {Row[]}
 */
export function rows({ from_micros: start, column_seconds: column, lags }, verdicts, now) {
  /** @type {(Row & {times: number})[]} */
  const result = [];
  for (const [name, clockLags] of Object.entries(lags)) {
    const verdict = verdicts.get(name);
    if (verdict === undefined) continue;
    const { from } = verdict;
    // Distance from the reference to the clock at the end of a column; the last column has not
    // ended yet.
    const end = (/** @type {number} */ index) => Math.min(start + (index + 1) * column * 1e6, now);
    const ahead = (/** @type {number} */ index) => (from.name === "clock" ? 0 : (end(index) - from.micros) / 1e6);
    const ownLags = clockLags.map((lag, index) => (lag === null ? null : Math.max(0, lag - ahead(index))));
    const most = ownLags.reduce((a, b) => Math.max(a ?? -1, b ?? -1), -1) ?? -1;
    const lateSeconds = ownLags.filter((lag) => lag !== null && lag >= verdict.late).length * column;
    result.push({ verdict, lags: ownLags, worst: most < 0 ? -1 : ownLags.indexOf(most), lateSeconds, times: verdict.level === "far" ? -Infinity : most / verdict.late });
  }
  return result.sort((a, b) => b.times - a.times || (a.verdict.computation.name < b.verdict.computation.name ? -1 : 1));
}

/** Part of a cell's width that is drawn; the rest is the gap. */
const FULL = 0.9;
/** Smallest height of a cell with a lag; 1 is the height of the row. */
const LEAST = 0.16;

/**
 * Draws the cells of a row as SVG paths, one for each level, in a picture with a unit of width per
 * column and a height of 1. A larger lag is higher, so that colour does not say it alone.
 *
 * @param {(number | null)[]} lags
 * @param {number} late
 * @param {boolean} [far] True for a computation that is far behind: it has no other level.
 * @returns {Map<Level, string>}
 */
export function cellPaths(lags, late, far = false) {
  /** @type {Map<Level, string>} */
  const paths = new Map();
  lags.forEach((lag, column) => {
    if (lag === null) return;
    const level = far ? "far" : levelOf(lag, late);
    const top = (1 - Math.max(LEAST, extent(lag, late))).toFixed(3);
    paths.set(level, `${paths.get(level) ?? ""}M${column} 1V${top}h${FULL}V1z`);
  });
  return paths;
}

/** @typedef {{row: number, column: number}} Cursor */

/**
 * Returns where a key moves the cursor.
 *
 * @param {string} key
 * @param {Cursor} at
 * @param {{rows: number, columns: number}} size
 * @returns {Cursor | null} Null: the key moves nothing.
 */
export function cursorAfterKey(key, { row, column }, { rows: many, columns }) {
  const to = (/** @type {number} */ y, /** @type {number} */ x) => ({
    row: Math.min(Math.max(0, y), many - 1),
    column: Math.min(Math.max(0, x), columns - 1),
  });
  switch (key) {
    case "ArrowUp":
      return to(row - 1, column);
    case "ArrowDown":
      return to(row + 1, column);
    case "ArrowLeft":
      return to(row, column - 1);
    case "ArrowRight":
      return to(row, column + 1);
    case "Home":
      return to(row, 0);
    case "End":
      return to(row, columns - 1);
    default:
      return null;
  }
}
