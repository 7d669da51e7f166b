import { columns, extended, ticks } from "/static/model/history.js";
import { format, parse } from "/static/model/route.js";
import { cells, indexAfterKey, same } from "/static/model/strip.js";
import { direction, found, matches, sorted, turned, visible } from "/static/model/table.js";
import { EMPTY, replace } from "/static/model/board.js";
import { judge } from "/static/model/verdict.js";
import { NOW, SECOND, computation, equal, mark, ok, range } from "./check.js";

function verdicts() {
  const computations = [computation("a", 100), computation("b", 7200), computation("c", "unknown"), computation("d", "finished")];
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations });
  return [...judge(board, NOW, { late: 1800, from: "" }).verdicts.values()];
}

/** @param {any[]} found */
function names(found) {
  return found.map(({ computation: { name } }) => name).join("");
}

export function an_address_survives_its_way_through_text() {
  const home = { name: "", view: "graph", query: "", team: "", owner: "", late: 1800, from: "", only: "", sort: "", graph: "", open: [], span: "1h", zone: "utc" };
  const full = { ...home, view: "heat", team: "a&b", owner: "ana@example.org", graph: "team", open: ["a&b", "c d"], span: "7d", zone: "local" };
  for (const route of [home, full, { ...full, name: "shop/a b?%#", query: "exec-7 node", late: 10, from: "data", only: "stuck", sort: "-lag" }]) {
    equal(parse(format(route)), route);
  }
  equal(format({ name: "hourly" }), "#/c/hourly");
  equal(parse("#/?span=9y&zone=moon&graph=art&view=none"), home);
  equal(parse("#/c/%E0%A4%A").name, "%E0%A4%A");
  equal(parse("#/?late=soon&from=mars&only=some"), parse(""));
}

export function the_table_begins_with_the_worst() {
  equal(names(sorted(verdicts(), "")), "bcad");
  equal(names(sorted(verdicts(), "name")), "abcd");
  equal(names(sorted(verdicts(), "-name")), "dcba");
  equal(names(sorted(verdicts(), "lag")), "cbad");
  equal(names(sorted(verdicts(), "nonsense")), "bcad");
}

export function a_heading_sorts_one_way_and_then_the_other() {
  equal([direction("", "state"), direction("-lag", "lag"), direction("lag", "name")], ["ascending", "descending", "none"]);
  equal([turned("", "lag"), turned("lag", "lag"), turned("-lag", "lag"), turned("-state", "state")], ["lag", "-lag", "lag", ""]);
}

export function a_search_finds_by_name_worker_host_and_range() {
  const [a] = verdicts();
  equal(["a", "EXEC-7 node", "0x40", "exec-8"].map((query) => matches(a, query)), [true, true, true, false]);
}

export function a_search_leads_to_names_first_and_to_what_is_held_last() {
  const held = computation("held", 7201, { inputs: ["b"], holder: range({ watermark: mark(7201), worker: "other", host: "" }) });
  const named = computation("exec-7-report", 1);
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations: [computation("b", 7200), held, named] });
  const rows = sorted(judge(board, NOW, { late: 1800, from: "" }).verdicts.values(), "");
  equal(rows.map(({ computation: { name } }) => name), ["held", "b", "exec-7-report"]);
  equal(found(rows, "exec-7"), ["exec-7-report", "b", "held"]);
}

export function only_rows_in_sight_are_in_the_document() {
  equal(visible(1000, 0, 600, 50), { first: 0, last: 20 });
  equal(visible(1000, 25_000, 600, 50), { first: 492, last: 520 });
  equal(visible(1000, 49_400, 600, 50), { first: 980, last: 1000 });
  equal(visible(0, 0, 600, 50), { first: 0, last: 0 });
  equal(visible(3, 9000, 600, 50).last, 3);
}

export function cells_stand_in_the_order_of_keys_and_show_the_furthest_behind() {
  const ranges = Array.from({ length: 16 }, (_, i) => {
    const key = (/** @type {number} */ at) => (at % 16 === 0 ? "" : at.toString(16).padStart(2, "0"));
    return range({ start: key(i), end: key(i + 1), label: `${i}`, watermark: mark(i === 5 ? 900 : 1) });
  });
  const shuffled = [ranges[5], ...ranges.filter((_, i) => i !== 5).reverse()];
  equal(cells(shuffled, 100).map((cell) => cell.range.label), ranges.map(({ label }) => label));
  const four = cells(shuffled, 4);
  equal(four.map(({ count }) => count), [4, 4, 4, 4]);
  equal(four[1].range.label, "5");
  ok(four.every(({ gap }) => !gap), "a gap where there is none");
  equal(cells(shuffled.filter((_, i) => i !== 3), 100).filter(({ gap }) => gap).length, 1);
  equal(cells([], 10), []);
}

export function arrows_move_along_the_cells() {
  equal(["ArrowRight", "ArrowLeft", "Home", "End", "Tab"].map((key) => indexAfterKey(key, 2, 8)), [3, 1, 0, 7, null]);
  equal([indexAfterKey("ArrowLeft", 0, 8), indexAfterKey("ArrowRight", 7, 8)], [0, 7]);
  equal([same(range(), range()), same(range(), null), same(range(), range({ end: "45" }))], [true, false, false]);
}

export function samples_are_kept_for_an_hour() {
  /** @type {[number, number, null][]} */
  let samples = [];
  for (let i = 0; i < 1000; i += 1) samples = extended(samples, [NOW + i * SECOND, NOW, null], 5);
  equal(samples.length, 200);
  samples = extended(samples, [NOW + 3700 * SECOND, NOW, null], 5);
  ok(samples[0][0] >= NOW + 100 * SECOND, "older than an hour");
}

export function a_chart_shows_seconds_behind() {
  const samples = [[NOW, NOW - 5 * SECOND, null], [NOW + SECOND, null, NOW]];
  equal(columns(samples, { name: "clock", micros: NOW }), [[NOW / 1e6, NOW / 1e6 + 1], [5, null], [null, 1]]);
  equal(ticks(0, 2500, 5), [0, 600, 1200, 1800, 2400]);
  ok(ticks(0, 1e9, 5).length <= 6, "too many marks");
}
