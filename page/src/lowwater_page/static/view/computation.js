/** One computation: why it is where it is, what holds it, and its recent past. */

import { html } from "../html.js";
import { useMemo, useRef } from "../vendor/preact-hooks.js";
import { readers } from "../model/graph.js";
import { columns, extended, spanOf } from "../model/history.js";
import { behind } from "../model/lag.js";
import { format } from "../model/route.js";
import { sliceOf, slicesOf, wholes } from "../model/slices.js";
import { same } from "../model/strip.js";
import { ago, duration, lag, parted } from "../model/time.js";
import { heldBy, isStuck, percent } from "../model/verdict.js";
import { Chart } from "./chart.js";
import { Completions } from "./completions.js";
import { Budgets } from "./budgets.js";
import { Contacts } from "./contacts.js";
import { useAnswer, useZone } from "./hooks.js";
import { Mark, Name, State, Symbol, Time, far } from "./parts.js";
import { RangeTable } from "./ranges.js";
import { Spans } from "./spans.js";
import { Facts, Strip } from "./strip.js";
import { Table } from "./table.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/types.js").Range} Range */
/** @typedef {import("../model/route.js").Route} Route */

/** Number of ranges requested: those furthest behind. */
const RANGES = 1000;

/**
 * @param {{verdict: Verdict, verdicts: Map<string, Verdict>, route: Route,
 *   go: (route: Route) => void, now: number, changes: number}} props
 */
export function Computation({ verdict, verdicts, route, go, now, changes }) {
  const { computation, from } = verdict;
  const { name } = computation;
  const query = `computation=${encodeURIComponent(name)}`;
  /** @type {import("./hooks.js").Answer<{hops: {sentence: string}[]}>} */
  const why = useAnswer(`/api/why?${query}`, changes);
  /** @type {import("./hooks.js").Answer<{total: number, ranges: Range[]}>} */
  const ranges = useAnswer(`/api/ranges?${query}&limit=${RANGES}`, changes);
  const listed = ranges.value?.ranges ?? [];
  const own = verdict.guilty === name ? verdict.range : null;
  const root = sliceOf(name);
  const slices = (slicesOf(verdicts.keys()).get(name) ?? []).map((slice) => /** @type {Verdict} */ (verdicts.get(slice)));
  const guilty = listed.find((range) => same(range, own)) ?? own;
  return html`<main id="main">
    <p class="crumbs">
      <a href=${format({ ...route, name: "" })}>← All computations</a>
      ${verdicts.has(root) && html` / <a href=${format({ ...route, name: root })}>${root}</a>, whose slice this is`}
    </p>
    <section class="lead tone-${isStuck(verdict.cause) ? "stuck" : verdict.level}" aria-label="Summary">
      <${Symbol} level=${verdict.level} />
      <div>
        <h1><${Name} name=${name} /></h1>
        <p class="lead-line">
          ${verdict.lag === null ? far(verdict) : html`<b class="ink-${verdict.level}">${far(verdict)} behind</b>`}
          ${computation.low.micros !== null && html`, at <${Mark} watermark=${computation.low} now=${now} />`}
          ${computation.estimated && html` <span class="tag">estimated</span>`}
          <span class="lead-state"><${State} verdict=${verdict} /></span>
        </p>
        <${Contacts} verdict=${verdict} verdicts=${verdicts} route=${route} full />
      </div>
    </section>
    <${Why} verdict=${verdict} why=${why} verdicts=${verdicts} route=${route} from=${from} now=${now} />
    ${slices.length > 0 && html`<${Table} title="Slices" verdicts=${slices} total=${slices.length} route=${{ ...route, query: "" }} go=${go} now=${now} />`}
    <section class="panel" aria-labelledby="ranges-title">
      <header class="panel-head"><h2 id="ranges-title">${slices.length > 0 ? "Key ranges of its slices" : "Key ranges"}</h2><${Trouble} answer=${ranges} /></header>
      ${listed.length > 0
        ? html`<${Strip} key=${name} ranges=${listed} total=${ranges.value?.total ?? 0} guilty=${guilty} promise=${computation.promise} from=${from} late=${verdict.late} now=${now} />
            <${RangeTable} ranges=${listed} total=${ranges.value?.total ?? 0} guilty=${guilty} promise=${computation.promise} from=${from} late=${verdict.late} now=${now} />`
        : html`<p class="empty">${ranges.value === null ? "Loading …" : "No worker has claimed a key range yet: start one."}</p>`}
    </section>
    <div class="columns">
      <${Numbers} verdict=${verdict} now=${now} />
      <${Neighbours} computation=${computation} verdicts=${verdicts} route=${route} />
    </div>
    <${Budgets} budgets=${computation.budgets ?? []} from=${from} now=${now} />
    <${Lately} key=${route.span} computation=${computation} verdict=${verdict} from=${from} changes=${changes} route=${route} go=${go} now=${now} />
    <${Completions} name=${name} moved=${computation.since_micros} now=${now} />
  </main>`;
}

/** @param {{answer: import("./hooks.js").Answer<any>}} props */
function Trouble({ answer }) {
  return answer.error ? html`<p class="trouble" role="alert">${answer.error}</p>` : null;
}

/**
 * Sentence of the authority, with its times in the page's format.
 *
 * @param {{text: string, now: number}} props
 */
function Words({ text, now }) {
  return parted(text).map((part) => (typeof part === "string" ? part : html`<${Time} micros=${part} now=${now} />`));
}

/**
 * The way to the root cause, and the key range at its end.
 *
 * @param {{verdict: Verdict, why: import("./hooks.js").Answer<{hops: {sentence: string}[]}>, verdicts: Map<string, Verdict>, route: Route, from:
 *   import("../model/lag.js").Reference, now: number}} props
 */
function Why({ verdict, why, verdicts, route, from, now }) {
  const { guilty, computation, range, level } = verdict;
  const sentences = why.value?.hops.map((hop) => hop.sentence) ?? [];
  const registered = verdicts.has(guilty);
  return html`<section class="panel why-panel" aria-labelledby="why-title">
    <header class="panel-head"><h2 id="why-title">Why</h2><${Trouble} answer=${why} /></header>
    ${sentences.length > 0
      ? html`<ol class="sentences">${sentences.map((sentence) => html`<li key=${sentence}><${Words} text=${sentence} now=${now} /></li>`)}</ol>`
      : html`<p>${level === "finished" ? "Nothing will ever come." : `${computation.name} is ${heldBy(verdict, now)}.`}</p>`}
    ${range !== null &&
    guilty !== computation.name &&
    level !== "finished" &&
    html`<div class="card culprit">
      <p class="card-title">
        <span class="tag holds">holds it</span>
        ${registered ? html`<a href=${format({ ...route, name: guilty, query: "" })}><b>${guilty}</b></a>` : html`<b>${guilty}</b>`}
        <b class="mono">${range.label}</b>
      </p>
      <${Facts} range=${range} promise=${verdicts.get(guilty)?.computation.promise} seconds=${behind(range.watermark, from)} now=${now} />
    </div>`}
  </section>`;
}

/** @param {{verdict: Verdict, now: number}} props */
function Numbers({ verdict, now }) {
  const { computation } = verdict;
  const { oldest_operation_micros: oldest, since_micros: since } = computation;
  return html`<section class="panel" aria-labelledby="numbers-title">
    <header class="panel-head"><h2 id="numbers-title">Watermarks</h2></header>
    <dl class="facts">
      <div><dt>Low watermark</dt><dd><${Mark} watermark=${computation.low} now=${now} /> <span class="quiet">${verdict.lag !== null && lag(verdict.lag)}</span></dd></div>
      ${computation.shares.map(
        ({ share, watermark, came_behind: behind }) =>
          html`<div key=${share}><dt>${percent(share)} of recent records</dt><dd><${Mark} watermark=${watermark} now=${now} />${typeof behind === "number" &&
          html`<span class="quiet">, at most ${percent(Number(behind.toPrecision(2)))} of all came behind it</span>`}</dd></div>`,
      )}
      <div><dt>Moved last</dt><dd>${since ? html`<${Time} micros=${since} now=${now} text=${ago(since, now)} />` : "never"}</dd></div>
      <div><dt>Behind its inputs</dt><dd>${computation.local_lag_seconds === 0 ? "none" : lag(computation.local_lag_seconds)}</dd></div>
      <div><dt>Behind its roots</dt><dd>${lag(computation.global_lag_seconds)}</dd></div>
      <div><dt>Oldest operation</dt><dd>${oldest ? html`<${Time} micros=${oldest} now=${now} text=${`running for ${duration((now - oldest) / 1e6)}`} />` : "none"}</dd></div>
      <div><dt>Incarnation, epoch</dt><dd>${computation.incarnation}, ${computation.epoch}</dd></div>
    </dl>
  </section>`;
}

/** @param {{computation: import("../model/types.js").Computation, verdicts: Map<string, Verdict>, route: Route}} props */
function Neighbours({ computation, verdicts, route }) {
  const computations = new Map([...wholes(verdicts)].map(([name, verdict]) => [name, verdict.computation]));
  const reading = readers(computations).get(computation.name) ?? [];
  const link = (/** @type {string} */ name) => {
    const verdict = verdicts.get(name);
    if (verdict === undefined) return html`<li key=${name}>${name} <span class="quiet">not registered, or not readable</span></li>`;
    return html`<li key=${name}>
      <a href=${format({ ...route, name, query: "" })}><${Symbol} level=${verdict.level} /><${Name} name=${name} /></a>
      <span class="quiet">${far(verdict)}${verdict.lag !== null && " behind"}</span>
    </li>`;
  };
  const none = (/** @type {string} */ text) => html`<li class="quiet">${text}</li>`;
  return html`<section class="panel" aria-labelledby="neighbours-title">
    <header class="panel-head"><h2 id="neighbours-title">Around it</h2></header>
    <h3 id="inputs">Inputs</h3>
    <ul class="links" aria-labelledby="inputs">${computation.inputs.length ? computation.inputs.map(link) : none("none: it brings records in")}</ul>
    <h3 id="readers">Readers</h3>
    <ul class="links" aria-labelledby="readers">${reading.length ? reading.map(link) : none("none")}</ul>
  </section>`;
}

/** Microseconds between two requests when the span is longer than an hour. */
const EVERY_MICROS = 60e6;

/**
 * @param {{computation: import("../model/types.js").Computation, verdict: Verdict, from: import("../model/lag.js").Reference, changes: number, route:
 *   Route, go: (route: Route) => void, now: number}} props
 */
function Lately({ computation, verdict, from, changes, route, go, now }) {
  const { name, low, shares } = computation;
  const zone = useZone();
  const { words } = spanOf(route.span);
  const live = route.span === "1h";
  /** @type {import("./hooks.js").Answer<{step_seconds: number, samples: import("../model/history.js").Sample[]}>} */
  const recent = useAnswer(`/api/recent?computation=${encodeURIComponent(name)}&span=${route.span}`, live ? 0 : Math.floor(now / EVERY_MICROS));
  const stored = useRef({ from: /** @type {any} */ (null), samples: /** @type {import("../model/history.js").Sample[]} */ ([]) });
  if (stored.current.from !== recent.value) stored.current = { from: recent.value, samples: recent.value?.samples ?? [] };
  const step = recent.value?.step_seconds ?? 5;
  if (live && recent.value !== null) {
    stored.current.samples = extended(stored.current.samples, [Math.round(now), low.micros, shares[0]?.watermark.micros ?? null], step);
  }
  const { samples } = stored.current;
  const lines = useMemo(() => columns(samples, from), [samples, from.name, from.name === "data" ? from.micros : 0, changes]);
  const lags = lines[1].filter((seconds) => typeof seconds === "number");
  const most = lags.length === 0 ? "no watermark" : `at most ${duration(Math.max(...lags, 0))}`;
  return html`<section class="panel" aria-labelledby="lately-title">
    <header class="panel-head">
      <h2 id="lately-title">Behind, in the last ${words}</h2>
      <p class="quiet">${lines[1].length > 1 && `${most}; this page has ${duration(lines[0][lines[0].length - 1] - lines[0][0])} of it`}</p>
      <${Trouble} answer=${recent} />
      <${Spans} route=${route} go=${go} />
    </header>
    <${Chart}
      key=${zone}
      columns=${lines}
      mostName=${verdict.mostName && `${verdict.mostName} of recent records`}
      label=${`Lag of ${name} over the last ${words}: now ${far(verdict)}, ${most}`}
      zone=${zone}
    />
  </section>`;
}
