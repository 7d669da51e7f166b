"""A browser for each module, and pages that fail their test when anything goes wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import lowwater
from tests.browser.chromium import Watched, chromium, watched
from tests.browser.fleet import Fleet, fleet
from tests.browser.story import Story
from tests.process.serving import Serving, serving

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what drives a browser, beside being a process test."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium; its event loop ends with the module, since other tests have their own."""
    with chromium() as one:
        yield one


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """An authority over a fresh journal."""
    with serving(tmp_path, page="127.0.0.1:0") as one:
        yield one


@pytest.fixture
def lw(server: Serving) -> Iterator[lowwater.Client]:
    """A client of it."""
    with lowwater.connect(server.address) as one:
        yield one


@pytest.fixture
def small(server: Serving) -> Iterator[Fleet]:
    """Three computations and their executors, as processes, at work."""
    with fleet(server.address, "small") as running:
        yield running


@pytest.fixture
def story(server: Serving) -> Iterator[Story]:
    """Two computations that do what the test says."""
    with Story(server.address) as one:
        yield one


@pytest.fixture
def tab(browser: Browser, server: Serving) -> Iterator[Watched]:
    """A page of the authority, not opened yet."""
    with watched(browser, server.page) as one:
        yield one
