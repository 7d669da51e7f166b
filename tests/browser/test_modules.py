"""The page's pure modules, each function by itself, in the browser that runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from tests import blame
from tests.browser.chromium import watched
from tests.process.serving import Serving

MODULES = Path(__file__).parent / "modules"
FUNCTION = re.compile(r"^export (?:async )?function (\w+)\(\)", re.MULTILINE)

CASES = [
    (path.stem, name)
    for path in sorted(MODULES.glob("*.js"))
    if path.stem != "check"
    for name in FUNCTION.findall(path.read_text())
]


@pytest.fixture(scope="module")
def page(browser: Browser, shared: Serving) -> Iterator[Page]:
    with watched(browser, shared.page) as tab:

        def fulfil(route: Route) -> None:
            name = route.request.url.rpartition("/")[2]
            route.fulfill(path=MODULES / name, content_type="text/javascript")

        tab.page.route("**/tests/*.js", fulfil)
        tab.open()
        yield tab.page


@pytest.mark.parametrize(("module", "name"), CASES, ids=[f"{module}-{name}" for module, name in CASES])
def test_(page: Page, module: str, name: str) -> None:
    page.evaluate("async ([module, name]) => { await (await import(`/tests/${module}.js`))[name](); }", [module, name])


@pytest.mark.parametrize("case", blame.CASES, ids=[case["name"] for case in blame.CASES])
def test_the_right_one_is_blamed_with_the_expected_sentence(page: Page, case: dict[str, Any]) -> None:
    answer = page.evaluate("async (given) => (await import('/tests/blame.js')).said(given)", case)
    assert answer == {key: case[key] for key in ("way", "causes", "state", "held", "lead")}
