import { EMPTY, replace } from "/static/model/board.js";
import { PART, namesToDraw, layout, shape } from "/static/model/graph.js";
import { rows } from "/static/model/heat.js";
import { layoutInLayers } from "/static/model/layers.js";
import { judge } from "/static/model/verdict.js";
import { NOW, computation, equal, ok } from "./check.js";

const BOX = { width: 200, height: 90 };

/** @param {any[]} computations */
function verdicts(computations) {
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations });
  return judge(board, NOW, { late: 1800, from: "" }).verdicts;
}

function pipeline() {
  return [
    computation("hourly", 3, { inputs: ["enriched"] }),
    computation("enriched", 2, { inputs: ["flights", "missing"] }),
    computation("flights", 1),
  ];
}

export function what_is_read_stands_before_what_reads_it() {
  const computations = new Map(pipeline().map((each) => [each.name, each]));
  const of = shape([...computations.keys()], computations);
  for (const down of [false, true]) {
    const { nodes, edges } = layout(of, BOX, down);
    const at = new Map(nodes.map((node) => [node.name, down ? node.y : node.x]));
    equal(edges.map(({ from, to }) => [from, to]).sort(), [["enriched", "hourly"], ["flights", "enriched"]]);
    for (const { from, to } of edges) ok((at.get(from) ?? 0) + BOX.height < (at.get(to) ?? 0), `${from} is not before ${to}`);
  }
}

export function a_computation_may_have_the_name_of_anything_that_every_object_has() {
  const names = ["__proto__", "constructor", "hasOwnProperty", "prototype", "toString", "valueOf", "1"];
  const computations = new Map(names.map((name, i) => [name, computation(name, 1, { inputs: i ? [names[i - 1]] : [] })]));
  const of = shape(names, computations);
  for (const down of [false, true]) {
    const { nodes, edges } = layout(of, BOX, down);
    equal(nodes.map(({ name }) => name), names);
    equal(edges.map(({ from, to }) => [from, to]).sort(), names.slice(1).map((to, i) => [names[i], to]).sort());
    const at = new Map(nodes.map((node) => [node.name, down ? node.y : node.x]));
    for (const { from, to } of edges) ok((at.get(from) ?? 0) < (at.get(to) ?? 0), `${from} is not before ${to}`);
  }
  const found = layoutInLayers(of, BOX, true, { width: 900, height: 900 });
  equal(found.nodes.map(({ name }) => name).sort(), [...names].sort());
  const { verdicts: judged } = judge(replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations: [...computations.values()] }), NOW, { late: 1800, from: "" });
  equal(namesToDraw(judged, []).length, names.length);
  const lags = JSON.parse(`{${names.map((name) => `"${name}": [null, 1]`).join(", ")}}`);
  equal(rows({ from_micros: NOW - 60e6, column_seconds: 60, lags, total: names.length }, judged, NOW).length, names.length);
}

export function what_reads_nothing_stands_first_however_late_it_is_read() {
  const chain = Array.from({ length: 4 }, (_, i) => computation(`c${i}`, 1, { inputs: i ? [`c${i - 1}`] : [] }));
  const many = [...chain, computation("weather", 1), computation("storms", 1, { inputs: ["c2", "weather"] }), computation("alone", 1)];
  const of = shape(many.map(({ name }) => name), new Map(many.map((each) => [each.name, each])));
  for (const down of [false, true]) {
    const { nodes, edges } = layout(of, BOX, down);
    const at = new Map(nodes.map((node) => [node.name, down ? node.y : node.x]));
    equal(["weather", "alone"].map((name) => at.get(name)), [at.get("c0"), at.get("c0")]);
    equal([nodes.length, edges.length], [7, 5]);
  }
}

export function groups_that_read_each_other_are_drawn_from_the_edge() {
  const circle = [computation("bill", 1, { inputs: ["raw"] }), computation("raw", 1, { inputs: ["bill"] })];
  for (const many of [circle, [...circle, computation("weather", 1), computation("storms", 1, { inputs: ["weather"] })]]) {
    const of = shape(many.map(({ name }) => name), new Map(many.map((each) => [each.name, each])));
    for (const down of [false, true]) {
      const { nodes, width, height } = layout(of, BOX, down);
      ok(nodes.every(({ x, y }) => x >= 0 && y >= 0 && x + BOX.width <= width && y + BOX.height <= height), `outside of ${width} by ${height}: ${JSON.stringify(nodes)}`);
    }
  }
}

export function boxes_do_not_overlap() {
  const many = Array.from({ length: 60 }, (_, i) => computation(`c${i}`, 1, { inputs: i > 3 ? [`c${i >> 1}`, `c${i >> 2}`] : [] }));
  const { nodes, width, height } = layout(shape(many.map(({ name }) => name), new Map(many.map((each) => [each.name, each]))), BOX, false);
  for (const a of nodes) {
    ok(a.x >= 0 && a.y >= 0 && a.x + BOX.width <= width && a.y + BOX.height <= height, `${a.name} is outside`);
    const over = nodes.find((b) => b.name < a.name && Math.abs(a.x - b.x) < BOX.width && Math.abs(a.y - b.y) < BOX.height);
    ok(!over, `${a.name} lies on ${over?.name}`);
  }
}

export function of_a_large_pipeline_the_worst_and_its_neighbours_are_drawn() {
  const chain = Array.from({ length: 1000 }, (_, i) => computation(`c${i}`, 1 + i / 1e6, { inputs: i % 10 ? [`c${i - 1}`] : [] }));
  chain[503] = computation("c503", 7000, { inputs: ["c502"] });
  const drawn = namesToDraw(verdicts(chain), []);
  ok(drawn.length <= PART, `${drawn.length} are drawn`);
  for (const name of ["c502", "c503", "c504"]) ok(drawn.includes(name), `${name} is not drawn`);
}

export function what_is_searched_is_drawn_with_who_holds_it() {
  // What holds it is not registered: the way there is drawn, and what is next to that way.
  const found = namesToDraw(verdicts([...pipeline(), computation("storms", 1, { inputs: ["weather"] }), computation("weather", 1)]), ["hourly"]);
  equal(found, ["enriched", "flights", "hourly"]);
}

export function an_empty_graph_has_no_size() {
  const { nodes, edges, width, height } = layout("[]", BOX, false);
  equal([nodes, edges], [[], []]);
  ok(Number.isFinite(width) && Number.isFinite(height), `${width} by ${height}`);
}
