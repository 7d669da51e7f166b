/** The address of what is shown: everything behind `#` can be shared. */

import { LATE_DEFAULT } from "./lag.js";
import { SPANS } from "./history.js";

/**
 * @typedef {object} Route
 * @property {string} name The computation that is open; empty: the overview.
 * @property {"graph" | "heat"} view What the overview shows above its table: the pipeline, or the lag of everything over time.
 * @property {string} query What is searched.
 * @property {string} team Whose computations alone; empty: of all.
 * @property {string} owner Whose computations alone; empty: of all.
 * @property {number} late Seconds of lag that count as late, where nobody promised otherwise.
 * @property {"clock" | "data" | ""} from What lag is counted from; empty: whichever says more.
 * @property {"" | "late" | "stuck" | "unknown" | "ontime" | "finished"} only Of which computations alone; empty: of all.
 * @property {string} sort Column of the table; with `-` in front, downwards.
 * @property {"" | import("./graph.js").Kind} graph What is drawn of the pipeline; empty: whichever says more.
 * @property {string[]} open Groups of the graph whose computations are drawn.
 * @property {import("./history.js").Span} span How far back charts and the heat map go.
 * @property {import("./time.js").Zone} zone Of all times that are shown.
 */

const KINDS = /** @type {const} */ (["late", "stuck", "unknown", "ontime", "finished"]);
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
  const given = new URLSearchParams(query);
  const late = Number(given.get("late"));
  const from = given.get("from");
  return {
    name: path.startsWith("/c/") ? decode(path.slice(3)) : "",
    view: given.get("view") === "heat" ? "heat" : "graph",
    query: given.get("q") ?? "",
    team: given.get("team") ?? "",
    owner: given.get("owner") ?? "",
    late: late > 0 ? late : HOME.late,
    from: from === "clock" || from === "data" ? from : "",
    only: KINDS.find((kind) => kind === given.get("only")) ?? "",
    sort: given.get("sort") ?? "",
    graph: DRAWN.find((kind) => kind === given.get("graph")) ?? "",
    open: given.getAll("open"),
    span: SPANS.find(({ name }) => name === given.get("span"))?.name ?? HOME.span,
    zone: given.get("zone") === "local" ? "local" : "utc",
  };
}

/**
 * @param {Partial<Route>} route
 * @returns {string} Without what is as usual.
 */
export function format(route) {
  const { name, view, query, team, owner, late, from, only, sort, graph, open, span, zone } = { ...HOME, ...route };
  const given = new URLSearchParams();
  if (view === "heat") given.set("view", view);
  if (query) given.set("q", query);
  if (team) given.set("team", team);
  if (owner) given.set("owner", owner);
  if (late !== HOME.late) given.set("late", String(late));
  if (from) given.set("from", from);
  if (only) given.set("only", only);
  if (sort) given.set("sort", sort);
  if (graph) given.set("graph", graph);
  for (const group of open) given.append("open", group);
  if (span !== HOME.span) given.set("span", span);
  if (zone !== HOME.zone) given.set("zone", zone);
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
