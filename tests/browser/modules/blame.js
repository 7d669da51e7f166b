import { EMPTY, replace } from "/static/model/board.js";
import { reasonOf } from "/static/model/culprit.js";
import { wholes } from "/static/model/slices.js";
import { because, heldBy, judge, summary, way } from "/static/model/verdict.js";
import { NOW, SECOND, computation, mark, range } from "./check.js";

/**
 * What the page says of a case of tests/blame.json.
 *
 * @param {any} given
 */
export function said({ computations, ask }) {
  const board = replace(EMPTY, { time_micros: NOW, stale_for: 0, version: "1", shards: [], computations: computations.map(told) });
  const { verdicts } = judge(board, NOW, { late: 1800, from: "" });
  const verdict = /** @type {import("/static/model/verdict.js").Verdict} */ (verdicts.get(ask));
  const { text, held } = summary(wholes(verdicts), NOW, verdicts);
  return {
    way: [ask, ...way(ask, verdicts)],
    causes: computations.map((/** @type {any} */ { name }) => reasonOf(board.computations.get(name), NOW)),
    state: because(verdict),
    held: verdict.level === "finished" ? "" : heldBy(verdict, NOW),
    lead: held ? `${text}, ${held}.` : text,
  };
}

/** @param {any} given */
function told({ name, behind, inputs = [], estimated = false, state = "owned", silent = 1, stood = 1, running = 0, holdback = 0, claimed = 0, untimed = 0, ...more }) {
  const never = state === "never claimed";
  const since = stood && NOW - stood * SECOND;
  const holder = range({
    start: "",
    end: "",
    label: "all keys",
    watermark: mark(behind),
    state,
    worker: never ? "" : `${name}-1`,
    host: never ? "" : "node-4",
    since_micros: since,
    last_report_micros: never ? 0 : NOW - silent * SECOND,
    claimed_micros: claimed && NOW - claimed * SECOND,
    holdback_micros: holdback * SECOND,
    untimed_rows: untimed,
    ...more,
  });
  return computation(name, behind, {
    inputs,
    estimated,
    since_micros: since,
    oldest_operation_micros: running && NOW - running * SECOND,
    holder: behind === "finished" ? null : holder,
  });
}
