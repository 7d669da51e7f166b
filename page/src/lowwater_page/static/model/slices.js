/**
 * Computations that are cut into slices, each served by its own shard. Only the watermark of the
 * whole is the computation's.
 */

/** Name of a slice: its computation, "~" and a number. Other names have no "~". */
const SLICE = /^([^~]+)~(\d{1,3})$/;

/**
 * Returns the computation of which this name is a slice.
 *
 * @param {string} name
 * @returns {string} Empty: it is no slice.
 */
export function sliceOf(name) {
  return SLICE.exec(name)?.[1] ?? "";
}

/**
 * Lists the slices of each cut computation, in the order of their keys.
 *
 * @param {Iterable<string>} names
 * @returns {Map<string, string[]>}
 */
export function slicesOf(names) {
  /** @type {Map<string, string[]>} */
  const result = new Map();
  for (const name of names) {
    const root = sliceOf(name);
    if (root === "") continue;
    const slices = result.get(root);
    if (slices === undefined) result.set(root, [name]);
    else slices.push(name);
  }
  const number = (/** @type {string} */ name) => Number(SLICE.exec(name)?.[2]);
  for (const slices of result.values()) slices.sort((a, b) => number(a) - number(b));
  return result;
}

/**
 * Returns all but the slices, which the page shows with their computation.
 *
 * @template T
 * @param {Map<string, T>} all By name.
 * @returns {Map<string, T>}
 */
export function wholes(all) {
  const result = [...all].filter(([name]) => !all.has(sliceOf(name)));
  return result.length === all.size ? all : new Map(result);
}
