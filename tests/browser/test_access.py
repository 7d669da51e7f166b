"""The page for everyone: by keyboard alone, on a phone, in the dark, in colours that can be told apart, with names for what is read aloud."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import lowwater
from tests.browser.chromium import WAIT_MILLIS, Watched, watched
from tests.browser.story import Story
from tests.process.serving import Serving

expect.set_options(timeout=WAIT_MILLIS)

ACCESS = Path(__file__).parent / "access.js"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
ROUTES = ("#/", "#/c/enriched")
LEVELS = {"verylate": (2000, 8000), "late": (1000, 2000), "slow": (10, 1000), "ontime": (1, 1)}
"""Seconds that flights and enriched are behind for enriched to be at each level. Watermarks never go back, so the latest comes first."""

CUT = """() => {
    const found = [];
    for (const row of document.querySelectorAll(".computations tbody tr")) {
        const words = [...row.querySelectorAll("th a, .lag, .low, .state")].map((each) => [each.textContent.trim(), each.getBoundingClientRect()]);
        for (const [text, box] of words) {
            if (box.right > innerWidth - 12) found.push(`${text} leaves the page`);
            for (const [other, at] of words) {
                const over = Math.min(box.right, at.right) - Math.max(box.left, at.left);
                const under = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
                if (text < other && over > 0 && under > 4) found.push(`${text} covers ${other}`);
            }
        }
    }
    for (const name of document.querySelectorAll(".node-name b, .computations th")) {
        if (name.scrollWidth > name.clientWidth + 1) found.push(`${name.textContent.trim()} is cut`);
    }
    return found;
}"""

FOCUSED = """() => {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    return [element.getAttribute("aria-label") ?? element.textContent.trim(), style.outlineStyle, parseFloat(style.outlineWidth)];
}"""


def visit(tab: Watched, route: str) -> Page:
    """Open a route and wait for what is asked for after it."""
    page = tab.open(route)
    if "/c/" in route:
        page.locator(".strip .card").wait_for()
        page.locator(".sentences").wait_for()
        page.locator(".chart canvas").wait_for()
    return page


def test_everything_is_reached_by_the_keyboard_and_focus_is_seen(story: Story, tab: Watched) -> None:
    story.tell(1, 40 * 60)
    page = tab.open()
    # A page that knows of nothing yet has little to reach.
    expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline, width = page.evaluate(FOCUSED)
        reached.append(name)
        assert outline != "none", f"nobody sees that {name!r} has the focus"
        assert width > 0
        if name.startswith("enriched, late"):
            break
    assert reached[0] == "To the content"
    assert reached[-1].startswith("enriched, late"), reached
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("enriched")
    expect(page.locator("h1")).to_be_focused()
    page.locator(".strip .card").wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.locator(".cell:focus").count():
            break
    expect(page.locator(".cell:focus")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".strip .card-title")).to_contain_text("[0x2000, 0x4000)")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")


def test_a_phone_is_wide_enough(browser: Browser, server: Serving, story: Story) -> None:
    story.tell(1, 40 * 60)
    with watched(browser, server.page, **PHONE) as tab:
        for route in ROUTES:
            page = visit(tab, route)
            wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= room == 360, f"{route} is {wide} pixels wide"
        tab.page.locator(".strip-bar .cell").nth(4).tap()
        expect(tab.page.locator(".strip .card-title")).to_contain_text("[0x8000, 0xa000)")


def test_nothing_of_a_long_lag_is_cut_off_or_covered(browser: Browser, server: Serving, story: Story) -> None:
    """Hours and minutes beside the time, and a name that is longer than its lag leaves room for."""
    story.tell(8400, 8401)
    with lowwater.connect(server.address) as lw:
        lw.register("flights_of_today")
        held = lw.worker("flights_of_today", name="exec-3").claim()
        held.advance(None, oldest=None, frontier=int((time.time() - 8400) * 1e6))
        held.flush(60)
        for screen in ({}, PHONE):
            with watched(browser, server.page, **screen) as tab:
                page = tab.open()
                expect(page.locator(".lag-line").first).to_be_visible()
                expect(page.locator(".lag").filter(has_text="2 h 20 min")).to_have_count(3)
                assert page.evaluate(CUT) == [], screen


def test_what_a_worker_waits_for_is_text_and_fits(browser: Browser, server: Serving, story: Story) -> None:
    """It is whatever a worker says: no markup of it is run, and as many letters as it may have do not widen the page."""
    said = f"/in/<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">/{'o' * 111}.json"
    assert len(said) == 200
    story.tell(1, 8400, waiting_for=said)
    for screen in ({}, PHONE):
        with watched(browser, server.page, **screen) as tab:
            page = tab.open()
            expect(page.locator("h1")).to_contain_text(f", waiting for {said}.")
            for route in ("", "#/c/enriched"):
                visit(tab, route)
                wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                assert wide <= room, f"{route} is {wide} pixels wide"
            expect(page.locator(".strip .facts").get_by_text(said, exact=True)).to_be_visible()
            expect(page.locator(".sentences li").last).to_contain_text(f"waiting for {said}")
            assert page.locator("script:not([src]):not([type]), img[src=x]").count() == 0
            assert page.title() != "run"
    story.tell(1, 8400)
    with watched(browser, server.page) as tab:
        page = tab.open("#/c/enriched")
        expect(page.locator(".strip .facts")).to_be_visible()
        expect(page.get_by_text("Waits for")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_can_be_read_and_every_control_has_a_name(
    browser: Browser, server: Serving, story: Story, scheme: Any
) -> None:
    """Contrast of at least 4.5 to 1, as WCAG 2.2 AA asks for, in both colour schemes and for every level."""
    with watched(browser, server.page, color_scheme=scheme) as tab:
        tab.page.add_init_script(path=ACCESS)
        for level, told in LEVELS.items():
            story.tell(*told)
            for route in ROUTES:
                page = visit(tab, route)
                expect(page.locator(f".state .ink-{level}").first).to_be_visible()
                assert page.evaluate("lowContrast()") == [], (level, route)
                assert page.evaluate("nameless()") == []
                assert page.locator("main, h1").count() == 2
    with watched(browser, server.page, color_scheme=scheme) as tab:
        tab.open()
        found = tab.page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert min(found) > 230 if scheme == "light" else max(found) < 40, found


def test_nothing_moves_for_those_who_asked_for_that(browser: Browser, server: Serving, story: Story) -> None:
    story.tell(1)
    for motion, moves in (("reduce", False), ("no-preference", True)):
        with watched(browser, server.page, reduced_motion=motion) as tab:
            page = tab.open()
            duration = page.locator(".bar i").first.evaluate("(bar) => getComputedStyle(bar).transitionDuration")
            assert (duration != "0s") is moves
