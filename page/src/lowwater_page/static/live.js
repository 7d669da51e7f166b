/**
 * The connection: what the authority pushes, and what it is asked.
 *
 * Events come over one stream. When it breaks, or says nothing for longer than its beats allow, it is opened again for as long as the page
 * is open; meanwhile a snapshot is asked for with each try, so that a page that finds no place among the viewers is still kept
 * current, only more slowly. A page that nobody looks at gives its place back.
 *
 * Where one has to sign in, nothing is asked before that: see view/door.js.
 */

import { EMPTY, beat, change, replace } from "./model/board.js";

/** Beats come every 5 s: after this long without anything the connection is taken for dead. */
const DEAD_MILLIS = 12_000;
const RETRY_MILLIS = 1_000;
const RETRY_MOST_MILLIS = 8_000;
/** How long a page may be out of sight before it gives its place back. */
const HIDDEN_MILLIS = 60_000;
const ASK_MILLIS = 10_000;

/**
 * @typedef {object} State
 * @property {import("./model/board.js").Board} board
 * @property {"starting" | "live" | "lost" | "out"} link "out": one has to sign in.
 * @property {number} heard When the authority was heard last, by `performance.now()`.
 * @property {number} since When the connection was lost, by the same.
 * @property {string} reason Why, if the authority said so.
 * @property {string | null} name Who has signed in; null: nobody, or nobody has to.
 */

/**
 * The authority's clock: as it said, and how long ago that was. The viewer's own clock may be wrong.
 *
 * @param {State} state
 * @returns {number} Microseconds.
 */
export function clockOf({ board, heard }) {
  return board.time + Math.max(0, performance.now() - heard) * 1000;
}

/**
 * When what is shown was so. While no authority answers this stands still: nothing can be heard of anybody, so nobody gets silent by it.
 *
 * @param {State} state
 * @returns {number} Microseconds.
 */
export function seenAt(state) {
  const { board } = state;
  return board.away === null ? clockOf(state) : board.time - (board.staleFor ?? 0) * 1e6;
}

/** The authority wants to know who asks. */
class SignedOut extends Error {}

/**
 * Ask the authority.
 *
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} The answer; it fails with the sentence that the authority gave.
 */
export async function ask(path, signal) {
  const patience = AbortSignal.timeout(ASK_MILLIS);
  const response = await fetch(path, { signal: signal ? AbortSignal.any([signal, patience]) : patience });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) throw new SignedOut(answer.error);
  if (!response.ok) throw new Error(answer.error ?? `${path} was answered with ${response.status}`);
  return answer;
}

/** Keeps a board current and tells who listens. */
export class Live {
  /** @param {(state: State) => void} changed Called with every new state, at most once a frame. */
  constructor(changed) {
    /** @type {State} */
    this.state = { board: EMPTY, link: "starting", heard: performance.now(), since: performance.now(), reason: "", name: null };
    this.changed = changed;
    /** @type {EventSource | null} */
    this.source = null;
    this.tries = 0;
    this.retry = 0;
    this.watch = 0;
    this.hide = 0;
    this.told = 0;
  }

  /** Begin; the page never ends it. */
  start() {
    document.addEventListener("visibilitychange", () => this.#seen());
    window.addEventListener("online", () => this.#again());
    this.#begin();
  }

  /**
   * Exchange a token for a cookie, and begin.
   *
   * @param {string} token
   * @returns {Promise<void>} It fails with the sentence that the authority gave.
   */
  async signIn(token) {
    const body = JSON.stringify({ token });
    await this.#session("POST", { headers: { "Content-Type": "application/json" }, body });
    await this.#begin();
  }

  /** Forget the cookie, and what is shown. */
  async signOut() {
    await this.#session("DELETE");
    this.#out();
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

  async #begin() {
    // Who does not answer this does not answer the rest either, and that says why.
    const { required, name } = await ask("/session").catch(() => ({ required: false, name: null }));
    if (required && name === null) this.#out();
    else {
      this.#tell({ name, link: this.state.link === "out" ? "starting" : this.state.link });
      this.#open();
    }
  }

  #out() {
    this.#close();
    this.#tell({ board: EMPTY, link: "out", name: null, reason: "" });
  }

  #open() {
    this.#close();
    const source = new EventSource("/api/events");
    this.source = source;
    source.addEventListener("snapshot", (event) => this.#take(replace, event));
    source.addEventListener("changes", (event) => this.#take(change, event));
    source.addEventListener("beat", (event) => this.#take(beat, event));
    source.addEventListener("error", () => this.#lost());
    this.#wait();
  }

  #close() {
    clearTimeout(this.watch);
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  /**
   * @param {(board: State["board"], data: any) => State["board"]} apply
   * @param {MessageEvent} event
   */
  #take(apply, event) {
    this.tries = 0;
    this.#tell({ board: apply(this.state.board, JSON.parse(event.data)), link: "live", heard: performance.now(), reason: "" });
    this.#wait();
  }

  #wait() {
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.#lost(), DEAD_MILLIS);
  }

  #lost() {
    this.#close();
    if (this.state.link !== "lost") this.#tell({ link: "lost", since: performance.now() });
    const pause = Math.min(RETRY_MOST_MILLIS, RETRY_MILLIS * 2 ** this.tries);
    this.tries += 1;
    this.retry = setTimeout(() => this.#again(), pause);
  }

  async #again() {
    if (this.source !== null || document.hidden || this.state.link === "out") return;
    clearTimeout(this.retry);
    try {
      const snapshot = await ask("/api/snapshot");
      this.#tell({ board: replace(this.state.board, snapshot), heard: performance.now() });
      if (this.source === null) this.#open();
    } catch (error) {
      if (error instanceof SignedOut) return this.#out();
      // What the browser says of a connection that failed helps nobody; what the authority says does.
      const reason = error instanceof TypeError || !(error instanceof Error) ? "" : error.message;
      this.#tell({ reason });
      this.#lost();
    }
  }

  #seen() {
    clearTimeout(this.hide);
    if (!document.hidden) this.#again();
    else this.hide = setTimeout(() => this.#close(), HIDDEN_MILLIS);
  }

  /** @param {Partial<State>} change */
  #tell(change) {
    this.state = { ...this.state, ...change };
    if (this.told) return;
    // A hidden page gets no frames, and needs none: it is told when it is looked at.
    this.told = requestAnimationFrame(() => {
      this.told = 0;
      this.changed(this.state);
    });
  }
}
