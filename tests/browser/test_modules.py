"""The page's pure modules, each function by itself, in the browser that runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.browser.chromium import watched
from tests.process.serving import serving

MODULES = Path(__file__).parent / "modules"
FUNCTION = re.compile(r"^export (?:async )?function (\w+)\(\)", re.MULTILINE)

CASES = [
    (path.stem, name)
    for path in sorted(MODULES.glob("*.js"))
    if path.stem != "check"
    for name in FUNCTION.findall(path.read_text())
]


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with serving(tmp_path_factory.mktemp("modules")) as server, watched(browser, server.page) as tab:

        def fulfil(route: Route) -> None:
            name = route.request.url.rpartition("/")[2]
            route.fulfill(path=MODULES / name, content_type="text/javascript")

        tab.page.route("**/tests/*.js", fulfil)
        tab.open()
        yield tab.page


@pytest.mark.parametrize(("module", "name"), CASES, ids=[f"{module}-{name}" for module, name in CASES])
def test_(page: Page, module: str, name: str) -> None:
    page.evaluate("async ([module, name]) => { await (await import(`/tests/${module}.js`))[name](); }", [module, name])
