/**
 * The overview: a summary, the graph or the heat map, and the table; of all computations, or of a
 * team or owner.
 */

import { html } from "../html.js";
import { detail } from "../model/headline.js";
import { format } from "../model/route.js";
import { LATE_SECONDS, LEVELS } from "../model/lag.js";
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
 * @param {{verdicts: Map<string, Verdict>, from: import("../model/lag.js").Reference, found: string[], index: number, route: Route, go: (route:
 *   Route) => void, now: number}} props `found`: names that the search found. `index`: number of the
 *   one to which it leads, before it begins again with the first.
 */
export function Overview({ verdicts, from, found, index, route, go, now }) {
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
  const current = found[index % found.length] ?? "";
  return html`<main id="main">
    <section class="lead tone-${lead.tone}" aria-label="Summary">
      <${Symbol} level=${lead.tone} />
      <div>
        <h1>${mine.size === 0 && verdicts.size > 0 ? "No computation has this team or owner." : html`<${Sentence} lead=${lead} route=${route} />`}</h1>
        ${worst && html`<${About} verdict=${/** @type {Verdict} */ (mine.get(worst))} verdicts=${verdicts} route=${route} />`}
        ${lead.counts.far > 0 && lead.tone !== "far" && html`<p class="quiet">${lead.counts.far.toLocaleString("en")} more ${lead.counts.far === 1 ? "is" : "are"} far behind: all data of the pipeline is more than 7 days old, as in a replay.</p>`}
        <${Counts} counts=${lead.counts} route=${route} go=${go} />
      </div>
    </section>
    <div class="controls">
      ${verdicts.size > 0 && html`<${Views} route=${route} />`}
      <${Scale} verdicts=${verdicts} route=${route} from=${from} go=${go} />
    </div>
    ${from.name === "data" && html`<${Replay} verdicts=${verdicts} from=${from} route=${route} now=${now} />`}
    ${current && html`<${Leading} found=${found} current=${current} route=${route} />`}
    ${verdicts.size === 0
      ? html`<${Empty} />`
      : html`${names.length > 0 &&
          (route.view === "heat"
            ? html`<${Heat} verdicts=${new Map(rows.map((verdict) => [verdict.computation.name, verdict]))} route=${route} go=${go} now=${now} />`
            : html`<${Graph}
                verdicts=${drawn}
                slices=${slicesOf(verdicts.keys())}
                wanted=${filtered ? names : []}
                current=${current}
                dimmed=${new Set([...drawn.keys()].filter((name) => !mine.has(name)))}
                route=${route}
                go=${go}
                now=${now}
                worst=${worst}
              />`)}
          <${Table} verdicts=${rows} total=${mine.size} current=${current} route=${route} go=${go} now=${now} />`}
  </main>`;
}

/**
 * What the sentence leaves out: the key range and ids of what holds the worst, and whom to ask.
 *
 * @param {{verdict: Verdict, verdicts: Map<string, Verdict>, route: Route}} props
 */
function About({ verdict, verdicts, route }) {
  const more = detail(verdict, verdicts.get(verdict.guilty)?.computation);
  return html`<div class="lead-about">
    ${more && html`<p class="quiet">${more}</p>`}
    <${Contacts} verdict=${verdict} verdicts=${verdicts} route=${route} />
  </div>`;
}

/**
 * Says to which match the search leads.
 *
 * @param {{found: string[], current: string, route: Route}} props
 */
function Leading({ found, current, route }) {
  return html`<p class="leading" role="status">
    <b>${found.indexOf(current) + 1} of ${found.length.toLocaleString("en")}</b> <a href=${format({ ...route, name: current, query: "" })}>${current}</a>
    <span class="quiet"> · ${found.length > 1 ? "Enter goes on to the next" : "Enter opens it"}, Escape ends the search</span>
  </p>`;
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
    ["graph", "Pipeline", "What reads what, and how far behind each is"],
    ["heat", "Over time", "How far behind each was in the last hour, hours or days"],
  ]);
  return html`<nav class="views" aria-label="Views">
    ${views.map(
      ([view, word, title]) =>
        html`<a key=${view} title=${title} href=${format({ ...route, name: "", view })} aria-current=${route.view === view ? "page" : undefined}>${word}</a>`,
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
    ["late", "late", "late", "at least as far behind as counts as late"],
    ["failed", "failed", "failed", LEVELS.failed],
    ["stuck", "stuck", "stuck", "no living worker is at it"],
    ["unknown", "unknown", "without a watermark", LEVELS.unknown],
    ["unbegun", "unbegun", "not begun", LEVELS.unbegun],
    ["ontime", "ontime", "on time", "less far behind than counts as late"],
    ["far", "far", "far behind", LEVELS.far],
    ["stopped", "stopped", "stopped", LEVELS.stopped],
    ["finished", "finished", "finished", LEVELS.finished],
  ]);
  return html`<ul class="counts" aria-label="How many">
    ${words
      .filter(([key]) => counts[key] > 0 || route.only === key)
      .map(
        ([key, level, word, title]) =>
          html`<li key=${key}>
            <button type="button" title=${`${title}. Click to show only these.`} aria-pressed=${route.only === key} onClick=${() => go({ ...route, only: route.only === key ? "" : key })}>
              <${Symbol} level=${level} /><b>${counts[key].toLocaleString("en")}</b> ${word}
            </button>
          </li>`,
      )}
  </ul>`;
}

/**
 * Reference of lags, threshold, team and owner.
 *
 * @param {{verdicts: Map<string, Verdict>, from: import("../model/lag.js").Reference, route: Route, go: (route: Route) => void}} props
 */
function Scale({ verdicts, from, route, go }) {
  const computations = [...verdicts.values()].map(({ computation }) => computation);
  const promised = computations.some(({ promise }) => promise?.late_seconds);
  const late = LATE_SECONDS.includes(route.late) ? LATE_SECONDS : [...LATE_SECONDS, route.late].sort((a, b) => a - b);
  const chooseLate = (/** @type {Event} */ event) => go({ ...route, late: Number(/** @type {HTMLSelectElement} */ (event.target).value) });
  const chooseFrom = (/** @type {Event} */ event) => {
    const value = /** @type {HTMLSelectElement} */ (event.target).value;
    go({ ...route, from: value === "clock" || value === "data" ? value : "" });
  };
  return html`<div class="scale">
    <label>Late after
      <select title=${`How far behind a computation counts as late${promised ? ", where nothing else was promised" : ""}`} value=${String(route.late)} onChange=${chooseLate}>
        ${late.map((seconds) => html`<option key=${seconds} value=${String(seconds)}>${duration(seconds)}</option>`)}
      </select>
    </label>
    <label>Lag against
      <select title="What lags are counted from: the clock now, or in a replay of old data the newest event time of all" value=${from.name} onChange=${chooseFrom}>
        <option value="clock">now</option>
        <option value="data">newest data</option>
      </select>
    </label>
    <${Whose} which="team" names=${promisedNames(computations, "team")} route=${route} go=${go} />
    <${Whose} which="owner" names=${promisedNames(computations, "owner")} route=${route} go=${go} />
  </div>`;
}

/**
 * Says that lags are counted from the newest data.
 *
 * @param {{verdicts: Map<string, Verdict>, from: import("../model/lag.js").Reference, route: Route, now: number}} props
 */
function Replay({ verdicts, from, route, now }) {
  const promised = [...verdicts.values()].some(({ computation }) => computation.promise?.late_seconds);
  return html`<p class="replay quiet">
    Lags are counted from the newest event time of all, <${Time} micros=${from.micros} now=${now} />, ${duration((now - from.micros) / 1e6)} before now${promised && route.from === "" && "; what has a promise is held to it by the clock"}.
  </p>`;
}

/**
 * Choice of a team or an owner; nothing when no computation has one.
 *
 * @param {{which: "team" | "owner", names: string[], route: Route, go: (route: Route) => void}} props
 */
function Whose({ which, names, route, go }) {
  const all = route[which] && !names.includes(route[which]) ? [route[which], ...names] : names;
  if (all.length === 0) return null;
  return html`<label>${which === "team" ? "Team" : "Owner"}
    <select title=${`Show only what has this ${which}, and what holds it`} value=${route[which]} onChange=${(/** @type {Event} */ event) => go({ ...route, [which]: /** @type {HTMLSelectElement} */ (event.target).value })}>
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
