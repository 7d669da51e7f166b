/** The address of what is shown: everything behind `#` can be shared. */

import { LATE_DEFAULT } from "./lag.js";

/**
 * @typedef {object} Route
 * @property {string} name The computation that is open; empty: the overview.
 * @property {string} query What is searched.
 * @property {number} late Seconds of lag that count as late.
 * @property {"clock" | "data" | ""} from What lag is counted from; empty: whichever says more.
 * @property {"" | "late" | "stuck" | "unknown" | "ontime" | "finished"} only Of which computations alone; empty: of all.
 * @property {string} sort Column of the table; with `-` in front, downwards.
 */

const KINDS = /** @type {const} */ (["late", "stuck", "unknown", "ontime", "finished"]);

/** @type {Route} */
const HOME = { name: "", query: "", late: LATE_DEFAULT, from: "", only: "", sort: "" };

/**
 * @param {string} hash `#/c/NAME?q=...`
 * @returns {Route}
 */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const given = new URLSearchParams(query);
  const late = Number(given.get("late"));
  const from = given.get("from");
  return {
    name: path.startsWith("/c/") ? decode(path.slice(3)) : "",
    query: given.get("q") ?? "",
    late: late > 0 ? late : HOME.late,
    from: from === "clock" || from === "data" ? from : "",
    only: KINDS.find((kind) => kind === given.get("only")) ?? "",
    sort: given.get("sort") ?? "",
  };
}

/**
 * @param {Partial<Route>} route
 * @returns {string} Without what is as usual.
 */
export function format(route) {
  const { name, query, late, from, only, sort } = { ...HOME, ...route };
  const given = new URLSearchParams();
  if (query) given.set("q", query);
  if (late !== HOME.late) given.set("late", String(late));
  if (from) given.set("from", from);
  if (only) given.set("only", only);
  if (sort) given.set("sort", sort);
  const path = name ? `/c/${encodeURIComponent(name)}` : "/";
  return `#${path}${given.size ? `?${given}` : ""}`;
}

/**
 * @param {string} text
 * @returns {string} As it is when it is not well formed: somebody typed it.
 */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
