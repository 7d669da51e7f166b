/** What several components need of the browser. */

import { createContext } from "../vendor/preact.js";
import { useContext, useEffect, useRef, useState } from "../vendor/preact-hooks.js";
import { ask } from "../live.js";

/** The zone of all times that are shown. */
export const ZoneContext = createContext(/** @type {import("../model/time.js").Zone} */ ("utc"));

/**
 * @returns {import("../model/time.js").Zone}
 */
export function useZone() {
  return useContext(ZoneContext);
}

/**
 * Render again every second, so that ages tick.
 */
export function useTick() {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
}

/**
 * Whether a media query holds, now and when it changes.
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
 * The width of an element, now and when it changes.
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

/** Seconds between two questions of the same kind, however much changes. */
const EVERY_MILLIS = 2_000;

/**
 * @template T
 * @typedef {{value: T | null, error: string, at: number}} Answer `at`: when it came, by `performance.now()`.
 */

/**
 * An answer of the authority, asked for again when something has changed, but never more often than every two seconds. While the next
 * one is on its way, and when it fails, the last one stays, with what failed.
 *
 * @template T
 * @param {string} path
 * @param {number} change
 * @returns {Answer<T>}
 */
export function useAnswer(path, change) {
  const nothing = { value: /** @type {T | null} */ (null), error: "", at: 0 };
  const [answer, set] = useState({ path, ...nothing });
  const newest = useRef(change);
  newest.current = change;
  useEffect(() => {
    const leaving = new AbortController();
    let asked = Number.NaN;
    let running = false;
    const next = async () => {
      if (running || asked === newest.current || document.hidden) return;
      running = true;
      asked = newest.current;
      try {
        const value = await ask(path, leaving.signal);
        set({ path, value, error: "", at: performance.now() });
      } catch (error) {
        if (!leaving.signal.aborted) {
          asked = Number.NaN; // so that it is asked for again
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
      leaving.abort();
    };
  }, [path]);
  return answer.path === path ? answer : nothing;
}
