/** Hooks for several components. */

import { createContext } from "../vendor/preact.js";
import { useContext, useEffect, useRef, useState } from "../vendor/preact-hooks.js";
import { ask } from "../live.js";

/** The zone of all times that are shown. */
export const ZoneContext = createContext(/** @type {import("../model/time.js").Zone} */ ("utc"));

/** @returns {import("../model/time.js").Zone} */
export function useZone() {
  return useContext(ZoneContext);
}

/** Renders again every second, so that ages are current. */
export function useTick() {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
}

/**
 * Tells whether a media query matches, and follows its changes.
 *
 * @param {string} query
 * @returns {boolean}
 */
export function useMedia(query) {
  const [holds, set] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const changed = () => set(media.matches);
    changed();
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, [query]);
  return holds;
}

/**
 * Measures the width of an element, and follows its changes.
 *
 * @returns {[{current: HTMLElement | null}, number]}
 */
export function useWidth() {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, set] = useState(0);
  useEffect(() => {
    if (element.current === null) return undefined;
    const observer = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

/**
 * Measures the height of the window, and follows its changes.
 *
 * @returns {number}
 */
export function useWindowHeight() {
  const [height, set] = useState(innerHeight);
  useEffect(() => {
    const changed = () => set(innerHeight);
    addEventListener("resize", changed);
    return () => removeEventListener("resize", changed);
  }, []);
  return height;
}

/** Milliseconds between two requests of one kind, however often values change. */
const EVERY_MILLIS = 2_000;

/**
 * @template T
 * @typedef {{value: T | null, error: string, at: number}} Answer `at`: time of arrival by
 *   `performance.now()`.
 */

/**
 * Requests an answer again when `change` changes, but at most every two seconds. While a request
 * runs, and when it fails, the last answer stays, with the error.
 *
 * @template T
 * @param {string} path
 * @param {number} change Number that grows when the answer may be out of date.
 * @returns {Answer<T>}
 */
export function useAnswer(path, change) {
  const nothing = { value: /** @type {T | null} */ (null), error: "", at: 0 };
  const [answer, set] = useState({ path, ...nothing });
  const newest = useRef(change);
  newest.current = change;
  useEffect(() => {
    const abort = new AbortController();
    let answeredChange = Number.NaN;
    let running = false;
    const next = async () => {
      if (running || answeredChange === newest.current || document.hidden) return;
      running = true;
      answeredChange = newest.current;
      try {
        const value = await ask(path, abort.signal);
        set({ path, value, error: "", at: performance.now() });
      } catch (error) {
        if (!abort.signal.aborted) {
          answeredChange = Number.NaN; // so that it is asked for again
          const message = error instanceof Error && !(error instanceof TypeError) ? error.message : "no answer";
          set((last) => ({ ...(last.path === path ? last : { path, ...nothing }), error: message }));
        }
      } finally {
        running = false;
      }
    };
    next();
    const timer = setInterval(next, EVERY_MILLIS);
    return () => {
      clearInterval(timer);
      abort.abort();
    };
  }, [path]);
  return answer.path === path ? answer : nothing;
}
