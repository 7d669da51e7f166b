import { EMPTY, change, replace } from "/static/model/board.js";
import { culprits, holding } from "/static/model/culprit.js";
import { detail, heldInBrief } from "/static/model/headline.js";
import { judge, kind, ranked, summary, way } from "/static/model/verdict.js";
import { MINUTE, NOW, SECOND, computation, equal, mark, range } from "./check.js";

const SETTINGS = { late: 1800, from: "" };

/** @param {any[]} computations */
function board(computations) {
  return replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations });
}

/** @param {any[]} computations */
function said(computations) {
  const found = summary(judge(board(computations), NOW, SETTINGS).verdicts, NOW);
  return found.held ? `${found.text}, ${found.held}.` : found.text;
}

const STUCK = range({ watermark: mark(2460), since_micros: NOW - 38 * MINUTE, last_report_micros: NOW - 38 * MINUTE });
const LATE = [
  computation("flights", 2),
  computation("enriched", 2460, { inputs: ["flights"], holder: STUCK, since_micros: NOW - 38 * MINUTE }),
  computation("hourly", 2460, { inputs: ["enriched"] }),
];

export function the_sentence_names_the_worst_and_who_holds_it() {
  equal(said(LATE), "2 of 3 computations are late; the worst is hourly, 41 min behind, held by enriched (worker exec-7 on node-4), silent for 38 min.");
}

export function the_sentence_counts_one_as_one() {
  equal(said(LATE.slice(0, 2)), "1 of 2 computations is late: enriched, 41 min behind, held by its own worker exec-7 on node-4, silent for 38 min.");
  equal(said([computation("flights", 2)]), "flights is on time, 2 s behind.");
}

export function when_all_is_well_the_sentence_says_so() {
  equal(said([computation("flights", 2), computation("hourly", 70, { inputs: ["flights"] })]),
    "Both computations are on time; the furthest behind is hourly, by 1 min 10 s.");
  equal(said([computation("flights", "finished"), computation("hourly", "finished")]), "Both computations are finished: nothing will ever come.");
  equal(said([]), "No computation is registered yet.");
}

export function what_never_began_is_told_before_what_is_well() {
  const never = range({ state: "never claimed", worker: "", host: "", watermark: mark("unknown"), start: "", end: "", label: "all keys", last_report_micros: 0 });
  equal(said([computation("flights", 2), computation("hourly", "unknown", { inputs: ["flights"], holder: never })]),
    "1 of 2 computations has no watermark yet: hourly, held by itself, which no worker ever claimed.");
}

export function an_input_that_is_not_registered_holds_by_its_name() {
  const waiting = computation("hourly", "unknown", { inputs: ["missing"] });
  equal(culprits(board([waiting]).computations, NOW).get("hourly"), { guilty: "missing", by: "missing", trouble: true, lag: Infinity });
  equal(said([waiting]), "hourly has no watermark yet, held by missing, which is not registered or may not be read.");
}

export function stuck_is_told_before_it_is_late() {
  const still = range({ since_micros: NOW - 20 * SECOND, last_report_micros: NOW - 20 * SECOND });
  const enriched = computation("enriched", 25, { inputs: ["flights"], holder: still, since_micros: NOW - 20 * SECOND });
  equal(said([computation("flights", 2), enriched]),
    "Nothing is late yet, but enriched is stuck, 25 s behind, held by its own worker exec-7 on node-4, silent for 20 s.");
}

export function a_planned_end_is_late_only_by_a_promise() {
  const holder = range({ ended: true, last_report_micros: NOW - 38 * MINUTE });
  const levels = [{}, { promise: { late_seconds: 600 } }].map((given) =>
    judge(board([computation("hourly", 2460, { holder, ...given })]), NOW, SETTINGS).verdicts.get("hourly")?.level);
  equal(levels, ["stopped", "verylate"]);
  equal(said([computation("hourly", 2460, { holder })]), "hourly was stopped in good order.");
}

export function what_is_nearly_late_is_told_with_who_holds_it() {
  const enriched = computation("enriched", 1000, { inputs: ["flights"] });
  equal(said([computation("flights", 2), enriched]),
    "Nothing is late yet, but enriched is nearly late, 16 min behind, held by its own worker exec-7 on node-4, alive.");
}

export function old_data_and_a_stuck_system_are_told_apart() {
  const alive = range({ watermark: mark(2460), since_micros: NOW - 2 * SECOND });
  const running = { oldest_operation_micros: NOW - 10 * MINUTE };
  const cause = (/** @type {any} */ given) => judge(board([computation("flights", 2), given]), NOW, SETTINGS).verdicts.get(given.name)?.cause;
  equal(cause(computation("source", 2460, { holder: alive })), "source");
  equal(cause(computation("stage", 2460, { holder: alive, inputs: ["flights"] })), "behind");
  equal(cause(computation("stage", 2460, { holder: alive, inputs: ["flights"], ...running })), "long");
  equal(cause(computation("stage", 20, { holder: alive, inputs: ["flights"], ...running })), "long");
  equal(cause(computation("stage", 2, { holder: alive, inputs: ["flights"], ...running })), "waits");
  equal(cause(LATE[1]), "stuck");
}

export function blame_goes_as_far_up_as_it_has_to() {
  const { verdicts } = judge(board(LATE), NOW, SETTINGS);
  equal([...verdicts.values()].map(({ computation: { name }, guilty }) => [name, guilty]),
    [["enriched", "enriched"], ["flights", "flights"], ["hourly", "enriched"]]);
  equal(way("hourly", verdicts), ["enriched"]);
}

export function a_living_stage_behind_a_dead_one_is_not_to_blame() {
  const rounding = computation("hourly", 2580, { inputs: ["enriched"] });
  const { verdicts } = judge(board([...LATE.slice(0, 2), rounding]), NOW, SETTINGS);
  equal([verdicts.get("hourly")?.guilty, way("hourly", verdicts)], ["enriched", ["enriched"]]);
  equal(said([...LATE.slice(0, 2), rounding]),
    "2 of 3 computations are late; the worst is hourly, 43 min behind, held by enriched (worker exec-7 on node-4), silent for 38 min.");
}

export function silence_begins_with_time_alone() {
  const still = range({ watermark: mark(20), last_report_micros: NOW - 10 * SECOND });
  const pipeline = board([computation("flights", 2), computation("enriched", 20, { inputs: ["flights"], holder: still }),
    computation("hourly", 45, { inputs: ["enriched"] })]);
  const guilty = (/** @type {number} */ now) => judge(pipeline, now, SETTINGS).verdicts.get("hourly")?.guilty;
  equal([NOW, NOW + 5 * SECOND, NOW + 5 * SECOND + 1].map(guilty), ["hourly", "hourly", "enriched"]);
}

export function what_nobody_works_on_is_told_before_what_is_only_slow() {
  const archive = computation("archive", 3600, { inputs: ["flights"] });
  equal(said([...LATE, archive]), "3 of 4 computations are late, most of all archive, by 1 h; hourly waits, 41 min behind, " +
    "held by enriched (worker exec-7 on node-4), silent for 38 min.");
}

export function only_who_holds_itself_is_called_stuck() {
  const archive = computation("archive", 3600, { inputs: ["flights"] });
  equal(said([LATE[0], LATE[1], archive]), "2 of 3 computations are late, most of all archive, by 1 h; enriched is stuck, 41 min behind, " +
    "held by its own worker exec-7 on node-4, silent for 38 min.");
}

export function who_holds_is_told_without_repeating_its_name() {
  const only = range({ start: "", end: "", label: "all keys" });
  equal(said([computation("flights", 3000, { holder: only }), computation("weather", 2)]),
    "1 of 2 computations is late: flights, 50 min behind, held by its own worker exec-7 on node-4, alive.");
  equal(said([computation("flights", 3000, { holder: only }), computation("hourly", 3000, { inputs: ["flights"] })]),
    "Both computations are late; the worst is hourly, 50 min behind, held by flights (worker exec-7 on node-4), alive.");
  equal(said([computation("flights", 3000, { holder: null })]), "flights is 50 min behind, held by itself, and no key range says why.");
}

export function a_circle_ends_the_walk() {
  const circle = board([computation("a", 60, { inputs: ["b"] }), computation("b", 60, { inputs: ["a"] })]);
  const { verdicts } = judge(circle, NOW, SETTINGS);
  equal([verdicts.get("a")?.guilty, way("a", verdicts)], ["b", ["b"]]);
}

export function a_chain_of_thousands_is_walked_once() {
  const chain = Array.from({ length: 5000 }, (_, i) => computation(`c${i}`, 60, { inputs: i ? [`c${i - 1}`] : [] }));
  equal(new Set([...culprits(board(chain).computations, NOW).values()].map(({ guilty }) => guilty)).size, 1);
}

export function a_change_replaces_adds_and_removes() {
  const next = change(board(LATE), { time_micros: NOW + 1, stale_for: 1, computations: [computation("flights", 1), computation("daily", 3)], removed: ["hourly"] });
  equal([...next.computations.keys()], ["daily", "enriched", "flights"]);
  equal(next.computations.get("flights")?.low, mark(1));
  equal(board(LATE).computations.size, 3);
}

export function who_holds_is_told_by_state() {
  equal(holding(range(), NOW), "[0x40, 0x44) of exec-7 on node-4, alive");
  equal(holding(range({ since_micros: NOW - 5 * MINUTE }), NOW), "[0x40, 0x44) of exec-7 on node-4, alive, standing there for 5 min");
  equal(holding(range({ last_report_micros: 0 }), NOW), "[0x40, 0x44) of exec-7 on node-4, of which the authority has not heard yet");
  equal(holding(range({ state: "unowned", last_report_micros: NOW - 5 * MINUTE }), NOW),
    "[0x40, 0x44) left by exec-7 on node-4, which nobody owns, silent for 5 min");
}

export function the_headline_names_a_worker_and_leaves_its_ids_to_the_line_below() {
  const id = "1db75b3b-8f1c-4f5e-9d55-3f0a1b2c3d4e";
  const told = (/** @type {any} */ given, /** @type {any} */ more = {}) => {
    const hourly = computation("hourly", 3000, { inputs: ["flights"], holder: range({ watermark: mark(3000), ...given }), ranges: 64, ...more });
    const verdict = /** @type {any} */ (judge(board([computation("flights", 2), hourly]), NOW, SETTINGS).verdicts.get("hourly"));
    return [heldInBrief(verdict, NOW), detail(verdict, hourly)];
  };
  equal(told({}), ["held by its own worker exec-7 on node-4, alive", "key range [0x40, 0x44), one of 64"]);
  equal(told({ worker: `query ${id}`, start: "", end: "" }, { ranges: 1 }), ["held by its own query on node-4, alive", `worker query ${id}`]);
  equal(told({ worker: id, host: "" })[0], "held by its own worker, alive");
  equal(told({ worker: "node-4" })[0], "held by its own worker node-4, alive");
  equal(told({ state: "unowned" })[0], "held by itself (left by worker exec-7 on node-4), which nobody owns, silent for 1 s");
}

export function a_replay_is_told_apart_from_what_is_late() {
  const year = 365 * 86_400;
  const replay = [computation("history", 13 * year), computation("hourly-history", 13 * year + 2500, { inputs: ["history"] })];
  const live = [computation("flights", 2), computation("slow", 8 * 86_400, { inputs: ["flights"] })];
  const { verdicts } = judge(board([...replay, ...live]), NOW, SETTINGS);
  equal(ranked(verdicts.values()).map((verdict) => [verdict.computation.name, verdict.level, kind(verdict)]),
    [["slow", "verylate", "late"], ["flights", "ontime", "ontime"], ["hourly-history", "far", "far"], ["history", "far", "far"]]);
  const { text, counts } = summary(verdicts, NOW);
  equal([text, counts.late, counts.far], ["1 of 2 computations is late: slow, 8 d behind", 1, 2]);
  equal(said([...replay, live[0]]), "flights is on time, 2 s behind.");
  const mine = new Map([...verdicts].filter(([name]) => name.includes("history")));
  equal(summary(mine, NOW, verdicts).text, "Both computations are far behind, hourly-history by 13 y.");
  // The viewer's choice and a promise are kept to.
  const levels = (/** @type {any[]} */ given, /** @type {any} */ from) => [...judge(board(given), NOW, { late: 1800, from }).verdicts.values()].map(({ level }) => level);
  equal(levels([...replay, live[0]], "clock"), ["ontime", "verylate", "verylate"]);
  const promise = { late_seconds: 60, owner: "", team: "", runbook: "", logs: "" };
  equal(levels([{ ...replay[0], promise }, live[0]], ""), ["ontime", "verylate"]);
}

export function a_replay_whose_worker_is_gone_is_stuck() {
  const silent = range({ watermark: mark(400 * 86_400), last_report_micros: NOW - 5 * MINUTE });
  const { verdicts } = judge(board([computation("flights", 2), computation("history", 400 * 86_400, { holder: silent })]), NOW, SETTINGS);
  const { late, stuck, far, ontime } = summary(verdicts, NOW).counts;
  equal([late, stuck, far, ontime], [0, 1, 0, 1]);
}
