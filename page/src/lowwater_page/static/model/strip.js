/** The key-range strip: the key space as a bar, in the order of the keys. */

import { order } from "./culprit.js";

/** @typedef {import("./types.js").Range} Range */

/**
 * A cell of the strip.
 *
 * @typedef {object} Cell
 * @property {Range} range The one furthest behind of those in the cell.
 * @property {number} count How many it stands for.
 * @property {number} first Index of its first range, in the order of the keys.
 * @property {boolean} gap Whether ranges that are not listed, as they are further ahead, lie between the last cell and this.
 */

/**
 * @param {Range} a
 * @param {Range} b
 * @returns {number} Order of keys: bytes as hexadecimal sort as the bytes do.
 */
function byKey(a, b) {
  return a.start < b.start ? -1 : a.start > b.start ? 1 : 0;
}

/**
 * Cells for ranges, as many as there is room for: neighbours share one, which stands for the one furthest behind.
 *
 * @param {Range[]} ranges Furthest behind first; perhaps not all of them.
 * @param {number} room How many cells fit.
 * @returns {Cell[]}
 */
export function cells(ranges, room) {
  const sorted = [...ranges].sort(byKey);
  const each = Math.max(1, Math.ceil(sorted.length / Math.max(1, room)));
  /** @type {Cell[]} */
  const found = [];
  for (let first = 0; first < sorted.length; first += each) {
    const group = sorted.slice(first, first + each);
    const range = group.reduce((worst, one) => (order(one.watermark) < order(worst.watermark) ? one : worst));
    const before = first ? sorted[first - 1].end : "";
    found.push({ range, count: group.length, first, gap: group[0].start !== before });
  }
  return found;
}

/**
 * Whether two are the same key range.
 *
 * @param {Range | null | undefined} a
 * @param {Range | null | undefined} b
 * @returns {boolean}
 */
export function same(a, b) {
  return a != null && b != null && a.start === b.start && a.end === b.end;
}

/**
 * Moves along the cells by a key of the keyboard.
 *
 * @param {string} key As the event names it.
 * @param {number} at
 * @param {number} count
 * @returns {number | null} Null when the key is not one that moves.
 */
export function moved(key, at, count) {
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
