"""The heat map and the charts over more than an hour: by pointer, by keys, in words, as a table, on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

import lowwater
from tests.browser.chromium import WAIT_MILLIS, Watched, watched
from tests.browser.conftest import clear
from tests.browser.story import Story
from tests.process.serving import Serving

expect.set_options(timeout=WAIT_MILLIS)

PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def server(shared: Serving) -> Iterator[Serving]:
    """The shared authority, for all tests of this module: each sample of the map comes by the clock."""
    yield shared
    clear(shared)


@pytest.fixture(scope="module", autouse=True)
def _story(server: Serving) -> Iterator[None]:
    """Flights on time, and enriched 40 minutes behind."""
    with Story(server.address) as one:
        one.tell(1, 40 * 60)
        yield


def open_heat(tab: Watched, more: str = "") -> Page:
    """Open the heat map, and wait for its first samples."""
    page = tab.open(f"#/?view=heat{more}")
    expect(page.locator(".heat-row .heat-late").first).to_be_attached()
    return page


def test_the_worst_is_first_and_each_cell_is_told_in_words(tab: Watched) -> None:
    page = tab.open()
    page.get_by_role("link", name="Over time").click()
    names = page.locator(".heat-name")
    expect(names).to_have_text(["enriched", "flights"])
    said = page.locator(".heat-said")
    expect(said).to_contain_text(re.compile(r"enriched .* UTC: .*4\d min behind, late.*\(late from 30 min\)"))
    page.get_by_role("group", name="Heat map").focus()
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text(re.compile(r"flights .*on time"))
    page.keyboard.press("Home")
    expect(said).to_contain_text("no watermark was seen")
    cells = page.locator(".heat-cells").first
    box = cells.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 5)
    expect(said).to_contain_text("enriched")
    names.first.click()
    expect(page.locator("h1")).to_have_text("enriched")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Over time")).to_have_attribute("aria-current", "page")


def test_what_is_late_of_it_is_counted_in_a_table(tab: Watched) -> None:
    page = open_heat(tab)
    page.get_by_text("The same as a table").click()
    row = page.get_by_role("region", name="Lag over time as a table").get_by_role("row").nth(1)
    # In whole columns of a minute: two when the clock comes to the next one meanwhile.
    expect(row).to_contain_text(re.compile(r"enriched\s*4\d min.*[1-9] min.*4\d min"))


def test_how_far_back_is_chosen_and_shared_by_map_and_chart(tab: Watched) -> None:
    page = open_heat(tab)
    for span, words in (("7d", "7 days"), ("24h", "24 hours"), ("6h", "6 hours")):
        page.get_by_role("button", name=f"the last {words}").click()
        expect(page.get_by_role("heading", name=f"Behind, over the last {words}")).to_be_visible()
        expect(page.locator(".heat-row .heat-late").first).to_be_attached()
        assert urlsplit(page.url).fragment == f"/?view=heat&span={span}"
    page.locator(".heat-name").first.click()
    expect(page.get_by_role("heading", name="Behind, in the last 6 hours")).to_be_visible()
    expect(page.locator(".chart canvas")).to_be_visible()
    page.get_by_role("button", name="the last hour").click()
    expect(page.get_by_role("img", name=re.compile("Lag of enriched over the last hour"))).to_be_visible()
    assert urlsplit(page.url).fragment == "/c/enriched?view=heat"


def test_it_shows_what_was_searched_and_follows_what_counts_as_late(tab: Watched) -> None:
    page = tab.open("#/?view=heat&late=7200")
    expect(page.locator(".heat-name")).to_have_text(["enriched", "flights"])
    expect(page.locator(".heat-late")).to_have_count(0)
    page.get_by_role("searchbox").fill("flights")
    expect(page.locator(".heat-name")).to_have_text(["flights"])


def test_a_phone_shows_it_by_touch(browser: Browser, server: Serving) -> None:
    with watched(browser, server.page, **PHONE) as tab:
        page = open_heat(tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        cells = page.locator(".heat-cells").nth(1)
        cells.tap()
        expect(page.locator(".heat-said")).to_contain_text("flights")


def test_a_dropped_computation_leaves_the_map(lw: lowwater.Client, tab: Watched) -> None:
    lw.register("hourly", inputs=["enriched"])
    page = open_heat(tab)
    expect(page.locator(".heat-name")).to_have_text(["enriched", "flights", "hourly"])
    lw.drop("hourly")
    expect(page.locator(".heat-name")).to_have_text(["enriched", "flights"])
