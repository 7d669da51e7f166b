/** The key ranges furthest behind, as a table. */

import { html } from "../html.js";
import { useState } from "../vendor/preact-hooks.js";
import { WORDS, behind, level, trouble, noReportWords } from "../model/lag.js";
import { same } from "../model/strip.js";
import { ago, lag } from "../model/time.js";
import { Logs } from "./contacts.js";
import { Mark, Symbol, Time } from "./parts.js";

/** @typedef {import("../model/types.js").Range} Range */

/** Number of rows shown at first; each click shows five times as many more. */
const ROWS = 10;
/** Classes of the words about an owner that need not alarm. @type {Record<string, string>} */
const QUIET = { "": "", stopped: "", "not begun": "ink-unbegun" };

/**
 * @param {{ranges: Range[], total: number, guilty: Range | null, promise?: import("../model/types.js").Promised | null, from: import("../model/lag.js").Reference, late: number, now: number}} props
 */
export function RangeTable({ ranges, total, guilty, promise, from, late, now }) {
  const [rows, show] = useState(ROWS);
  const first = ranges.filter((range) => same(range, guilty));
  const all = [...first, ...ranges.filter((range) => !same(range, guilty))];
  const shown = all.slice(0, rows);
  return html`<div class="scroller">
    <table class="ranges">
      <caption>${shown.length.toLocaleString("en")} of ${total.toLocaleString("en")}, furthest behind first</caption>
      <thead>
        <tr>
          <th scope="col">Key range</th>
          <th scope="col">Worker</th>
          <th scope="col" class="wide">Host</th>
          <th scope="col" class="number">Behind</th>
          <th scope="col" class="number wide">Watermark</th>
          <th scope="col" class="number">Last report</th>
          <th scope="col" class="wide">State</th>
        </tr>
      </thead>
      <tbody>
        ${shown.map((range) => {
          const at = level(range.watermark, from, late);
          const seconds = behind(range.watermark, from);
          return html`<tr key=${range.start} class=${same(range, guilty) ? "guilty" : ""}>
            <th scope="row" class="mono"><${Symbol} level=${at} />${range.label}${same(range, guilty) && html` <span class="tag holds">holds</span>`}</th>
            <td>${range.worker || "–"} <${Logs} promise=${promise} range=${range} words="logs" /></td>
            <td class="wide">${range.host || "–"}</td>
            <td class="number ink-${at}">${seconds === null ? WORDS[at] : lag(seconds)}</td>
            <td class="number wide"><${Mark} watermark=${range.watermark} now=${now} /></td>
            <td class="number">
              ${range.last_report_micros
                ? html`<${Time} micros=${range.last_report_micros} now=${now} text=${ago(range.last_report_micros, now)} />`
                : noReportWords(range)}
            </td>
            <td class="wide">${range.state}${trouble(range, now) && html`, <b class=${QUIET[trouble(range, now)] ?? "ink-stuck"}>${trouble(range, now)}</b>`}</td>
          </tr>`;
        })}
      </tbody>
    </table>
    ${all.length > rows &&
    html`<p class="more"><button type="button" onClick=${() => show(rows + 5 * ROWS)}>Show ${Math.min(5 * ROWS, all.length - rows)} more</button></p>`}
  </div>`;
}
