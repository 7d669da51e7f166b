/**
 * Places hundreds of computations in layers, each behind the layers of its inputs and folded into
 * the number of columns that fills the room best. O(sweeps * (boxes + edges)): milliseconds where
 * dagre, with prettier lines, takes seconds.
 */

import { BETWEEN, MARGIN, curve, side } from "./graph.js";

/** Number of passes that order the layers; more passes change little. */
const SWEEPS = 6;
/** Pixels between boxes of one layer. */
const GAP = 12;
/** Pixels between the columns of one layer. */
const FOLD = 18;

/**
 * Divides boxes into layers, each behind the layers of its inputs. A cycle, read while the graph
 * changed, is cut where the walk returns to its start.
 *
 * @param {Map<string, string[]>} inputs
 * @returns {string[][]} Boxes by layer; in each, inputs of the same reader stand together.
 */
function layersOf(inputs) {
  /** @type {Map<string, number>} */
  const ranks = new Map();
  for (const name of inputs.keys()) {
    const pending = [name];
    const visited = new Set();
    while (pending.length > 0) {
      const here = pending[pending.length - 1];
      const missing = visited.has(here) ? [] : (inputs.get(here) ?? []).filter((input) => !ranks.has(input) && !visited.has(input));
      visited.add(here);
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
 * Orders each layer by the places of its inputs, then of its readers, and so on: lines get shorter
 * and cross less.
 *
 * @param {string[][]} layers
 * @param {Map<string, string[]>} inputs
 */
function order(layers, inputs) {
  /** @type {Map<string, string[]>} */
  const readers = new Map();
  for (const name of inputs.keys()) readers.set(name, []);
  for (const [name, ownInputs] of inputs) for (const input of ownInputs) readers.get(input)?.push(name);
  /**
   * Place of a box within its layer, from 0 to 1.
   *
   * @type {Map<string, number>} Between 0 and 1 within its layer.
   */
  const place = new Map();
  const settle = (/** @type {string[]} */ layer) => layer.forEach((name, index) => place.set(name, (index + 0.5) / layer.length));
  layers.forEach(settle);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const [along, near] = sweep % 2 ? [[...layers].reverse(), readers] : [layers, inputs];
    for (const layer of along) {
      const targets = new Map(
        layer.map((name) => {
          const next = near.get(name) ?? [];
          const own = place.get(name) ?? 0;
          return [name, next.length === 0 ? own : next.reduce((sum, neighbour) => sum + (place.get(neighbour) ?? 0), 0) / next.length];
        }),
      );
      layer.sort((a, b) => (targets.get(a) ?? 0) - (targets.get(b) ?? 0));
      settle(layer);
    }
  }
}

/**
 * Returns the number of boxes across the graph with which it is shown largest.
 *
 * @param {number[]} sizes Number of boxes of each layer.
 * @param {{along: number, across: number}} step Distance from box to box in pixels.
 * @param {{along: number, across: number}} room Size of the frame in pixels.
 * @returns {number}
 */
function boxesAcross(sizes, step, room) {
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
 * Places boxes in layers.
 *
 * @param {string} key Result of `shape` of model/graph.js.
 * @param {{width: number, height: number}} box Size of one box in pixels.
 * @param {boolean} down True: from top to bottom; false: from left to right.
 * @param {{width: number, height: number}} room Size to fill, in pixels.
 * @returns {import("./graph.js").Layout}
 */
export function layoutInLayers(key, box, down, room) {
  /** @type {Map<string, string[]>} */
  const inputs = new Map(JSON.parse(key));
  for (const [name, ownInputs] of inputs) inputs.set(name, ownInputs.filter((input) => inputs.has(input)));
  const layers = layersOf(inputs);
  order(layers, inputs);
  const [long, wide] = down ? [box.height, box.width] : [box.width, box.height];
  const step = { along: long + FOLD, across: wide + GAP };
  const lengths = down ? { along: room.height, across: room.width } : { along: room.width, across: room.height };
  const perColumn = boxesAcross(layers.map((layer) => layer.length), step, lengths);
  /** @type {Map<string, {x: number, y: number}>} Centres. */
  const centres = new Map();
  let along = MARGIN;
  let across = 0;
  for (const layer of layers) {
    const columns = Math.ceil(layer.length / perColumn);
    const rows = Math.ceil(layer.length / columns);
    layer.forEach((name, index) => {
      const a = along + Math.floor(index / rows) * step.along + long / 2;
      const b = MARGIN + ((perColumn - rows) / 2 + (index % rows)) * step.across + wide / 2;
      centres.set(name, down ? { x: b, y: a } : { x: a, y: b });
      across = Math.max(across, b + wide / 2 + MARGIN);
    });
    along += (columns - 1) * step.along + long + BETWEEN;
  }
  const length = layers.length === 0 ? 0 : along - BETWEEN + MARGIN;
  const edges = [...inputs].flatMap(([to, ownInputs]) =>
    ownInputs.map((from) => {
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
