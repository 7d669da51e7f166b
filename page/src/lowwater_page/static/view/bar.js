/** Bar of a lag: dark up to the lag of nearly all records, light up to that of the stragglers. */

import { html } from "../html.js";
import { WORDS, extent } from "../model/lag.js";
import { duration, lag as lagWords } from "../model/time.js";

/**
 * Says what a bar shows.
 *
 * @param {import("../model/verdict.js").Verdict} verdict
 * @returns {string} "41 min behind; 99 % of recent records 25 s; the tick: late after 30 min"
 */
export function barWords({ lag, most, mostName, level, late }) {
  if (lag === null) return WORDS[level];
  const nearly = most === null ? "" : `; ${mostName} of recent records ${lagWords(Math.max(0, most))}`;
  return `${lagWords(lag)} behind${nearly}; the tick: late after ${duration(late)}`;
}

/**
 * @param {{verdict: import("../model/verdict.js").Verdict, inside?: boolean}} props `inside`: it is
 *   part of a link that says the same.
 */
export function Bar({ verdict, inside = false }) {
  const { lag, most, level, late } = verdict;
  const words = barWords(verdict);
  const told = inside ? { "aria-hidden": "true" } : { role: "img", "aria-label": words, title: words };
  if (lag === null) return html`<div class="bar bar-${level}" ...${told}></div>`;
  const exact = extent(lag, late);
  const nearly = most === null ? exact : Math.min(exact, extent(most, late));
  return html`<div class="bar" ...${told}>
    <i class="stragglers ink-${level}" style=${{ width: `${exact * 100}%` }}></i>
    <i class="most ink-${level}" style=${{ width: `${nearly * 100}%` }}></i>
    <i class="threshold"></i>
  </div>`;
}
