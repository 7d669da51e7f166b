/** Computations that are cut into slices, which are served one by one: only the whole's watermark is the computation's. */

/** A slice's name is that of what it is a slice of, "~" and a number. No other computation has a "~" in its name. */
const SLICE = /^([^~]+)~(\d{1,3})$/;

/**
 * What a computation is a slice of.
 *
 * @param {string} name
 * @returns {string} Empty: it is none.
 */
export function sliceOf(name) {
  return SLICE.exec(name)?.[1] ?? "";
}

/**
 * The slices of each computation that is cut.
 *
 * @param {Iterable<string>} names
 * @returns {Map<string, string[]>} In the order of their keys.
 */
export function slicesOf(names) {
  /** @type {Map<string, string[]>} */
  const found = new Map();
  for (const name of names) {
    const root = sliceOf(name);
    if (root === "") continue;
    const known = found.get(root);
    if (known === undefined) found.set(root, [name]);
    else known.push(name);
  }
  const number = (/** @type {string} */ name) => Number(SLICE.exec(name)?.[2]);
  for (const slices of found.values()) slices.sort((a, b) => number(a) - number(b));
  return found;
}

/**
 * All but the slices, which are shown with what they are slices of.
 *
 * @template T
 * @param {Map<string, T>} all By name.
 * @returns {Map<string, T>}
 */
export function wholes(all) {
  const found = [...all].filter(([name]) => !all.has(sliceOf(name)));
  return found.length === all.size ? all : new Map(found);
}
