/**
 * The connection to the authority: events that it pushes, and requests.
 *
 * Events come over one stream. When the stream breaks, or is silent for longer than its beats
 * allow, the page opens it again and asks for a snapshot with each try. So a page that the
 * authority refuses a stream, because it has too many viewers, stays current too, only more slowly.
 * A page out of sight closes its stream, so that another viewer can have its place.
 *
 * Where viewers have to sign in, the page asks for nothing before that: see view/door.js.
 */

import { EMPTY, beat, change, replace } from "./model/board.js";

/**
 * Milliseconds without an event after which the connection counts as dead; beats come every 5 s.
 */
const DEAD_MILLIS = 12_000;
const RETRY_MILLIS = 1_000;
const RETRY_MOST_MILLIS = 8_000;
/** Milliseconds for which a page may be out of sight before it closes its stream. */
const HIDDEN_MILLIS = 60_000;
const ASK_MILLIS = 10_000;

/**
 * @typedef {object} State
 * @property {import("./model/board.js").Board} board
 * @property {"starting" | "live" | "lost" | "out"} link "out": the viewer has to sign in.
 * @property {number} heardAt Time of the last event or snapshot, by `performance.now()`.
 * @property {number} lostAt Time at which the connection was lost, by `performance.now()`.
 * @property {string} reason Error that the authority gave; empty: none.
 * @property {string | null} name Name of the signed-in viewer; null: not signed in, or not needed.
 */

/**
 * Returns the authority's clock: its last time plus the time since. The viewer's own clock may be
 * wrong.
 *
 * @param {State} state
 * @returns {number} Microseconds.
 */
export function clockOf({ board, heardAt }) {
  return board.time + Math.max(0, performance.now() - heardAt) * 1000;
}

/**
 * Returns the time of the values on the page. It stands still while no authority answers: otherwise
 * every worker would seem silent.
 *
 * @param {State} state
 * @returns {number} Microseconds.
 */
export function seenAt(state) {
  const { board } = state;
  return board.away === null ? clockOf(state) : board.time - (board.staleFor ?? 0) * 1e6;
}

/** The authority refused a request because the viewer is not signed in. */
class SignedOut extends Error {}

/**
 * Send a request to the authority.
 *
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} The answer; rejects with the authority's error message.
 */
export async function ask(path, signal) {
  const patience = AbortSignal.timeout(ASK_MILLIS);
  const response = await fetch(path, { signal: signal ? AbortSignal.any([signal, patience]) : patience });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) throw new SignedOut(answer.error);
  if (!response.ok) throw new Error(answer.error ?? `${path} was answered with ${response.status}`);
  return answer;
}

/** Keeps a board current and calls a listener with every change. */
export class Live {
  /**
   * @param {(state: State) => void} changed Listener, called with the newest state, at most once a
   *   frame.
   */
  constructor(changed) {
    /** @type {State} */
    this.state = { board: EMPTY, link: "starting", heardAt: performance.now(), lostAt: performance.now(), reason: "", name: null };
    this.changed = changed;
    /** @type {EventSource | null} */
    this.source = null;
    this.attempts = 0;
    this.retryTimer = 0;
    this.deadTimer = 0;
    this.hideTimer = 0;
    this.frame = 0;
  }

  /** Start; the page never stops it. */
  start() {
    document.addEventListener("visibilitychange", () => this.#visibilityChanged());
    window.addEventListener("online", () => this.#reconnect());
    this.#connect();
  }

  /**
   * Exchange a token for a cookie, and start.
   *
   * @param {string} token
   * @returns {Promise<void>} Rejects with the authority's error message.
   */
  async signIn(token) {
    const body = JSON.stringify({ token });
    await this.#session("POST", { headers: { "Content-Type": "application/json" }, body });
    await this.#connect();
  }

  /** Forget the cookie and the board. */
  async signOut() {
    await this.#session("DELETE");
    this.#showSignIn();
  }

  /**
   * @param {string} method
   * @param {RequestInit} [request]
   */
  async #session(method, request) {
    const response = await fetch("/session", { method, signal: AbortSignal.timeout(ASK_MILLIS), ...request });
    if (response.ok) return;
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ?? `the authority answered with ${response.status}`);
  }

  async #connect() {
    // If this request fails, the next one fails too and tells the viewer why.
    const { required, name } = await ask("/session").catch(() => ({ required: false, name: null }));
    if (required && name === null) this.#showSignIn();
    else {
      this.#update({ name, link: this.state.link === "out" ? "starting" : this.state.link });
      this.#open();
    }
  }

  #showSignIn() {
    this.#close();
    this.#update({ board: EMPTY, link: "out", name: null, reason: "" });
  }

  #open() {
    this.#close();
    const source = new EventSource("/api/events");
    this.source = source;
    source.addEventListener("snapshot", (event) => this.#receive(replace, event));
    source.addEventListener("changes", (event) => this.#receive(change, event));
    source.addEventListener("beat", (event) => this.#receive(beat, event));
    source.addEventListener("error", () => this.#lost());
    this.#wait();
  }

  #close() {
    clearTimeout(this.deadTimer);
    clearTimeout(this.retryTimer);
    this.source?.close();
    this.source = null;
  }

  /**
   * @param {(board: State["board"], data: any) => State["board"]} apply
   * @param {MessageEvent} event
   */
  #receive(apply, event) {
    this.attempts = 0;
    this.#update({ board: apply(this.state.board, JSON.parse(event.data)), link: "live", heardAt: performance.now(), reason: "" });
    this.#wait();
  }

  #wait() {
    clearTimeout(this.deadTimer);
    this.deadTimer = setTimeout(() => this.#lost(), DEAD_MILLIS);
  }

  #lost() {
    this.#close();
    if (this.state.link !== "lost") this.#update({ link: "lost", lostAt: performance.now() });
    const pause = Math.min(RETRY_MOST_MILLIS, RETRY_MILLIS * 2 ** this.attempts);
    this.attempts += 1;
    this.retryTimer = setTimeout(() => this.#reconnect(), pause);
  }

  async #reconnect() {
    if (this.source !== null || document.hidden || this.state.link === "out") return;
    clearTimeout(this.retryTimer);
    try {
      const snapshot = await ask("/api/snapshot");
      this.#update({ board: replace(this.state.board, snapshot), heardAt: performance.now() });
      if (this.source === null) this.#open();
    } catch (error) {
      if (error instanceof SignedOut) return this.#showSignIn();
      // A TypeError is the browser's message about a failed connection, which helps no viewer.
      const reason = error instanceof TypeError || !(error instanceof Error) ? "" : error.message;
      this.#update({ reason });
      this.#lost();
    }
  }

  #visibilityChanged() {
    clearTimeout(this.hideTimer);
    if (!document.hidden) this.#reconnect();
    else this.hideTimer = setTimeout(() => this.#close(), HIDDEN_MILLIS);
  }

  /** @param {Partial<State>} change */
  #update(change) {
    this.state = { ...this.state, ...change };
    if (this.frame) return;
    // A hidden page gets no frames; its listener runs when it is visible again.
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.changed(this.state);
    });
  }
}
