/** Groups of computations that are drawn as one box: by team, or by the beginning of the name. */

import { badness, kind } from "./verdict.js";

/** @typedef {import("./types.js").Computation} Computation */
/** @typedef {import("./verdict.js").Verdict} Verdict */

/** Group of the computations without a team. */
export const NO_TEAM = "no team";
/** Prefix of the name of a group's box; no computation has it. */
const BOX = "group:";

/**
 * Returns the group of a computation.
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
 * Boxes to draw: computations, and closed groups.
 *
 * @typedef {object} Gathered
 * @property {Map<string, string>} at Box of each computation: its own name, or its group's box.
 * @property {Map<string, {group: string, names: string[]}>} groups Closed groups by the name of
 *   their box.
 * @property {string} shape Key of the layout: boxes and their inputs as JSON.
 */

/**
 * Puts computations into boxes. A group with one member is drawn as that computation.
 *
 * @param {Map<string, Computation>} computations
 * @param {"" | "name" | "team"} by Empty: no groups.
 * @param {string[]} open Groups whose members are drawn one by one.
 * @returns {Gathered}
 */
export function gather(computations, by, open) {
  /** @type {Map<string, string[]>} */
  const members = new Map();
  if (by !== "") {
    for (const computation of computations.values()) {
      const group = groupOf(computation, by);
      if (open.includes(group)) continue;
      const names = members.get(group);
      if (names === undefined) members.set(group, [computation.name]);
      else names.push(computation.name);
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
  const inputBoxes = new Map();
  for (const { name, inputs } of computations.values()) {
    const box = /** @type {string} */ (at.get(name));
    const boxInputs = inputBoxes.get(box) ?? new Set();
    for (const input of inputs) {
      const other = at.get(input);
      if (other !== undefined && other !== box) boxInputs.add(other);
    }
    inputBoxes.set(box, boxInputs);
  }
  return { at, groups, shape: JSON.stringify([...inputBoxes].map(([box, inputs]) => [box, [...inputs]])) };
}

/**
 * Sums up a group: its worst member, and how many are late, stuck or failed.
 *
 * @param {string[]} names Members, at least one.
 * @param {Map<string, Verdict>} verdicts
 * @returns {{worst: Verdict, late: number, stuck: number, failed: number}}
 */
export function sumUp(names, verdicts) {
  const members = names.map((name) => /** @type {Verdict} */ (verdicts.get(name)));
  const count = (/** @type {string} */ wantedKind) => members.filter((verdict) => kind(verdict) === wantedKind).length;
  return { worst: members.reduce((a, b) => (badness(b) > badness(a) ? b : a)), late: count("late"), stuck: count("stuck"), failed: count("failed") };
}
