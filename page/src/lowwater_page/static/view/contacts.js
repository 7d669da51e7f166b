/** Contacts: what operators wrote down beside a promise. */

import { html } from "../html.js";
import { address } from "../model/promise.js";
import { format } from "../model/route.js";
import { duration } from "../model/time.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/types.js").Range} Range */

/**
 * Link to another site, which does not learn where the viewer came from.
 *
 * @param {{href: string, children?: any}} props
 */
function Away({ href, children }) {
  return html`<a href=${href} target="_blank" rel="noopener noreferrer">${children}</a>`;
}

/**
 * Link to the logs of a key range's worker; nothing when the promise names none.
 *
 * @param {{promise: import("../model/types.js").Promised | null | undefined, range: Range | null, words?: string}} props
 */
export function Logs({ promise, range, words }) {
  const href = promise?.logs ? address(promise.logs, range) : "";
  if (!href) return null;
  return html`<${Away} href=${href}>${words ?? (range?.worker ? `logs of ${range.worker}` : "logs")}<//>`;
}

/**
 * Promise, team, owner and runbook of a computation and of its root cause, with the logs of that
 * worker; nothing without a promise.
 *
 * @param {{verdict: Verdict, verdicts: Map<string, Verdict>, route:
 *   import("../model/route.js").Route, full?: boolean}} props `full`: with the promised lag.
 */
export function Contacts({ verdict, verdicts, route, full = false }) {
  const { computation, guilty, range, level } = verdict;
  const { name, promise } = computation;
  const holder = level === "finished" ? undefined : verdicts.get(guilty)?.computation.promise;
  const whose = (/** @type {import("../model/types.js").Promised} */ promised, /** @type {string} */ subject) => {
    const named = /** @type {const} */ (["team", "owner"]).filter((which) => promised[which]);
    if (named.length === 0) return null;
    const theirs = (/** @type {"team" | "owner"} */ which) => format({ ...route, name: "", query: "", only: "", team: "", owner: "", [which]: promised[which] });
    return html`${subject && `${subject}: `}${named.map((which, index) => html`${index > 0 && ", "}${which} <a key=${which} href=${theirs(which)}>${promised[which]}</a>`)}`;
  };
  const runbook = (/** @type {string} */ subject, /** @type {string | undefined} */ template) => {
    const href = template ? address(template) : "";
    return href && html`<${Away} href=${href}>runbook of ${subject}<//>`;
  };
  const own = promise ? [full && promise.late_seconds && html`late after ${duration(promise.late_seconds)}, as promised`, whose(promise, ""), runbook(name, promise.runbook)] : [];
  const other = holder && guilty !== name && [holder.team, holder.owner].join("\n") !== [promise?.team, promise?.owner].join("\n");
  const parts = [...own, other && whose(holder, guilty), guilty !== name && runbook(guilty, holder?.runbook), holder?.logs && html`<${Logs} promise=${holder} range=${range} />`];
  const shown = parts.filter(Boolean);
  if (shown.length === 0) return null;
  return html`<ul class="contacts" aria-label=${`Whom to ask about ${name}`}>${shown.map((part, index) => html`<li key=${index}>${part}</li>`)}</ul>`;
}
