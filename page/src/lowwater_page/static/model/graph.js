/** The pipeline graph: which computations are drawn, and where. */

import dagre from "../vendor/dagre.js";
import { ranked, way } from "./verdict.js";

/** Number of computations up to which all are drawn by default. */
const WHOLE = 500;
/** Number of computations drawn by the choice "what matters". */
export const PART = 40;

/** @typedef {import("./types.js").Computation} Computation */
/**
 * @typedef {{name: string, x: number, y: number}} Node Box with its upper left corner in pixels.
 */
/** @typedef {{from: string, to: string, path: string}} Edge Line with its path data for SVG. */
/** @typedef {{nodes: Node[], edges: Edge[], width: number, height: number}} Layout */

/**
 * Lists the readers of each computation.
 *
 * @param {Map<string, Computation>} computations
 * @returns {Map<string, string[]>} Readers by name.
 */
export function readers(computations) {
  /** @type {Map<string, string[]>} */
  const result = new Map();
  for (const { name, inputs } of computations.values()) {
    for (const input of inputs) {
      const names = result.get(input);
      if (names === undefined) result.set(input, [name]);
      else names.push(name);
    }
  }
  return result;
}

/**
 * What is drawn: what matters, everything, or groups by name or team.
 *
 * @typedef {"worst" | "all" | "name" | "team"} Kind
 */

/**
 * Chooses what is drawn of a pipeline.
 *
 * @param {Kind | ""} choice Choice of the viewer; empty: none.
 * @param {number} size Number of computations.
 * @returns {Kind}
 */
export function kindToDraw(choice, size) {
  return choice || (size <= WHOLE ? "all" : "worst");
}

/**
 * Chooses the computations to draw when not all are: the wanted ones or the worst, the way to their
 * root causes, and then their neighbours while there is room.
 *
 * @param {Map<string, import("./verdict.js").Verdict>} verdicts
 * @param {string[]} wanted Names that the viewer searched or selected.
 * @returns {string[]} Names, sorted, so that the same set gives the same layout.
 */
export function namesToDraw(verdicts, wanted) {
  const computations = new Map([...verdicts].map(([name, { computation }]) => [name, computation]));
  const readersOf = readers(computations);
  const seeds = wanted.length ? wanted : ranked(verdicts.values()).map(({ computation }) => computation.name);
  /** @type {Set<string>} */
  const names = new Set();
  for (const seed of seeds.slice(0, PART)) {
    for (const name of [seed, ...way(seed, verdicts)]) if (names.size < PART && verdicts.has(name)) names.add(name);
    if (!wanted.length && names.size >= PART / 2) break;
  }
  for (const name of [...names]) {
    for (const next of [...(computations.get(name)?.inputs ?? []), ...(readersOf.get(name) ?? [])]) {
      if (names.size < PART && verdicts.has(next)) names.add(next);
    }
  }
  return [...names].sort();
}

/**
 * Returns the key of a layout: names and inputs as JSON. The same shape gives the same layout.
 *
 * @param {string[]} names
 * @param {Map<string, Computation>} computations
 * @returns {string}
 */
export function shape(names, computations) {
  return JSON.stringify(names.map((name) => [name, computations.get(name)?.inputs ?? []]));
}

/** Pixels between two ranks of a graph from left to right. */
export const BETWEEN = 44;
export const MARGIN = 3;

/** Id of a hidden node in front of all sources; no computation has this id. */
const ORIGIN = " ";
/**
 * Returns the id of a computation's node. Dagre keeps ids as keys of plain objects, where
 * `constructor` and `__proto__` exist already.
 *
 * @param {string} name
 * @returns {string}
 */
const idOf = (name) => `:${name}`;
/** @type {(id: string) => string} */
const nameOf = (id) => id.slice(1);
/** Weight of the lines from the hidden node. Others weigh 1, so dagre keeps these short. */
const FIRST = 1000;

/**
 * Places computations so that inputs come before their readers. Sources come first, not right
 * before their first reader.
 *
 * @param {string} key Result of `shape`.
 * @param {{width: number, height: number}} box Size of one box in pixels.
 * @param {boolean} down True: from top to bottom; false: from left to right.
 * @returns {Layout}
 */
export function layout(key, box, down) {
  /** @type {any} The library is vendored without its types. */
  const graph = new /** @type {any} */ (dagre).graphlib.Graph();
  graph.setGraph({ rankdir: down ? "TB" : "LR", nodesep: down ? 10 : 18, ranksep: down ? 26 : BETWEEN, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  /** @type {[string, string[]][]} */
  const nodes = JSON.parse(key);
  const names = new Set(nodes.map(([name]) => name));
  graph.setNode(ORIGIN, { width: 0, height: 0 });
  for (const name of names) graph.setNode(idOf(name), { ...box });
  for (const [name, inputs] of nodes) {
    const drawnInputs = inputs.filter((input) => names.has(input));
    for (const input of drawnInputs) graph.setEdge(idOf(input), idOf(name));
    if (drawnInputs.length === 0) graph.setEdge(ORIGIN, idOf(name), { weight: FIRST });
  }
  // Groups may read each other, and then none of them is a source: lead to one of them.
  const reached = new Set([ORIGIN]);
  const reach = () => {
    for (const from of reached) for (const to of graph.successors(from)) reached.add(to); // a set also gives what is added meanwhile
  };
  reach();
  for (const name of names) {
    if (reached.has(idOf(name))) continue;
    graph.setEdge(ORIGIN, idOf(name), { weight: FIRST });
    reached.add(idOf(name));
    reach();
  }
  dagre.layout(graph);
  const skipped = nodes.length ? (down ? 26 : BETWEEN) : 0;
  for (const name of [...names]) {
    const node = graph.node(idOf(name));
    if (down) node.y -= skipped;
    else node.x -= skipped;
  }
  const edges = graph.edges().filter((/** @type {{v: string}} */ { v }) => v !== ORIGIN);
  for (const edge of edges) for (const point of graph.edge(edge).points) point[down ? "y" : "x"] -= skipped;
  const { width = 0, height = 0 } = nodes.length ? graph.graph() : {};
  return {
    width: Math.ceil(Math.max(width - (down ? 0 : skipped), 0)),
    height: Math.ceil(Math.max(height - (down ? skipped : 0), 0)),
    nodes: [...names].map((/** @type {string} */ name) => {
      const { x, y } = graph.node(idOf(name));
      return { name, x: Math.round(x - box.width / 2), y: Math.round(y - box.height / 2) };
    }),
    edges: edges.map((/** @type {{v: string, w: string}} */ { v, w }) => {
      // Lines leave and arrive at the middle of a side. Every second point of dagre lies in the gap
      // that it left between boxes, where the line goes straight; the others lie between two ranks.
      /** @type {{x: number, y: number}[]} */
      const bends = graph.edge(v, w).points.slice(1, -1);
      const straight = bends.filter((_, index) => index % 2);
      const through = straight.flatMap((point) => [side(point, box, down, -1), side(point, box, down, 1)]);
      const points = [side(graph.node(v), box, down, 1), ...through, side(graph.node(w), box, down, -1)];
      return { from: nameOf(v), to: nameOf(w), path: curve(points, down) };
    }),
  };
}

/**
 * Returns the middle of a box's side: along the graph (1) or against it (-1).
 *
 * @param {{x: number, y: number}} centre
 * @param {{width: number, height: number}} box
 * @param {boolean} down
 * @param {1 | -1} along
 * @returns {{x: number, y: number}}
 */
export function side({ x, y }, box, down, along) {
  return down ? { x, y: y + (along * box.height) / 2 } : { x: x + (along * box.width) / 2, y };
}

/**
 * Draws a smooth line that leaves and arrives along the direction of the graph.
 *
 * @param {{x: number, y: number}[]} points
 * @param {boolean} down
 * @returns {string}
 */
export function curve(points, down) {
  const round = (/** @type {number} */ value) => Math.round(value * 10) / 10;
  let path = `M${round(points[0].x)} ${round(points[0].y)}`;
  for (let i = 1; i < points.length; i += 1) {
    const [a, b] = [points[i - 1], points[i]];
    const [x, y] = [(a.x + b.x) / 2, (a.y + b.y) / 2];
    const bend = down ? [a.x, y, b.x, y] : [x, a.y, x, b.y];
    path += `C${[...bend, b.x, b.y].map(round).join(" ")}`;
  }
  return path;
}
