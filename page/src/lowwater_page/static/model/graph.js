/** The pipeline graph: which computations are drawn, and where. */

import dagre from "../vendor/dagre.js";
import { ranked, way } from "./verdict.js";

/** Computations up to which all are drawn, unless the viewer says otherwise. */
const WHOLE = 500;
/** How many are drawn when what matters is. */
export const PART = 40;

/** @typedef {import("./types.js").Computation} Computation */
/** @typedef {{name: string, x: number, y: number}} Node Its upper left corner, in pixels. */
/** @typedef {{from: string, to: string, path: string}} Edge `path` as SVG has it. */
/** @typedef {{nodes: Node[], edges: Edge[], width: number, height: number}} Layout */

/**
 * Who reads what.
 *
 * @param {Map<string, Computation>} computations
 * @returns {Map<string, string[]>} Readers by name.
 */
export function readers(computations) {
  /** @type {Map<string, string[]>} */
  const found = new Map();
  for (const { name, inputs } of computations.values()) {
    for (const input of inputs) {
      const known = found.get(input);
      if (known === undefined) found.set(input, [name]);
      else known.push(name);
    }
  }
  return found;
}

/** What is drawn: what matters, everything, or groups by name or team. @typedef {"worst" | "all" | "name" | "team"} Kind */

/**
 * What is drawn of a pipeline.
 *
 * @param {Kind | ""} asked By the viewer; empty: whichever says more.
 * @param {number} size How many computations there are.
 * @returns {Kind}
 */
export function drawing(asked, size) {
  return asked || (size <= WHOLE ? "all" : "worst");
}

/**
 * The computations to draw when not all are: what was asked for, what is worst, who is to blame for it, the way between, and then their
 * neighbours, as far as there is room.
 *
 * @param {Map<string, import("./verdict.js").Verdict>} verdicts
 * @param {string[]} wanted Searched or selected.
 * @returns {string[]} Sorted by name, so that the same set is the same list.
 */
export function chosen(verdicts, wanted) {
  const computations = new Map([...verdicts].map(([name, { computation }]) => [name, computation]));
  const reading = readers(computations);
  const seeds = wanted.length ? wanted : ranked(verdicts.values()).map(({ computation }) => computation.name);
  /** @type {Set<string>} */
  const found = new Set();
  for (const seed of seeds.slice(0, PART)) {
    for (const name of [seed, ...way(seed, verdicts)]) if (found.size < PART && verdicts.has(name)) found.add(name);
    if (!wanted.length && found.size >= PART / 2) break;
  }
  for (const name of [...found]) {
    for (const next of [...(computations.get(name)?.inputs ?? []), ...(reading.get(name) ?? [])]) {
      if (found.size < PART && verdicts.has(next)) found.add(next);
    }
  }
  return [...found].sort();
}

/**
 * What a layout depends on: while it stays the same, so does the layout.
 *
 * @param {string[]} names
 * @param {Map<string, Computation>} computations
 * @returns {string}
 */
export function shape(names, computations) {
  return JSON.stringify(names.map((name) => [name, computations.get(name)?.inputs ?? []]));
}

/** Pixels between two ranks of a graph that goes from left to right, and around it. */
export const BETWEEN = 44;
export const MARGIN = 3;

/**
 * How wide a graph will be that goes from left to right, without placing it. O(computations + edges).
 *
 * @param {string} of As `shape` gives it.
 * @param {number} width Of one computation, in pixels.
 * @returns {number} Pixels.
 */
export function breadth(of, width) {
  /** @type {Map<string, string[]>} */
  const inputs = new Map(JSON.parse(of));
  /** @type {Map<string, number>} */
  const ranks = new Map();
  /** @type {(name: string) => number} */
  const rank = (name) => {
    const known = ranks.get(name);
    if (known !== undefined) return known;
    ranks.set(name, 0); // groups may read each other, though computations cannot
    const found = 1 + Math.max(0, ...(inputs.get(name) ?? []).filter((input) => inputs.has(input)).map(rank));
    ranks.set(name, found);
    return found;
  };
  const most = Math.max(0, ...[...inputs.keys()].map(rank));
  return most * width + Math.max(0, most - 1) * BETWEEN + 2 * MARGIN;
}

/** The node that leads to every source, drawn nowhere. No computation has this id. */
const ORIGIN = " ";
/**
 * The id of a computation's node. Dagre keeps ids as keys of plain objects, where `constructor` and `__proto__` are taken.
 *
 * @param {string} name
 * @returns {string}
 */
const idOf = (name) => `:${name}`;
/** @type {(id: string) => string} */
const nameOf = (id) => id.slice(1);
/** How much more the lines from there weigh than others, so that they are kept short. */
const FIRST = 1000;

/**
 * Places computations so that what is read stands before what reads it. What reads nothing stands first, not right before its first reader.
 *
 * @param {string} of As `shape` gives it.
 * @param {{width: number, height: number}} box Of one computation, in pixels.
 * @param {boolean} down From top to bottom instead of left to right.
 * @returns {Layout}
 */
export function layout(of, box, down) {
  /** @type {any} The library is vendored without its types. */
  const graph = new /** @type {any} */ (dagre).graphlib.Graph();
  graph.setGraph({ rankdir: down ? "TB" : "LR", nodesep: down ? 10 : 18, ranksep: down ? 26 : BETWEEN, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  /** @type {[string, string[]][]} */
  const nodes = JSON.parse(of);
  const known = new Set(nodes.map(([name]) => name));
  graph.setNode(ORIGIN, { width: 0, height: 0 });
  for (const name of known) graph.setNode(idOf(name), { ...box });
  for (const [name, inputs] of nodes) {
    const read = inputs.filter((input) => known.has(input));
    for (const input of read) graph.setEdge(idOf(input), idOf(name));
    if (read.length === 0) graph.setEdge(ORIGIN, idOf(name), { weight: FIRST });
  }
  // Of groups that read each other none is a source: one of them stands first all the same.
  const led = new Set([ORIGIN]);
  const lead = () => {
    for (const from of led) for (const to of graph.successors(from)) led.add(to); // a set also gives what is added meanwhile
  };
  lead();
  for (const name of known) {
    if (led.has(idOf(name))) continue;
    graph.setEdge(ORIGIN, idOf(name), { weight: FIRST });
    led.add(idOf(name));
    lead();
  }
  dagre.layout(graph);
  const skipped = nodes.length ? (down ? 26 : BETWEEN) : 0;
  for (const name of [...known]) {
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
    nodes: [...known].map((/** @type {string} */ name) => {
      const { x, y } = graph.node(idOf(name));
      return { name, x: Math.round(x - box.width / 2), y: Math.round(y - box.height / 2) };
    }),
    edges: edges.map((/** @type {{v: string, w: string}} */ { v, w }) => {
      // Lines leave and arrive in the middle of a side. Past other boxes, where dagre has kept room, they go straight; every
      // second of its points lies there, the others between two ranks.
      /** @type {{x: number, y: number}[]} */
      const bends = graph.edge(v, w).points.slice(1, -1);
      const past = bends.filter((_, index) => index % 2);
      const through = past.flatMap((point) => [side(point, box, down, -1), side(point, box, down, 1)]);
      const points = [side(graph.node(v), box, down, 1), ...through, side(graph.node(w), box, down, -1)];
      return { from: nameOf(v), to: nameOf(w), path: curve(points, down) };
    }),
  };
}

/**
 * The middle of the side of a box that faces along the graph (1) or against it (-1).
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
 * A smooth line through points, which leaves and arrives along the direction of the graph.
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
