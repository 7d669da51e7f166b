import { cellPaths, rows, cursorAfterKey } from "/static/model/heat.js";
import { address, promisedNames, belongsTo } from "/static/model/promise.js";
import { EMPTY, replace } from "/static/model/board.js";
import { judge } from "/static/model/verdict.js";
import { NOW, SECOND, computation, equal } from "./check.js";

const PROMISE = { late_seconds: 60, owner: "ana", team: "billing", runbook: "", logs: "" };

/** @param {any} [from] */
function verdicts(from = "") {
  const computations = [computation("a", 100), computation("b", 100, { promise: PROMISE }), computation("c", "unknown")];
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations });
  return judge(board, NOW, { late: 1800, from });
}

export function the_worst_row_is_the_one_most_times_as_far_behind_as_is_late_of_it() {
  const answer = { from_micros: NOW - 180 * SECOND, column_seconds: 60, total: 4, lags: { a: [1000, 900, null], b: [1, 100, 200], c: [null, null, null], other: [9999, 0, 0] } };
  const { verdicts: known_ } = verdicts();
  const found = rows(answer, known_, NOW);
  equal(found.map(({ verdict, worst, lateSeconds }) => [verdict.computation.name, worst, lateSeconds]), [["b", 2, 120], ["a", 0, 0], ["c", -1, 0]]);
}

export function in_a_replay_lag_is_counted_from_the_newest_data() {
  const day = 86_400;
  const answer = { from_micros: NOW - 120 * SECOND, column_seconds: 60, total: 1, lags: { a: [day + 40, day + 130] } };
  const { verdicts: found } = verdicts("data");
  for (const each of found.values()) each.from = { name: "data", micros: NOW - day * SECOND };
  equal(rows(answer, found, NOW)[0].lags, [100, 130]);
  // The last column has not ended yet.
  equal(rows(answer, found, NOW - 30 * SECOND)[0].lags, [100, 160]);
}

export function what_was_promised_is_held_by_the_clock_in_a_replay_too() {
  const old = 8 * 86_400;
  const computations = [computation("a", old), computation("b", old, { promise: PROMISE })];
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations });
  const judged = (/** @type {any} */ from) => ["a", "b"].map((name) => judge(board, NOW, { late: 1800, from }).verdicts.get(name));
  const said = (/** @type {any} */ from) => judged(from).map((each) => [each?.level, each?.lag]);
  equal(said(""), [["ontime", 0], ["verylate", old]]);
  equal(said("data"), [["ontime", 0], ["ontime", 0]]);
  const answer = { from_micros: NOW - 60 * SECOND, column_seconds: 60, total: 2, lags: { a: [old], b: [old] } };
  const { verdicts: found } = judge(board, NOW, { late: 1800, from: "" });
  equal(rows(answer, found, NOW).map(({ verdict, lags }) => [verdict.computation.name, lags]), [["b", [old]], ["a", [0]]]);
}

export function a_cell_is_higher_the_further_behind() {
  const paths = cellPaths([1, null, 900, 1800, 8000], 1800);
  equal([...paths.keys()], ["ontime", "slow", "late", "verylate"]);
  const tops = [...paths.values()].map((path) => Number(/V([\d.]+)h/.exec(path)?.[1]));
  equal(tops, [...tops].sort((a, b) => b - a));
  equal(paths.get("late")?.slice(0, 4), "M3 1");
}

export function keys_move_over_the_map_and_stop_at_its_edges() {
  const size = { rows: 3, columns: 60 };
  const at = { row: 0, column: 59 };
  equal(["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Home", "End", "a"].map((key) => cursorAfterKey(key, at, size)),
    [[0, 59], [1, 59], [0, 58], [0, 59], [0, 0], [0, 59], null].map((to) => (Array.isArray(to) ? { row: to[0], column: to[1] } : null)));
}

export function what_was_promised_decides_what_is_late() {
  const { verdicts: found } = verdicts();
  equal(["a", "b"].map((name) => [found.get(name)?.late, found.get(name)?.level]), [[1800, "ontime"], [60, "late"]]);
}

export function an_address_is_one_of_the_web_with_all_filled_in() {
  const worker = { worker: "exec 7&x=1", host: "node-4/../a" };
  equal(address("https://logs/?q=a&w={worker}&h={host}", worker), "https://logs/?q=a&w=exec%207%26x%3D1&h=node-4%2F..%2Fa");
  equal(address("https://logs/?w={worker}", { worker: "", host: "b" }), "");
  equal(address("https://logs/?w={worker}"), "");
  equal([".", "..", "..."].map((name) => address("https://logs/{worker}/{host}", { worker: name, host: "b" })), ["", "", "https://logs/.../b"]);
  equal(address("http://wiki/late"), "http://wiki/late");
  equal(["javascript:alert(1)", "JavaScript:alert(1)//https://x", "data:text/html,x", "//wiki", "wiki", "", "https://", "file:///etc/passwd"].map((each) => address(each)),
    ["", "", "", "", "", "", "", ""]);
  equal(address("{worker}:alert(1)", { worker: "javascript", host: "" }), "");
}

export function an_owner_sees_what_is_theirs() {
  const [a, b] = [computation("a", 1), computation("b", 1, { promise: PROMISE })];
  equal([{ team: "", owner: "" }, { team: "billing", owner: "" }, { team: "billing", owner: "bob" }].map((route) => [belongsTo(a, route), belongsTo(b, route)]),
    [[true, true], [false, true], [false, false]]);
  equal([promisedNames([a, b], "team"), promisedNames([a, b], "owner"), promisedNames([a], "team")], [["billing"], ["ana"], []]);
}

export function what_is_far_behind_comes_last_and_is_not_called_late() {
  const year = 365 * 86_400;
  const computations = [computation("history", 13 * year), computation("live", 1)];
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations });
  const { verdicts: found } = judge(board, NOW, { late: 1800, from: "" });
  const answer = { from_micros: NOW - 60 * SECOND, column_seconds: 60, total: 2, lags: { history: [13 * year], live: [1] } };
  equal(rows(answer, found, NOW).map(({ verdict }) => verdict.computation.name), ["live", "history"]);
  equal([...cellPaths([13 * year], 1800, true).keys()], ["far"]);
}
