/**
 * Computations as a table: sorted and searched. Of many rows only those in sight are in the
 * document.
 */

import { html } from "../html.js";
import { useEffect, useRef, useState } from "../vendor/preact-hooks.js";
import { holding } from "../model/culprit.js";
import { format } from "../model/route.js";
import { VIRTUAL_ROWS, direction, sorted, turned, visible } from "../model/table.js";
import { lag } from "../model/time.js";
import { Bar } from "./bar.js";
import { useMedia } from "./hooks.js";
import { Mark, Name, State, far } from "./parts.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/route.js").Route} Route */

/**
 * Columns: key, heading, classes that choose the screens that show it, and what it means.
 *
 * @type {[string, string, string, string][]}
 */
const COLUMNS = [
  ["name", "Computation", "", "Name, and the team of its promise"],
  ["state", "State", "", "Whether it is late, and why it is there"],
  ["lag", "Behind", "", "Lag of its low watermark; the bar is dark up to the lag of nearly all records, its tick is where late begins"],
  ["most", "Most recent records", "number wide", "Lag of the watermark that this share of recent records has passed; no promise"],
  ["inputs", "Behind its inputs", "number wide", "What it adds to the lag of its inputs"],
  ["guilty", "Held by", "held", "The computation, key range, worker and host that hold its watermark"],
];

const NOTHING = {
  found: "No computation, worker or host matches. Escape clears the search.",
  counted: "No computation of this kind is left. Escape shows all.",
};

/**
 * @param {{verdicts: Verdict[], total: number, current?: string, route: Route, go: (route: Route) =>
 *   void, now: number, title?: string}} props `current`: the one to which a search leads; empty:
 *   none. `title`: heading of the table.
 */
export function Table({ verdicts, total, current = "", route, go, now, title: heading = "Computations" }) {
  const rows = sorted(verdicts, route.sort);
  const shares = new Set(rows.map(({ mostName }) => mostName).filter(Boolean));
  const [share] = shares.size === 1 ? shares : [""];
  const narrow = useMedia("(max-width: 640px)");
  const row = narrow ? 72 : 52;
  const scroller = useRef(/** @type {HTMLElement | null} */ (null));
  const virtual = rows.length > VIRTUAL_ROWS;
  const [sight, setSight] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const element = scroller.current;
    if (element === null || !virtual) return undefined;
    const update = () => setSight({ top: element.scrollTop, height: element.clientHeight });
    update();
    element.addEventListener("scroll", update, { passive: true });
    return () => element.removeEventListener("scroll", update);
  }, [virtual]);
  const { first, last } = virtual ? visible(rows.length, sight.top, sight.height, row) : { first: 0, last: rows.length };
  const shown = rows.slice(first, last);
  return html`<section class="panel" aria-labelledby="table-title">
    <header class="panel-head">
      <h2 id="table-title">${heading}</h2>
      <p class="quiet" role="status">
        ${rows.length === total ? total.toLocaleString("en") : `${rows.length.toLocaleString("en")} of ${total.toLocaleString("en")} found`}
      </p>
    </header>
    <div
      class=${virtual ? "scroller virtual" : "scroller"}
      ref=${scroller}
      tabindex=${virtual ? 0 : undefined}
      role=${virtual ? "group" : undefined}
      aria-label=${virtual ? "All rows of the table" : undefined}
    >
      <table class="computations" aria-rowcount=${rows.length + 1}>
        <thead>
          <tr aria-rowindex="1">
            ${COLUMNS.map(
              ([key, title, kind, meaning]) => html`<th key=${key} scope="col" class=${kind} aria-sort=${direction(route.sort, key)}>
                <button type="button" title=${`${meaning}. Click to sort.`} onClick=${() => go({ ...route, sort: turned(route.sort, key) })}>
                  ${key === "most" && share ? `${share} of recent records` : title}<span class="arrow" aria-hidden="true"></span>
                </button>
              </th>`,
            )}
          </tr>
        </thead>
        <tbody>
          ${first > 0 && html`<tr key="above" class="space" aria-hidden="true"><td colspan=${COLUMNS.length} style=${{ height: `${first * row}px` }}></td></tr>`}
          ${shown.map(
            (verdict, index) =>
              html`<${Row} key=${verdict.computation.name} verdict=${verdict} index=${first + index + 2} current=${verdict.computation.name === current} route=${route} now=${now} share=${share} />`,
          )}
          ${last < rows.length &&
          html`<tr key="below" class="space" aria-hidden="true"><td colspan=${COLUMNS.length} style=${{ height: `${(rows.length - last) * row}px` }}></td></tr>`}
        </tbody>
      </table>
      ${rows.length === 0 && html`<p class="empty">${NOTHING[route.query ? "found" : "counted"]}</p>`}
    </div>
  </section>`;
}

/**
 * @param {{verdict: Verdict, index: number, current: boolean, route: Route, now: number, share:
 *   string}} props `current`: a search leads to it. `share`: name of the share in the heading.
 */
function Row({ verdict, index, current, route, now, share }) {
  const { computation, level, most, mostName, range, guilty, missing } = verdict;
  const { name } = computation;
  return html`<tr aria-rowindex=${index} class=${`row-${level}${current ? " led" : ""}`}>
    <th scope="row">
      <a href=${format({ ...route, name, query: "" })}><${Name} name=${name} /></a>
      ${computation.estimated && html`<span class="tag">estimated</span>`}
      ${computation.promise?.team && html`<span class="tag team">${computation.promise.team}</span>`}
    </th>
    <td class="cell-state"><${State} verdict=${verdict} /></td>
    <td class="number cell-lag">
      <div class="lag-line">
        <span class="lag ink-${level}">${verdict.lag === null ? "–" : far(verdict)}</span>
        <span class="quiet low"><${Mark} watermark=${computation.low} now=${now} /></span>
      </div>
      <${Bar} verdict=${verdict} />
    </td>
    <td class="number wide">${most === null ? html`<span class="quiet">–</span>` : html`${mostName !== share && html`<span class="quiet">${mostName}</span> `}${lag(most)}`}</td>
    <td class="number wide">${computation.local_lag_seconds === 0 ? "none" : lag(computation.local_lag_seconds)}</td>
    <td class="held">
      ${level !== "finished" &&
      html`${guilty !== name && html`<a class="guilty" href=${format({ ...route, name: guilty, query: "" })}>${guilty}</a>${" "}`}
      ${missing ? "which is not registered or may not be read" : range && holding(range, now)}`}
    </td>
  </tr>`;
}
