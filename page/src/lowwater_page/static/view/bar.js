/** Bar of a lag: dark up to the lag of nearly all records, light up to that of the stragglers. */

import { html } from "../html.js";
import { extent } from "../model/lag.js";

/** @param {{verdict: import("../model/verdict.js").Verdict}} props */
export function Bar({ verdict }) {
  const { lag, most, level, late } = verdict;
  if (lag === null) return html`<div class="bar bar-${level}" aria-hidden="true"></div>`;
  const exact = extent(lag, late);
  const nearly = most === null ? exact : Math.min(exact, extent(most, late));
  return html`<div class="bar" aria-hidden="true">
    <i class="stragglers ink-${level}" style=${{ width: `${exact * 100}%` }}></i>
    <i class="most ink-${level}" style=${{ width: `${nearly * 100}%` }}></i>
    <i class="threshold"></i>
  </div>`;
}
