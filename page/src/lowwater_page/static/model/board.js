/** The state of the page: what the authority has said, and since when. Immutable: every event gives a new one. */

/**
 * @typedef {object} Board
 * @property {Map<string, import("./types.js").Computation>} computations By name, sorted.
 * @property {number} time When the authority said it, by its clock.
 * @property {number | null} staleFor How old the values were then, in seconds; null: nothing was ever heard.
 * @property {import("./types.js").Away | null} away
 * @property {string} version
 * @property {import("./types.js").Snapshot["shards"]} shards
 * @property {number} changes Counts what came, so that questions can be asked again.
 */

/** @type {Board} */
export const EMPTY = { computations: new Map(), time: 0, staleFor: null, away: null, version: "", shards: [], changes: 0 };

/**
 * @param {Iterable<import("./types.js").Computation>} computations
 * @returns {Map<string, import("./types.js").Computation>}
 */
function byName(computations) {
  const sorted = [...computations].sort((a, b) => (a.name < b.name ? -1 : 1));
  return new Map(sorted.map((each) => [each.name, each]));
}

/**
 * @param {Board} board
 * @param {import("./types.js").Snapshot} snapshot
 * @returns {Board}
 */
export function replace(board, snapshot) {
  return {
    computations: byName(snapshot.computations),
    time: snapshot.time_micros,
    staleFor: snapshot.stale_for,
    away: snapshot.away ?? null,
    version: snapshot.version,
    shards: snapshot.shards,
    changes: board.changes + 1,
  };
}

/**
 * @param {Board} board
 * @param {import("./types.js").Changes} event
 * @returns {Board}
 */
export function change(board, event) {
  let computations = new Map(board.computations);
  const known = event.computations.every((each) => computations.has(each.name));
  for (const each of event.computations) computations.set(each.name, each);
  for (const name of event.removed) computations.delete(name);
  if (!known) computations = byName(computations.values());
  return { ...beat(board, event), computations, changes: board.changes + 1 };
}

/**
 * @param {Board} board
 * @param {{time_micros: number, stale_for: number | null, away?: import("./types.js").Away | null}} event
 * @returns {Board}
 */
export function beat(board, event) {
  return { ...board, time: event.time_micros, staleFor: event.stale_for, away: event.away ?? null };
}
