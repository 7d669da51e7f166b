"""The page shows promises: computations that are late by them, an owner's page, and links to logs and runbooks that are only links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

import lowwater
from tests.browser.chromium import Watched, watched
from tests.browser.conftest import clear
from tests.browser.fleet import host
from tests.browser.story import Story
from tests.browser.test_axe import axe, complaints
from tests.kit.eventually import eventually
from tests.process.serving import Serving, serving

PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}

PROMISES = """
[[promise]]
computations = "enriched"
late = "10m"
owner = "ana@example.org"
team = "billing"
runbook = "https://wiki.example.org/{computation}?a=1&b=%3C2%3E"
logs = "https://logs.example.org/?q={worker}&host={host}"

[[promise]]
computations = "hourly"
late = "2h"
owner = "bob"
team = "reports"
"""
"""Enriched is late by ten minutes, what reads it by two hours."""


@pytest.fixture(scope="module")
def promising(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("promises")
    path = folder / "promises.toml"
    path.write_text(PROMISES)
    with serving(folder, "--promises", str(path), page="127.0.0.1:0") as one:
        yield one


@pytest.fixture
def server(promising: Serving) -> Iterator[Serving]:
    yield promising
    clear(promising)


def test_what_is_late_is_what_was_promised(lw: lowwater.Client, story: Story, tab: Watched) -> None:
    lw.register("hourly", inputs=["enriched"])
    story.tell(1, 1200)
    page = tab.open()
    expect(page.locator("h1")).to_contain_text("1 of 3 computations is late: enriched, 20 min behind")
    whom = page.get_by_role("list", name="Whom to ask about enriched")
    expect(whom.get_by_role("link", name="runbook of enriched")).to_have_attribute(
        "href", "https://wiki.example.org/enriched?a=1&b=%3C2%3E"
    )
    logs = whom.get_by_role("link", name="logs of exec-2")
    expect(logs).to_have_attribute("href", f"https://logs.example.org/?q=exec-2&host={host('exec-1')}")
    expect(logs).to_have_attribute("rel", "noopener noreferrer")
    page.goto(f"{tab.url}#/c/enriched")
    expect(page.get_by_role("list", name="Whom to ask about enriched")).to_contain_text(
        "late after 10 min, as promised"
    )
    expect(page.locator(".ranges").get_by_role("link", name="logs").first).to_be_visible()


def test_an_owner_s_page_is_theirs_alone_and_dims_what_holds_them(
    browser: Browser, server: Serving, lw: lowwater.Client, story: Story, tab: Watched
) -> None:
    lw.register("hourly", inputs=["enriched"])
    worker = lw.worker("hourly", name="exec-5")
    lease = worker.claim()
    story.tell(1, 9000)
    eventually(lambda: not worker.inputs().low.unknown, "enriched comes to its reader", seconds=60)
    lease.advance(worker.inputs(), oldest=None)
    lease.flush(60)
    tab.page.add_init_script(path=axe())
    page = tab.open()
    page.locator(".scale").get_by_label("Team").select_option("reports")
    expect(page.locator("h1")).to_contain_text(re.compile(r"^hourly is 2 h 30 min behind, held by enriched"))
    expect(page.locator(".computations tbody th a")).to_have_text(["hourly"])
    expect(page.locator(".node")).to_have_count(2)
    expect(page.locator(".node.dimmed")).to_contain_text("enriched")
    whom = page.get_by_role("list", name="Whom to ask about hourly")
    expect(whom.locator("li")).to_have_text(
        [
            "team reports, owner bob",
            "enriched: team billing, owner ana@example.org",
            "runbook of enriched",
            "logs of exec-2",
        ]
    )
    assert urlsplit(page.url).fragment == "/?team=reports"
    assert complaints(page) == []
    with watched(browser, server.page, **PHONE) as other:
        phone = other.open("#/?owner=bob&view=heat")
        expect(phone.locator(".heat-name")).to_have_text(["hourly"])
        assert phone.evaluate("document.documentElement.scrollWidth") <= 375
        phone.goto(f"{other.url}#/?owner=nobody")
        expect(phone.locator("h1")).to_have_text("No computation has this team or owner.")
