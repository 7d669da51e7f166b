/**
 * The overview: a summary, the graph or the heat map, and the table; of all computations, or of a
 * team or owner.
 */

import { html } from "../html.js";
import { format } from "../model/route.js";
import { LATE_SECONDS } from "../model/lag.js";
import { promisedNames, belongsTo } from "../model/promise.js";
import { slicesOf, wholes } from "../model/slices.js";
import { matches } from "../model/table.js";
import { duration } from "../model/time.js";
import { kind, summary, way } from "../model/verdict.js";
import { Contacts } from "./contacts.js";
import { Graph } from "./graph.js";
import { Heat } from "./heat.js";
import { Symbol, Time } from "./parts.js";
import { Table } from "./table.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/route.js").Route} Route */

/**
 * @param {{verdicts: Map<string, Verdict>, from: import("../model/lag.js").Reference, route: Route, go: (route: Route) => void, now: number}} props
 */
export function Overview({ verdicts, from, route, go, now }) {
  const whole = wholes(verdicts);
  const mine = new Map([...whole].filter(([, { computation }]) => belongsTo(computation, route)));
  const lead = summary(mine, now, verdicts);
  const filtered = route.query !== "" || route.only !== "";
  // Only a query with "~" finds slices.
  const searched = route.query.includes("~") ? verdicts : mine;
  const rows = [...searched.values()].filter((verdict) => matches(verdict, route.query) && (!route.only || kind(verdict) === route.only));
  const names = rows.map(({ computation }) => computation.name).filter((name) => whole.has(name));
  const drawn = withHolders(mine, whole, verdicts);
  const worst = lead.held ? lead.worst : "";
  return html`<main id="main">
    <section class="lead tone-${lead.tone}" aria-label="Summary">
      <${Symbol} level=${lead.tone} />
      <div>
        <h1>${mine.size === 0 && verdicts.size > 0 ? "No computation has this team or owner." : html`<${Sentence} lead=${lead} route=${route} />`}</h1>
        ${worst && html`<${Contacts} verdict=${/** @type {Verdict} */ (mine.get(worst))} verdicts=${verdicts} route=${route} />`}
        <${Counts} counts=${lead.counts} route=${route} go=${go} />
      </div>
    </section>
    <${Scale} verdicts=${verdicts} from=${from} route=${route} go=${go} now=${now} />
    ${verdicts.size === 0
      ? html`<${Empty} />`
      : html`<${Views} route=${route} />
          ${names.length > 0 &&
          (route.view === "heat"
            ? html`<${Heat} verdicts=${new Map(rows.map((verdict) => [verdict.computation.name, verdict]))} route=${route} go=${go} now=${now} />`
            : html`<${Graph}
                verdicts=${filtered ? whole : drawn}
                slices=${slicesOf(verdicts.keys())}
                wanted=${filtered ? names : []}
                dimmed=${new Set([...drawn.keys()].filter((name) => !mine.has(name)))}
                route=${route}
                go=${go}
                now=${now}
                worst=${worst}
              />`)}
          <${Table} verdicts=${rows} total=${mine.size} route=${route} go=${go} now=${now} />`}
  </main>`;
}

/**
 * Adds to computations the ones upstream that hold them.
 *
 * @param {Map<string, Verdict>} mine
 * @param {Map<string, Verdict>} all
 * @param {Map<string, Verdict>} verdicts All computations and slices.
 * @returns {Map<string, Verdict>} Computations in the order of `all`.
 */
function withHolders(mine, all, verdicts) {
  if (mine.size === all.size) return all;
  const names = new Set([...mine.keys()].flatMap((name) => [name, ...way(name, verdicts)]));
  return new Map([...all].filter(([name]) => names.has(name)));
}

/**
 * Links to the panels above the table.
 *
 * @param {{route: Route}} props
 */
function Views({ route }) {
  const views = /** @type {const} */ ([
    ["graph", "Pipeline"],
    ["heat", "Over time"],
  ]);
  return html`<nav class="views" aria-label="Views">
    ${views.map(
      ([view, word]) =>
        html`<a key=${view} href=${format({ ...route, name: "", view })} aria-current=${route.view === view ? "page" : undefined}>${word}</a>`,
    )}
  </nav>`;
}

/**
 * The summary, with computations as links.
 *
 * @param {{lead: import("../model/verdict.js").Summary, route: Route}} props
 */
function Sentence({ lead, route }) {
  const { text, held, worst, guilty } = lead;
  const whole = held ? `${text}, ${held}.` : text;
  const linked = held ? [...new Set([worst, guilty])] : [worst];
  /** @type {any[]} */
  let parts = [whole];
  for (const name of linked.filter(Boolean)) {
    parts = parts.flatMap((part) => {
      if (typeof part !== "string") return [part];
      const at = find(part, name);
      if (at < 0) return [part];
      const link = html`<a href=${format({ ...route, name, query: "" })}>${name}</a>`;
      return [part.slice(0, at), link, part.slice(at + name.length)];
    });
  }
  return parts;
}

/**
 * Returns the index at which a name stands as a whole word; -1: it does not.
 *
 * @param {string} text
 * @param {string} name
 * @returns {number}
 */
function find(text, name) {
  return ` ${text} `.search(new RegExp(`(?<=[\\s])${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?=[\\s,.])`)) - 1;
}

/**
 * Number of computations of each kind; a click shows only these, a second one all again.
 *
 * @param {{counts: import("../model/verdict.js").Summary["counts"], route: Route, go: (route: Route) => void}} props
 */
function Counts({ counts, route, go }) {
  const words = /** @type {const} */ ([
    ["late", "late", "late"],
    ["failed", "failed", "failed"],
    ["stuck", "stuck", "stuck"],
    ["unknown", "unknown", "without a watermark"],
    ["unbegun", "unbegun", "not begun"],
    ["ontime", "ontime", "on time"],
    ["stopped", "stopped", "stopped"],
    ["finished", "finished", "finished"],
  ]);
  return html`<ul class="counts" aria-label="How many">
    ${words
      .filter(([key]) => counts[key] > 0 || route.only === key)
      .map(
        ([key, level, word]) =>
          html`<li key=${key}>
            <button type="button" aria-pressed=${route.only === key} onClick=${() => go({ ...route, only: route.only === key ? "" : key })}>
              <${Symbol} level=${level} /><b>${counts[key].toLocaleString("en")}</b> ${word}
            </button>
          </li>`,
      )}
  </ul>`;
}

/**
 * Reference of lags, threshold, team and owner.
 *
 * @param {{verdicts: Map<string, Verdict>, from: import("../model/lag.js").Reference, route: Route, go: (route: Route) => void, now: number}} props
 */
function Scale({ verdicts, from, route, go, now }) {
  const computations = [...verdicts.values()].map(({ computation }) => computation);
  const promised = computations.some(({ promise }) => promise?.late_seconds);
  const late = LATE_SECONDS.includes(route.late) ? LATE_SECONDS : [...LATE_SECONDS, route.late].sort((a, b) => a - b);
  const chooseLate = (/** @type {Event} */ event) => go({ ...route, late: Number(/** @type {HTMLSelectElement} */ (event.target).value) });
  const chooseFrom = (/** @type {Event} */ event) => {
    const value = /** @type {HTMLSelectElement} */ (event.target).value;
    go({ ...route, from: value === "clock" || value === "data" ? value : "" });
  };
  return html`<div class="scale">
    <label title=${promised ? "where nothing else was promised" : ""}>late from
      <select value=${String(route.late)} onChange=${chooseLate}>
        ${late.map((seconds) => html`<option key=${seconds} value=${String(seconds)}>${duration(seconds)}</option>`)}
      </select>
    </label>
    <label>behind
      <select aria-label="Behind what" value=${from.name} onChange=${chooseFrom}>
        <option value="clock">the clock</option>
        <option value="data">the newest data</option>
      </select>
    </label>
    <${Whose} which="team" names=${promisedNames(computations, "team")} route=${route} go=${go} />
    <${Whose} which="owner" names=${promisedNames(computations, "owner")} route=${route} go=${go} />
    ${from.name === "data" &&
    html`<span class="quiet">newest event time <${Time} micros=${from.micros} now=${now} />, ${duration((now - from.micros) / 1e6)} behind the clock${promised && route.from === "" && "; what has a promise is held to it by the clock"}</span>`}
  </div>`;
}

/**
 * Choice of a team or an owner; nothing when no computation has one.
 *
 * @param {{which: "team" | "owner", names: string[], route: Route, go: (route: Route) => void}} props
 */
function Whose({ which, names, route, go }) {
  const all = route[which] && !names.includes(route[which]) ? [route[which], ...names] : names;
  if (all.length === 0) return null;
  return html`<label>${which}
    <select value=${route[which]} onChange=${(/** @type {Event} */ event) => go({ ...route, [which]: /** @type {HTMLSelectElement} */ (event.target).value })}>
      <option value="">all</option>
      ${all.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>
  </label>`;
}

function Empty() {
  return html`<section class="panel"><p class="empty">
    A computation appears here when it is registered: <code>lw.register("clicks")</code>.
  </p></section>`;
}
