"""The whole graph of three hundred computations: it fits, is zoomed and moved by every device, and can be drawn in groups."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import WAIT_MILLIS, watched
from tests.browser.estate import AREAS, LATE, SIZE, Estate
from tests.browser.test_axe import axe, complaints
from tests.browser.test_many import Work
from tests.process.serving import Serving, serving

expect.set_options(timeout=WAIT_MILLIS)

PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}
SCALE = "() => new DOMMatrix(getComputedStyle(document.querySelector('.drawn')).transform).a"
OUTSIDE = """() => {
    const room = document.querySelector(".graph").getBoundingClientRect();
    return [...document.querySelectorAll(".node")].filter((node) => {
        const box = node.getBoundingClientRect();
        return box.left < room.left - 1 || box.right > room.right + 1 || box.top < room.top - 1 || box.bottom > room.bottom + 1;
    }).length;
}"""
UPDATE_MILLIS = 2_000
"""Of a processor, for everything to change at once, over ten times what it takes."""


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Estate]]:
    with serving(tmp_path_factory.mktemp("whole"), page="127.0.0.1:0") as server:
        one = Estate(server.address)
        try:
            one.tell(2, 3000)
            yield server, one
        finally:
            one.close()


def scale(page: Page) -> float:
    """How large the graph is shown."""
    found: float = page.evaluate(SCALE)
    return found


@pytest.mark.timeout(300)
def test_three_hundred_are_drawn_at_once_and_may_all_change(
    browser: Browser, estate: tuple[Serving, Estate], capsys: pytest.CaptureFixture[str]
) -> None:
    server, running = estate
    with watched(browser, server.page) as tab:
        work = Work(tab.page)
        began = time.monotonic()
        page = tab.open()
        expect(page.locator(".node")).to_have_count(SIZE)
        figures = {"computations": SIZE, "load_seconds": round(time.monotonic() - began, 2)}
        figures["load_processor_millis"] = round(1000 * work.since())
        assert page.evaluate(OUTSIDE) == 0, "the whole graph is seen"
        expect(page.locator(".node.blamed")).to_have_attribute("title", re.compile(rf"^{LATE}, late, 5\d min behind"))
        running.tell(1, 2990)
        expect(page.locator(".node-ontime")).not_to_have_count(0)
        figures["update_processor_millis"] = round(1000 * work.since())
        with capsys.disabled():
            print(json.dumps(figures))
        assert figures["update_processor_millis"] < UPDATE_MILLIS
        page.locator(".node.blamed").click()
        expect(page.locator("h1")).to_have_text(LATE)


def test_it_is_zoomed_by_buttons_keys_and_wheel_around_what_is_pointed_at(
    browser: Browser, estate: tuple[Serving, Estate]
) -> None:
    server, _ = estate
    with watched(browser, server.page) as tab:
        page = tab.open()
        expect(page.locator(".node")).to_have_count(SIZE)
        first = scale(page)
        assert first < 0.6, "so many do not fit in full"
        page.get_by_role("button", name="Larger").click()
        expect(page.locator(".drawn")).to_have_css("transform", re.compile(str(first * 1.4)[:5]))
        page.get_by_role("button", name="Fit").click()
        expect(page.locator(".drawn")).to_have_css("transform", re.compile(str(first)[:5]))

        node = page.locator(".node.blamed")
        node.scroll_into_view_if_needed()
        before = node.bounding_box()
        assert before is not None
        page.mouse.move(before["x"] + before["width"] / 2, before["y"] + before["height"] / 2)
        page.keyboard.down("Control")
        for _ in range(4):
            page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        expect(node.locator(".node-why")).to_have_count(1)  # near enough to be told of in full
        after = node.bounding_box()
        assert after is not None
        middle = [box["x"] + box["width"] / 2 for box in (before, after)]
        assert scale(page) > 2 * first
        assert abs(middle[0] - middle[1]) < before["width"] / 4, "it stays under the pointer"

        frame = page.get_by_role("group", name="Pipeline graph")
        frame.focus()
        zoomed = scale(page)
        page.keyboard.press("-")
        page.wait_for_function(f"({SCALE})() < {zoomed - 0.01}")
        page.keyboard.press("0")
        page.wait_for_function(f"Math.abs(({SCALE})() - {first}) < 0.001")


def test_it_is_moved_by_the_mouse_and_a_drag_opens_nothing(browser: Browser, estate: tuple[Serving, Estate]) -> None:
    server, _ = estate
    with watched(browser, server.page) as tab:
        page = tab.open()
        expect(page.locator(".node")).to_have_count(SIZE)
        for _ in range(4):
            page.get_by_role("button", name="Larger").click()
        frame = page.get_by_role("group", name="Pipeline graph")
        frame.evaluate("(element) => element.scrollTo(600, 300)")
        box = frame.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 40, y - 30, steps=4)
        page.mouse.up()
        assert frame.evaluate("(element) => [element.scrollLeft, element.scrollTop]") == pytest.approx(
            [640, 330], abs=4
        )
        assert urlsplit(page.url).fragment in {"", "/"}


def test_two_fingers_zoom_on_a_phone_and_nothing_is_wider_than_it(
    browser: Browser, estate: tuple[Serving, Estate]
) -> None:
    server, _ = estate
    with watched(browser, server.page, **PHONE) as tab:
        page = tab.open()
        expect(page.locator(".node")).to_have_count(SIZE)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        first = scale(page)
        frame = page.get_by_role("group", name="Pipeline graph")
        frame.scroll_into_view_if_needed()
        box = frame.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"], 300) / 2
        session = page.context.new_cdp_session(page)
        for kind, apart in (("touchStart", 40), ("touchMove", 80), ("touchMove", 120), ("touchEnd", 0)):
            points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}] if apart else []
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        page.wait_for_function(f"({SCALE})() > {2 * first}")
        assert page.evaluate("visualViewport.scale") == 1, "the page itself is not zoomed"


def test_groups_tell_of_their_worst_and_open_with_a_press(browser: Browser, estate: tuple[Serving, Estate]) -> None:
    server, _ = estate
    with watched(browser, server.page) as tab:
        page = tab.open()
        page.get_by_label("draw").select_option("name")
        groups = page.locator(".node.group")
        expect(groups).to_have_count(len(AREAS))
        billing = page.get_by_role("button", name=re.compile("^billing, "))
        expect(billing).to_contain_text(re.compile(r"billing.*5\d min.*\d+ late of 30.*worst: billing"))
        expect(billing).to_have_class(re.compile("blamed"))
        billing.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".node")).to_have_count(len(AREAS) - 1 + 30)
        expect(page.locator(".node").filter(has_text=LATE).first).to_be_visible()
        assert urlsplit(page.url).fragment == "/?graph=name&open=billing"
        page.get_by_role("button", name="Close the group billing").click()
        expect(groups).to_have_count(len(AREAS))


def test_what_matters_stays_a_choice(browser: Browser, estate: tuple[Serving, Estate]) -> None:
    server, _ = estate
    with watched(browser, server.page) as tab:
        page = tab.open("#/?graph=worst")
        expect(page.get_by_text(f"of {SIZE} computations: the worst and what is next to them")).to_be_visible()
        assert page.locator(".node").count() <= 40
        expect(page.locator(".node").filter(has_text=LATE).first).to_be_visible()


@pytest.mark.parametrize("screen", [{}, {"color_scheme": "dark", **PHONE}], ids=["light", "dark phone"])
def test_axe_finds_nothing_of_hundreds(
    browser: Browser, estate: tuple[Serving, Estate], screen: dict[str, Any]
) -> None:
    server, _ = estate
    with watched(browser, server.page, **screen) as tab:
        tab.page.add_init_script(path=axe())
        page = tab.open()
        expect(page.locator(".node")).to_have_count(SIZE)
        assert complaints(page) == []
        page.goto(f"{tab.url}#/?graph=name&open=billing")
        expect(page.locator(".node.group")).to_have_count(len(AREAS) - 1)
        assert complaints(page) == []
