"""One browser and one authority for all modules, and pages that fail their test when anything goes wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import lowwater
from tests.browser.chromium import WAIT_MILLIS, Watched, chromium, watched
from tests.browser.fleet import Fleet, fleet
from tests.browser.story import Story
from tests.kit.eventually import eventually
from tests.process.browsing import ask
from tests.process.serving import Serving, serving

HERE = Path(__file__).parent

expect.set_options(timeout=WAIT_MILLIS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium; its event loop ends with the folder, since other tests have their own."""
    with chromium() as one:
        yield one


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("shared"), page="127.0.0.1:0") as one:
        yield one


@pytest.fixture
def server(shared: Serving) -> Iterator[Serving]:
    yield shared
    clear(shared)


def clear(server: Serving) -> None:
    """Drop every computation of an authority, readers first, until the page shows none."""
    with lowwater.connect(server.address) as lw:
        while rest := {name: spec for name, spec in lw.topology().computations.items() if not spec.slice_of}:
            for name in rest.keys() - {read for each in rest.values() for read in each.inputs}:
                lw.drop(name, force=True)
    eventually(lambda: not ask(server.page, "api/snapshot").json["computations"], "the page forgets them")


@pytest.fixture
def lw(server: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(server.address) as one:
        yield one


@pytest.fixture
def small(server: Serving) -> Iterator[Fleet]:
    with fleet(server.address, "small") as running:
        yield running


@pytest.fixture
def story(server: Serving) -> Iterator[Story]:
    with Story(server.address) as one:
        yield one


@pytest.fixture
def tab(browser: Browser, server: Serving) -> Iterator[Watched]:
    with watched(browser, server.page) as one:
        yield one
