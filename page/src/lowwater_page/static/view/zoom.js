/**
 * Zoom of something larger than its frame. Scrolling, which every device has, chooses the visible
 * part.
 */

import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-hooks.js";

/** Factor of a button or key, and the largest and smallest scale. */
export const STEP = 1.4;
const MOST = 1.5;
const LEAST = 0.04;
/**
 * Exponent of the zoom for each pixel of the wheel: a mouse sends 100 a notch, a touchpad a few at
 * a time.
 */
const WHEEL = 0.004;

/**
 * @typedef {object} Zoom
 * @property {number} scale
 * @property {(factor: number, x?: number, y?: number) => void} by Changes the scale around a point
 *   of the window, by default the middle of the frame.
 * @property {() => void} fit Shows the whole.
 */

/**
 * Zooms by buttons, Ctrl and the wheel, two fingers, and the keys `+`, `-` and `0`; a mouse also
 * drags. The first child of the frame is scaled.
 *
 * @param {{current: HTMLElement | null}} frame
 * @param {number} first Scale until the viewer chooses one.
 * @param {number} whole Scale at which the whole fits.
 * @returns {Zoom}
 */
export function useZoom(frame, first, whole) {
  const [chosen, choose] = useState(/** @type {number | "whole" | null} */ (null));
  const scale = chosen === "whole" ? whole : (chosen ?? first);
  const next = useRef(scale);
  const shown = useRef(scale);
  const anchor = useRef(/** @type {{x: number, y: number, clientX: number, clientY: number} | null} */ (null));
  if (typeof chosen !== "number") next.current = scale;
  const by = useCallback((/** @type {number} */ factor, /** @type {number} */ clientX = NaN, /** @type {number} */ clientY = NaN) => {
    const inside = frame.current?.firstElementChild;
    if (!frame.current || !inside) return;
    const [room, box] = [frame.current.getBoundingClientRect(), inside.getBoundingClientRect()];
    const x = Number.isNaN(clientX) ? room.left + room.width / 2 : clientX;
    const y = Number.isNaN(clientY) ? room.top + room.height / 2 : clientY;
    next.current = Math.min(MOST, Math.max(LEAST, next.current * factor));
    const point = anchor.current ?? { x: (x - box.left) / shown.current, y: (y - box.top) / shown.current };
    anchor.current = { x: point.x, y: point.y, clientX: x, clientY: y };
    choose(next.current);
  }, []);
  useLayoutEffect(() => {
    shown.current = scale;
    const [point, inside] = [anchor.current, frame.current?.firstElementChild];
    anchor.current = null;
    if (!point || !frame.current || !inside) return;
    const box = inside.getBoundingClientRect();
    frame.current.scrollBy(box.left + point.x * scale - point.clientX, box.top + point.y * scale - point.clientY);
  }, [scale]);
  useEffect(() => {
    const element = frame.current;
    if (element === null) return undefined;
    const removers = [zoomByWheel(element, by), zoomByPinch(element, by), scrollByDrag(element), zoomByKeys(element, by, () => choose("whole"))];
    return () => removers.forEach((remove) => remove());
  }, []);
  return { scale, by, fit: () => choose("whole") };
}

/**
 * @template {keyof HTMLElementEventMap} K
 * @param {HTMLElement} element
 * @param {K} kind
 * @param {(event: HTMLElementEventMap[K]) => void} listener
 * @param {AddEventListenerOptions} [options]
 * @returns {() => void} Removes the listener.
 */
function on(element, kind, listener, options) {
  element.addEventListener(kind, listener, options);
  return () => element.removeEventListener(kind, listener, options);
}

/**
 * @param {HTMLElement} element
 * @param {Zoom["by"]} by
 */
function zoomByWheel(element, by) {
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
function zoomByPinch(element, by) {
  let distance = 0;
  const moved = (/** @type {TouchEvent} */ event) => {
    if (event.touches.length !== 2) {
      distance = 0;
      return;
    }
    event.preventDefault();
    const [a, b] = event.touches;
    const newDistance = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
    if (distance > 0) by(newDistance / distance, (a.clientX + b.clientX) / 2, (a.clientY + b.clientY) / 2);
    distance = newDistance;
  };
  const removers = [on(element, "touchstart", moved, { passive: false }), on(element, "touchmove", moved, { passive: false }), on(element, "touchend", moved)];
  return () => removers.forEach((remove) => remove());
}

/** Pixels that a mouse must move to drag instead of clicking. */
const DRAG = 4;

/** @param {HTMLElement} element */
function scrollByDrag(element) {
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
  // Without this, the click that ends a drag would open a computation.
  const clicked = (/** @type {MouseEvent} */ event) => {
    if (dragging) event.preventDefault();
    if (dragging) event.stopPropagation();
    dragging = false;
  };
  const removers = [
    on(element, "pointerdown", began),
    on(element, "pointermove", moved),
    on(element, "click", clicked, { capture: true }),
    on(element, "dragstart", (event) => event.preventDefault()),
  ];
  return () => removers.forEach((remove) => remove());
}

/**
 * @param {HTMLElement} element
 * @param {Zoom["by"]} by
 * @param {() => void} fit
 */
function zoomByKeys(element, by, fit) {
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
