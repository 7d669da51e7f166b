"""Take the pictures of docs/operate/status-page.md: ``python -m scripts.status_pictures``."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, Route, expect

from lowwater_page import records
from lowwater_page.samples import SPANS, Samples
from tests.browser.chromium import WAIT_MILLIS, chromium, watched
from tests.browser.fleet import GUILTY, MINUTES, PIPELINE, client, fleet
from tests.browser.test_many import LATE, Crowd
from tests.kit.eventually import eventually
from tests.process.serving import serving

FOLDER: Final = Path(__file__).parent.parent / "docs/pictures"
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 360, "height": 760}, "device_scale_factor": 2}
DARK: Final[dict[str, Any]] = {"color_scheme": "dark"}

RUN_SECONDS: Final = 90.0
"""Seconds that the pipeline runs before an executor hangs, and seconds that the executor then
hangs. Both must show in the lines of the last hour."""


PROMISES: Final = """
[[promise]]
computations = "archive"
late = "1h"
team = "storage"
owner = "kim@example.org"

[[promise]]
computations = "[hdr]*"
late = "30m"
team = "reports"
owner = "ana@example.org"
runbook = "https://wiki.example.org/{computation}"

[[promise]]
computations = "*"
team = "flights"
owner = "ben@example.org"
logs = "https://logs.example.org/?worker={worker}"
"""


AREAS: Final = ("orders", "billing", "stock", "fraud", "search", "ads", "mail", "maps", "users", "logs")
FEEDS: Final = 5
STAGES: Final = 25
SIZE: Final = len(AREAS) * (FEEDS + STAGES)
LATE_STAGE: Final = "billing.stage-07"


def graph() -> dict[str, tuple[str, ...]]:
    """Return the inputs of each computation, upstream first."""
    inputs_of: dict[str, tuple[str, ...]] = {}
    for number, area in enumerate(AREAS):
        for i in range(FEEDS):
            inputs_of[f"{area}.feed-{i}"] = ()
        for i in range(STAGES):
            inputs = [f"{area}.feed-{i}" if i < FEEDS else f"{area}.stage-{i // 3:02}"]
            if i % 8 == 7 and number:
                inputs.append(f"{AREAS[number - 1]}.stage-{i:02}")
            inputs_of[f"{area}.stage-{i:02}"] = tuple(inputs)
    return inputs_of


class Estate:
    """Ten areas of thirty computations each, by as many workers."""

    def __init__(self, address: str) -> None:
        self._lw = lw = client(address, "exec-1")
        self._pool = ThreadPoolExecutor(16)
        self._inputs = graph()
        for name, inputs in self._inputs.items():
            lw.register(name, inputs=inputs)
        self._workers = {name: lw.worker(name, name=f"exec-{i}") for i, name in enumerate(self._inputs)}
        leases = self._pool.map(lambda worker: worker.claim(), self._workers.values())
        self._leases = dict(zip(self._workers, leases, strict=True))

    def tell(self, behind: float, late: float) -> None:
        """Move all computations to a lag; one stage, and those downstream of it, lag more."""
        now = time.time()
        ahead, late_time = int((now - behind) * 1e6), int((now - late) * 1e6)
        for name, inputs in self._inputs.items():
            if not inputs:
                self._leases[name].advance(None, oldest=None, frontier=ahead)
        for name, inputs in self._inputs.items():
            if inputs:
                least = min(late_time if self._is_late(upstream) else ahead for upstream in inputs)
                self._await(name, least)
                self._leases[name].advance(
                    self._workers[name].inputs(), oldest=late_time if name == LATE_STAGE else None
                )
        list(self._pool.map(lambda lease: lease.flush(60), self._leases.values()))

    def _await(self, name: str, least: int) -> None:
        worker = self._workers[name]
        eventually(lambda: worker.inputs().low.micros >= least, f"{name} hears of its inputs", seconds=60)

    def _is_late(self, name: str) -> bool:
        return name == LATE_STAGE or any(map(self._is_late, self._inputs[name]))

    def close(self) -> None:
        """Leave."""
        self._pool.shutdown()
        self._lw.close()


def take(
    browser: Browser,
    url: str,
    name: str,
    route: str = "",
    *,
    full: bool = True,
    heat: str = "",
    to: str = "",
    **context: Any,
) -> None:
    """Take one picture.

    ``heat``: what the page is told when it asks for a heat map. ``to``: what to scroll to.
    """

    def tell(request: Route) -> None:
        request.fulfill(body=heat, content_type="application/json")

    with watched(browser, url, **context) as tab:
        if heat:
            tab.page.route("**/api/heat?*", tell)
        page = tab.open(route)
        settle(page)
        if to:
            page.locator(to).evaluate("(element) => element.scrollIntoView()")
        page.screenshot(path=FOLDER / f"status-{name}.png", full_page=full)
    print(f"docs/pictures/status-{name}.png", flush=True)


def settle(page: Page) -> None:
    """Wait until the page shows all of its answers."""
    page.locator(".link-live").wait_for()
    if "/c/" in page.url:
        for selector in (".sentences", ".strip .card", ".chart canvas", ".completions"):
            page.locator(selector).wait_for()
    if "view=heat" in page.url:
        page.locator(".heat-row path").first.wait_for(state="attached")
    page.evaluate("document.fonts.ready")


def pipeline(browser: Browser, scratch: Path) -> None:
    """Take the pictures of a pipeline in which an executor hangs."""
    promises = scratch / "promises.toml"
    promises.write_text(PROMISES)
    with (
        serving(scratch, "--promises", str(promises), page="127.0.0.1:0") as server,
        fleet(server.address, "late") as running,
    ):
        threading.Event().wait(RUN_SECONDS)
        running.freeze(GUILTY)
        with watched(browser, server.page) as tab:
            expect(tab.open().locator("h1")).to_contain_text(f"worker {GUILTY}", timeout=WAIT_MILLIS)
            tab.page.locator("h1").filter(has_text="silent for 1 min").wait_for(timeout=3 * WAIT_MILLIS)
        take(browser, server.page, "overview")
        take(browser, server.page, "overview-dark", **DARK)
        take(browser, server.page, "computation", "#/c/enriched")
        take(browser, server.page, "computation-dark", "#/c/report", **DARK)
        take(browser, server.page, "phone", **PHONE, full=False)
        take(browser, server.page, "phone-computation", "#/c/enriched", **PHONE, full=False)
        take(browser, server.page, "phone-owner", "#/?team=reports", **PHONE, full=False)
        day = simulated_day()
        take(browser, server.page, "heat", "#/?view=heat&span=24h", full=False, heat=day)
        take(browser, server.page, "phone-heat", "#/?view=heat&span=24h", **PHONE, full=False, heat=day, to=".views")


def simulated_day() -> str:
    """Return a heat map: a slow night, a hanging executor in the morning, an archive in steps."""
    chance, samples, end = random.Random(7), Samples(), int(time.time())
    names = [job.name for job in PIPELINE]
    for at in range(end - 86_400, end, 60):
        hour = (at - end + 86_400) / 3600
        lags = dict[str, float]()
        for job in PIPELINE:
            lag = max([0.0, *(lags[name] for name in job.inputs)]) + job.behind * chance.uniform(0.6, 1.8)
            if job.name == "enriched" and 8.2 < hour < 9.4:
                lag += (hour - 8.2) * 3600
            if job.name == "storms" and 2 < hour < 5:
                lag += 20 * MINUTES * (1 - abs(hour - 3.5) / 1.5)
            if job.name == "archive":
                lag += 50 * MINUTES * (hour % 6) / 6
            if job.name == "enriched" and hour > 23.5:
                lag += 41 * MINUTES
            lags[job.name] = lag
        lows = [int((at - lags[name]) * 1e6) for name in names]
        samples.add(at * 1_000_000, names, list(zip(lows, lows, strict=True)))
    return json.dumps(records.heat(samples.heat(SPANS["24h"], 1000, {})))


def whole(browser: Browser, scratch: Path) -> None:
    """Take the picture of three hundred computations, all drawn."""
    with serving(scratch, page="127.0.0.1:0") as server:
        estate = Estate(server.address)
        estate.tell(2, 3000)
        with watched(browser, server.page) as tab:
            expect(tab.open().locator(".node-late")).not_to_have_count(0)
            expect(tab.page.locator(".node")).to_have_count(SIZE)
        take(browser, server.page, "whole", viewport={"width": 1280, "height": 1120}, full=False)
        take(browser, server.page, "groups", "#/?graph=name&open=billing", full=False)
        estate.close()


def thousand(browser: Browser, scratch: Path) -> None:
    """Take the picture of a thousand computations."""
    with serving(scratch, page="127.0.0.1:0") as server:
        crowd = Crowd(server.address)
        crowd.tell(2, 3000)
        with watched(browser, server.page) as tab:
            expect(tab.open().locator("h1")).to_contain_text(LATE, timeout=WAIT_MILLIS)
        take(browser, server.page, "thousand", full=False)
        crowd.close()


PICTURES: Final = {"pipeline": pipeline, "whole": whole, "thousand": thousand}


def main() -> None:
    """Take all pictures, or the named ones."""
    parser = argparse.ArgumentParser(description="Takes the pictures of docs/operate/status-page.md.")
    parser.add_argument("which", nargs="*", choices=[*PICTURES, []], help="default: all")
    which = parser.parse_args().which or list(PICTURES)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        for name in which:
            folder = Path(scratch) / name
            folder.mkdir()
            PICTURES[name](browser, folder)


if __name__ == "__main__":
    main()
