/** Promises that operators wrote down: owner, team, runbook, logs. All texts are untrusted. */

/** @typedef {import("./types.js").Computation} Computation */

/**
 * Fills in an address that the page may link to. Only http and https are allowed: a `javascript:`
 * address would run a stranger's text in the page.
 *
 * @param {string} template Address with or without `{worker}` and `{host}`.
 * @param {{worker: string, host: string} | null} [range] Key range whose worker and host are filled
 *   in.
 * @returns {string} Empty: no address, not http or https, or a placeholder without a value.
 */
export function address(template, range = null) {
  let missing = false;
  const filled = template.replace(/\{(worker|host)\}/g, (_, /** @type {"worker" | "host"} */ name) => {
    const value = range?.[name] ?? "";
    missing ||= value === "" || value === "." || value === ".."; // the last two would lead to another folder
    return encodeURIComponent(value);
  });
  if (missing || !URL.canParse(filled)) return "";
  const url = new URL(filled);
  return url.protocol === "https:" || url.protocol === "http:" ? url.href : "";
}

/**
 * Returns true when a computation has the team and the owner of the route.
 *
 * @param {Computation} computation
 * @param {{team: string, owner: string}} route Team and owner; empty: any.
 */
export function belongsTo({ promise }, { team, owner }) {
  return (!team || promise?.team === team) && (!owner || promise?.owner === owner);
}

/**
 * Lists all teams or owners, sorted.
 *
 * @param {Iterable<Computation>} computations
 * @param {"team" | "owner"} which
 * @returns {string[]}
 */
export function promisedNames(computations, which) {
  const names = new Set([...computations].map(({ promise }) => promise?.[which] ?? ""));
  names.delete("");
  return [...names].sort();
}
