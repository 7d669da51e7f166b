/**
 * The heat map: lags over time, worst first. The cell under the pointer or cursor is told in words,
 * and a table has all rows for screen readers.
 */

import { html } from "../html.js";
import { useRef, useState } from "../vendor/preact-hooks.js";
import { cellPaths, rows, cursorAfterKey } from "../model/heat.js";
import { spanOf } from "../model/history.js";
import { WORDS, levelOf } from "../model/lag.js";
import { format } from "../model/route.js";
import { axisLabel, axisTimes, clock, duration, lag, zoneName, zoneNames } from "../model/time.js";
import { useAnswer, useMedia, useZone } from "./hooks.js";
import { Name, Symbol, Time, far } from "./parts.js";
import { Spans } from "./spans.js";

/** @typedef {import("../model/heat.js").Row} Row */
/** @typedef {import("../model/route.js").Route} Route */

/** Number of rows shown at first; each click shows three times as many more. */
const ROWS = 30;
/** Microseconds between two requests. */
const EVERY_MICROS = 15e6;
/** Number of times that fit on the axis, on a large screen and on a small one. */
const TICKS = 8;
const TICKS_SMALL = 5;
/** Part of the axis at its end that has no room for a time. */
const LAST = 0.05;

/**
 * @param {{verdicts: Map<string, import("../model/verdict.js").Verdict>, route: Route, go: (route:
 *   Route) => void, now: number}} props `verdicts`: computations that are shown.
 */
export function Heat({ verdicts, route, go, now }) {
  /** @type {import("./hooks.js").Answer<import("../model/heat.js").Answer>} */
  const answer = useAnswer(`/api/heat?span=${route.span}`, Math.floor(now / EVERY_MICROS));
  const [count, show] = useState(ROWS);
  const all = answer.value === null ? [] : rows(answer.value, verdicts, now);
  const { words } = spanOf(route.span);
  return html`<section class="panel" aria-labelledby="heat-title">
    <header class="panel-head">
      <h2 id="heat-title">Behind, over the last ${words}</h2>
      ${answer.error && html`<p class="trouble" role="alert">${answer.error}</p>`}
      <p class="quiet hint">the higher, the further behind; the worst first</p>
      <${Spans} route=${route} go=${go} />
    </header>
    ${answer.value === null || all.length === 0
      ? html`<p class="empty">${answer.value === null ? "Loading …" : "No watermark of these computations was seen in that time."}</p>`
      : html`<${Cells} answer=${answer.value} shown=${all.slice(0, count)} route=${route} now=${now} />
          ${all.length > count &&
          html`<p class="more"><button type="button" onClick=${() => show(count + 3 * ROWS)}>Show ${Math.min(3 * ROWS, all.length - count)} more of ${all.length.toLocaleString("en")}</button></p>`}
          <${AsTable} answer=${answer.value} shown=${all} route=${route} now=${now} />`}
    <p class="quiet note">
      Each column is the worst of its time, as this page saw
      it${answer.value !== null && html` since <${Time} micros=${answer.value.since_micros} now=${now} />; before that, as the authority noted when each step of event time was complete`}.
      ${answer.value !== null && answer.value.total > verdicts.size && Object.keys(answer.value.lags).length < answer.value.total
        ? ` The map has only the worst of ${answer.value.total.toLocaleString("en")} computations.`
        : ""}
    </p>
  </section>`;
}

/** @param {{answer: import("../model/heat.js").Answer, shown: Row[], route: Route, now: number}} props */
function Cells({ answer, shown, route, now }) {
  const zone = useZone();
  const { from_micros: start, column_seconds: column } = answer;
  const columns = shown[0].lags.length;
  const end = start + columns * column * 1e6;
  const small = useMedia("(max-width: 640px)");
  const [at, move] = useState({ name: "", column: columns - 1 });
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const row = Math.max(0, shown.findIndex(({ verdict }) => verdict.computation.name === at.name));
  const cursor = { row, column: Math.min(at.column, columns - 1) };
  const chosen = shown[cursor.row];
  const nameOf = (/** @type {number} */ index) => shown[index].verdict.computation.name;
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    if (event.target !== frame.current) return;
    const next = cursorAfterKey(event.key, cursor, { rows: shown.length, columns });
    if (next === null) return;
    event.preventDefault();
    move({ name: nameOf(next.row), column: next.column });
    frame.current?.querySelectorAll(".heat-row")[next.row]?.scrollIntoView({ block: "nearest" });
  };
  const pointed = (/** @type {PointerEvent} */ event, /** @type {number} */ index) => {
    const box = /** @type {HTMLElement} */ (event.currentTarget).getBoundingClientRect();
    const next = Math.floor(((event.clientX - box.left) / box.width) * columns);
    move({ name: nameOf(index), column: Math.min(columns - 1, Math.max(0, next)) });
  };
  return html`<p class="card heat-said" id="heat-said" role="status">
      <${CellWords} row=${chosen} column=${cursor.column} start=${start + cursor.column * column * 1e6} seconds=${column} now=${now} />
    </p>
    <div class="heat" ref=${frame} tabindex="0" role="group" aria-label="Heat map; the arrow keys move along time and computations" aria-describedby="heat-said" onKeyDown=${pressed}>
      ${shown.map(({ verdict, lags }, index) => {
        const { name } = verdict.computation;
        return html`<div key=${name} class="heat-row">
          <a class="heat-name" href=${format({ ...route, name, query: "" })} title=${name}><${Symbol} level=${verdict.level} /><span>${name}</span></a>
          <div class="heat-cells" onPointerMove=${(/** @type {PointerEvent} */ event) => pointed(event, index)} onPointerDown=${(/** @type {PointerEvent} */ event) => pointed(event, index)}>
            <svg viewBox=${`0 0 ${columns} 1`} preserveAspectRatio="none" aria-hidden="true">
              ${[...cellPaths(lags, verdict.late, verdict.level === "far")].map(([level, path]) => html`<path key=${level} class="heat-${level}" d=${path} />`)}
            </svg>
            ${index === cursor.row && html`<i class="heat-cursor" style=${{ left: `${(cursor.column / columns) * 100}%`, width: `${100 / columns}%` }}></i>`}
          </div>
          <span class="heat-now quiet">${far(verdict)}</span>
        </div>`;
      })}
      <div class="heat-row heat-axis quiet" aria-hidden="true">
        <span></span>
        <div class="heat-ticks">
          ${axisTimes(start, end - LAST * (end - start), small ? TICKS_SMALL : TICKS, zone).map(
            (micros) => html`<span key=${micros} style=${{ left: `${((micros - start) / (end - start)) * 100}%` }}>${axisLabel(micros, zone)}</span>`,
          )}
        </div>
        <span>${zoneNames(start, end, zone)}</span>
      </div>
    </div>`;
}

/**
 * A cell in words.
 *
 * @param {{row: Row, column: number, start: number, seconds: number, now: number}} props
 */
function CellWords({ row: { verdict, lags }, column, start, seconds, now }) {
  const zone = useZone();
  const behind = lags[column];
  const when = `${clock(start, now, zone)} to ${clock(start + seconds * 1e6, now, zone)} ${zoneNames(start, start + seconds * 1e6, zone)}`;
  const { name } = verdict.computation;
  if (behind === null) return html`<b><${Name} name=${name} /></b> ${when}: <span class="quiet">no watermark was seen</span>`;
  const level = verdict.level === "far" ? "far" : levelOf(behind, verdict.late);
  return html`<b><${Name} name=${name} /></b> ${when}: <b class="ink-${level}"><${Symbol} level=${level} /> ${lag(behind)} behind, ${WORDS[level]}</b>
    <span class="quiet"> (late after ${duration(verdict.late)})</span>`;
}

/**
 * The heat map as a table, for viewers who cannot see it.
 *
 * @param {{answer: import("../model/heat.js").Answer, shown: Row[], route: Route, now: number}} props
 */
function AsTable({ answer, shown, route, now }) {
  const zone = useZone();
  const [open, set] = useState(false);
  const at = (/** @type {number} */ column) => {
    const begin = answer.from_micros + column * answer.column_seconds * 1e6;
    return `${clock(begin, now, zone)} ${zoneName(begin, zone)}`;
  };
  return html`<details class="as-table" onToggle=${(/** @type {Event} */ event) => set(/** @type {HTMLDetailsElement} */ (event.target).open)}>
    <summary>The same as a table</summary>
    ${open &&
    html`<div class="scroller" tabindex="0" role="region" aria-label="Lag over time as a table">
      <table>
        <thead><tr>
          <th scope="col">Computation</th><th scope="col" class="number">Furthest behind</th><th scope="col" class="number">from</th>
          <th scope="col" class="number">Late for</th><th scope="col" class="number">Behind now</th>
        </tr></thead>
        <tbody>
          ${shown.map(
            ({ verdict, lags, worst, lateSeconds }) => html`<tr key=${verdict.computation.name}>
              <th scope="row"><a href=${format({ ...route, name: verdict.computation.name, query: "" })}><${Name} name=${verdict.computation.name} /></a></th>
              <td class="number">${worst < 0 ? "–" : lag(lags[worst])}</td>
              <td class="number">${worst < 0 ? "–" : at(worst)}</td>
              <td class="number">${lateSeconds > 0 ? duration(lateSeconds) : "not"}</td>
              <td class="number">${far(verdict)}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>`}
  </details>`;
}
