/** The route: what is shown, written behind `#` of the address, so that it can be shared. */

import { LATE_DEFAULT } from "./lag.js";
import { SPANS } from "./history.js";

/**
 * @typedef {object} Route
 * @property {string} name Computation that is open; empty: the overview.
 * @property {"graph" | "heat"} view Panel above the overview's table: the pipeline, or lags over
 *   time.
 * @property {string} query Text of the search.
 * @property {string} team Team whose computations are shown; empty: all.
 * @property {string} owner Owner whose computations are shown; empty: all.
 * @property {number} late Seconds of lag from which a computation without a promise is late.
 * @property {"clock" | "data" | ""} from Reference of lags; empty: the page chooses.
 * @property {"" | import("./verdict.js").Kind} only Kind of computations
 *   that are shown; empty: all.
 * @property {string} sort Column by which the table is sorted; with `-` in front, descending.
 * @property {"" | import("./graph.js").Kind} graph What the graph draws; empty: the page chooses.
 * @property {string[]} open Groups of the graph whose members are drawn one by one.
 * @property {import("./history.js").Span} span Time span of charts and of the heat map.
 * @property {import("./time.js").Zone} zone Zone of all times.
 */

const KINDS = /** @type {const} */ (["late", "failed", "stuck", "far", "unknown", "unbegun", "ontime", "stopped", "finished"]);
const DRAWN = /** @type {const} */ (["worst", "all", "name", "team"]);

/** @type {Route} */
const HOME = {
  name: "",
  view: "graph",
  query: "",
  team: "",
  owner: "",
  late: LATE_DEFAULT,
  from: "",
  only: "",
  sort: "",
  graph: "",
  open: [],
  span: "1h",
  zone: "utc",
};

/**
 * @param {string} hash `#/c/NAME?q=...`
 * @returns {Route}
 */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const params = new URLSearchParams(query);
  const late = Number(params.get("late"));
  const from = params.get("from");
  return {
    name: path.startsWith("/c/") ? decode(path.slice(3)) : "",
    view: params.get("view") === "heat" ? "heat" : "graph",
    query: params.get("q") ?? "",
    team: params.get("team") ?? "",
    owner: params.get("owner") ?? "",
    late: late > 0 ? late : HOME.late,
    from: from === "clock" || from === "data" ? from : "",
    only: KINDS.find((kind) => kind === params.get("only")) ?? "",
    sort: params.get("sort") ?? "",
    graph: DRAWN.find((kind) => kind === params.get("graph")) ?? "",
    open: params.getAll("open"),
    span: SPANS.find(({ name }) => name === params.get("span"))?.name ?? HOME.span,
    zone: params.get("zone") === "local" ? "local" : "utc",
  };
}

/**
 * @param {Partial<Route>} route
 * @returns {string} Address without the fields that have their defaults.
 */
export function format(route) {
  const { name, view, query, team, owner, late, from, only, sort, graph, open, span, zone } = { ...HOME, ...route };
  const params = new URLSearchParams();
  if (view === "heat") params.set("view", view);
  if (query) params.set("q", query);
  if (team) params.set("team", team);
  if (owner) params.set("owner", owner);
  if (late !== HOME.late) params.set("late", String(late));
  if (from) params.set("from", from);
  if (only) params.set("only", only);
  if (sort) params.set("sort", sort);
  if (graph) params.set("graph", graph);
  for (const group of open) params.append("open", group);
  if (span !== HOME.span) params.set("span", span);
  if (zone !== HOME.zone) params.set("zone", zone);
  const path = name ? `/c/${encodeURIComponent(name)}` : "/";
  return `#${path}${params.size ? `?${params}` : ""}`;
}

/**
 * @param {string} text
 * @returns {string} Decoded text; the text itself when it is malformed, as a viewer may type it.
 */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
