/** Zoom: how large something that is larger than its room is shown. Which part of it is seen is left to scrolling, which every device has. */

import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-hooks.js";

/** How much a button or key changes, and the most that is shown. */
export const STEP = 1.4;
const MOST = 1.5;
const LEAST = 0.04;
/** Of a turn of the wheel: a notch of a mouse is 100 pixels, a pinch on a touchpad some at a time. */
const WHEEL = 0.004;

/**
 * @typedef {object} Zoom
 * @property {number} scale
 * @property {(factor: number, x?: number, y?: number) => void} by Changes it around a point of the window; without one around the middle.
 * @property {() => void} fit Shows all of it.
 */

/**
 * Zoom by buttons, Ctrl and the wheel, two fingers, and the keys `+`, `-` and `0`; the mouse also moves what is shown. The first child of the
 * frame is what is scaled.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {number} first The scale until the viewer chooses one.
 * @param {number} whole The scale at which all of it is seen.
 * @returns {Zoom}
 */
export function useZoom(frame, first, whole) {
  const [chosen, choose] = useState(/** @type {number | "whole" | null} */ (null));
  const scale = chosen === "whole" ? whole : (chosen ?? first);
  const next = useRef(scale);
  const shown = useRef(scale);
  const held = useRef(/** @type {{x: number, y: number, clientX: number, clientY: number} | null} */ (null));
  if (typeof chosen !== "number") next.current = scale;
  const by = useCallback((/** @type {number} */ factor, /** @type {number} */ clientX = NaN, /** @type {number} */ clientY = NaN) => {
    const inside = frame.current?.firstElementChild;
    if (!frame.current || !inside) return;
    const [room, box] = [frame.current.getBoundingClientRect(), inside.getBoundingClientRect()];
    const x = Number.isNaN(clientX) ? room.left + room.width / 2 : clientX;
    const y = Number.isNaN(clientY) ? room.top + room.height / 2 : clientY;
    next.current = Math.min(MOST, Math.max(LEAST, next.current * factor));
    const point = held.current ?? { x: (x - box.left) / shown.current, y: (y - box.top) / shown.current };
    held.current = { x: point.x, y: point.y, clientX: x, clientY: y };
    choose(next.current);
  }, []);
  useLayoutEffect(() => {
    shown.current = scale;
    const [point, inside] = [held.current, frame.current?.firstElementChild];
    held.current = null;
    if (!point || !frame.current || !inside) return;
    const box = inside.getBoundingClientRect();
    frame.current.scrollBy(box.left + point.x * scale - point.clientX, box.top + point.y * scale - point.clientY);
  }, [scale]);
  useEffect(() => {
    const element = frame.current;
    if (element === null) return undefined;
    const leave = [wheeled(element, by), pinched(element, by), dragged(element), pressed(element, by, () => choose("whole"))];
    return () => leave.forEach((each) => each());
  }, []);
  return { scale, by, fit: () => choose("whole") };
}

/**
 * @template {keyof HTMLElementEventMap} K
 * @param {HTMLElement} element
 * @param {K} kind
 * @param {(event: HTMLElementEventMap[K]) => void} heard
 * @param {AddEventListenerOptions} [how]
 * @returns {() => void} Hears no more.
 */
function on(element, kind, heard, how) {
  element.addEventListener(kind, heard, how);
  return () => element.removeEventListener(kind, heard, how);
}

/**
 * @param {HTMLElement} element
 * @param {Zoom["by"]} by
 */
function wheeled(element, by) {
  const turned = (/** @type {WheelEvent} */ event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    by(Math.exp(-event.deltaY * WHEEL), event.clientX, event.clientY);
  };
  return on(element, "wheel", turned, { passive: false });
}

/**
 * @param {HTMLElement} element
 * @param {Zoom["by"]} by
 */
function pinched(element, by) {
  let apart = 0;
  const moved = (/** @type {TouchEvent} */ event) => {
    if (event.touches.length !== 2) {
      apart = 0;
      return;
    }
    event.preventDefault();
    const [a, b] = event.touches;
    const now = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    if (apart > 0) by(now / apart, (a.clientX + b.clientX) / 2, (a.clientY + b.clientY) / 2);
    apart = now;
  };
  const leave = [on(element, "touchstart", moved, { passive: false }), on(element, "touchmove", moved, { passive: false }), on(element, "touchend", moved)];
  return () => leave.forEach((each) => each());
}

/** Pixels that a mouse moves until it drags instead of clicking. */
const DRAG = 4;

/** @param {HTMLElement} element */
function dragged(element) {
  let from = /** @type {{x: number, y: number} | null} */ (null);
  let dragging = false;
  const began = (/** @type {PointerEvent} */ event) => {
    if (event.pointerType === "mouse" && event.button === 0) from = { x: event.clientX, y: event.clientY };
    dragging = false;
  };
  const moved = (/** @type {PointerEvent} */ event) => {
    if (from === null) return;
    if (!(event.buttons & 1)) {
      from = null;
      return;
    }
    if (!dragging && Math.hypot(event.clientX - from.x, event.clientY - from.y) < DRAG) return;
    if (!dragging) element.setPointerCapture(event.pointerId);
    dragging = true;
    element.scrollBy(from.x - event.clientX, from.y - event.clientY);
    from = { x: event.clientX, y: event.clientY };
  };
  // The click that ends a drag opens nothing.
  const clicked = (/** @type {MouseEvent} */ event) => {
    if (dragging) event.preventDefault();
    if (dragging) event.stopPropagation();
    dragging = false;
  };
  const leave = [
    on(element, "pointerdown", began),
    on(element, "pointermove", moved),
    on(element, "click", clicked, { capture: true }),
    on(element, "dragstart", (event) => event.preventDefault()),
  ];
  return () => leave.forEach((each) => each());
}

/**
 * @param {HTMLElement} element
 * @param {Zoom["by"]} by
 * @param {() => void} fit
 */
function pressed(element, by, fit) {
  const struck = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") by(STEP);
    else if (event.key === "-") by(1 / STEP);
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
  };
  return on(element, "keydown", struck);
}
