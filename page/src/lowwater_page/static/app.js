/** The status page: shows what the address asks for, from what the authority sends. */

import { html } from "./html.js";
import { Live, clockOf, seenAt } from "./live.js";
import { parse, format } from "./model/route.js";
import { belongsTo } from "./model/promise.js";
import { wholes } from "./model/slices.js";
import { found, sorted, matches } from "./model/table.js";
import { judge } from "./model/verdict.js";
import { duration, zoneName } from "./model/time.js";
import { render } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/preact-hooks.js";
import { Banner } from "./view/banner.js";
import { Computation } from "./view/computation.js";
import { Door } from "./view/door.js";
import { ZoneContext, useTick } from "./view/hooks.js";
import { Overview } from "./view/overview.js";
import { Time } from "./view/parts.js";

/** @typedef {import("./model/route.js").Route} Route */

/**
 * Follows the route in the address.
 *
 * @returns {[Route, (route: Route) => void]} The route, and a function that changes it. Only a
 *   change of the computation is a step for the back button.
 */
function useRoute() {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => set(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const go = (/** @type {Route} */ next) => {
    if (next.name !== route.name) location.hash = format(next);
    else {
      history.replaceState(null, "", format(next));
      set(next);
    }
  };
  return [route, go];
}

/** @returns {[import("./live.js").State, Live]} */
function useLive() {
  const [live] = useState(() => new Live((next) => set(next)));
  const [state, set] = useState(live.state);
  useEffect(() => live.start(), []);
  return [state, live];
}

function App() {
  const [state, live] = useLive();
  const [route, go] = useRoute();
  useTick();
  const search = useRef(/** @type {HTMLInputElement | null} */ (null));
  const now = clockOf(state);
  const at = seenAt(state);
  const { verdicts, from } = judge(state.board, at, route);
  const verdict = verdicts.get(route.name);
  useKeys(search, route, go);
  useArrival(route.name);
  const loaded = state.board.changes > 0;
  useEffect(() => {
    document.title = route.name ? `${route.name} · lowwater` : "lowwater";
  }, [route.name]);
  const [step, setStep] = useState({ query: "", index: 0 });
  const index = step.query === route.query ? step.index : 0;
  const all = route.query && !route.name ? [...(route.query.includes("~") ? verdicts : wholes(verdicts)).values()] : [];
  const names = found(sorted(all.filter((verdict) => matches(verdict, route.query) && belongsTo(verdict.computation, route)), route.sort), route.query);
  const next = () => {
    if (names.length === 1) go({ ...route, name: names[0], query: "" });
    else setStep({ query: route.query, index: index + 1 });
  };
  useEffect(() => {
    if (step.index > 0) document.querySelector(".current")?.scrollIntoView({ block: "nearest" });
  }, [step]);
  if (state.link === "out") return html`<${Door} signIn=${(/** @type {string} */ token) => live.signIn(token)} />`;
  return html`<${ZoneContext.Provider} value=${route.zone}>
    <a class="skip" href="#main" onClick=${skip}>To the content</a>
    <header class="top">
      <a class="brand" href=${format({ ...route, name: "", query: "", only: "" })}><img src="/static/icon.svg" alt="" width="22" height="22" />lowwater</a>
      <form class="search" role="search" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); next(); }}>
        <input
          ref=${search}
          type="search"
          aria-label="Search computations, workers and hosts"
          title="Marks what matches. Enter goes on to the next, or opens the only one; Escape ends the search."
          placeholder="Search computations, workers, hosts"
          autocomplete="off"
          spellcheck=${false}
          value=${route.query}
          onInput=${(/** @type {Event} */ event) => go({ ...route, name: "", query: /** @type {HTMLInputElement} */ (event.target).value })}
        />
        <kbd aria-hidden="true">/</kbd>
      </form>
      <${Link} state=${state} route=${route} go=${go} now=${now} />
    </header>
    <${Banner} state=${state} now=${now} />
    ${!loaded
      ? html`<main id="main"><p class="empty" role="status">${state.link === "lost" ? "The authority does not answer." : "Loading …"}</p></main>`
      : route.name === ""
        ? html`<${Overview} verdicts=${verdicts} from=${from} found=${names} index=${index} route=${route} go=${go} now=${at} />`
        : verdict === undefined
          ? html`<main id="main"><p class="crumbs"><a href=${format({ ...route, name: "" })}>← All computations</a></p>
              <h1>${route.name}</h1><p class="empty">No computation of this name is registered. The page shows it once it is registered.</p></main>`
          : html`<${Computation} key=${route.name} verdict=${verdict} verdicts=${verdicts} route=${route} go=${go} now=${at} changes=${state.board.changes} />`}
    ${loaded && html`<${Foot} state=${state} signOut=${() => live.signOut()} />`}
  <//>`;
}

/** @param {{state: import("./live.js").State, route: Route, go: (route: Route) => void, now: number}} props */
function Link({ state, route, go, now }) {
  const words = { starting: "connecting", live: "live", away: "no authority", lost: "not connected", out: "signed out" };
  const link = state.link === "live" && state.board.away !== null ? "away" : state.link;
  return html`<p class="link link-${link}"><i aria-hidden="true"></i><span>${words[link]}</span>
    ${state.board.time > 0 && html`<span class="now"><${Time} micros=${now} now=${now} /></span>
    <${ZoneSwitch} route=${route} go=${go} now=${now} />`}</p>`;
}

/**
 * Switch of the zone of all times: UTC's or the viewer's.
 *
 * @param {{route: Route, go: (route: Route) => void, now: number}} props
 */
function ZoneSwitch({ route, go, now }) {
  const choose = (/** @type {Event} */ event) => go({ ...route, zone: /** @type {HTMLSelectElement} */ (event.target).value === "local" ? "local" : "utc" });
  return html`<select class="zone" aria-label="Zone of all times" title="Zone in which all times are written" value=${route.zone} onChange=${choose}>
    <option value="utc">UTC</option>
    <option value="local">${zoneName(now, "local")}${zoneName(now, "local").includes("local") ? "" : " (local)"}</option>
  </select>`;
}

/** @param {{state: import("./live.js").State, signOut: () => Promise<void>}} props */
function Foot({ state: { board, name }, signOut }) {
  const shards = board.shards.map(({ address, draining, silent_seconds: silent }) => {
    const more = [draining && "draining", silent > 15 && `silent for ${duration(silent)}`].filter(Boolean).join(", ");
    return `${address}${more && ` (${more})`}`;
  });
  return html`<footer class="foot quiet">
    <span>lowwater ${board.version}</span>
    ${shards.length > 0 && html`<span>${shards.length === 1 ? "shard" : "shards"} ${shards.join(", ")}</span>`}
    ${name !== null && html`<span>signed in as ${name} <button class="plain" onClick=${signOut}>Sign out</button></span>`}
    <span class="keys"><kbd>/</kbd> search <kbd>Esc</kbd> back</span>
  </footer>`;
}

/**
 * Focuses the content without changing the address, which holds the route.
 *
 * @param {Event} event
 */
function skip(event) {
  event.preventDefault();
  const main = document.getElementById("main");
  main?.setAttribute("tabindex", "-1");
  main?.focus();
}

/**
 * @param {{current: HTMLInputElement | null}} search
 * @param {Route} route
 * @param {(route: Route) => void} go
 */
function useKeys(search, route, go) {
  useEffect(() => {
    const pressed = (/** @type {KeyboardEvent} */ event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "/" && !typing) {
        event.preventDefault();
        search.current?.focus();
        search.current?.select();
      } else if (event.key === "Escape") {
        if (route.query || route.only) go({ ...route, query: "", only: "" });
        else if (typing) /** @type {HTMLElement} */ (event.target).blur();
        else if (route.name) go({ ...route, name: "" });
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  });
}

/**
 * Scrolls to the top and focuses the title when another computation is opened.
 *
 * @param {string} name
 */
function useArrival(name) {
  const last = useRef(name);
  useEffect(() => {
    if (last.current === name) return;
    last.current = name;
    scrollTo(0, 0);
    if (document.activeElement instanceof HTMLInputElement) return;
    const title = document.querySelector("h1");
    title?.setAttribute("tabindex", "-1");
    title?.focus({ preventScroll: true });
  }, [name]);
}

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.replaceChildren();
render(html`<${App} />`, root);
