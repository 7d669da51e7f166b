import { gather, groupOf, sumUp } from "/static/model/groups.js";
import { kindToDraw } from "/static/model/graph.js";
import { layoutInLayers } from "/static/model/layers.js";
import { EMPTY, replace } from "/static/model/board.js";
import { judge } from "/static/model/verdict.js";
import { NOW, computation, equal, ok } from "./check.js";

const BOX = { width: 216, height: 64 };
const ROOM = { width: 1240, height: 620 };

function estate() {
  const promise = (/** @type {string} */ team) => ({ promise: { late_seconds: 0, owner: "", team, runbook: "", logs: "" } });
  return [
    computation("orders.raw", 2, promise("shop")),
    computation("orders.clean", 4000, { inputs: ["orders.raw"], ...promise("shop") }),
    computation("billing/bills", 3, { inputs: ["orders.clean", "billing/rates"], ...promise("money") }),
    computation("billing/rates", 1, promise("money")),
    computation("report", 5, { inputs: ["billing/bills", "orders.clean", "missing"] }),
  ];
}

/** @param {any[]} computations */
function byName(computations) {
  return new Map(computations.map((each) => [each.name, each]));
}

export function a_group_is_a_team_or_what_a_name_begins_with() {
  equal(["orders.raw", "billing/rates", "a-b.c", "plain", ".hidden", "a_b"].map((name) => groupOf(computation(name, 1), "name")),
    ["orders", "billing", "a", "plain", ".hidden", "a_b"]);
  equal(estate().map((each) => groupOf(each, "team")), ["shop", "shop", "money", "money", "no team"]);
}

export function a_closed_group_is_one_box_that_reads_what_its_members_read() {
  const { at, groups, shape } = gather(byName(estate()), "name", []);
  equal([...groups.values()].map(({ group, names }) => [group, names.length]), [["orders", 2], ["billing", 2]]);
  equal(JSON.parse(shape), [["group:orders", []], ["group:billing", ["group:orders"]], ["report", ["group:billing", "group:orders"]]]);
  equal(at.get("orders.raw"), at.get("orders.clean"));
}

export function an_open_group_is_drawn_in_full() {
  const { groups, shape } = gather(byName(estate()), "name", ["billing"]);
  equal([...groups.keys()], ["group:orders"]);
  equal(new Map(JSON.parse(shape)).get("billing/bills"), ["group:orders", "billing/rates"]);
  equal(gather(byName(estate()), "", []).groups.size, 0);
}

export function a_group_is_as_bad_as_its_worst() {
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations: estate() });
  const { verdicts } = judge(board, NOW, { late: 1800, from: "" });
  const { worst, late, stuck } = sumUp(["orders.raw", "orders.clean"], verdicts);
  equal([worst.computation.name, worst.level, late, stuck], ["orders.clean", "late", 1, 0]);
}

export function the_whole_graph_is_drawn_of_hundreds_and_what_matters_of_thousands() {
  equal([kindToDraw("", 300), kindToDraw("", 1000), kindToDraw("all", 1000), kindToDraw("team", 3)], ["all", "worst", "all", "team"]);
}

/** @param {number} count */
function many(count) {
  return Array.from({ length: count }, (_, i) => [`c${i}`, i < count / 6 ? [] : [`c${i >> 1}`, `c${i >> 2}`]]);
}

export function layers_hold_hundreds_of_boxes_without_overlap() {
  for (const down of [false, true]) {
    const { nodes, edges, width, height } = layoutInLayers(JSON.stringify(many(300)), BOX, down, ROOM);
    equal([nodes.length, edges.length], [300, 500]);
    const at = new Map(nodes.map((node) => [node.name, node]));
    for (const { from, to } of edges) {
      const [a, b] = [from, to].map((name) => /** @type {any} */ (at.get(name)));
      ok(down ? a.y + BOX.height < b.y : a.x + BOX.width < b.x, `${from} is not before ${to}`);
    }
    nodes.forEach((a, index) => {
      ok(a.x >= 0 && a.y >= 0 && a.x + BOX.width <= width && a.y + BOX.height <= height, `${a.name} is outside`);
      const over = nodes.slice(0, index).find((b) => Math.abs(a.x - b.x) < BOX.width && Math.abs(a.y - b.y) < BOX.height);
      ok(!over, `${a.name} lies on ${over?.name}`);
    });
  }
}

export function layers_fill_their_room() {
  const { width, height } = layoutInLayers(JSON.stringify(many(300)), BOX, false, ROOM);
  const scale = Math.min(ROOM.width / width, ROOM.height / height);
  ok(scale * BOX.height >= 18, `a box is ${scale * BOX.height} pixels high`);
  const alone = layoutInLayers(JSON.stringify(Array.from({ length: 1000 }, (_, i) => [`c${i}`, []])), BOX, false, ROOM);
  const ratio = alone.width / alone.height;
  ok(ratio > 1.4 && ratio < 2.9, `1,000 that read nothing are ${ratio} times as wide as high`);
}

export function layers_end_in_a_circle_too_and_for_nothing() {
  const { nodes, edges } = layoutInLayers(JSON.stringify([["a", ["b"]], ["b", ["c"]], ["c", ["a", "missing"]]]), BOX, false, ROOM);
  equal([nodes.length, edges.length], [3, 3]);
  equal(layoutInLayers("[]", BOX, false, ROOM), { width: 0, height: 0, nodes: [], edges: [] });
}

export function layers_of_thousands_are_placed_at_once() {
  const began = performance.now();
  layoutInLayers(JSON.stringify(many(1000)), BOX, false, ROOM);
  const taken = performance.now() - began;
  ok(taken < 2000, `1,000 took ${taken} ms`); // some 60 on a quiet machine
}
