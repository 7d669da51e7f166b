/** Signing in: asks for a token once, and keeps it nowhere in the page. */

import { html } from "../html.js";
import { useLayoutEffect, useRef, useState } from "../vendor/preact-hooks.js";

/**
 * @param {{signIn: (token: string) => Promise<void>}} props `signIn`: rejects with an error message
 *   for people.
 */
export function Door({ signIn }) {
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  // Runs before the first paint: a signed-out page must not keep the title of what was shown.
  useLayoutEffect(() => {
    document.title = "Sign in · lowwater";
    field.current?.focus();
  }, []);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const input = field.current;
    if (busy || input === null) return;
    const token = input.value.trim();
    if (token === "") return input.focus();
    setBusy(true);
    setTrouble("");
    try {
      await signIn(token);
    } catch (error) {
      const silent = error instanceof TypeError || !(error instanceof Error);
      setTrouble(silent ? "The authority does not answer. Try again." : sentence(error.message));
      setBusy(false);
      input.select();
    }
  };
  return html`<main class="door" id="main">
    <p class="brand"><img src="/static/icon.svg" alt="" width="22" height="22" />lowwater</p>
    <form class="panel" method="post" onSubmit=${submit}>
      <h1>Sign in</h1>
      <label for="token">Token</label>
      <input
        id="token"
        ref=${field}
        type="password"
        autocomplete="current-password"
        spellcheck=${false}
        aria-describedby="door-help door-trouble"
        aria-invalid=${trouble !== ""}
      />
      <p class="trouble" id="door-trouble" role="alert">${trouble}</p>
      <button class="strong" disabled=${busy}>${busy ? "Signing in …" : "Sign in"}</button>
      <p class="quiet" id="door-help">
        The operator of this authority can give you a token. It is sent once, and this browser stays signed in for twelve hours.
      </p>
    </form>
  </main>`;
}

/** @param {string} text */
function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
