import { LATE_DEFAULT, extent, level, newest, reference, trouble, noReportWords } from "/static/model/lag.js";
import { MINUTE, NOW, computation, equal, mark, ok, range } from "./check.js";

const CLOCK = { name: "clock", micros: NOW };

export function a_level_is_a_step_of_the_threshold() {
  equal([899, 900, 1799, 1800, 7199, 7200].map((seconds) => level(mark(seconds), CLOCK, 1800)),
    ["ontime", "slow", "slow", "late", "late", "verylate"]);
  equal(["unknown", "finished"].map((state) => level(mark(state), CLOCK, 1800)), ["unknown", "finished"]);
}

export function a_replay_is_measured_from_its_newest_data() {
  const replay = [computation("flights", 13 * 365 * 86_400), computation("hourly", 13 * 365 * 86_400 + 600)];
  equal(newest(replay), replay[0].low.micros);
  equal(reference(replay, NOW, "").name, "data");
  equal(reference(replay, NOW, "clock"), CLOCK);
}

export function a_pipeline_that_stands_still_for_days_is_no_replay() {
  equal(reference([computation("flights", 6 * 86_400)], NOW, ""), CLOCK);
  equal(reference([computation("flights", "unknown")], NOW, "data"), CLOCK);
}

export function a_bar_grows_with_the_lag_and_ends() {
  const lengths = [0, 1, 60, 600, LATE_DEFAULT, 86_400, 1e9].map((seconds) => extent(seconds, LATE_DEFAULT));
  ok(lengths.every((each, index) => index === 0 || each > lengths[index - 1] || each === 1), `not growing: ${lengths}`);
  ok(Math.abs(lengths[4] - 2 / 3) < 1e-9, "what is late does not stand at the mark");
  equal([lengths[0], lengths.at(-1)], [0, 1]);
}

export function an_owner_that_was_not_heard_of_is_not_called_silent() {
  equal(trouble(range({ last_report_micros: 0, since_micros: NOW - 60 * MINUTE }), NOW), "");
}

export function only_what_nobody_claimed_has_never_reported() {
  equal(["never claimed", "owned"].map((state) => noReportWords(range({ state, last_report_micros: 0 }))),
    ["never", "not since the authority restarted"]);
}

export function an_owner_is_silent_after_a_quarter_of_a_minute() {
  equal([10, 16].map((seconds) => trouble(range({ last_report_micros: NOW - seconds * 1e6 }), NOW)), ["", "silent"]);
  equal(trouble(range({ state: "unowned", last_report_micros: NOW - 60 * MINUTE }), NOW), "");
}
