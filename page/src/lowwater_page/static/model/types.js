/**
 * What the API says, as types. All times are integer microseconds since the Unix epoch, UTC.
 *
 * @typedef {{micros: number | null, state: "unknown" | "time" | "finished"}} Watermark
 *
 * @typedef {object} Range A key range `[start, end)`.
 * @property {string} start Hexadecimal; empty: no bound.
 * @property {string} end Hexadecimal; empty: no bound.
 * @property {string} label As the command line writes it.
 * @property {Watermark} watermark
 * @property {"never claimed" | "owned" | "unowned" | "finished" | "retired"} state
 * @property {string} worker
 * @property {string} host
 * @property {number | string} sequencer
 * @property {number} since_micros Since when it has stood at this watermark; 0 when nobody knows.
 * @property {number} last_report_micros 0 when there was none.
 * @property {string} waiting_for What its worker says that it waits for: text that others chose. Empty: nothing.
 * @property {number} holdback_micros Event time by which its worker stays below its inputs by design; 0: none, or not known.
 * @property {boolean} ended Whether its worker has ended, as its last report says.
 * @property {string} failure First line of the error that ended it: text that others chose. Empty: it was stopped in good order.
 * @property {number} untimed_rows Number of rows without an event time that its worker has read.
 *
 * @typedef {object} Computation
 * @property {string} name
 * @property {boolean} registered
 * @property {boolean} estimated
 * @property {number} incarnation
 * @property {number} epoch
 * @property {Watermark} low
 * @property {{share: number, watermark: Watermark, came_behind?: number | null}[]} shares Largest share first; with the share of all records that
 *   came behind it, where somebody tells.
 * @property {string[]} inputs
 * @property {number} ranges
 * @property {number} since_micros When the low watermark moved last.
 * @property {number} oldest_operation_micros
 * @property {number | null} local_lag_seconds Behind the least of its inputs.
 * @property {number | null} global_lag_seconds Behind the least of its roots.
 * @property {Range | null} holder
 * @property {Promised | null} [promise] What was promised of it; null or absent: nothing.
 * @property {Budget[]} [budgets] Its lateness budgets, least first.
 *
 * @typedef {object} Promised Text that others chose; empty where nothing was said.
 * @property {number | null} late_seconds What counts as late; null: nothing was said of it.
 * @property {string} owner
 * @property {string} team
 * @property {string} runbook An address.
 * @property {string} logs An address, with `{worker}` and `{host}` to be filled in.
 *
 * @typedef {object} Budget A watermark behind which at most about a share of the records comes, besides those excused.
 * @property {number} share
 * @property {Watermark} watermark
 * @property {number} records That came so far, in this incarnation.
 * @property {number} behind Those of them that came behind the watermark.
 * @property {number} excused Those of these that do not count.
 * @property {number} worst The worst share behind in any 10,000 of the last 100,000 records; 0 before there are as many.
 *
 * @typedef {object} Snapshot
 * @property {number} time_micros
 * @property {number | null} stale_for Seconds since the authority was last heard; null when it never was.
 * @property {Away | null} away
 * @property {string} version
 * @property {{address: string, draining: boolean, silent_seconds: number}[]} shards
 * @property {Computation[]} computations
 *
 * @typedef {object} Changes
 * @property {number} time_micros
 * @property {number | null} stale_for
 * @property {Away | null} away
 * @property {Computation[]} computations
 * @property {string[]} removed
 *
 * @typedef {{since_micros: number, sentence: string}} Away Since when no authority answers the page, and why; null while one does.
 */

export {};
