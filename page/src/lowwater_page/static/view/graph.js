/** The pipeline graph. Names and lags are links in reading order; the lines between them are for the eye. */

import { html } from "../html.js";
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { breadth, chosen, drawing, layout } from "../model/graph.js";
import { gather, inShort } from "../model/groups.js";
import { WORDS } from "../model/lag.js";
import { layered } from "../model/layers.js";
import { format } from "../model/route.js";
import { sliceOf } from "../model/slices.js";
import { brief, mark } from "../model/time.js";
import { because, isStuck, way } from "../model/verdict.js";
import { Bar } from "./bar.js";
import { useMedia, useWidth, useZone } from "./hooks.js";
import { Symbol, far } from "./parts.js";
import { STEP, useZoom } from "./zoom.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/route.js").Route} Route */

/** Boxes from roomy to narrow: the first with which the graph fits is taken, the last if it fits a little smaller; else the first, for names to be read. */
const BOXES = [
  { width: 216, height: 92 },
  { width: 188, height: 92 },
  { width: 164, height: 92 },
];
/** On a small screen a box is as wide as its name needs, within these bounds; at the upper one two stand side by side. */
const SMALL = { least: 102, most: 148, height: 58 };
/** Pixels of a letter of a name on a small screen, and of what else is in its line. */
const LETTER = 7.6;
const BESIDE = 30;
/** The height beyond which the graph scrolls, of few boxes and of many, as in the style sheet. */
const TALL = 620;
const TALLER = 700;
/** How often another part of a large pipeline may be chosen to be drawn. */
const CHOOSE_MILLIS = 5_000;
/** Boxes up to which they are shown as large as they are; and beyond which they are placed in layers, each of this size. */
const FEW = 24;
const MANY = 40;
const FLAT = { width: 176, height: 76 };
/** The least scale that some boxes are shown at first, also on a small screen; and how far apart many are for a finger there, in pixels. */
const LEGIBLE = 0.7;
const LEGIBLE_SMALL = 0.85;
const FINGER = 24;
/** Scale below which a box says its name alone, in letters of so many pixels, and below which not even that. */
const AFAR = 0.6;
const LETTERS = 11;
const DOTS = 0.28;

/**
 * @param {{verdicts: Map<string, Verdict>, slices: Map<string, string[]>, wanted: string[], dimmed: Set<string>, route: Route,
 *   go: (route: Route) => void, now: number, worst: string}} props `slices`: not drawn, but counted, of what is cut. `wanted`: searched. `dimmed`: what
 *   is drawn for the sake of others.
 */
export function Graph({ verdicts, slices, wanted, dimmed, route, go, now, worst }) {
  const down = useMedia("(max-width: 640px)");
  const [frame, room] = useWidth();
  const kind = wanted.length > 0 && (route.graph === "" || route.graph === "worst") ? "worst" : drawing(route.graph, verdicts.size);
  const names = useChosen(verdicts, wanted, kind === "worst");
  const computations = new Map(names.map((name) => [name, /** @type {Verdict} */ (verdicts.get(name)).computation]));
  const { at, groups, shape: of } = gather(computations, kind === "name" || kind === "team" ? kind : "", route.open);
  const { placed, box } = useMemo(() => fit(of, room, down), [of, room, down]);
  const count = placed.nodes.length;
  const tall = count > MANY ? TALLER : TALL;
  const whole = room > 0 ? Math.min(1, room / placed.width, tall / placed.height) : 1;
  const zoom = useZoom(frame, firstScale(count, placed.width, box.height, room, whole, down), whole);
  const { scale } = zoom;
  const blamed = new Set((worst ? [worst, ...way(worst, verdicts)] : []).map((name) => at.get(name)));
  const holds = (worst && verdicts.get(worst)?.guilty) || "";
  const guilty = at.get(sliceOf(holds) || holds);
  useCentred(frame, guilty, placed, box, room, scale);
  const close = useClose(frame, scale, count > MANY);
  const wide = placed.width * scale;
  const high = placed.height * scale;
  return html`<section class="panel" aria-labelledby="graph-title">
    <header class="panel-head">
      <h2 id="graph-title">Pipeline</h2>
      <p class=${names.length < verdicts.size ? "quiet" : "quiet hint"}>
        ${names.length < verdicts.size
          ? `${names.length} of ${verdicts.size.toLocaleString("en")} computations: ${wanted.length ? "those found" : "the worst"} and what is next to them`
          : groups.size > 0
            ? `${verdicts.size.toLocaleString("en")} computations in ${count.toLocaleString("en")} boxes; a press opens a group`
            : "what is read stands before what reads it"}
      </p>
      <${Legend} />
    </header>
    <${Tools} kind=${kind} verdicts=${verdicts} zoom=${zoom} route=${route} go=${go} />
    <div
      class=${count > MANY ? "graph many" : "graph"}
      ref=${frame}
      tabindex=${wide > room + 1 || high > tall + 1 ? 0 : undefined}
      role="group"
      aria-label="Pipeline graph"
    >
      <div class="canvas" style=${{ width: `${wide}px`, height: `${high}px` }}>
        <div
          class=${`drawn${scale < AFAR ? " afar" : ""}${scale < DOTS ? " dots" : ""}`}
          style=${{ width: `${placed.width}px`, height: `${placed.height}px`, transform: `scale(${scale})`, "--letters": `${LETTERS / scale}px`, "--hair": `${1 / scale}px` }}
        >
          <svg width=${placed.width} height=${placed.height} aria-hidden="true">
            ${placed.edges.map(
              ({ from, to, path }) =>
                html`<path key=${`${from} ${to}`} class=${blamed.has(from) && blamed.has(to) ? "edge blamed" : "edge"} d=${path} />`,
            )}
          </svg>
          ${placed.nodes.map(({ name, x, y }) => {
            const place = { left: `${x}px`, top: `${y}px`, width: `${box.width}px`, height: `${box.height}px` };
            const group = groups.get(name);
            const brief = scale < AFAR || (close !== null && !within(x, y, close));
            return group === undefined
              ? html`<${Node}
                  key=${name}
                  verdict=${verdicts.get(name)}
                  slices=${slices.get(name)?.length ?? 0}
                  place=${place}
                  route=${route}
                  now=${now}
                  blamed=${name === guilty}
                  dimmed=${dimmed.has(name)}
                  flat=${box.height < BOXES[0].height}
                  brief=${brief}
                />`
              : html`<${Group}
                  key=${name}
                  group=${group.group}
                  names=${group.names}
                  verdicts=${verdicts}
                  place=${place}
                  blamed=${name === guilty}
                  brief=${brief}
                  open=${() => go({ ...route, open: [...route.open, group.group] })}
                />`;
          })}
        </div>
      </div>
    </div>
  </section>`;
}

/**
 * How large a graph is shown until the viewer chooses. A few boxes are as large as they are, if their room is wide enough for them; hundreds are all
 * seen at once, but on a small screen no smaller than a finger.
 *
 * @param {number} count Boxes.
 * @param {number} width Of all, in pixels.
 * @param {number} height Of one, in pixels.
 * @param {number} room Pixels.
 * @param {number} whole The scale at which all of it is seen.
 * @param {boolean} small Whether the screen is.
 * @returns {number}
 */
function firstScale(count, width, height, room, whole, small) {
  if (count <= FEW) return room > 0 ? Math.min(1, Math.max(small ? LEGIBLE_SMALL : LEGIBLE, room / width)) : 1;
  if (count <= MANY) return Math.max(whole, LEGIBLE);
  return small ? Math.max(whole, FINGER / height) : whole;
}

/** What may be drawn, in words. */
const KINDS = /** @type {const} */ ([
  ["worst", "what matters"],
  ["all", "everything"],
  ["name", "groups by name"],
  ["team", "groups by team"],
]);

/**
 * What is drawn, which groups are open, and how large it is.
 *
 * @param {{kind: import("../model/graph.js").Kind, verdicts: Map<string, Verdict>, zoom: import("./zoom.js").Zoom, route: Route,
 *   go: (route: Route) => void}} props
 */
function Tools({ kind, verdicts, zoom, route, go }) {
  const teams = [...verdicts.values()].some(({ computation }) => computation.promise?.team);
  const choose = (/** @type {Event} */ event) => {
    const value = /** @type {import("../model/graph.js").Kind} */ (/** @type {HTMLSelectElement} */ (event.target).value);
    go({ ...route, graph: value, open: [] });
  };
  const shut = (/** @type {string} */ group) => go({ ...route, open: route.open.filter((each) => each !== group) });
  return html`<div class="tools">
    <label>draw
      <select value=${kind} onChange=${choose}>
        ${KINDS.filter(([each]) => each !== "team" || teams || kind === "team").map(
          ([each, words]) => html`<option key=${each} value=${each}>${words}</option>`,
        )}
      </select>
    </label>
    ${(kind === "name" || kind === "team") &&
    route.open.map(
      (group) =>
        html`<button key=${group} type="button" class="chip" aria-label=${`Close the group ${group}`} onClick=${() => shut(group)}>${group} <span aria-hidden="true">×</span></button>`,
    )}
    <div class="zooms" role="group" aria-label="Zoom" title="also with Ctrl and the wheel, two fingers, or the keys + - 0">
      <button type="button" aria-label="Smaller" onClick=${() => zoom.by(1 / STEP)}>−</button>
      <button type="button" aria-label="Larger" onClick=${() => zoom.by(STEP)}>+</button>
      <button type="button" onClick=${zoom.fit}>Fit</button>
    </div>
  </div>`;
}

/** @typedef {{left: number, top: number, right: number, bottom: number}} Sight In pixels of the graph as it was placed. */

/**
 * @param {number} x
 * @param {number} y
 * @param {Sight} sight
 */
function within(x, y, { left, top, right, bottom }) {
  return x > left && x < right && y > top && y < bottom;
}

/** How far around what is seen boxes are drawn in full already, in pixels of the screen. */
const AROUND = 400;

/**
 * What is seen of a graph of very many boxes, and a little around it: only these are drawn in full.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {number} scale
 * @param {boolean} many
 * @returns {Sight | null} Null: all are.
 */
function useClose(frame, scale, many) {
  const [sight, look] = useState(/** @type {Sight | null} */ (null));
  useEffect(() => {
    const element = frame.current;
    if (element === null || !many) {
      look(null);
      return undefined;
    }
    let waiting = 0;
    const seen = () => {
      waiting = 0;
      const { scrollLeft, scrollTop, clientWidth, clientHeight } = element;
      look({
        left: (scrollLeft - AROUND) / scale,
        top: (scrollTop - AROUND) / scale,
        right: (scrollLeft + clientWidth + AROUND) / scale,
        bottom: (scrollTop + clientHeight + AROUND) / scale,
      });
    };
    const scrolled = () => (waiting ||= requestAnimationFrame(seen));
    seen();
    element.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      cancelAnimationFrame(waiting);
      element.removeEventListener("scroll", scrolled);
    };
  }, [scale, many]);
  return sight;
}

/**
 * Brings a box into sight when the graph is larger than its room.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {string | undefined} name
 * @param {import("../model/graph.js").Layout} placed
 * @param {{width: number, height: number}} box
 * @param {number} room Pixels.
 * @param {number} scale
 */
function useCentred(frame, name, placed, box, room, scale) {
  useEffect(() => {
    const node = placed.nodes.find((each) => each.name === name);
    if (frame.current === null || node === undefined) return;
    const { clientWidth: width, clientHeight: height } = frame.current;
    frame.current.scrollTo((node.x + box.width / 2) * scale - width / 2, (node.y + box.height / 2) * scale - height / 2);
  }, [name, placed, room === 0]);
}

/**
 * A layout that fits, if there is one.
 *
 * @param {string} of
 * @param {number} room Pixels.
 * @param {boolean} down
 */
function fit(of, room, down) {
  /** @type {[string, string[]][]} */
  const boxes = JSON.parse(of);
  if (down) {
    const longest = Math.max(0, ...boxes.map(([name]) => name.length));
    const box = { width: Math.min(SMALL.most, Math.max(SMALL.least, Math.ceil(longest * LETTER) + BESIDE)), height: SMALL.height };
    return { placed: boxes.length > MANY ? layered(of, box, true, { width: room || 1, height: 4 * TALL }) : layout(of, box, true), box };
  }
  if (boxes.length > MANY) return { placed: layered(of, FLAT, false, { width: room || 1, height: TALLER }), box: FLAT };
  const narrow = BOXES[BOXES.length - 1];
  const box = BOXES.find(({ width }) => breadth(of, width) <= room) ?? (breadth(of, narrow.width) * LEGIBLE <= room ? narrow : BOXES[0]);
  return { placed: layout(of, box, false), box };
}

/**
 * The computations that are drawn. Of a large pipeline another part is chosen now and then only, so that it does not jump.
 *
 * @param {Map<string, Verdict>} verdicts
 * @param {string[]} wanted
 * @param {boolean} some Not all.
 * @returns {string[]}
 */
function useChosen(verdicts, wanted, some) {
  const last = useRef({ at: -Infinity, for: "", size: 0, names: /** @type {string[]} */ ([]) });
  if (!some) return [...verdicts.keys()];
  const asked = wanted.join("\n");
  const { at, size } = last.current;
  if (last.current.for !== asked || size !== verdicts.size || performance.now() - at > CHOOSE_MILLIS) {
    last.current = { at: performance.now(), for: asked, size: verdicts.size, names: chosen(verdicts, wanted) };
  }
  return last.current.names.filter((name) => verdicts.has(name));
}

/**
 * @param {{verdict: Verdict, slices: number, place: Record<string, string>, route: Route, now: number, blamed: boolean, dimmed: boolean, flat: boolean,
 *   brief: boolean}} props `slices`: how many it is cut into. `flat`: there is no room for times. `brief`: it says its name alone.
 */
function Node({ verdict, slices, place, route, now, blamed, dimmed, flat, brief: short }) {
  const zone = useZone();
  const { computation, level, most, mostName } = verdict;
  const { name } = computation;
  const why = because(verdict);
  const timed = verdict.lag !== null;
  const said = timed ? `, ${WORDS[level]}, ${far(verdict)} behind` : `, ${WORDS[level]}`;
  return html`<a
    class=${`node node-${level}${blamed ? " blamed" : ""}${dimmed ? " dimmed" : ""}`}
    href=${format({ ...route, name, query: "" })}
    style=${place}
    title=${short ? `${name}${said}` : name}
  >
    ${short
      ? html`<span class="node-name"><${Symbol} level=${level} /><b>${name}</b><span class="hidden">${said}</span></span>`
      : html`<span class="node-line">
            <span class="node-name"><${Symbol} level=${level} /><b>${name}</b>${timed && html`<span class="hidden">, ${WORDS[level]}, </span>`}</span>
            <span class="node-lag ink-${level}${timed ? "" : " untimed"}">${far(verdict)}${timed && html`<span class="hidden"> behind</span>`}</span>
          </span>
          <${Bar} verdict=${verdict} />
          ${!flat &&
          html`<span class="node-line node-marks">
            <span>${mark(computation.low, now, zone)}</span>
            <span class="node-most" title=${most === null ? "" : `${mostName} of the records lately seen`}>${most !== null && `${mostName} ${brief(Math.max(0, most))}`}</span>
          </span>`}
          <span class="node-why ${isStuck(verdict.cause) ? "ink-stuck strong" : ""}">${[slices > 0 && `${slices.toLocaleString("en")} slices`, why || about(computation)].filter(Boolean).join(" · ")}</span>`}
  </a>`;
}

/**
 * A group that is closed: as bad as the worst of it.
 *
 * @param {{group: string, names: string[], verdicts: Map<string, Verdict>, place: Record<string, string>, blamed: boolean, brief: boolean,
 *   open: () => void}} props
 */
function Group({ group, names, verdicts, place, blamed, brief: short, open }) {
  const { worst, late, stuck } = inShort(names, verdicts);
  const { level } = worst;
  const many = names.length.toLocaleString("en");
  const trouble = [late > 0 && `${late.toLocaleString("en")} late`, stuck > 0 && `${stuck.toLocaleString("en")} stuck`].filter(Boolean).join(", ");
  const told = trouble ? html`<b class="ink-late">${trouble}</b> of ${many}` : `${many} computations`;
  const said = `${many} computations${trouble && `, ${trouble}`}, the worst is ${worst.computation.name}, ${WORDS[level]}${worst.lag === null ? "" : `, ${far(worst)} behind`}`;
  return html`<button
    type="button"
    class=${`node group node-${level}${blamed ? " blamed" : ""}`}
    style=${place}
    title=${`${group}: ${said}`}
    aria-label=${`${group}, ${said}`}
    aria-expanded="false"
    onClick=${open}
  >
    ${short
      ? html`<span class="node-name"><${Symbol} level=${level} /><b>${group} (${many})</b></span>`
      : html`<span class="node-line">
            <span class="node-name"><${Symbol} level=${level} /><b>${group}</b></span>
            <span class="node-lag ink-${level}${worst.lag === null ? " untimed" : ""}">${far(worst)}</span>
          </span>
          <${Bar} verdict=${worst} />
          <span class="node-marks">${told}</span>
          <span class="node-why">${trouble ? `worst: ${worst.computation.name}` : ""}</span>`}
  </button>`;
}

/**
 * What is worth saying of a computation of which there is nothing to say.
 *
 * @param {import("../model/types.js").Computation} computation
 * @returns {string}
 */
function about({ estimated, ranges }) {
  if (estimated) return "estimated";
  return `${ranges.toLocaleString("en")} key ${ranges === 1 ? "range" : "ranges"}`;
}

function Legend() {
  return html`<ul class="legend" aria-label="Colours">
    ${["ontime", "slow", "late", "verylate", "unknown", "finished"].map(
      (level) => html`<li key=${level}><${Symbol} level=${level} />${WORDS[/** @type {import("../model/lag.js").Level} */ (level)]}</li>`,
    )}
  </ul>`;
}
