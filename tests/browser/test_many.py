"""A thousand computations: the page opens, shows the worst part of the graph, and is not held up when all of them change."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import watched
from tests.browser.fleet import client
from tests.process.serving import Serving, serving

FEEDS: Final = 900
JOINS: Final = 100
LATE: Final = "feed-503"

TRANSFORM: Final = "(element) => getComputedStyle(element).transform"
UPDATE_SHARE: Final = 2.0
"""The greatest cost of an update of everything, as a multiple of the cost of opening the page. One update is a fifth; slow machines get several."""
UPDATE_MILLIS: Final = 2_000
"""The greatest duration of an update, which is over ten times what one takes."""


class Crowd:
    """Nine hundred injectors, and a hundred computations that each read nine of them."""

    def __init__(self, address: str) -> None:
        self._lw = lw = client(address, "exec-1")
        self._pool = ThreadPoolExecutor(16)
        list(self._pool.map(lambda i: lw.register(f"feed-{i:03}"), range(FEEDS)))
        list(self._pool.map(self._join, range(JOINS)))
        self._feeds = list(self._pool.map(lambda i: lw.worker(f"feed-{i:03}", name=f"exec-{i}").claim(), range(FEEDS)))

    def tell(self, behind: float, late: float) -> None:
        now = time.time()
        for lease in self._feeds:
            seconds = late if lease.computation == LATE else behind
            lease.advance(None, oldest=None, frontier=int((now - seconds) * 1e6))
        list(self._pool.map(lambda lease: lease.flush(60), self._feeds))

    def close(self) -> None:
        self._pool.shutdown()
        self._lw.close()

    def _join(self, i: int) -> None:
        self._lw.register(f"join-{i:02}", inputs=[f"feed-{9 * i + k:03}" for k in range(9)])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Crowd]]:
    with serving(tmp_path_factory.mktemp("many"), page="127.0.0.1:0") as server:
        crowd = Crowd(server.address)
        try:
            crowd.tell(2, 3000)
            yield server, crowd
        finally:
            crowd.close()


class Work:
    """The processor time of a page's main thread, in seconds; other processes on the machine do not count."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = 0.0

    def since(self) -> float:
        metrics = {pair["name"]: pair["value"] for pair in self._session.send("Performance.getMetrics")["metrics"]}
        now = float(metrics["TaskDuration"])
        seconds, self._before = now - self._before, now
        return seconds


@pytest.mark.timeout(400)
def test_a_thousand_computations_are_found_and_all_may_change(browser: Browser, many: tuple[Serving, Crowd]) -> None:
    server, crowd = many
    with watched(browser, server.page) as tab:
        page = tab.page
        work = Work(page)
        tab.open()
        title = page.locator("h1")
        expect(title).to_contain_text(
            re.compile(rf"1 of 1,000 computations is late: {LATE}, 5\d min behind, held by its own worker exec-503")
        )
        loaded = 1000 * work.since()
        # What is drawn is the late one and what is next to it; the table has only what is in sight.
        expect(page.get_by_text("of 1,000 computations: the worst and their neighbours")).to_be_visible()
        assert page.locator(".node").count() <= 40
        expect(page.get_by_role("link", name=re.compile(rf"^{LATE}\W+late\W+5\d min\W+behind"))).to_be_visible()
        expect(page.locator(".node").filter(has_text="join-55")).to_be_visible()
        assert page.locator("tbody tr").count() < 60
        assert page.locator("table").get_attribute("aria-rowcount") == "1001"
        drawn = page.locator(".drawn")
        fitting = drawn.evaluate(TRANSFORM)
        page.get_by_role("button", name="Larger").click()
        expect(drawn).not_to_have_css("transform", fitting)
        larger = drawn.evaluate(TRANSFORM)
        page.get_by_role("button", name="Fit").click()
        expect(drawn).not_to_have_css("transform", larger)
        work.since()
        crowd.tell(1, 1)
        expect(title).to_contain_text("100 of 1,000 computations have no watermark yet")
        assert 0 < 1000 * work.since() < min(UPDATE_MILLIS, UPDATE_SHARE * loaded)
        page.goto(f"{tab.url}#/?sort=-name")
        expect(page.get_by_role("rowheader", name="join-99")).to_be_visible()
        page.locator(".scroller.virtual").evaluate("(element) => element.scrollTo(0, element.scrollHeight)")
        last = page.get_by_role("rowheader", name="feed-000")
        expect(page.get_by_role("row").filter(has=last)).to_have_attribute("aria-rowindex", "1001")
        page.get_by_role("searchbox").fill("feed-777")
        expect(page.locator(".node b")).to_have_text(["feed-777", "join-86"])
