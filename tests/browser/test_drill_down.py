"""An executor hangs in a pipeline of processes, and the page leads from the overview to the guilty key range, its worker and its host."""

from __future__ import annotations

import json
import re
import time

from playwright.sync_api import Page, expect

import lowwater
from tests.browser.chromium import Watched
from tests.browser.fleet import GUILTY, Fleet, host
from tests.browser.story import Story
from tests.process.serving import Serving


def fact(page: Page, name: str) -> str:
    return page.locator(".strip .facts div").filter(has_text=name).locator("dd").inner_text()


def test_a_hanging_executor_is_named_and_found_in_its_range(lw: lowwater.Client, small: Fleet, tab: Watched) -> None:
    page = tab.open("#/?late=10")
    expect(page.locator("h1")).to_contain_text("All 3 computations are on time")
    began = time.monotonic()
    small.freeze(GUILTY)
    page.locator("h1").filter(has_text=f"worker {GUILTY} on {host(GUILTY)}").wait_for()
    named = time.monotonic() - began
    expect(page.locator("h1")).to_contain_text(
        re.compile(
            rf"the worst is hourly, \d+ s behind, held by enriched \(worker {GUILTY} on {host(GUILTY)}\), silent for \d+ s\."
        )
    )
    print(json.dumps({"named_after_seconds": round(named, 1), "silent_seconds": round(time.monotonic() - began, 1)}))
    expect(page.locator(".lead-about")).to_contain_text(re.compile(r"key range \S+ \S+, one of 8"))
    # What holds the others is filled; they are not.
    expect(page.locator(".node.blamed")).to_have_count(1)
    expect(page.locator(".node.blamed")).to_contain_text("enriched")
    expect(page.locator(".node.blamed")).to_contain_text("holds 1 other")
    fills = page.evaluate(
        "[...document.querySelectorAll('.node')].map((node) => [node.matches('.blamed'), getComputedStyle(node).backgroundColor])"
    )
    (filled,) = [colour for blamed, colour in fills if blamed]
    assert filled not in [colour for blamed, colour in fills if not blamed]

    key_range = lw.ranges("enriched").ranges[0]
    assert key_range.worker == GUILTY
    page.locator("h1").get_by_role("link", name="hourly").click()
    culprit = page.locator(".culprit")
    expect(culprit).to_contain_text(GUILTY)
    expect(page.locator(".sentences li").last).to_contain_text(f"owned by {GUILTY} on {host(GUILTY)}, silent for")
    culprit.get_by_role("link", name="enriched").click()

    marked = page.locator(".cell.guilty")
    expect(marked).to_have_count(1)
    expect(marked).to_have_class(re.compile("is-silent"))
    expect(page.locator(".strip .card")).to_contain_text("holds the watermark")
    assert (fact(page, "Worker"), fact(page, "Host"), fact(page, "State")) == (GUILTY, host(GUILTY), "owned, silent")
    assert fact(page, "Sequencer") == str(key_range.sequencer)
    first = page.locator(".ranges tbody tr").first
    expect(first).to_contain_text(GUILTY)
    expect(first).to_contain_text("holds")
    expect(page.locator(".cell.is-silent")).to_have_count(4 + 1)  # the half that hangs, and the legend's

    small.thaw(GUILTY)
    expect(page.locator(".cell.is-silent")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_contain_text("All 3 computations are on time")


def test_a_computations_page_shows_surroundings_and_history(lw: lowwater.Client, story: Story, tab: Watched) -> None:
    lw.register("hourly", inputs=["enriched"])
    story.tell(7300, 7300)
    story.tell(5, 20)
    page = tab.open("#/c/enriched")
    expect(page.locator("[aria-labelledby=inputs]")).to_contain_text("flights")
    expect(page.locator("[aria-labelledby=readers]")).to_contain_text("hourly")
    expect(page.locator(".chart canvas")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Lag of enriched over the last hour"))).to_be_visible()
    expect(page.locator(".chart .u-series").nth(1)).to_contain_text(re.compile(r"low watermark\d"))
    expect(page.locator(".completions tbody tr").nth(1)).to_be_visible()
    # An injector has no inputs, and says so.
    page.locator("[aria-labelledby=inputs]").get_by_role("link", name="flights").click()
    expect(page.locator("h1")).to_have_text("flights")
    expect(page.locator("[aria-labelledby=inputs]")).to_contain_text("brings records in")


def test_a_name_survives_its_way_through_the_address_and_is_only_text(lw: lowwater.Client, tab: Watched) -> None:
    lw.register("shop/a_b.c-d")
    page = tab.open()
    page.get_by_role("rowheader", name="shop/a_b.c-d").get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("shop/a_b.c-d")
    page.goto(f"{tab.url}#/c/%3Cb%3E%26%23%3F%20x")
    expect(page.locator("h1")).to_have_text("<b>&#? x")


def test_a_lateness_budget_tells_what_came_behind_it(server: Serving, lw: lowwater.Client, tab: Watched) -> None:
    lw.register("flights", lateness_budget=0.01)
    lease = lw.worker("flights", name="exec-1").claim()
    now = int(time.time() * 1e6)
    for step in range(1, 31):
        at = now + step * 1_000_000
        lease.advance(None, oldest=None, frontier=at, finished=[at] * 100)
        lease.flush(60)
    budget = lw.get("flights")["flights"].budget[0.01]
    assert budget.records == 3000
    page = tab.open("#/c/flights")
    row = page.locator(".budgets tbody tr")
    expect(row).to_contain_text(re.compile(rf"1 %.*{budget.behind}.*3,000.*{budget.excused}"))
    share = page.locator(".facts div").filter(has_text="99 % of recent records")
    expect(share).to_contain_text("of all came behind it")
