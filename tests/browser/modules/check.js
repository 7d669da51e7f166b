/** What the tests of modules say. */

/**
 * @param {unknown} found
 * @param {unknown} wanted
 */
export function equal(found, wanted) {
  const [a, b] = [found, wanted].map((value) => JSON.stringify(value, (_, each) => (each === undefined ? "undefined" : each)));
  if (a !== b) throw new Error(`found ${a}, wanted ${b}`);
}

/**
 * @param {unknown} value
 * @param {string} what
 */
export function ok(value, what) {
  if (!value) throw new Error(what);
}

export const NOW = Date.UTC(2026, 10, 21, 13, 43, 11) * 1000;
export const SECOND = 1e6;
export const MINUTE = 60 * SECOND;

/**
 * A watermark so far behind NOW.
 *
 * @param {number | "unknown" | "finished"} seconds
 */
export function mark(seconds) {
  return typeof seconds === "number" ? { micros: NOW - seconds * SECOND, state: "time" } : { micros: null, state: seconds };
}

/**
 * A key range.
 *
 * @param {Partial<import("/static/model/types.js").Range>} [given]
 */
export function range(given = {}) {
  return {
    start: "40",
    end: "44",
    label: "[0x40, 0x44)",
    watermark: mark(1),
    state: "owned",
    worker: "exec-7",
    host: "node-4",
    sequencer: "1",
    since_micros: NOW - SECOND,
    last_report_micros: NOW - SECOND,
    claimed_micros: 0,
    waiting_for: "",
    holdback_micros: 0,
    ended: false,
    failure: "",
    untimed_rows: 0,
    ...given,
  };
}

/**
 * A computation.
 *
 * @param {string} name
 * @param {number | "unknown" | "finished"} behind
 * @param {Partial<import("/static/model/types.js").Computation>} [given]
 */
export function computation(name, behind, given = {}) {
  return {
    name,
    registered: true,
    estimated: false,
    incarnation: 1,
    epoch: 1,
    low: mark(behind),
    shares: [],
    inputs: [],
    ranges: 1,
    since_micros: NOW - SECOND,
    oldest_operation_micros: 0,
    local_lag_seconds: null,
    global_lag_seconds: null,
    holder: range({ watermark: mark(behind) }),
    ...given,
  };
}
