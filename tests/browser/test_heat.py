"""The heat map and the charts over more than an hour: by pointer, by keys, in words, as a table, on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import Watched
from tests.browser.conftest import clear
from tests.browser.story import Story
from tests.process.serving import Serving


@pytest.fixture(scope="module")
def server(shared: Serving) -> Iterator[Serving]:
    yield shared
    clear(shared)


@pytest.fixture(scope="module", autouse=True)
def _story(server: Serving) -> Iterator[None]:
    with Story(server.address) as one:
        one.tell(1, 40 * 60)
        yield


def open_heat(tab: Watched, more: str = "") -> Page:
    page = tab.open(f"#/?view=heat{more}")
    expect(page.locator(".heat-row .heat-late").first).to_be_attached()
    return page


def test_the_worst_is_first_and_each_cell_is_told_in_words(tab: Watched) -> None:
    page = tab.open()
    page.get_by_role("link", name="Over time").click()
    names = page.locator(".heat-name")
    expect(names).to_have_text(["enriched", "flights"])
    sentence = page.locator(".heat-said")
    expect(sentence).to_contain_text(re.compile(r"enriched .* UTC: .*4\d min behind, late.*\(late after 30 min\)"))
    page.get_by_role("group", name="Heat map").focus()
    page.keyboard.press("ArrowDown")
    expect(sentence).to_contain_text(re.compile(r"flights .*on time"))
    page.keyboard.press("Home")
    expect(sentence).to_contain_text("no watermark was seen")
    cells = page.locator(".heat-cells").first
    box = cells.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 5)
    expect(sentence).to_contain_text("enriched")
    names.first.click()
    expect(page.locator("h1")).to_have_text("enriched")
    page.keyboard.press("Escape")
    expect(page.get_by_role("link", name="Over time")).to_have_attribute("aria-current", "page")
    page.get_by_role("button", name="the last 24 hours").click()
    ticks = page.locator(".heat-ticks span")
    expect(ticks.first).to_have_text(re.compile(r":00$|^\d+ [A-Z]"))
    assert all(re.search(r":00$|^\d+ [A-Z]", text) for text in ticks.all_inner_texts())


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
