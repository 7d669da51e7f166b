/** What operators promised of a computation: whose it is, and where its logs and its runbook are. All of it is text that others chose. */

/** @typedef {import("./types.js").Computation} Computation */

/**
 * An address that may be followed: only of the web, so that no text of others runs in the page.
 *
 * @param {string} template With `{worker}` and `{host}` in it, or not.
 * @param {{worker: string, host: string} | null} [range] Whose worker is meant.
 * @returns {string} Empty when there is none, it is no address of the web, or there is nobody to fill in.
 */
export function address(template, range = null) {
  let missing = false;
  const filled = template.replace(/\{(worker|host)\}/g, (_, /** @type {"worker" | "host"} */ name) => {
    const value = range?.[name] ?? "";
    missing ||= value === "" || value === "." || value === ".."; // the last two would lead to another folder
    return encodeURIComponent(value);
  });
  if (missing || !URL.canParse(filled)) return "";
  const found = new URL(filled);
  return found.protocol === "https:" || found.protocol === "http:" ? found.href : "";
}

/**
 * Whether a computation is of the team and the owner that are asked for.
 *
 * @param {Computation} computation
 * @param {{team: string, owner: string}} route Empty: of any.
 * @returns {boolean}
 */
export function owned({ promise }, { team, owner }) {
  return (!team || promise?.team === team) && (!owner || promise?.owner === owner);
}

/**
 * The teams or owners that there are.
 *
 * @param {Iterable<Computation>} computations
 * @param {"team" | "owner"} which
 * @returns {string[]} Sorted.
 */
export function known(computations, which) {
  const found = new Set([...computations].map(({ promise }) => promise?.[which] ?? ""));
  found.delete("");
  return [...found].sort();
}
