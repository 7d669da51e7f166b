/** The heat map: how far everything was behind over a time, by what counts as late of each. */

import { extent, levelOf } from "./lag.js";

/** @typedef {import("./lag.js").Level} Level */
/** @typedef {import("./verdict.js").Verdict} Verdict */

/**
 * As the API has it. Lags are in seconds behind the clock, null where no time was known.
 *
 * @typedef {{from_micros: number, column_seconds: number, since_micros: number, total: number, lags: Record<string, (number | null)[]>}} Answer
 */

/**
 * @typedef {object} Row
 * @property {Verdict} verdict
 * @property {(number | null)[]} lags The greatest in each column, in seconds behind what its lag is counted from.
 * @property {number} worst Which column has the greatest; -1: none has any.
 * @property {number} lateSeconds How long it was late, in whole columns.
 */

/**
 * The rows, those worst that were the most times as far behind as is late of them.
 *
 * @param {Answer} answer
 * @param {Map<string, Verdict>} verdicts Of what is shown.
 * @param {number} now
 * @returns {Row[]}
 */
export function rows({ from_micros: start, column_seconds: column, lags }, verdicts, now) {
  /** @type {(Row & {times: number})[]} */
  const found = [];
  for (const [name, given] of Object.entries(lags)) {
    const verdict = verdicts.get(name);
    if (verdict === undefined) continue;
    const { from } = verdict;
    // How far the clock was ahead of that at the end of a column; the last one has not ended yet.
    const end = (/** @type {number} */ index) => Math.min(start + (index + 1) * column * 1e6, now);
    const ahead = (/** @type {number} */ index) => (from.name === "clock" ? 0 : (end(index) - from.micros) / 1e6);
    const own = given.map((lag, index) => (lag === null ? null : Math.max(0, lag - ahead(index))));
    const most = own.reduce((a, b) => Math.max(a ?? -1, b ?? -1), -1) ?? -1;
    const lateSeconds = own.filter((lag) => lag !== null && lag >= verdict.late).length * column;
    found.push({ verdict, lags: own, worst: most < 0 ? -1 : own.indexOf(most), lateSeconds, times: most / verdict.late });
  }
  return found.sort((a, b) => b.times - a.times || (a.verdict.computation.name < b.verdict.computation.name ? -1 : 1));
}

/** Of a cell's width, what is drawn. */
const FULL = 0.9;
/** The least height of a cell that has a lag at all. */
const LEAST = 0.16;

/**
 * The cells of a row as SVG paths, one for each level, in a picture as wide as there are columns, and 1 high. What is further behind is higher, so
 * that colour is not alone.
 *
 * @param {(number | null)[]} lags
 * @param {number} late
 * @returns {Map<Level, string>}
 */
export function drawn(lags, late) {
  /** @type {Map<Level, string>} */
  const paths = new Map();
  lags.forEach((lag, column) => {
    if (lag === null) return;
    const level = levelOf(lag, late);
    const top = (1 - Math.max(LEAST, extent(lag, late))).toFixed(3);
    paths.set(level, `${paths.get(level) ?? ""}M${column} 1V${top}h${FULL}V1z`);
  });
  return paths;
}

/** @typedef {{row: number, column: number}} Cursor */

/**
 * Where a key moves the cursor.
 *
 * @param {string} key
 * @param {Cursor} at
 * @param {{rows: number, columns: number}} size
 * @returns {Cursor | null} Null: it is none of those that move.
 */
export function stepped(key, { row, column }, { rows: many, columns }) {
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
