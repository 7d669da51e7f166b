/** Small components for several views. */

import { html } from "../html.js";
import { WORDS } from "../model/lag.js";
import { clock, iso, lag, stamp } from "../model/time.js";
import { because, isStuck } from "../model/verdict.js";
import { useZone } from "./hooks.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */

/** Shape of each level, so that colour does not say it alone. @type {Record<string, string>} */
const SHAPES = {
  ontime: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z",
  slow: "M8 1.5 14.5 8 8 14.5 1.5 8z",
  late: "M8 2 15 14H1z",
  verylate: "M5 1h6l4 4v6l-4 4H5l-4-4V5z",
  stuck: "M2 2h12v12H2z",
  far: "M8 3v4l5-4v10L8 9v4L2 8z",
  unknown: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 2a4 4 0 1 1 0 8 4 4 0 0 1 0-8z",
  stopped: "M3 2h4v12H3zM9 2h4v12H9z",
  failed: "M3.5 1.4 8 5.9l4.5-4.5 2.1 2.1L10.1 8l4.5 4.5-2.1 2.1L8 10.1l-4.5 4.5-2.1-2.1L5.9 8 1.4 3.5z",
  unbegun: "M1 6.5h3v3H1zM6.5 6.5h3v3h-3zM12 6.5h3v3h-3z",
  finished: "M6.2 13.4 1.6 8.8l1.7-1.7 2.9 2.9 6.5-6.5 1.7 1.7z",
  none: "M2 7h12v2H2z",
};

/**
 * Shape and colour of a level.
 *
 * @param {{level: string}} props
 */
export function Symbol({ level }) {
  return html`<svg class="symbol ink-${level}" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[level]} /></svg>`;
}

/**
 * Time in short; its title has the full time.
 *
 * @param {{micros: number, now: number, text?: string}} props
 */
export function Time({ micros, now, text }) {
  const zone = useZone();
  return html`<time datetime=${iso(micros)} title=${stamp(micros, zone)}>${text ?? clock(micros, now, zone)}</time>`;
}

/**
 * A watermark.
 *
 * @param {{watermark: import("../model/types.js").Watermark, now: number}} props
 */
export function Mark({ watermark, now }) {
  if (watermark.micros === null) return html`<span class="quiet">${watermark.state}</span>`;
  return html`<${Time} micros=${watermark.micros} now=${now} />`;
}

/**
 * Writes the lag of a computation, or why it has none.
 *
 * @param {Verdict} verdict
 * @returns {string}
 */
export function far({ lag: seconds, level }) {
  return seconds === null ? WORDS[level] : lag(seconds);
}

/**
 * Level of a computation, and why it is there.
 *
 * @param {{verdict: Verdict}} props
 */
export function State({ verdict }) {
  const why = because(verdict);
  const word = WORDS[verdict.level];
  return html`<span class="state">
    <${Symbol} level=${verdict.level} />
    <span class="ink-${verdict.level}">${word}</span>
    ${why && why !== word && html`<span class="why ${whyInk(verdict) || "quiet"}">${why}</span>`}
  </span>`;
}

/**
 * Classes of the words that say why a computation is where it is; empty: they have no colour.
 *
 * @param {Verdict} verdict
 */
export function whyInk({ cause }) {
  if (isStuck(cause)) return "ink-stuck strong";
  return cause === "unbegun" ? "ink-unbegun" : "";
}

/**
 * Name that may break after its separators.
 *
 * @param {{name: string}} props
 */
export function Name({ name }) {
  return name.split(/(?<=[/._-])/).flatMap((part, index) => (index ? [html`<wbr />`, part] : [part]));
}
