/** When steps of event time became complete. */

import { html } from "../html.js";
import { duration, lag } from "../model/time.js";
import { useAnswer } from "./hooks.js";
import { Mark, Time } from "./parts.js";

/** Number of steps shown, newest first. */
const SHOWN = 24;

/**
 * @param {{name: string, moved: number, now: number}} props `moved`: time at which the low
 *   watermark moved last, in microseconds.
 */
export function Completions({ name, moved, now }) {
  /**
   * @type {import("./hooks.js").Answer<{step_seconds: number, completions: {through: import("../model/types.js").Watermark, time_micros: number,
   *   behind_seconds: number | null}[]}>}
   */
  const history = useAnswer(`/api/history?computation=${encodeURIComponent(name)}`, moved);
  const steps = (history.value?.completions ?? []).slice(-SHOWN).reverse();
  const most = Math.max(1, ...steps.map((step) => step.behind_seconds ?? 0));
  return html`<section class="panel" aria-labelledby="complete-title">
    <header class="panel-head">
      <h2 id="complete-title">Complete, step by step</h2>
      ${history.value && html`<p class="quiet">steps of ${duration(history.value.step_seconds)} of event time, newest first</p>`}
      ${history.error && html`<p class="trouble" role="alert">${history.error}</p>`}
    </header>
    ${steps.length === 0
      ? html`<p class="empty">${history.value === null ? "Loading …" : "No step of event time is complete yet."}</p>`
      : html`<div class="scroller"><table class="completions">
          <thead><tr><th scope="col">Everything before</th><th scope="col" class="wide">was complete at</th><th scope="col" class="number">after its end</th><th class="wide" scope="col"><span class="hidden">as a bar</span></th></tr></thead>
          <tbody>
            ${steps.map(
              (step) => html`<tr key=${step.time_micros}>
                <th scope="row"><${Mark} watermark=${step.through} now=${now} /></th>
                <td class="wide"><${Time} micros=${step.time_micros} now=${now} /></td>
                <td class="number">${lag(step.behind_seconds)}</td>
                <td class="wide bar-cell"><div class="plain-bar" aria-hidden="true"><i style=${{ width: `${((step.behind_seconds ?? 0) / most) * 100}%` }}></i></div></td>
              </tr>`,
            )}
          </tbody>
        </table></div>`}
  </section>`;
}
