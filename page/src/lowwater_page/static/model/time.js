/** Times and durations in words. Times are integer microseconds since the Unix epoch, UTC. */

const UNITS = /** @type {[number, string][]} */ ([
  [31_536_000, "y"],
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
]);
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/**
 * Writes a duration: with two units when there are fewer than ten of the larger one, else with one.
 *
 * @param {number} seconds
 * @returns {string} "9 min 5 s", "41 min", "< 1 s"
 */
export function duration(seconds) {
  if (seconds < 1) return "< 1 s";
  const rest = Math.floor(seconds);
  const index = UNITS.findIndex(([size]) => rest >= size);
  const [size, unit] = UNITS[index];
  const whole = Math.floor(rest / size);
  if (whole >= 10 || index + 1 === UNITS.length) return `${whole} ${unit}`;
  const [finer, name] = UNITS[index + 1];
  const part = Math.floor((rest % size) / finer);
  return part ? `${whole} ${unit} ${part} ${name}` : `${whole} ${unit}`;
}

/**
 * Writes a duration with its larger unit only.
 *
 * @param {number} seconds
 * @returns {string} "9 min", "< 1 s"
 */
export function brief(seconds) {
  return duration(seconds).replace(/^(\d+ \w+) .*/, "$1");
}

/**
 * Writes a lag. A watermark may be ahead, since a worker's clock may be; the text says so.
 *
 * @param {number | null} seconds
 * @returns {string}
 */
export function lag(seconds) {
  if (seconds === null) return "–";
  return seconds <= -1 ? `${duration(-seconds)} ahead` : duration(seconds);
}

/**
 * @param {number} micros
 * @returns {Date}
 */
function date(micros) {
  return new Date(Math.floor(micros / 1000));
}

/**
 * @param {number} number
 * @returns {string}
 */
function two(number) {
  return String(number).padStart(2, "0");
}

/**
 * Zone in which times are written: UTC, or the browser's.
 *
 * @typedef {"utc" | "local"} Zone
 */

/**
 * Returns a date whose UTC fields are those of the zone.
 *
 * @param {number} micros
 * @param {Zone} zone
 * @returns {Date}
 */
function shifted(micros, zone) {
  const at = date(micros);
  return zone === "utc" ? at : new Date(at.getTime() - at.getTimezoneOffset() * 60_000);
}

/**
 * Returns the name of a zone at a time; summer time has another name.
 *
 * @param {number} micros
 * @param {Zone} zone
 * @returns {string} "UTC", "CET", "GMT+5:30"
 */
export function zoneName(micros, zone) {
  if (zone === "utc") return "UTC";
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(date(micros));
  const name = parts.find(({ type }) => type === "timeZoneName")?.value ?? "local";
  return name === "UTC" ? "UTC (local)" : name;
}

/**
 * Returns the name of a zone in a span of time: both names if summer time begins or ends in it.
 *
 * @param {number} from
 * @param {number} to
 * @param {Zone} zone
 * @returns {string} "CET", "CEST, then CET"
 */
export function zoneNames(from, to, zone) {
  return [...new Set([zoneName(from, zone), zoneName(to, zone)])].join(", then ");
}

/**
 * Writes a time of day; with its date when that is not today's.
 *
 * @param {number} micros
 * @param {number} now
 * @param {Zone} [zone]
 * @returns {string} "13:02:11", "9 Jan 13:02", "9 Jan 2013 13:02"
 */
export function clock(micros, now, zone = "utc") {
  const at = shifted(micros, zone);
  const today = shifted(now, zone);
  const minute = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  if (at.toISOString().slice(0, 10) === today.toISOString().slice(0, 10)) return `${minute}:${two(at.getUTCSeconds())}`;
  const year = at.getUTCFullYear() === today.getUTCFullYear() ? "" : ` ${at.getUTCFullYear()}`;
  return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}${year} ${minute}`;
}

/** Steps of a time axis in seconds. */
const AXIS_STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800];

/**
 * Chooses the marks of a time axis: full hours of the zone, or parts of an hour when the span is
 * short, or days when it is long.
 *
 * @param {number} from Microseconds.
 * @param {number} to Microseconds.
 * @param {number} most Number of marks that fit.
 * @param {Zone} [zone]
 * @returns {number[]} Microseconds.
 */
export function axisTimes(from, to, most, zone = "utc") {
  const ahead = (/** @type {number} */ micros) => shifted(micros, zone).getTime() * 1000 - date(micros).getTime() * 1000;
  const seconds = (to - from) / 1e6;
  const step = (AXIS_STEPS.find((size) => Math.floor(seconds / size) < most) ?? Math.ceil(seconds / most / 86_400) * 86_400) * 1e6;
  const marks = [];
  for (let at = Math.ceil((from + ahead(from)) / step) * step; ; at += step) {
    const micros = at - ahead(at - ahead(from)); // summer time may begin or end in between
    if (micros > to) return marks;
    marks.push(micros);
  }
}

/**
 * Labels a mark of a time axis: the time of day, or the date where a day begins.
 *
 * @param {number} micros
 * @param {Zone} [zone]
 * @returns {string} "13:00", "9 Jan"
 */
export function axisLabel(micros, zone = "utc") {
  const at = shifted(micros, zone);
  const minute = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  return minute === "00:00" ? `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}` : minute;
}

/**
 * Writes a time in full.
 *
 * @param {number} micros
 * @param {Zone} [zone]
 * @returns {string} "2013-01-09 13:02:11.250 UTC"
 */
export function stamp(micros, zone = "utc") {
  const text = shifted(micros, zone).toISOString().replace("T", " ").replace("Z", "").replace(".000", "");
  return `${text} ${zoneName(micros, zone)}`;
}

/**
 * Writes a time for machines.
 *
 * @param {number} micros
 * @returns {string} "2013-01-09T13:02:11.250Z"
 */
export function iso(micros) {
  return date(micros).toISOString();
}

/**
 * Writes how long ago something was.
 *
 * @param {number} micros Time; 0: never.
 * @param {number} now
 * @returns {string}
 */
export function ago(micros, now) {
  return micros ? `${duration(Math.max(0, now - micros) / 1e6)} ago` : "never";
}

/**
 * Writes a watermark as a word or a time.
 *
 * @param {import("./types.js").Watermark} watermark
 * @param {number} now
 * @param {Zone} [zone]
 * @returns {string}
 */
export function mark(watermark, now, zone = "utc") {
  return watermark.micros === null ? watermark.state : clock(watermark.micros, now, zone);
}

/**
 * Splits a sentence at its times.
 *
 * @param {string} text
 * @returns {(string | number)[]} The texts between the times, and the times in microseconds.
 */
export function parted(text) {
  return text.split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/).map((part, index) => (index % 2 ? Date.parse(part) * 1000 : part));
}
