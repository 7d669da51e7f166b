/** The overview: a sentence, the graph, the table. */

import { html } from "../html.js";
import { format } from "../model/route.js";
import { LATE_SECONDS } from "../model/lag.js";
import { matches } from "../model/table.js";
import { duration } from "../model/time.js";
import { kind, summary } from "../model/verdict.js";
import { Graph } from "./graph.js";
import { Symbol, Time } from "./parts.js";
import { Table } from "./table.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/route.js").Route} Route */

/**
 * @param {{verdicts: Map<string, Verdict>, from: import("../model/lag.js").Reference, route: Route, go: (route: Route) => void,
 *   now: number}} props
 */
export function Overview({ verdicts, from, route, go, now }) {
  const said = summary(verdicts, now);
  const asked = route.query !== "" || route.only !== "";
  const found = [...verdicts.values()].filter((verdict) => matches(verdict, route.query) && (!route.only || kind(verdict) === route.only));
  const wanted = asked ? found.map(({ computation }) => computation.name) : [];
  return html`<main id="main">
    <section class="lead tone-${said.tone}" aria-label="Summary">
      <${Symbol} level=${said.tone} />
      <div>
        <h1><${Sentence} said=${said} route=${route} /></h1>
        <${Counts} counts=${said.counts} route=${route} go=${go} />
      </div>
    </section>
    <${Scale} from=${from} route=${route} go=${go} now=${now} />
    ${verdicts.size === 0
      ? html`<${Empty} />`
      : html`${(!asked || found.length > 0) &&
          html`<${Graph} verdicts=${verdicts} wanted=${wanted} route=${route} now=${now} worst=${said.held ? said.worst : ""} />`}
          <${Table} verdicts=${found} total=${verdicts.size} route=${route} go=${go} now=${now} />`}
  </main>`;
}

/**
 * The sentence, with the computations in it as links.
 *
 * @param {{said: import("../model/verdict.js").Summary, route: Route}} props
 */
function Sentence({ said, route }) {
  const { text, held, worst, guilty } = said;
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
 * Where a name stands as a word of its own; -1 where it does not.
 *
 * @param {string} text
 * @param {string} name
 * @returns {number}
 */
function find(text, name) {
  return ` ${text} `.search(new RegExp(`(?<=[\\s])${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?=[\\s,.])`)) - 1;
}

/**
 * How many there are of each kind; a press shows these alone, and another one all again.
 *
 * @param {{counts: import("../model/verdict.js").Summary["counts"], route: Route, go: (route: Route) => void}} props
 */
function Counts({ counts, route, go }) {
  const words = /** @type {const} */ ([
    ["late", "late", "late"],
    ["stuck", "stuck", "stuck"],
    ["unknown", "unknown", "without a watermark"],
    ["ontime", "ontime", "on time"],
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
 * What lag is counted from, and from where on it is late.
 *
 * @param {{from: import("../model/lag.js").Reference, route: Route, go: (route: Route) => void, now: number}} props
 */
function Scale({ from, route, go, now }) {
  const late = LATE_SECONDS.includes(route.late) ? LATE_SECONDS : [...LATE_SECONDS, route.late].sort((a, b) => a - b);
  const chooseLate = (/** @type {Event} */ event) => go({ ...route, late: Number(/** @type {HTMLSelectElement} */ (event.target).value) });
  const chooseFrom = (/** @type {Event} */ event) => {
    const value = /** @type {HTMLSelectElement} */ (event.target).value;
    go({ ...route, from: value === "clock" || value === "data" ? value : "" });
  };
  return html`<div class="scale">
    <label>late from
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
    ${from.name === "data" &&
    html`<span class="quiet">newest event time <${Time} micros=${from.micros} now=${now} />, ${duration((now - from.micros) / 1e6)} behind the clock</span>`}
  </div>`;
}

function Empty() {
  return html`<section class="panel"><p class="empty">
    A computation appears here when it is registered: <code>lw.register("clicks")</code>.
  </p></section>`;
}
