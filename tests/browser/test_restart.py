"""The authority is killed, restarted and frozen under an open page. What is old is called old; what is new comes by itself."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.chromium import Watched, watched
from tests.browser.conftest import clear
from tests.browser.story import Story
from tests.process.serving import Serving, serving


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("mortal"), page="127.0.0.1:0") as one:
        one.page_at = one.page.removeprefix("http://").rstrip("/")
        yield one


@pytest.fixture
def server(mortal: Serving) -> Iterator[Serving]:
    yield mortal
    clear(mortal)


@pytest.fixture
def tab(browser: Browser, server: Serving) -> Iterator[Watched]:
    with watched(browser, server.page) as one:
        one.server_may_vanish = True
        yield one


def test_a_restarted_authority_is_followed(browser: Browser, server: Serving, story: Story, tab: Watched) -> None:
    story.tell(5, 40 * 60)
    with watched(browser, server.page) as other:
        other.server_may_vanish = True
        page, opened = tab.open(), other.open("#/c/enriched")
        expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
        expect(opened.locator(".cell.guilty")).to_have_count(1)
        page.evaluate("window.same = true")
        server.kill()
        expect(page.locator(".banner")).to_contain_text("Connection lost")
        expect(opened.locator(".banner")).to_contain_text("Connection lost")
        expect(page.locator(".banner")).to_contain_text(re.compile(r"values are as of \d\d:\d\d:\d\d UTC, \d+ s ago"))
        expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
        server.start()
        for view in (page, opened):
            expect(view.locator(".banner")).to_have_count(0)
        expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
        story.tell(1)
        expect(page.locator("h1")).to_contain_text("Both computations are on time")
        assert page.evaluate("window.same"), "the page was loaded again"
        expect(opened.locator(".lead-line")).to_contain_text(re.compile(r"(\d+|< 1) s behind"))
        expect(opened.locator(".strip-bar .cell-late")).to_have_count(0)
        expect(opened.locator(".trouble")).to_have_count(0)


AWAY = re.compile(r"No authority answers for .+ now: .+[.?] What is shown is \d+ s old\.")


@pytest.mark.long
def test_an_authority_that_says_nothing_any_more_is_away(server: Serving, story: Story, tab: Watched) -> None:
    story.tell(5, 40 * 60)
    page = tab.open()
    expect(page.locator(".link")).to_contain_text("live")
    server.signal(signal.SIGSTOP)
    try:
        expect(page.locator(".banner")).to_contain_text(AWAY)
        expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
    finally:
        server.signal(signal.SIGCONT)
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator(".link")).to_contain_text("live")


def test_a_page_that_says_nothing_any_more_is_noticed(server: Serving, story: Story, tab: Watched) -> None:
    story.tell(1)
    page = tab.open()
    expect(page.locator(".link")).to_contain_text("live")
    os.kill(server.page_pid(), signal.SIGSTOP)
    try:
        expect(page.locator(".banner")).to_contain_text("Connection lost")
    finally:
        os.kill(server.page_pid(), signal.SIGCONT)
    expect(page.locator(".banner")).to_have_count(0)
    expect(page.locator(".link")).to_contain_text("live")


def test_a_page_without_place_is_current(browser: Browser, server: Serving, story: Story, tmp_path: Path) -> None:
    story.tell(1, 40 * 60)
    with watched(browser, server.page) as one:
        one.server_may_vanish = True
        one.page.route(
            "**/api/events",
            lambda route: route.fulfill(status=503, json={"error": "100 pages are open already; close some"}),
        )
        page = one.open()
        expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
        expect(page.locator(".banner")).to_contain_text("requests the values every few seconds instead")
        story.tell(1)
        expect(page.locator("h1")).to_contain_text("Both computations are on time")
        page.unroute("**/api/events")
        expect(page.locator(".banner")).to_have_count(0)
