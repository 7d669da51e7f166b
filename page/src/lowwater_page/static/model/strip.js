/** The key-range strip: the key space as a bar, in the order of the keys. */

import { order } from "./culprit.js";

/** @typedef {import("./types.js").Range} Range */

/**
 * A cell of the strip.
 *
 * @typedef {object} Cell
 * @property {Range} range Range of the cell with the lowest watermark.
 * @property {number} count Number of ranges in the cell.
 * @property {number} first Index of its first range, in the order of the keys.
 * @property {boolean} gap True when ranges that are not listed, because they are further ahead, lie
 *   between the cell before and this one.
 */

/**
 * @param {Range} a
 * @param {Range} b
 * @returns {number} Order by key: hexadecimal text sorts as the bytes do.
 */
function byKey(a, b) {
  return a.start < b.start ? -1 : a.start > b.start ? 1 : 0;
}

/**
 * Divides ranges into as many cells as fit: neighbours share a cell, and the one furthest behind
 * stands for it.
 *
 * @param {Range[]} ranges Ranges, furthest behind first; perhaps not all.
 * @param {number} room Number of cells that fit.
 * @returns {Cell[]}
 */
export function cells(ranges, room) {
  const sorted = [...ranges].sort(byKey);
  const size = Math.max(1, Math.ceil(sorted.length / Math.max(1, room)));
  /** @type {Cell[]} */
  const result = [];
  for (let first = 0; first < sorted.length; first += size) {
    const group = sorted.slice(first, first + size);
    const range = group.reduce((worst, range) => (order(range.watermark) < order(worst.watermark) ? range : worst));
    const before = first ? sorted[first - 1].end : "";
    result.push({ range, count: group.length, first, gap: group[0].start !== before });
  }
  return result;
}

/**
 * Returns true when both are the same key range.
 *
 * @param {Range | null | undefined} a
 * @param {Range | null | undefined} b
 */
export function same(a, b) {
  return a != null && b != null && a.start === b.start && a.end === b.end;
}

/**
 * Returns the index of the cell to which a key moves.
 *
 * @param {string} key Key as the event names it.
 * @param {number} at
 * @param {number} count
 * @returns {number | null} Null: the key moves nothing.
 */
export function indexAfterKey(key, at, count) {
  switch (key) {
    case "ArrowRight":
    case "ArrowDown":
      return Math.min(count - 1, at + 1);
    case "ArrowLeft":
    case "ArrowUp":
      return Math.max(0, at - 1);
    case "Home":
      return 0;
    case "End":
      return count - 1;
    default:
      return null;
  }
}
