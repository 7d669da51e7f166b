/** When steps of event time became complete. */

import { html } from "../html.js";
import { duration, lag } from "../model/time.js";
import { useAnswer } from "./hooks.js";
import { Mark, Time } from "./parts.js";

/** How many of the newest are shown. */
const SHOWN = 24;

/**
 * @param {{name: string, moved: number, now: number}} props `moved`: when the low watermark did last.
 */
export function Completions({ name, moved, now }) {
  /** @type {import("./hooks.js").Answer<{step_seconds: number, completions: {through: import("../model/types.js").Watermark,
   *   time_micros: number, behind_seconds: number | null}[]}>} */
  const history = useAnswer(`/api/history?computation=${encodeURIComponent(name)}`, moved);
  const found = (history.value?.completions ?? []).slice(-SHOWN).reverse();
  const most = Math.max(1, ...found.map((each) => each.behind_seconds ?? 0));
  return html`<section class="panel" aria-labelledby="complete-title">
    <header class="panel-head">
      <h2 id="complete-title">Complete, step by step</h2>
      ${history.value && html`<p class="quiet">steps of ${duration(history.value.step_seconds)} of event time, newest first</p>`}
      ${history.error && html`<p class="trouble" role="alert">${history.error}</p>`}
    </header>
    ${found.length === 0
      ? html`<p class="empty">${history.value === null ? "Asking …" : "No step of event time is complete yet."}</p>`
      : html`<div class="scroller"><table class="completions">
          <thead><tr><th scope="col">Everything before</th><th scope="col" class="wide">was complete at</th><th scope="col" class="number">after its end</th><th class="wide" scope="col"><span class="hidden">as a bar</span></th></tr></thead>
          <tbody>
            ${found.map(
              (each) => html`<tr key=${each.time_micros}>
                <th scope="row"><${Mark} watermark=${each.through} now=${now} /></th>
                <td class="wide"><${Time} micros=${each.time_micros} now=${now} /></td>
                <td class="number">${lag(each.behind_seconds)}</td>
                <td class="wide bar-cell"><div class="plain-bar" aria-hidden="true"><i style=${{ width: `${((each.behind_seconds ?? 0) / most) * 100}%` }}></i></div></td>
              </tr>`,
            )}
          </tbody>
        </table></div>`}
  </section>`;
}
