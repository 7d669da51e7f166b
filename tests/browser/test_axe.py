"""axe-core finds nothing to complain of: on every view, in light and dark, on a phone and on a desk."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

import lowwater
from tests.browser.chromium import watched
from tests.browser.story import Story
from tests.process.serving import Serving

RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""The sets of rules that axe checks; wcag22aa asks for targets of 24 pixels."""

VIEWS: Final = {
    "overview": "#/",
    "groups": "#/?graph=name",
    "worst": "#/?graph=worst&late=10",
    "heat": "#/?view=heat",
    "search": "#/?q=enriched",
    "nothing": "#/?q=nobody",
    "computation": "#/c/enriched",
    "local": "#/c/flights?zone=local&span=24h",
}

OTHERWISE: Final = ("overview", "heat", "computation")
"""Views that have all there is of colours and widths: in the dark and on a phone these are looked at."""

SCREENS: Final[dict[str, dict[str, Any]]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True},
}

FOUND: Final = """async (rules) => {
    const { violations } = await axe.run(document, { runOnly: rules });
    return violations.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => [id, html.slice(0, 160), failureSummary]));
}"""


def axe() -> Path:
    spec = importlib.util.find_spec("axe_playwright_python")
    assert spec is not None, "axe-playwright-python is not installed: make setup"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "axe.min.js"


def complaints(page: Page) -> list[list[str]]:
    violations: list[list[str]] = page.evaluate(FOUND, list(RULES))
    return violations


def settle(page: Page, route: str) -> None:
    page.locator(".link-live").wait_for()
    if "/c/" in route:
        for selector in (".strip .card", ".sentences", ".chart canvas", ".completions, .empty"):
            page.locator(selector).first.wait_for()
    if "heat" in route:
        page.locator(".heat-row path").first.wait_for(state="attached")
        page.get_by_text("The same as a table").click()
        page.locator(".as-table table").wait_for()


@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_nothing(browser: Browser, server: Serving, lw: lowwater.Client, story: Story, screen: str) -> None:
    lw.register("hourly-late", inputs=["enriched"])
    lw.register("hourly-later", inputs=["enriched", "nobody"])
    story.tell(1200, 40 * 60, waiting_for="a file")
    with watched(browser, server.page, **SCREENS[screen]) as tab:
        tab.page.add_init_script(path=axe())
        for name, route in VIEWS.items():
            if screen != "light" and name not in OTHERWISE:
                continue
            page = tab.open(route)
            settle(page, route)
            assert complaints(page) == [], name
            wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide <= room, f"{name} is {wide} pixels wide"
