/** The pipeline graph. Names and lags are links in reading order; the lines between them are for the eye. */

import { html } from "../html.js";
import { useEffect, useMemo, useRef } from "../vendor/preact-hooks.js";
import { breadth, chosen, layout, shape } from "../model/graph.js";
import { WORDS } from "../model/lag.js";
import { format } from "../model/route.js";
import { brief, mark } from "../model/time.js";
import { because, way } from "../model/verdict.js";
import { Bar } from "./bar.js";
import { useMedia, useWidth } from "./hooks.js";
import { Symbol, far } from "./parts.js";

/** @typedef {import("../model/verdict.js").Verdict} Verdict */

/** Boxes from roomy to narrow: the first with which the graph fits is taken, on small screens the last. */
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
/** The height beyond which the graph scrolls, as in the style sheet. */
const TALL = 620;
/** How often another part of a large pipeline may be chosen to be drawn. */
const CHOOSE_MILLIS = 5_000;

/**
 * @param {{verdicts: Map<string, Verdict>, wanted: string[], route: import("../model/route.js").Route, now: number, worst: string}} props
 */
export function Graph({ verdicts, wanted, route, now, worst }) {
  const down = useMedia("(max-width: 640px)");
  const [frame, room] = useWidth();
  const names = useChosen(verdicts, wanted);
  const computations = new Map(names.map((name) => [name, /** @type {Verdict} */ (verdicts.get(name)).computation]));
  const of = shape(names, computations);
  const { placed, box } = useMemo(() => fit(of, room, down), [of, room, down]);
  useCentred(frame, worst ? verdicts.get(worst)?.guilty : "", placed, box, room);
  const blamed = new Set(worst ? [worst, ...way(worst, verdicts)] : []);
  const guilty = verdicts.get(worst)?.guilty;
  return html`<section class="panel" aria-labelledby="graph-title">
    <header class="panel-head">
      <h2 id="graph-title">Pipeline</h2>
      <p class=${names.length < verdicts.size ? "quiet" : "quiet hint"}>
        ${names.length < verdicts.size
          ? `${names.length} of ${verdicts.size.toLocaleString("en")} computations: ${wanted.length ? "those found" : "the worst"} and what is next to them`
          : "what is read stands before what reads it"}
      </p>
      <${Legend} />
    </header>
    <div class="graph" ref=${frame} tabindex=${placed.width > room || placed.height > TALL ? 0 : undefined} role="group" aria-label="Pipeline graph">
      <div class="canvas" style=${{ width: `${placed.width}px`, height: `${placed.height}px` }}>
        <svg width=${placed.width} height=${placed.height} aria-hidden="true">
          ${placed.edges.map(
            ({ from, to, path }) =>
              html`<path key=${`${from} ${to}`} class=${blamed.has(from) && blamed.has(to) ? "edge blamed" : "edge"} d=${path} />`,
          )}
        </svg>
        ${placed.nodes.map(
          ({ name, x, y }) =>
            html`<${Node}
              key=${name}
              verdict=${verdicts.get(name)}
              left=${x}
              top=${y}
              width=${box.width}
              height=${box.height}
              route=${route}
              now=${now}
              blamed=${blamed.size > 0 && name === guilty}
            />`,
        )}
      </div>
    </div>
  </section>`;
}

/**
 * Brings a computation into sight when the graph is larger than its room.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {string | undefined} name
 * @param {import("../model/graph.js").Layout} placed
 * @param {{width: number, height: number}} box
 * @param {number} room Pixels.
 */
function useCentred(frame, name, placed, box, room) {
  useEffect(() => {
    const node = placed.nodes.find((each) => each.name === name);
    if (frame.current === null || node === undefined) return;
    const { clientWidth: width, clientHeight: height } = frame.current;
    frame.current.scrollTo(node.x + (box.width - width) / 2, node.y + (box.height - height) / 2);
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
  if (down) {
    const longest = Math.max(0, ...JSON.parse(of).map((/** @type {[string]} */ [name]) => name.length));
    const box = { width: Math.min(SMALL.most, Math.max(SMALL.least, Math.ceil(longest * LETTER) + BESIDE)), height: SMALL.height };
    return { placed: layout(of, box, true), box };
  }
  const box = BOXES.find(({ width }) => breadth(of, width) <= room) ?? BOXES[room === 0 ? 0 : BOXES.length - 1];
  return { placed: layout(of, box, false), box };
}

/**
 * The computations that are drawn. Of a large pipeline another part is chosen now and then only, so that it does not jump.
 *
 * @param {Map<string, Verdict>} verdicts
 * @param {string[]} wanted
 * @returns {string[]}
 */
function useChosen(verdicts, wanted) {
  const last = useRef({ at: -Infinity, for: "", size: 0, names: /** @type {string[]} */ ([]) });
  const asked = wanted.join("\n");
  const { at, size } = last.current;
  if (last.current.for !== asked || size !== verdicts.size || performance.now() - at > CHOOSE_MILLIS) {
    last.current = { at: performance.now(), for: asked, size: verdicts.size, names: chosen(verdicts, wanted) };
  }
  return last.current.names.filter((name) => verdicts.has(name));
}

/**
 * @param {{verdict: Verdict, left: number, top: number, width: number, height: number, route: import("../model/route.js").Route,
 *   now: number, blamed: boolean}} props
 */
function Node({ verdict, left, top, width, height, route, now, blamed }) {
  const { computation, level, most, mostName } = verdict;
  const { name } = computation;
  const why = because(verdict);
  const timed = verdict.lag !== null;
  return html`<a
    class=${`node node-${level}${blamed ? " blamed" : ""}`}
    href=${format({ ...route, name, query: "" })}
    style=${{ left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` }}
    title=${name}
  >
    <span class="node-line">
      <span class="node-name"><${Symbol} level=${level} /><b>${name}</b>${timed && html`<span class="hidden">, ${WORDS[level]}, </span>`}</span>
      <span class="node-lag ink-${level}${timed ? "" : " untimed"}">${far(verdict)}${timed && html`<span class="hidden"> behind</span>`}</span>
    </span>
    <${Bar} verdict=${verdict} late=${route.late} />
    <span class="node-line node-marks">
      <span>${mark(computation.low, now)}</span>
      <span class="node-most">${most !== null && `${mostName} ${brief(Math.max(0, most))}`}</span>
    </span>
    <span class="node-why ${verdict.cause === "stuck" ? "ink-stuck strong" : ""}">${why || about(computation)}</span>
  </a>`;
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
