/**
 * The pipeline graph. Names and lags are links in reading order; the lines between them are hidden
 * from screen readers.
 */

import { html } from "../html.js";
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { namesToDraw, kindToDraw, layout } from "../model/graph.js";
import { gather, sumUp } from "../model/groups.js";
import { LEVELS, WORDS } from "../model/lag.js";
import { layoutInLayers } from "../model/layers.js";
import { format } from "../model/route.js";
import { sliceOf } from "../model/slices.js";
import { brief, mark } from "../model/time.js";
import { because, way } from "../model/verdict.js";
import { Bar, barWords } from "./bar.js";
import { useMedia, useWidth, useWindowHeight, useZone } from "./hooks.js";
import { Symbol, far, whyInk } from "./parts.js";
import { STEP, useZoom } from "./zoom.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */
/** @typedef {import("../model/route.js").Route} Route */

/** Sizes of boxes, roomy to narrow. */
const BOXES = [
  { width: 216, height: 92 },
  { width: 188, height: 92 },
  { width: 164, height: 92 },
  { width: 132, height: 76 },
];
/**
 * Bounds of a box's width on a small screen, where it follows the longest name; at `most` two boxes
 * fit side by side.
 */
const SMALL = { least: 102, most: 148, height: 58 };
/** Pixels of a name's letter on a small screen, and of the rest of its line. */
const LETTER = 7.6;
const BESIDE = 30;
/**
 * Greatest height of the frame in pixels, and its part of the window's height: below it a large
 * screen shows the head of the table.
 */
const TALL = { few: 620, many: 700 };
const PART_OF_WINDOW = { few: 0.5, many: 0.62, small: 0.72 };
const LEAST_TALL = 240;
/** Milliseconds between two choices of the part of a large pipeline that is drawn. */
const CHOOSE_MILLIS = 5_000;
/**
 * Number of boxes beyond which they are placed in layers, the size of a box in layers, and the
 * factor by which layers must show the boxes larger to be preferred to the prettier placing.
 */
const MANY = 40;
const FLAT = { width: 176, height: 76 };
const PRETTIER = 1.3;
/** Number of boxes up to which all are seen at once on a small screen, and pixels that a finger hits. */
const HUNDRED = 100;
const FINGER = 24;
/**
 * Scale below which a box shows its name only, the pixels of its letters then, and the scale below
 * which it shows no text.
 */
const AFAR = 0.6;
const LETTERS = 11;
const DOTS = 0.28;

/**
 * @param {{verdicts: Map<string, Verdict>, slices: Map<string, string[]>, wanted: string[],
 *   current: string, dimmed: Set<string>, route: Route, go: (route: Route) => void, now: number,
 *   worst: string}} props `slices`: slices by cut computation; they are counted, not drawn.
 *   `wanted`: names that a search or a count found, which are marked. `current`: the one to which
 *   the search leads; empty: none. `dimmed`: names drawn only because they hold others. `worst`:
 *   name that the summary is about; empty: none.
 */
export function Graph({ verdicts, slices, wanted, current, dimmed, route, go, now, worst }) {
  const down = useMedia("(max-width: 640px)");
  const windowHeight = useWindowHeight();
  const [frame, room] = useWidth();
  const some = wanted.length > 0 && verdicts.size > MANY && (route.graph === "" || route.graph === "worst");
  const kind = some ? "worst" : kindToDraw(route.graph, verdicts.size);
  const names = useChosen(verdicts, wanted, kind === "worst");
  const computations = new Map(names.map((name) => [name, /** @type {Verdict} */ (verdicts.get(name)).computation]));
  const { at, groups, shape } = gather(computations, kind === "name" || kind === "team" ? kind : "", route.open);
  const count = new Set(at.values()).size;
  const key = room > 0 ? shape : "[]"; // nothing is drawn before the frame's width is known
  const tall = heightOf(windowHeight, count, down);
  const { placed, box } = useMemo(() => fit(key, { width: room || 1, height: tall }, down), [key, room, tall, down]);
  const whole = room > 0 ? scaleOf(placed, { width: room, height: tall }) : 1;
  // Of hundreds a small screen shows a part, with boxes that a finger hits.
  const zoom = useZoom(frame, down && count > HUNDRED ? Math.max(whole, FINGER / box.height) : whole, whole);
  const { scale } = zoom;
  const blamed = new Set((worst ? [worst, ...way(worst, verdicts)] : []).map((name) => at.get(name)));
  const holds = (worst && verdicts.get(worst)?.guilty) || "";
  const guilty = at.get(sliceOf(holds) || holds);
  const marked = new Set(wanted.map((name) => at.get(name)));
  const leading = at.get(current);
  useCentred(frame, leading ?? guilty, placed, box, room, scale);
  const close = useClose(frame, scale, count > MANY);
  const wide = placed.width * scale;
  const high = placed.height * scale;
  return html`<section class="panel" aria-labelledby="graph-title">
    <header class="panel-head">
      <h2 id="graph-title">Pipeline</h2>
      <p class=${names.length < verdicts.size ? "quiet" : "quiet hint"}>
        ${names.length < verdicts.size
          ? `${names.length} of ${verdicts.size.toLocaleString("en")} computations: ${wanted.length ? "those that match" : "the worst"} and their neighbours`
          : groups.size > 0
            ? `${verdicts.size.toLocaleString("en")} computations in ${count.toLocaleString("en")} boxes; click to open a group`
            : down
              ? "inputs above, readers below"
              : "inputs left, readers right"}
      </p>
      <${Tools} kind=${kind} verdicts=${verdicts} zoom=${zoom} route=${route} go=${go} />
    </header>
    <div
      class="graph"
      ref=${frame}
      style=${{ maxHeight: `${tall}px` }}
      tabindex=${wide > room + 1 || high > tall + 1 ? 0 : undefined}
      role="group"
      aria-label="Pipeline graph"
    >
      <div class="canvas" style=${{ width: `${wide}px`, height: `${high}px` }}>
        <div
          class=${`drawn${scale < AFAR ? " afar" : ""}${scale < DOTS ? " dots" : ""}${marked.size > 0 ? " searched" : ""}`}
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
            const mark = `${name === guilty ? " blamed" : ""}${marked.has(name) ? " match" : ""}${name === leading ? " current" : ""}`;
            const brief = scale < AFAR || (close !== null && !within(x, y, close));
            return group === undefined
              ? html`<${Node}
                  key=${name}
                  verdict=${verdicts.get(name)}
                  slices=${slices.get(name)?.length ?? 0}
                  place=${place}
                  route=${route}
                  now=${now}
                  mark=${mark}
                  others=${name === guilty ? held(name, verdicts) : 0}
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
                  mark=${mark}
                  brief=${brief}
                  open=${() => go({ ...route, open: [...route.open, group.group] })}
                />`;
          })}
        </div>
      </div>
    </div>
    <${Legend} verdicts=${names.map((name) => /** @type {Verdict} */ (verdicts.get(name)))} />
  </section>`;
}

/**
 * Returns the greatest height of the frame.
 *
 * @param {number} windowHeight Pixels.
 * @param {number} count Number of boxes.
 * @param {boolean} small True on a small screen.
 * @returns {number} Pixels.
 */
function heightOf(windowHeight, count, small) {
  const size = count > MANY ? "many" : "few";
  return Math.min(TALL[size], Math.max(LEAST_TALL, Math.floor(windowHeight * PART_OF_WINDOW[small ? "small" : size])));
}

/**
 * Returns the scale at which a graph fits.
 *
 * @param {import("../model/graph.js").Layout} placed
 * @param {{width: number, height: number}} room
 */
function scaleOf({ width, height }, room) {
  return Math.min(1, room.width / width, room.height / height);
}

/**
 * Counts the computations that one holds, besides itself.
 *
 * @param {string} name
 * @param {Map<string, Verdict>} verdicts
 */
function held(name, verdicts) {
  return [...verdicts.values()].filter(({ guilty, computation }) => (sliceOf(guilty) || guilty) === name && computation.name !== name).length;
}

/** Choices of what is drawn, in words. */
const KINDS = /** @type {const} */ ([
  ["worst", "what matters"],
  ["all", "everything"],
  ["name", "groups by name"],
  ["team", "groups by team"],
]);

/**
 * Controls above the graph: what is drawn, which groups are open, and the zoom.
 *
 * @param {{kind: import("../model/graph.js").Kind, verdicts: Map<string, Verdict>, zoom: import("./zoom.js").Zoom, route: Route, go: (route: Route)
 *   => void}} props
 */
function Tools({ kind, verdicts, zoom, route, go }) {
  const teams = [...verdicts.values()].some(({ computation }) => computation.promise?.team);
  const choose = (/** @type {Event} */ event) => {
    const value = /** @type {import("../model/graph.js").Kind} */ (/** @type {HTMLSelectElement} */ (event.target).value);
    go({ ...route, graph: value, open: [] });
  };
  const shut = (/** @type {string} */ group) => go({ ...route, open: route.open.filter((choice) => choice !== group) });
  return html`<div class="tools">
    <label>Show
      <select value=${kind} title="What the graph shows: each computation, groups of them, or the late ones with what holds them" onChange=${choose}>
        ${KINDS.filter(([choice]) => choice !== "team" || teams || kind === "team").map(
          ([choice, words]) => html`<option key=${choice} value=${choice}>${words}</option>`,
        )}
      </select>
    </label>
    ${(kind === "name" || kind === "team") &&
    route.open.map(
      (group) =>
        html`<button key=${group} type="button" class="chip" aria-label=${`Close the group ${group}`} title=${`Close the group ${group}`} onClick=${() => shut(group)}>${group} <span aria-hidden="true">×</span></button>`,
    )}
    <div class="zooms" role="group" aria-label="Zoom" >
      <button type="button" aria-label="Smaller" title="Smaller: also Ctrl and the wheel, two fingers, or the key -" onClick=${() => zoom.by(1 / STEP)}>−</button>
      <button type="button" aria-label="Larger" title="Larger: also Ctrl and the wheel, two fingers, or the key +" onClick=${() => zoom.by(STEP)}>+</button>
      <button type="button" title="Show the whole graph: also the key 0" onClick=${zoom.fit}>Fit</button>
    </div>
  </div>`;
}

/**
 * @typedef {{left: number, top: number, right: number, bottom: number}} Sight Rectangle in pixels
 *   of the unscaled graph.
 */

/**
 * @param {number} x
 * @param {number} y
 * @param {Sight} sight
 */
function within(x, y, { left, top, right, bottom }) {
  return x > left && x < right && y > top && y < bottom;
}

/** Pixels around the visible part within which boxes are drawn in full already. */
const AROUND = 400;

/**
 * Returns the visible part of a graph of many boxes, and a little around it: only these boxes are
 * drawn in full.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {number} scale
 * @param {boolean} many
 * @returns {Sight | null} Null: all are.
 */
function useClose(frame, scale, many) {
  const [sight, setSight] = useState(/** @type {Sight | null} */ (null));
  useEffect(() => {
    const element = frame.current;
    if (element === null || !many) {
      setSight(null);
      return undefined;
    }
    let frameRequest = 0;
    const update = () => {
      frameRequest = 0;
      const { scrollLeft, scrollTop, clientWidth, clientHeight } = element;
      setSight({
        left: (scrollLeft - AROUND) / scale,
        top: (scrollTop - AROUND) / scale,
        right: (scrollLeft + clientWidth + AROUND) / scale,
        bottom: (scrollTop + clientHeight + AROUND) / scale,
      });
    };
    const schedule = () => (frameRequest ||= requestAnimationFrame(update));
    update();
    element.addEventListener("scroll", schedule, { passive: true });
    return () => {
      cancelAnimationFrame(frameRequest);
      element.removeEventListener("scroll", schedule);
    };
  }, [scale, many]);
  return sight;
}

/**
 * Scrolls a box into sight when the graph is larger than its frame.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {string | undefined} name
 * @param {import("../model/graph.js").Layout} placed
 * @param {{width: number, height: number}} box
 * @param {number} room Pixels of the frame's width.
 * @param {number} scale
 */
function useCentred(frame, name, placed, box, room, scale) {
  useEffect(() => {
    const node = placed.nodes.find((candidate) => candidate.name === name);
    if (frame.current === null || node === undefined) return;
    const { clientWidth: width, clientHeight: height } = frame.current;
    frame.current.scrollTo((node.x + box.width / 2) * scale - width / 2, (node.y + box.height / 2) * scale - height / 2);
  }, [name, placed, room === 0]);
}

/**
 * Places the boxes so that the whole graph fits, as large as it can be.
 *
 * @param {string} key Result of `shape` of model/graph.js.
 * @param {{width: number, height: number}} room Pixels of the frame.
 * @param {boolean} down
 */
function fit(key, room, down) {
  /** @type {[string, string[]][]} */
  const boxes = JSON.parse(key);
  const longest = Math.max(0, ...boxes.map(([name]) => name.length));
  const small = { width: Math.min(SMALL.most, Math.max(SMALL.least, Math.ceil(longest * LETTER) + BESIDE)), height: SMALL.height };
  const flat = down ? small : FLAT;
  let best = { placed: layoutInLayers(key, flat, down, boxes.length > HUNDRED && down ? { ...room, height: 4 * TALL.few } : room), box: flat };
  if (boxes.length > MANY) return best;
  let scale = scaleOf(best.placed, room) / PRETTIER;
  for (const box of down ? [small] : BOXES) {
    const placed = layout(key, box, down);
    if (scaleOf(placed, room) > scale) [best, scale] = [{ placed, box }, scaleOf(placed, room)];
    if (scale === 1) break;
  }
  return best;
}

/**
 * Returns the names to draw. Of a large pipeline they change only every few seconds, so that the
 * graph does not jump.
 *
 * @param {Map<string, Verdict>} verdicts
 * @param {string[]} wanted
 * @param {boolean} some False: all of them.
 * @returns {string[]}
 */
function useChosen(verdicts, wanted, some) {
  const last = useRef({ at: -Infinity, for: "", size: 0, names: /** @type {string[]} */ ([]) });
  if (!some) return [...verdicts.keys()];
  const query = wanted.join("\n");
  const { at, size } = last.current;
  if (last.current.for !== query || size !== verdicts.size || performance.now() - at > CHOOSE_MILLIS) {
    last.current = { at: performance.now(), for: query, size: verdicts.size, names: namesToDraw(verdicts, wanted) };
  }
  return last.current.names.filter((name) => verdicts.has(name));
}

/**
 * @param {{verdict: Verdict, slices: number, place: Record<string, string>, route: Route, now:
 *   number, mark: string, others: number, dimmed: boolean, flat: boolean, brief: boolean}} props
 *   `slices`: number of its slices. `mark`: classes of what holds the worst, and of what a search
 *   found. `others`: number of computations that it holds. `flat`: the box has no room for times.
 *   `brief`: it shows its name only.
 */
function Node({ verdict, slices, place, route, now, mark: marks, others, dimmed, flat, brief: short }) {
  const zone = useZone();
  const { computation, level, most, mostName } = verdict;
  const { name } = computation;
  const failure = verdict.cause === "failed" ? computation.holder?.failure : "";
  const why = failure ? `failed: ${failure}` : because(verdict);
  const timed = verdict.lag !== null;
  const description = timed ? `, ${WORDS[level]}, ${far(verdict)} behind` : `, ${WORDS[level]}`;
  const holds = others > 0 && `holds ${others.toLocaleString("en")} ${others === 1 ? "other" : "others"}`;
  const whole = [`${name}, ${WORDS[level]}: ${barWords(verdict)}`, why, holds, "click to open"].filter(Boolean).join("; ");
  return html`<a
    class=${`node node-${level}${marks}${dimmed ? " dimmed" : ""}`}
    href=${format({ ...route, name, query: "" })}
    style=${place}
    title=${whole}
    aria-current=${marks.includes("current") ? "true" : undefined}
  >
    ${short
      ? html`<span class="node-name"><${Symbol} level=${level} /><b>${name}</b><span class="hidden">${description}</span></span>`
      : html`<span class="node-line">
            <span class="node-name"><${Symbol} level=${level} /><b>${name}</b>${timed && html`<span class="hidden">, ${WORDS[level]}, </span>`}</span>
            <span class="node-lag ink-${level}${timed ? "" : " untimed"}">${far(verdict)}${timed && html`<span class="hidden"> behind</span>`}</span>
          </span>
          <${Bar} verdict=${verdict} inside />
          ${!flat &&
          html`<span class="node-line node-marks">
            <span>${mark(computation.low, now, zone)}</span>
            <span class="node-most">${most !== null && `${mostName} ${brief(Math.max(0, most))}`}</span>
          </span>`}
          <span class="node-why ${whyInk(verdict)}">${[slices > 0 && `${slices.toLocaleString("en")} slices`, holds, why || about(computation)].filter(Boolean).join(" · ")}</span>`}
  </a>`;
}

/**
 * A closed group: it shows the level of its worst computation.
 *
 * @param {{group: string, names: string[], verdicts: Map<string, Verdict>, place: Record<string, string>, mark: string, brief: boolean, open: ()
 *   => void}} props
 */
function Group({ group, names, verdicts, place, mark: marks, brief: short, open }) {
  const { worst, late, stuck, failed } = sumUp(names, verdicts);
  const { level } = worst;
  const many = names.length.toLocaleString("en");
  const trouble = [late > 0 && `${late.toLocaleString("en")} late`, stuck > 0 && `${stuck.toLocaleString("en")} stuck`, failed > 0 && `${failed.toLocaleString("en")} failed`].filter(Boolean).join(", ");
  const counts = trouble ? html`<b class="ink-late">${trouble}</b> of ${many}` : `${many} computations`;
  const description = `${many} computations${trouble && `, ${trouble}`}, the worst is ${worst.computation.name}, ${WORDS[level]}${worst.lag === null ? "" : `, ${far(worst)} behind`}`;
  return html`<button
    type="button"
    class=${`node group node-${level}${marks}`}
    style=${place}
    title=${`${group}: ${description}; click to open`}
    aria-label=${`${group}, ${description}`}
    aria-expanded="false"
    onClick=${open}
  >
    ${short
      ? html`<span class="node-name"><${Symbol} level=${level} /><b>${group} (${many})</b></span>`
      : html`<span class="node-line">
            <span class="node-name"><${Symbol} level=${level} /><b>${group}</b></span>
            <span class="node-lag ink-${level}${worst.lag === null ? " untimed" : ""}">${far(worst)}</span>
          </span>
          <${Bar} verdict=${worst} inside />
          <span class="node-marks">${counts}</span>
          <span class="node-why">${trouble ? `worst: ${worst.computation.name}` : ""}</span>`}
  </button>`;
}

/**
 * Describes a computation about whose state there is nothing to say.
 *
 * @param {import("../model/types.js").Computation} computation
 * @returns {string}
 */
function about({ estimated, ranges }) {
  if (estimated) return "estimated";
  return `${ranges.toLocaleString("en")} key ${ranges === 1 ? "range" : "ranges"}`;
}

/** Levels that the legend names only where they are shown. @type {Set<string>} */
const RARE = new Set(["failed", "unbegun", "stopped", "far"]);

/**
 * Says what colours, shapes and bars mean.
 *
 * @param {{verdicts: Verdict[]}} props What is drawn.
 */
function Legend({ verdicts }) {
  const shown = /** @type {const} */ (["ontime", "slow", "late", "verylate", "failed", "unbegun", "stopped", "far", "unknown", "finished"]);
  return html`<ul class="legend" aria-label="What colours and bars mean">
    ${shown
      .filter((level) => !RARE.has(level) || verdicts.some((verdict) => verdict.level === level))
      .map((level) => html`<li key=${level} title=${LEVELS[level]}><${Symbol} level=${level} />${WORDS[level]}</li>`)}
    <li key="holder"><i class="sample holder" aria-hidden="true"></i>filled: holds the others</li>
    <li key="bar" title="The length of a bar is the logarithm of the lag: seconds and days both show.">
      <span class="bar sample ink-ontime" aria-hidden="true"><i class="stragglers" style=${{ width: "85%" }}></i><i class="most" style=${{ width: "35%" }}></i><i class="threshold"></i></span>
      bar: lag; dark: ${verdicts.find(({ mostName }) => mostName)?.mostName ?? "nearly all"} of recent records; tick: late
    </li>
  </ul>`;
}
