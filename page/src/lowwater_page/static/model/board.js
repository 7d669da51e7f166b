/** State of the page: the authority's last values. Immutable: every event makes a new board. */

/**
 * @typedef {object} Board
 * @property {Map<string, import("./types.js").Computation>} computations Computations by name,
 *   sorted.
 * @property {number} time Authority's clock at the last event, in microseconds.
 * @property {number | null} staleFor Age of the values at that time, in seconds; null: never heard.
 * @property {import("./types.js").Away | null} away
 * @property {string} version
 * @property {import("./types.js").Snapshot["shards"]} shards
 * @property {number} changes Number of snapshots and changes; when it grows, answers are out of
 *   date.
 */

/** @type {Board} */
export const EMPTY = { computations: new Map(), time: 0, staleFor: null, away: null, version: "", shards: [], changes: 0 };

/**
 * @param {Iterable<import("./types.js").Computation>} computations
 * @returns {Map<string, import("./types.js").Computation>}
 */
function byName(computations) {
  const sorted = [...computations].sort((a, b) => (a.name < b.name ? -1 : 1));
  return new Map(sorted.map((computation) => [computation.name, computation]));
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
  const allListed = event.computations.every((computation) => computations.has(computation.name));
  for (const computation of event.computations) computations.set(computation.name, computation);
  for (const name of event.removed) computations.delete(name);
  if (!allListed) computations = byName(computations.values());
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
