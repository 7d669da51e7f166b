/**
 * Types of the API's answers. All times are integer microseconds since the Unix epoch, UTC.
 *
 * @typedef {{micros: number | null, state: "unknown" | "time" | "finished"}} Watermark
 */

/**
 * @typedef {object} Range A key range `[start, end)`.
 * @property {string} start Lower bound in hexadecimal; empty: unbounded.
 * @property {string} end Upper bound in hexadecimal; empty: unbounded.
 * @property {string} label Name of the range, written as on the command line.
 * @property {Watermark} watermark
 * @property {"never claimed" | "owned" | "unowned" | "finished" | "retired"} state
 * @property {string} worker
 * @property {string} host
 * @property {number | string} sequencer
 * @property {number} since_micros Time at which it reached this watermark; 0: unknown.
 * @property {number} last_report_micros Time of the last report; 0: none yet.
 * @property {number} claimed_micros Time at which its owner claimed it; 0: unknown, or no owner.
 * @property {string} waiting_for What the worker reports to wait for, in its own words (untrusted
 *   text); empty: nothing.
 * @property {number} holdback_micros Event time by which the worker lags its inputs by design; 0:
 *   none, or unknown.
 * @property {boolean} ended True when the worker's last report says that it has ended.
 * @property {string} failure First line of the error that ended the worker (untrusted text); empty:
 *   none, or it was stopped in good order.
 * @property {number} untimed_rows Number of rows without an event time that the worker has read.
 */

/**
 * @typedef {object} Computation
 * @property {string} name
 * @property {boolean} registered
 * @property {boolean} estimated
 * @property {number} incarnation
 * @property {number} epoch
 * @property {Watermark} low
 * @property {{share: number, watermark: Watermark, came_behind?: number | null}[]} shares
 *   Watermarks of shares of the recent records, largest share first; `came_behind` is the share of
 *   all records that came behind it, null or absent when no worker reports that.
 * @property {string[]} inputs
 * @property {number} ranges
 * @property {number} since_micros Time at which the low watermark moved last; 0: never.
 * @property {number} oldest_operation_micros Start of the longest running operation; 0: none runs.
 * @property {number | null} local_lag_seconds Lag behind the lowest input; null: unknown.
 * @property {number | null} global_lag_seconds Lag behind the lowest root; null: unknown.
 * @property {Range | null} holder Key range with the lowest watermark; null: not published.
 * @property {Promised | null} [promise] Promise that operators wrote down; null or absent: none.
 * @property {Budget[]} [budgets] Lateness budgets, smallest share first.
 */

/**
 * @typedef {object} Promised A promise. Its texts are untrusted, and empty where the promise does
 *   not set them.
 * @property {number | null} late_seconds Lag from which the computation is late; null: not
 *   promised.
 * @property {string} owner
 * @property {string} team
 * @property {string} runbook URL.
 * @property {string} logs URL with the placeholders `{worker}` and `{host}`.
 */

/**
 * @typedef {object} Budget A watermark behind which at most about `share` of the records come,
 *   besides those excused.
 * @property {number} share
 * @property {Watermark} watermark
 * @property {number} records Number of records in this incarnation.
 * @property {number} behind Number of these records that came behind the watermark.
 * @property {number} excused Number of records behind the watermark that the budget does not count.
 * @property {number} worst Largest share behind in any 10,000 consecutive of the last 100,000
 *   records; 0 before there are that many.
 */

/**
 * @typedef {object} Snapshot
 * @property {number} time_micros
 * @property {number | null} stale_for Seconds since the authority was last heard; null: never
 *   heard.
 * @property {Away | null} away
 * @property {string} version
 * @property {{address: string, draining: boolean, silent_seconds: number}[]} shards
 * @property {Computation[]} computations
 */

/**
 * @typedef {object} Changes
 * @property {number} time_micros
 * @property {number | null} stale_for
 * @property {Away | null} away
 * @property {Computation[]} computations
 * @property {string[]} removed
 */

/**
 * @typedef {{since_micros: number, sentence: string}} Away Time since when no authority answers the
 *   page, and the reason.
 */

export {};
