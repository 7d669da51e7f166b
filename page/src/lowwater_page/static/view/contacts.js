/** Whom to ask and where to look: what operators wrote down beside the promise of a computation. */

import { html } from "../html.js";
import { address } from "../model/promise.js";
import { format } from "../model/route.js";
import { duration } from "../model/time.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/types.js").Range} Range */

/**
 * A link to another site, which is told nothing of this one.
 *
 * @param {{href: string, children?: any}} props
 */
function Away({ href, children }) {
  return html`<a href=${href} target="_blank" rel="noopener noreferrer">${children}</a>`;
}

/**
 * The logs of who works on a key range; nothing when nobody said where they are.
 *
 * @param {{promise: import("../model/types.js").Promised | null | undefined, range: Range | null, words?: string}} props
 */
export function Logs({ promise, range, words }) {
  const href = promise?.logs ? address(promise.logs, range) : "";
  if (!href) return null;
  return html`<${Away} href=${href}>${words ?? (range?.worker ? `logs of ${range.worker}` : "logs")}<//>`;
}

/**
 * What was promised of a computation, whose it is, its runbook, and the logs of who holds it. Nothing when nothing was promised.
 *
 * @param {{verdict: Verdict, verdicts: Map<string, Verdict>, route: import("../model/route.js").Route, full?: boolean}} props `full`: with what
 *   was promised.
 */
export function Contacts({ verdict, verdicts, route, full = false }) {
  const { computation, guilty, range, level } = verdict;
  const { promise } = computation;
  const holder = verdicts.get(guilty)?.computation.promise;
  const runbook = promise?.runbook ? address(promise.runbook) : "";
  const only = (/** @type {"team" | "owner"} */ which) =>
    html`${which} <a href=${format({ ...route, name: "", query: "", only: "", team: "", owner: "", [which]: promise?.[which] ?? "" })}>${promise?.[which]}</a>`;
  const parts = [
    full && promise?.late_seconds ? html`late from ${duration(promise.late_seconds)}, as promised` : null,
    promise?.team ? only("team") : null,
    promise?.owner ? only("owner") : null,
    runbook ? html`<${Away} href=${runbook}>runbook of ${computation.name}<//>` : null,
    level !== "finished" && holder?.logs ? html`<${Logs} promise=${holder} range=${range} />` : null,
  ].filter((part) => part !== null);
  if (parts.length === 0) return null;
  return html`<ul class="contacts" aria-label=${`Whom to ask about ${computation.name}`}>${parts.map((part, index) => html`<li key=${index}>${part}</li>`)}</ul>`;
}
