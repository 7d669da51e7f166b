/**
 * Warns when the page may be out of date: the connection is lost, no authority answers, or the page
 * is older than its server.
 */

import { html } from "../html.js";
import { useRef } from "../vendor/preact-hooks.js";
import { duration, zoneName } from "../model/time.js";
import { Time } from "./parts.js";
import { useZone } from "./hooks.js";

/**
 * Seconds without news from a part of the deployment after which its values are called old; about 1
 * in normal operation.
 */
const STALE_SECONDS = 10;

/** @param {{state: import("../live.js").State, now: number}} props */
export function Banner({ state, now }) {
  const { board, link, heardAt, lostAt, reason } = state;
  const loaded = useRef("");
  if (!loaded.current) loaded.current = board.version;
  const zone = useZone();
  const lines = [];
  if (link === "lost") {
    const quiet = (performance.now() - heardAt) / 1000;
    const lostFor = duration(Math.max(0, performance.now() - lostAt) / 1000);
    lines.push(html`<p key="lost">
      <b>Connection lost</b> ${lostFor} ago${reason && `: ${reason}`}.
      ${board.time > 0 &&
      (quiet > 3
        ? html` The values are as of <${Time} micros=${board.time} now=${now} /> ${zoneName(board.time, zone)}, ${duration(quiet)} ago.`
        : html` The page requests the values every few seconds instead.`)}
      ${" "}Trying again.
    </p>`);
  } else if (board.away) {
    const awayFor = (now - board.away.since_micros) / 1e6;
    lines.push(html`<p key="away">
      <b>No authority answers</b> for ${duration(Math.max(0, awayFor))} now: ${ended(board.away.sentence)}${" "}
      ${board.staleFor === null
        ? html`The page has no values of it yet.`
        : html`What is shown is ${duration(board.staleFor + (performance.now() - heardAt) / 1000)} old.`}
    </p>`);
  } else if (board.changes > 0 && (board.staleFor === null || board.staleFor > STALE_SECONDS)) {
    lines.push(
      board.staleFor === null
        ? html`<p key="stale"><b>This authority has no values of the deployment yet.</b></p>`
        : html`<p key="stale">
            <b>A part of the deployment does not answer.</b> What is shown of it may be
            ${duration(board.staleFor + (performance.now() - heardAt) / 1000)} old.
          </p>`,
    );
  }
  if (board.version !== loaded.current) {
    lines.push(html`<p key="old">This page is of version ${loaded.current}, its server is ${board.version}. <a href="" onClick=${reload}>Load it again</a></p>`);
  }
  return html`<div class="banners" role="status" aria-live="polite">${lines.map((line) => html`<div class="banner">${line}</div>`)}</div>`;
}

/**
 * Ends an error message with a full stop, since a sentence follows.
 *
 * @param {string} sentence
 */
function ended(sentence) {
  return /[.?!]$/.test(sentence) ? sentence : `${sentence}.`;
}

/** @param {Event} event */
function reload(event) {
  event.preventDefault();
  location.reload();
}
