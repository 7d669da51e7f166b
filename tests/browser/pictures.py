"""Takes the pictures of docs/status-page.md: ``python -m tests.browser.pictures``, about four minutes.

What they show is real: an authority, twelve computations by eleven executors as processes, one of which hangs. Nothing in a
picture is drawn by hand.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import WAIT_MILLIS, chromium, watched
from tests.browser.fleet import GUILTY, fleet
from tests.browser.test_many import LATE, Crowd
from tests.process.serving import serving

FOLDER: Final = Path(__file__).parent.parent.parent / "docs/pictures"
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 360, "height": 760}, "device_scale_factor": 2}
DARK: Final[dict[str, Any]] = {"color_scheme": "dark"}

RUN_SECONDS: Final = 90.0
"""How long the pipeline runs before an executor hangs, and how long that lasts then: what the lines of the last hour have to show."""


def take(browser: Browser, url: str, name: str, route: str = "", *, full: bool = True, **context: Any) -> None:
    """Take one picture."""
    with watched(browser, url, **context) as tab:
        page = tab.open(route)
        settle(page)
        page.screenshot(path=FOLDER / f"status-{name}.png", full_page=full)
    print(f"docs/pictures/status-{name}.png", flush=True)


def settle(page: Page) -> None:
    """Wait until everything that was asked for is there."""
    page.locator(".link-live").wait_for()
    if "/c/" in page.url:
        for each in (".sentences", ".strip .card", ".chart canvas", ".completions"):
            page.locator(each).wait_for()
    page.evaluate("document.fonts.ready")


def pipeline(browser: Browser, scratch: Path) -> None:
    """The pictures of a pipeline in which an executor hangs."""
    with serving(scratch, page="127.0.0.1:0") as server, fleet(server.address, "late") as running:
        threading.Event().wait(RUN_SECONDS)
        running.freeze(GUILTY)
        with watched(browser, server.page) as tab:
            expect(tab.open().locator("h1")).to_contain_text(f"of {GUILTY}", timeout=WAIT_MILLIS)
            tab.page.locator("h1").filter(has_text="silent for 1 min").wait_for(timeout=3 * WAIT_MILLIS)
        take(browser, server.page, "overview")
        take(browser, server.page, "overview-dark", **DARK)
        take(browser, server.page, "computation", "#/c/enriched")
        take(browser, server.page, "computation-dark", "#/c/report", **DARK)
        take(browser, server.page, "phone", **PHONE, full=False)
        take(browser, server.page, "phone-computation", "#/c/enriched", **PHONE, full=False)


def thousand(browser: Browser, scratch: Path) -> None:
    """The picture of a thousand computations."""
    with serving(scratch, page="127.0.0.1:0") as server:
        crowd = Crowd(server.address)
        crowd.tell(2, 3000)
        with watched(browser, server.page) as tab:
            expect(tab.open().locator("h1")).to_contain_text(LATE, timeout=WAIT_MILLIS)
        take(browser, server.page, "thousand", full=False)
        crowd.close()


def main() -> None:
    """Take all, or those named."""
    parser = argparse.ArgumentParser(description="Takes the pictures of docs/status-page.md.")
    parser.add_argument("which", nargs="*", choices=["pipeline", "thousand", []], help="default: both")
    which = parser.parse_args().which or ["pipeline", "thousand"]
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        for name in which:
            folder = Path(scratch) / name
            folder.mkdir()
            {"pipeline": pipeline, "thousand": thousand}[name](browser, folder)


if __name__ == "__main__":
    main()
