"""The graph at first draw: every box in sight, on a desk and on a phone, however many there are."""

from __future__ import annotations

from typing import Any, Final

import pytest
from playwright.sync_api import Browser, expect

import lowwater
from tests.browser.chromium import watched
from tests.process.serving import Serving

SCREENS: Final[dict[str, dict[str, Any]]] = {
    "desk": {"viewport": {"width": 1400, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}

OUTSIDE: Final = """() => {
    const frame = document.querySelector(".graph").getBoundingClientRect();
    const room = { left: frame.left - 1, top: frame.top - 1, right: Math.min(frame.right, innerWidth) + 1, bottom: frame.bottom + 1 };
    return [...document.querySelectorAll(".node")].filter((node) => {
        const { left, top, right, bottom } = node.getBoundingClientRect();
        return left < room.left || top < room.top || right > room.right || bottom > room.bottom;
    }).map((node) => node.textContent);
}"""
FRAME: Final = """() => {
    const { height } = document.querySelector(".graph").getBoundingClientRect();
    const table = document.querySelector("#table-title").getBoundingClientRect();
    return [height, table.top, innerHeight];
}"""


def inputs(shape: str, i: int) -> list[int]:
    """The inputs of the i-th computation: none, the one before it, or two of those before it in a net with several sources."""
    match shape:
        case "apart":
            return []
        case "chain":
            return [i - 1] if i else []
        case _:
            return sorted({i // 2, i // 3}) if i > 3 else []


@pytest.mark.parametrize(("count", "shape"), [(10, "chain"), (12, "net"), (60, "net")])
def test_every_box_is_in_sight_at_first_draw(
    browser: Browser, server: Serving, lw: lowwater.Client, count: int, shape: str
) -> None:
    for i in range(count):
        lw.register(f"stage-{i:02}", inputs=[f"stage-{upstream:02}" for upstream in inputs(shape, i)])
    for name, screen in SCREENS.items():
        with watched(browser, server.page, **screen) as tab:
            page = tab.open()
            expect(page.locator(".node")).to_have_count(count)
            assert page.evaluate(OUTSIDE) == [], name
            high, table, window = page.evaluate(FRAME)
            assert high < window
            if name == "desk" and count <= 12:
                assert table < window, f"the table begins at {table}"
