/** Computations that are drawn together, as one box: those of a team, or those whose names begin alike. */

import { badness, kind } from "./verdict.js";

/** @typedef {import("./types.js").Computation} Computation */
/** @typedef {import("./verdict.js").Verdict} Verdict */

/** What stands for the team of those that nobody has promised anything of. */
export const NO_TEAM = "no team";
/** In front of a group in the name of its box. No computation is called so. */
const BOX = "group:";

/**
 * Which group a computation is in.
 *
 * @param {Computation} computation
 * @param {"name" | "team"} by By name: the part before the first `.`, `/` or `-`.
 * @returns {string}
 */
export function groupOf({ name, promise }, by) {
  if (by === "team") return promise?.team || NO_TEAM;
  return name.split(/[./-]/, 1)[0] || name;
}

/**
 * What is drawn: computations, and groups that are closed.
 *
 * @typedef {object} Gathered
 * @property {Map<string, string>} at The box that each computation is in: its own, which is called as it is, or its group's.
 * @property {Map<string, {group: string, names: string[]}>} groups The closed ones, by the name of their box.
 * @property {string} shape What a layout depends on: boxes and what they read, as JSON.
 */

/**
 * Puts computations into the boxes that are drawn. A group of one is drawn as that one.
 *
 * @param {Map<string, Computation>} computations
 * @param {"" | "name" | "team"} by Empty: each has its own box.
 * @param {string[]} open Groups whose computations are drawn.
 * @returns {Gathered}
 */
export function gather(computations, by, open) {
  /** @type {Map<string, string[]>} */
  const members = new Map();
  if (by !== "") {
    for (const each of computations.values()) {
      const group = groupOf(each, by);
      if (open.includes(group)) continue;
      const known = members.get(group);
      if (known === undefined) members.set(group, [each.name]);
      else known.push(each.name);
    }
  }
  /** @type {Gathered["groups"]} */
  const groups = new Map();
  const at = new Map([...computations.keys()].map((name) => [name, name]));
  for (const [group, names] of members) {
    if (names.length === 1) continue;
    groups.set(BOX + group, { group, names });
    for (const name of names) at.set(name, BOX + group);
  }
  /** @type {Map<string, Set<string>>} */
  const read = new Map();
  for (const { name, inputs } of computations.values()) {
    const box = /** @type {string} */ (at.get(name));
    const found = read.get(box) ?? new Set();
    for (const input of inputs) {
      const other = at.get(input);
      if (other !== undefined && other !== box) found.add(other);
    }
    read.set(box, found);
  }
  return { at, groups, shape: JSON.stringify([...read].map(([box, inputs]) => [box, [...inputs]])) };
}

/**
 * A group in short: who is worst in it, and how many are late or stuck.
 *
 * @param {string[]} names At least one.
 * @param {Map<string, Verdict>} verdicts
 * @returns {{worst: Verdict, late: number, stuck: number}}
 */
export function inShort(names, verdicts) {
  const members = names.map((name) => /** @type {Verdict} */ (verdicts.get(name)));
  const count = (/** @type {string} */ one) => members.filter((each) => kind(each) === one).length;
  return { worst: members.reduce((a, b) => (badness(b) > badness(a) ? b : a)), late: count("late"), stuck: count("stuck") };
}
