/**
 * Places hundreds of computations at once: in layers, so that what is read stands before what reads it, each layer folded into as many
 * columns as fill the room best. O(sweeps * (boxes + edges)); what dagre takes seconds for, at prettier lines, takes this some milliseconds.
 */

import { BETWEEN, MARGIN, curve, side } from "./graph.js";

/** How often a layer is put into the order of what is next to it: more changes little. */
const SWEEPS = 6;
/** Pixels between boxes of one layer. */
const GAP = 12;
/** Pixels between the columns of one layer. */
const FOLD = 18;

/**
 * The layer of each box: behind all that it reads. A circle, as two versions of a graph may make for a moment, is cut where it comes back.
 *
 * @param {Map<string, string[]>} inputs
 * @returns {string[][]} Boxes by layer; in each, what is read by the same stands together.
 */
function ranked(inputs) {
  /** @type {Map<string, number>} */
  const ranks = new Map();
  for (const name of inputs.keys()) {
    const pending = [name];
    const begun = new Set();
    while (pending.length > 0) {
      const here = pending[pending.length - 1];
      const missing = begun.has(here) ? [] : (inputs.get(here) ?? []).filter((input) => !ranks.has(input) && !begun.has(input));
      begun.add(here);
      if (missing.length > 0) {
        pending.push(...missing.reverse());
        continue;
      }
      pending.pop();
      if (!ranks.has(here)) ranks.set(here, 1 + Math.max(-1, ...(inputs.get(here) ?? []).map((input) => ranks.get(input) ?? -1)));
    }
  }
  /** @type {string[][]} */
  const layers = [];
  for (const [name, rank] of ranks) {
    while (layers.length <= rank) layers.push([]);
    layers[rank].push(name);
  }
  return layers;
}

/**
 * Brings each layer into the order of what its boxes read, then of what reads them, and so on: lines get short and cross less.
 *
 * @param {string[][]} layers
 * @param {Map<string, string[]>} inputs
 */
function order(layers, inputs) {
  /** @type {Map<string, string[]>} */
  const readers = new Map();
  for (const name of inputs.keys()) readers.set(name, []);
  for (const [name, read] of inputs) for (const input of read) readers.get(input)?.push(name);
  /** @type {Map<string, number>} Between 0 and 1 within its layer. */
  const place = new Map();
  const settle = (/** @type {string[]} */ layer) => layer.forEach((name, index) => place.set(name, (index + 0.5) / layer.length));
  layers.forEach(settle);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const [along, near] = sweep % 2 ? [[...layers].reverse(), readers] : [layers, inputs];
    for (const layer of along) {
      const wanted = new Map(
        layer.map((name) => {
          const next = near.get(name) ?? [];
          const own = place.get(name) ?? 0;
          return [name, next.length === 0 ? own : next.reduce((sum, each) => sum + (place.get(each) ?? 0), 0) / next.length];
        }),
      );
      layer.sort((a, b) => (wanted.get(a) ?? 0) - (wanted.get(b) ?? 0));
      settle(layer);
    }
  }
}

/**
 * How many boxes stand side by side across the graph for it to be seen largest.
 *
 * @param {number[]} sizes Of the layers.
 * @param {{along: number, across: number}} step From box to box, in pixels.
 * @param {{along: number, across: number}} room In pixels.
 * @returns {number}
 */
function folded(sizes, step, room) {
  let best = 1;
  let largest = 0;
  for (let across = 1; across <= Math.max(1, ...sizes); across += 1) {
    const columns = sizes.reduce((sum, size) => sum + Math.ceil(size / across), 0);
    const scale = Math.min(room.along / (columns * step.along), room.across / (across * step.across));
    if (scale > largest) [best, largest] = [across, scale];
  }
  return best;
}

/**
 * @param {string} of As `shape` of model/graph.js gives it.
 * @param {{width: number, height: number}} box Of one, in pixels.
 * @param {boolean} down From top to bottom instead of left to right.
 * @param {{width: number, height: number}} room To be filled, in pixels.
 * @returns {import("./graph.js").Layout}
 */
export function layered(of, box, down, room) {
  /** @type {Map<string, string[]>} */
  const inputs = new Map(JSON.parse(of));
  for (const [name, read] of inputs) inputs.set(name, read.filter((input) => inputs.has(input)));
  const layers = ranked(inputs);
  order(layers, inputs);
  const [long, wide] = down ? [box.height, box.width] : [box.width, box.height];
  const step = { along: long + FOLD, across: wide + GAP };
  const lengths = down ? { along: room.height, across: room.width } : { along: room.width, across: room.height };
  const most = folded(layers.map((layer) => layer.length), step, lengths);
  /** @type {Map<string, {x: number, y: number}>} Centres. */
  const centres = new Map();
  let along = MARGIN;
  let across = 0;
  for (const layer of layers) {
    const columns = Math.ceil(layer.length / most);
    const rows = Math.ceil(layer.length / columns);
    layer.forEach((name, index) => {
      const a = along + Math.floor(index / rows) * step.along + long / 2;
      const b = MARGIN + ((most - rows) / 2 + (index % rows)) * step.across + wide / 2;
      centres.set(name, down ? { x: b, y: a } : { x: a, y: b });
      across = Math.max(across, b + wide / 2 + MARGIN);
    });
    along += (columns - 1) * step.along + long + BETWEEN;
  }
  const length = layers.length === 0 ? 0 : along - BETWEEN + MARGIN;
  const edges = [...inputs].flatMap(([to, read]) =>
    read.map((from) => {
      const [a, b] = [from, to].map((name) => /** @type {{x: number, y: number}} */ (centres.get(name)));
      return { from, to, path: curve([side(a, box, down, 1), side(b, box, down, -1)], down) };
    }),
  );
  return {
    width: Math.ceil(down ? across : length),
    height: Math.ceil(down ? length : across),
    nodes: [...centres].map(([name, { x, y }]) => ({ name, x: Math.round(x - box.width / 2), y: Math.round(y - box.height / 2) })),
    edges,
  };
}
