/**
 * Lags of the last hour, day or week as lines. uPlot draws them; it is loaded with the first chart.
 */

import { html } from "../html.js";
import { useEffect, useRef, useState } from "../vendor/preact-hooks.js";
import { ticks } from "../model/history.js";
import { axisLabel, axisTimes, duration, lag, stamp, zoneName } from "../model/time.js";
import { useMedia, useWidth } from "./hooks.js";

const HEIGHT = 220;
/** Smallest span of the time axis. */
const LEAST_SECONDS = 300;

/** Number of marks of the time axis on a large screen, and pixels for each on a small one. */
const MARKS = 8;
const MARK_PIXELS = 70;

/**
 * @param {string} mostName Name of the second line: "99 % of recent records".
 * @param {boolean} most True when there is a second line.
 * @param {number} width
 * @param {import("../model/time.js").Zone} zone
 * @param {any} plotting uPlot.
 * @returns {any} Options of uPlot.
 */
function options(mostName, most, width, zone, plotting) {
  const style = getComputedStyle(document.documentElement);
  const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const value = (/** @type {any} */ _, /** @type {number | null} */ seconds) => (seconds === null || seconds === undefined ? "–" : lag(seconds));
  return {
    width,
    height: HEIGHT,
    tzDate: (/** @type {number} */ at) => (zone === "utc" ? plotting.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000)),
    cursor: { y: false, points: { size: 7 } },
    legend: { live: true },
    hooks: { ready: [(/** @type {any} */ plot) => queueMicrotask(() => rest(plot))] },
    scales: { x: { time: true, range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(low, high - LEAST_SECONDS), high] }, y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ high) => [0, Math.max(1, (high ?? 0) * 1.08)] } },
    axes: [
      {
        ...axis,
        splits: (/** @type {any} */ plot, /** @type {number} */ __, /** @type {number} */ low, /** @type {number} */ high) =>
          axisTimes(low * 1e6, high * 1e6, Math.min(MARKS, Math.floor(plot.width / MARK_PIXELS)), zone).map((micros) => micros / 1e6),
        values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((seconds) => axisLabel(seconds * 1e6, zone)),
      },
      {
        ...axis,
        size: 62,
        splits: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ low, /** @type {number} */ high) => ticks(low, high, 5),
        values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((seconds) => (seconds ? duration(seconds) : "0")),
      },
    ],
    series: [
      { label: "at", value: (/** @type {any} */ _, /** @type {number | null} */ at) => (at === null || at === undefined ? "–" : `${stamp(at * 1e6, zone).slice(11, 19)} ${zoneName(at * 1e6, zone)}`) },
      { label: "low watermark", stroke: colour("--line-low"), fill: colour("--fill-low"), width: 2, points: { show: false }, value },
      ...(most ? [{ label: mostName, stroke: colour("--line-most"), width: 2, dash: [5, 4], points: { show: false }, value }] : []),
    ],
  };
}

/**
 * Shows the newest values in the legend while no pointer is over the chart.
 *
 * @param {any} plot
 */
function rest(plot) {
  if (plot !== null && !(plot.cursor.left >= 0)) plot.setLegend({ idx: plot.data[0].length - 1 });
}

/**
 * @param {{columns: [number[], (number | null)[], (number | null)[]], mostName: string, label:
 *   string, zone: import("../model/time.js").Zone}} props `mostName`: name of the second line.
 */
export function Chart({ columns, mostName, label, zone }) {
  const [frame, width] = useWidth();
  const dark = useMedia("(prefers-color-scheme: dark)");
  const [plotting, load] = useState(/** @type {any} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const most = columns[2].some((value) => value !== null);
  const data = most ? columns : columns.slice(0, 2);
  useEffect(() => {
    import("../vendor/uplot.js").then((module) => load(() => module.default));
  }, []);
  useEffect(() => {
    if (plotting === null || width === 0 || frame.current === null) return undefined;
    plot.current = new plotting(options(mostName, most, width, zone, plotting), data, frame.current);
    return () => plot.current.destroy();
  }, [plotting, dark, most, mostName, width === 0]);
  useEffect(() => {
    plot.current?.setSize({ width, height: HEIGHT });
    rest(plot.current);
  }, [width]);
  useEffect(() => {
    plot.current?.setData(data);
    rest(plot.current);
  }, [columns[0].at(-1), columns[0].length, columns[1].at(-1)]);
  return html`<div class="chart" role="img" aria-label=${label} ref=${frame}></div>`;
}
