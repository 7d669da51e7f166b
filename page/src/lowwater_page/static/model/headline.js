/** The root cause for the headline: names of computation, worker and host; ranges and ids below. */

import { activity } from "./culprit.js";

/** @typedef {import("./verdict.js").Verdict} Verdict */
/** @typedef {import("./types.js").Range} Range */

/** Id that a machine gave, such as that of a Spark query. */
const ID = /\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g;

/**
 * Names the worker of a key range, and its host, without ids.
 *
 * @param {Range} range
 * @returns {string} "worker exec-7 on node-4", "query on node-4"
 */
function workerOf({ worker, host }) {
  const name = worker.replace(ID, "").trim();
  const words = name === "" ? "worker" : name === worker ? `worker ${worker}` : name;
  return host && host !== worker ? `${words} on ${host}` : words;
}

/**
 * Names what holds a computation, without key ranges and ids.
 *
 * @param {Verdict} verdict
 * @param {number} now
 * @returns {string} "held by enriched (worker exec-7 on node-4), silent for 38 min"
 */
export function heldInBrief({ guilty, range, computation, missing }, now) {
  if (missing) return `held by ${guilty}, which is not registered or may not be read`;
  const own = guilty === computation.name;
  const holder = own ? "itself" : guilty;
  if (range === null) return `held by ${holder}, and no key range says why`;
  const does = activity(range, now);
  if (range.state === "owned") return own ? `held by its own ${workerOf(range)}, ${does}` : `held by ${guilty} (${workerOf(range)}), ${does}`;
  const left = range.state === "unowned" && range.worker ? ` (left by ${workerOf(range)})` : "";
  return `held by ${holder}${left}, ${does}`;
}

/**
 * Names the key range that holds a computation, and the full name of its worker where the headline
 * leaves ids out.
 *
 * @param {Verdict} verdict
 * @param {import("./types.js").Computation | undefined} holder The root cause.
 * @returns {string} "key range [0x40, 0x44), one of 64"; empty: there is nothing to add.
 */
export function detail({ range }, holder) {
  if (range === null) return "";
  const ranges = holder?.ranges ?? 1;
  const part = range.start !== "" || range.end !== "" ? `key range ${range.label}${ranges > 1 ? `, one of ${ranges.toLocaleString("en")}` : ""}` : "";
  const worker = range.worker.search(ID) >= 0 ? `worker ${range.worker}` : "";
  return [part, worker].filter(Boolean).join("; ");
}
