/** The key-range strip: the key space as a bar, and the details of one range. */

import { html } from "../html.js";
import { useRef, useState } from "../vendor/preact-hooks.js";
import { activity, owner } from "../model/culprit.js";
import { WORDS, behind, level, trouble, noReportWords } from "../model/lag.js";
import { cells, indexAfterKey, same } from "../model/strip.js";
import { ago, lag } from "../model/time.js";
import { Logs } from "./contacts.js";
import { useWidth } from "./hooks.js";
import { Mark, Symbol, Time } from "./parts.js";

/** @typedef {import("../model/types.js").Range} Range */

/**
 * Last position of the pointer. A pointer that rests where the strip appears chooses no cell: only
 * one that moves does.
 */
let pointer = "";
const place = (/** @type {MouseEvent} */ { screenX, screenY }) => `${screenX} ${screenY}`;
// The listener is on the window, so it runs after those of the cells.
addEventListener("mousemove", (event) => {
  pointer = place(event);
});

/** Smallest width of a cell in pixels that a finger or an eye can find. */
const CELL = 7;

/** Patterns by what an owner does. */
const PATTERNS = { "": "alive", silent: "silent", stopped: "unowned", failed: "unowned", "not begun": "never-claimed" };

/**
 * Returns the pattern of a range's cell, over its colour.
 *
 * @param {Range} range
 * @param {number} now
 * @returns {string}
 */
function pattern(range, now) {
  if (range.state !== "owned") return range.state.replace(" ", "-");
  return PATTERNS[trouble(range, now)];
}

/**
 * @param {{ranges: Range[], total: number, guilty: Range | null, promise?: import("../model/types.js").Promised | null, from:
 *   import("../model/lag.js").Reference, late: number, now: number}} props
 */
export function Strip({ ranges, total, guilty, promise, from, late, now }) {
  const [frame, width] = useWidth();
  const all = cells(ranges, Math.max(1, Math.floor(width / CELL)));
  const own = all.findIndex(({ range }) => same(range, guilty));
  const [at, move] = useState(/** @type {string | null} */ (null));
  const chosen = all.findIndex(({ range }) => range.start === at);
  const shown = chosen >= 0 ? chosen : Math.max(0, own);
  const bar = useRef(/** @type {HTMLElement | null} */ (null));
  const most = Math.max(0, ...all.map(({ count }) => count));
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    const next = indexAfterKey(event.key, shown, all.length);
    if (next === null) return;
    event.preventDefault();
    move(all[next].range.start);
    /** @type {HTMLElement | undefined} */ (bar.current?.children[next])?.focus();
  };
  return html`<div class="strip" ref=${frame}>
    <div class="strip-bar" role="group" aria-label="Key ranges, in the order of their keys" ref=${bar} onKeyDown=${pressed}>
      ${all.map(({ range, gap, count }, index) => {
        const colour = level(range.watermark, from, late);
        return html`<button
          key=${range.start}
          type="button"
          class=${`cell cell-${colour} is-${pattern(range, now)}${index === own ? " guilty" : ""}${gap ? " gap" : ""}`}
          tabindex=${index === shown ? 0 : -1}
          aria-pressed=${index === shown ? "true" : "false"}
          aria-label=${`${range.label}${count > 1 ? ` and ${count - 1} next to it` : ""}, ${WORDS[colour]}, ${owner(range)}, ${activity(range, now)}`}
          onMouseMove=${(/** @type {MouseEvent} */ event) => place(event) !== pointer && move(range.start)}
          onFocus=${() => move(range.start)}
          onClick=${() => move(range.start)}
        ></button>`;
      })}
    </div>
    <div class="strip-ends" aria-hidden="true"><span>first key</span><span>last key</span></div>
    ${all.length > 0 && html`<${Card} cell=${all[shown]} guilty=${shown === own} promise=${promise} from=${from} late=${late} now=${now} />`}
    <p class="quiet strip-note">
      ${ranges.length < total
        ? `${ranges.length.toLocaleString("en")} of ${total.toLocaleString("en")} key ranges: those furthest behind. `
        : `${total.toLocaleString("en")} key ${total === 1 ? "range" : "ranges"}. `}
      ${most > 1 && `A cell stands for up to ${most} neighbours and shows the one furthest behind. `}
      <${Patterns} />
    </p>
  </div>`;
}

function Patterns() {
  const patterns = [
    ["silent", "silent owner"],
    ["unowned", "no owner"],
    ["never-claimed", "never claimed"],
    ["retired", "retired"],
  ];
  return html`<span class="patterns">
    ${patterns.map(([kind, word]) => html`<span key=${kind}><i class=${`cell cell-late is-${kind}`} aria-hidden="true"></i>${word}</span>`)}
  </span>`;
}

/**
 * @param {{cell: import("../model/strip.js").Cell, guilty: boolean, promise?: import("../model/types.js").Promised | null, from: import("../model/lag.js").Reference, late: number, now: number}} props
 */
function Card({ cell: { range, count }, guilty, promise, from, late, now }) {
  const seconds = behind(range.watermark, from);
  return html`<div class="card" role="status">
    <p class="card-title">
      <${Symbol} level=${level(range.watermark, from, late)} />
      <b>${range.label}</b>
      ${guilty && html`<span class="tag holds">holds the watermark</span>`}
      ${count > 1 && html`<span class="quiet">the furthest behind of ${count} neighbours</span>`}
    </p>
    <${Facts} range=${range} promise=${promise} seconds=${seconds} now=${now} />
  </div>`;
}

/**
 * Details of a key range.
 *
 * @param {{range: Range, promise?: import("../model/types.js").Promised | null, seconds: number | null, now: number}} props
 */
export function Facts({ range, promise, seconds, now }) {
  return html`<dl class="facts">
    <div><dt>Worker</dt><dd>${range.worker || "–"} <${Logs} promise=${promise} range=${range} words="logs" /></dd></div>
    <div><dt>Host</dt><dd>${range.host || "–"}</dd></div>
    <div><dt>Last report</dt><dd>
      ${range.last_report_micros
        ? html`<${Time} micros=${range.last_report_micros} now=${now} text=${ago(range.last_report_micros, now)} />`
        : noReportWords(range)}
    </dd></div>
    <div><dt>State</dt><dd>${[range.state, trouble(range, now)].filter(Boolean).join(", ")}</dd></div>
    <div><dt>Watermark</dt><dd><${Mark} watermark=${range.watermark} now=${now} />${seconds !== null && html`<span class="quiet">, ${lag(seconds)} behind</span>`}</dd></div>
    <div><dt>At this watermark since</dt><dd>
      ${range.since_micros ? html`<${Time} micros=${range.since_micros} now=${now} /> <span class="quiet">${ago(range.since_micros, now)}</span>` : "–"}
    </dd></div>
    <div><dt>Sequencer</dt><dd class="mono">${String(range.sequencer)}</dd></div>
    ${range.failure && html`<div class="waits"><dt>Failed by</dt><dd>${range.failure}</dd></div>`}
    ${range.untimed_rows > 0 && html`<div><dt>Rows without a time</dt><dd>${range.untimed_rows.toLocaleString("en")}, in no window</dd></div>`}
    ${range.waiting_for && (range.ended || !trouble(range, now)) && html`<div class="waits"><dt>${range.ended ? "Waited for" : "Waits for"}</dt><dd>${range.waiting_for}</dd></div>`}
  </dl>`;
}
