"""The system's Chromium, and pages that hold whatever goes wrong in them against the test."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

WAIT_MILLIS: Final = 60_000
"""The time that anything may take on a busy machine."""

UNREACHABLE: Final = (
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
    "net::ERR_CONNECTION_RESET",
    "net::ERR_EMPTY_RESPONSE",
    "the server responded with a status of 503",
)
"""The browser's console messages when a server is gone. A page cannot keep the browser from writing them."""

VIOLATIONS: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "no chromium; scripts/setup.sh --tests installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb"],
        )
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, and all that must not happen in it: errors, violations of its security policy, requests to other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.server_may_vanish = False
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("request", self._requested)
        page.add_init_script(VIOLATIONS)

    def open(self, hash_: str = "") -> Page:
        self.page.goto(f"{self.url}{hash_}")
        self.page.locator("h1").wait_for()
        return self.page

    def check(self) -> None:
        violations = self.page.evaluate("window.violations")
        assert violations == [], violations
        assert self.problems == [], self.problems

    def _note(self, message: ConsoleMessage) -> None:
        vanished = self.server_may_vanish and any(word in message.text for word in UNREACHABLE)
        if message.type in {"error", "warning"} and not vanished:
            self.problems.append(f"{message.type}: {message.text}")

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.problems.append(f"request to another host: {request.url}")


@contextlib.contextmanager
def watched(browser: Browser, url: str, **context: Any) -> Iterator[Watched]:
    """Give a page in a browser context of its own; on the way out, nothing must have gone wrong in it."""
    settings: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **context}
    opened = browser.new_context(**settings)
    opened.set_default_timeout(WAIT_MILLIS)
    try:
        tab = Watched(opened.new_page(), url)
        yield tab
        tab.check()
    finally:
        opened.close()
