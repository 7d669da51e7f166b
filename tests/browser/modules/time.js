import { ago, axisLabel, axisTimes, brief, clock, duration, lag, parted, stamp, zoneName, zoneNames } from "/static/model/time.js";
import { MINUTE, NOW, SECOND, equal, ok } from "./check.js";

export function a_duration_has_two_units_below_ten_of_the_larger() {
  equal([0.2, 1, 59.9, 60, 61, 545, 2460].map(duration), ["< 1 s", "1 s", "59 s", "1 min", "1 min 1 s", "9 min 5 s", "41 min"]);
  equal([3600, 7384, 36_000, 90_000, 31_536_000 * 13].map(duration), ["1 h", "2 h 3 min", "10 h", "1 d 1 h", "13 y"]);
  equal([0.2, 61, 545, 7384, 36_000].map(brief), ["< 1 s", "1 min", "9 min", "2 h", "10 h"]);
}

export function a_lag_says_what_is_ahead_and_what_has_no_time() {
  equal([null, -0.5, -5, 5].map(lag), ["–", "< 1 s", "5 s ahead", "5 s"]);
}

export function a_time_has_its_date_when_that_is_not_today() {
  equal(clock(NOW - 41 * MINUTE, NOW), "13:02:11");
  equal(clock(NOW - 24 * 60 * MINUTE, NOW), "20 Nov 13:43");
  equal(clock(Date.UTC(2013, 0, 9, 13, 2) * 1000, NOW), "9 Jan 2013 13:02");
  equal(stamp(NOW + 250_000), "2026-11-21 13:43:11.250 UTC");
}

export function what_was_never_was_not_ago() {
  equal([ago(0, NOW), ago(NOW - 38 * MINUTE, NOW), ago(NOW + SECOND, NOW)], ["never", "38 min ago", "< 1 s ago"]);
}

export function a_sentence_is_parted_at_its_times() {
  equal(parted("at 2013-01-09T13:02:11Z, held"), ["at ", Date.UTC(2013, 0, 9, 13, 2, 11) * 1000, ", held"]);
  equal(parted("finished"), ["finished"]);
}

export function a_local_time_is_that_of_the_browser_and_says_so() {
  const local = new Date(NOW / 1000);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  equal(clock(NOW, NOW, "local"), [local.getHours(), local.getMinutes(), local.getSeconds()].map(two).join(":"));
  equal([zoneName(NOW, "utc"), zoneNames(NOW - 86_400 * SECOND, NOW, "utc")], ["UTC", "UTC"]);
  equal(stamp(NOW, "local").endsWith(` ${zoneName(NOW, "local")}`), true);
}

export function a_time_axis_is_marked_at_full_hours() {
  const hour = 3600 * SECOND;
  const labels = (/** @type {number} */ hours, /** @type {number} */ most) => axisTimes(NOW - hours * hour, NOW, most).map((micros) => axisLabel(micros));
  equal(labels(1, 8), ["12:50", "13:00", "13:10", "13:20", "13:30", "13:40"]);
  equal(labels(6, 8), ["08:00", "09:00", "10:00", "11:00", "12:00", "13:00"]);
  equal(labels(24, 8), ["16:00", "20:00", "21 Nov", "04:00", "08:00", "12:00"]);
  equal(labels(24, 5), ["18:00", "21 Nov", "06:00", "12:00"]);
  equal(labels(168, 8), ["15 Nov", "16 Nov", "17 Nov", "18 Nov", "19 Nov", "20 Nov", "21 Nov"]);
  for (const hours of [1, 6, 24, 168]) {
    for (const most of [3, 5, 8]) {
      const marks = axisTimes(NOW - hours * hour, NOW, most);
      ok(marks.length > 0 && marks.length <= most, `${marks.length} of ${most}`);
      if (hours >= 6) ok(marks.every((micros) => micros % hour === 0), `${hours} h: ${marks}`);
    }
  }
  equal(axisTimes(NOW, NOW + 10 * SECOND, 8), []);
}

export function a_local_axis_is_marked_at_the_hours_of_the_browser() {
  const marks = axisTimes(NOW - 365 * 86_400 * SECOND, NOW, 12, "local").map((micros) => new Date(micros / 1000));
  ok(marks.length > 5, `${marks.length} marks`);
  equal(marks.map((at) => [at.getHours(), at.getMinutes()]), marks.map(() => [0, 0]));
}
