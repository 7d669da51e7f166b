/** Buttons for the time span. */

import { html } from "../html.js";
import { SPANS } from "../model/history.js";

/** @param {{route: import("../model/route.js").Route, go: (route: import("../model/route.js").Route) => void}} props */
export function Spans({ route, go }) {
  return html`<div class="spans" role="group" aria-label="How far back">
    ${SPANS.map(
      ({ name, words }) =>
        html`<button key=${name} type="button" aria-pressed=${route.span === name} aria-label=${`the last ${words}`} title=${`Show the last ${words}`} onClick=${() => go({ ...route, span: name })}>
          ${name.replace(/(\d)([a-z])/, "$1 $2")}
        </button>`,
    )}
  </div>`;
}
