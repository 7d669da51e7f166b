/** The bar of a lag: full up to what nearly all records are behind, light for the stragglers beyond. */

import { html } from "../html.js";
import { extent } from "../model/lag.js";

/**
 * @param {{verdict: import("../model/verdict.js").Verdict}} props
 */
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
