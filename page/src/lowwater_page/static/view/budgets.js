/** Lateness budgets of a computation: their watermarks, and the records that came behind them. */

import { html } from "../html.js";
import { behind } from "../model/lag.js";
import { lag } from "../model/time.js";
import { percent } from "../model/verdict.js";
import { Mark } from "./parts.js";

/** @param {{budgets: import("../model/types.js").Budget[], from: import("../model/lag.js").Reference, now: number}} props */
export function Budgets({ budgets, from, now }) {
  if (budgets.length === 0) return null;
  const count = (/** @type {number} */ value) => value.toLocaleString("en");
  return html`<section class="panel" aria-labelledby="budgets-title">
    <header class="panel-head">
      <h2 id="budgets-title">Lateness budgets</h2>
      <p class="quiet">in the long run at most this share of the records comes behind the watermark, besides those excused</p>
    </header>
    <div class="scroller"><table class="budgets">
      <thead><tr>
        <th scope="col">Budget</th><th scope="col" class="number">Watermark</th><th scope="col" class="number wide">Behind now</th>
        <th scope="col" class="number">Came behind it</th><th scope="col" class="number wide">of records</th>
        <th scope="col" class="number">Excused</th><th scope="col" class="number">Worst of recent records</th>
      </tr></thead>
      <tbody>
        ${budgets.map(({ share, watermark, records, behind: late, excused, worst }) => {
          const spent = records > 0 ? (late - excused) / records : 0;
          return html`<tr key=${share}>
            <th scope="row">${percent(share)}</th>
            <td class="number"><${Mark} watermark=${watermark} now=${now} /></td>
            <td class="number wide">${lag(behind(watermark, from))}</td>
            <td class="number">${count(late)} <span class=${spent > share ? "ink-late" : "quiet"}>${records > 0 && percent(Number((late / records).toPrecision(2)))}</span></td>
            <td class="number wide">${count(records)}</td>
            <td class="number">${count(excused)}</td>
            <td class="number" title="in any 10,000 of the last 100,000 records">${worst > 0 ? percent(Number(worst.toPrecision(2))) : "–"}</td>
          </tr>`;
        })}
      </tbody>
    </table></div>
  </section>`;
}
