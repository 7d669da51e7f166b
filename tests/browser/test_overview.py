"""The overview: the sentence, the graph, the table, search, and what can be shared."""

from __future__ import annotations

import re
import time
from urllib.parse import urlsplit

from playwright.sync_api import Browser, expect

import lowwater
from tests.browser.chromium import Watched, watched
from tests.browser.story import Story
from tests.process.serving import Serving

MINUTES = 60.0


def test_an_empty_deployment_says_what_to_do(tab: Watched) -> None:
    page = tab.open()
    expect(page.locator("h1")).to_have_text("No computation is registered yet.")
    expect(page.get_by_text('lw.register("clicks")')).to_be_visible()


def test_the_sentence_names_the_worst_and_who_holds_it(story: Story, tab: Watched) -> None:
    story.tell(1, 1, 40 * MINUTES)
    page = tab.open()
    expect(page.locator("h1")).to_have_text(
        re.compile(
            r"^1 of 2 computations is late: enriched, 4\d min behind,"
            r" held by its own worker exec-2 on node-1, alive\b.*\.$"
        )
    )
    expect(page.locator(".lead-about")).to_have_text("key range [0x2000, 0x4000), one of 8")
    expect(page.get_by_role("link", name=re.compile(r"^enriched\W+late\W+40 min\W+behind"))).to_be_visible()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="enriched"))
    expect(row).to_contain_text("40 min")
    expect(row).to_contain_text("[0x2000, 0x4000) of exec-2 on node-1")
    expect(page.locator("path.edge")).to_have_count(1)


def test_an_unregistered_input_is_told_and_no_lag_is_made_up(lw: lowwater.Client, story: Story, tab: Watched) -> None:
    story.tell(1)
    lw.register("hourly", inputs=["nobody"])
    page = tab.open()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="hourly"))
    expect(row.locator(".held")).to_have_text("nobody which is not registered or may not be read")
    page.goto(f"{tab.url}#/c/hourly")
    expect(page.get_by_text(re.compile("^no watermark; this page has"))).to_be_visible()


def test_what_is_over_is_grey_and_what_failed_is_red_with_its_error(lw: lowwater.Client, tab: Watched) -> None:
    for name, failure in (("archive", ""), ("hourly", "[STATE_STORE] no such key")):
        lw.register(name)
        lease = lw.worker(name).claim()
        remarks = lowwater.Remarks(ended=True, failure=failure)
        frontier = int(time.time() * 1e6)
        lease.advance(None, oldest=None, frontier=frontier, waiting_for="<b>paris.csv", remarks=remarks)
        lease.flush(60)
    page = tab.open()
    expect(page.locator("h1")).to_contain_text("Nothing is late yet, but hourly has failed")
    expect(page.locator(".node-stopped .node-why")).to_have_text("stopped")
    expect(page.locator(".node-failed .node-why")).to_have_text("failed: [STATE_STORE] no such key")
    expect(page.locator("tr.row-failed")).to_contain_text("[STATE_STORE] no such key")
    page.get_by_role("button", name="1 stopped").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tr.row-stopped a", has_text="archive").click()
    expect(page.locator(".lead-state")).to_contain_text("stopped")
    expect(page.locator(".waits")).to_have_text("Waited for<b>paris.csv")


def test_search_finds_all_and_is_in_the_address(browser: Browser, server: Serving, story: Story, tab: Watched) -> None:
    story.tell(1, 40 * MINUTES)
    page = tab.open()
    page.keyboard.press("/")
    page.keyboard.type("exec-2")
    expect(page.get_by_role("rowheader")).to_have_text(["enriched"])
    expect(page.get_by_role("status").filter(has_text="found")).to_have_text("1 of 2 found")
    assert urlsplit(page.url).fragment == "/?q=exec-2"
    with watched(browser, server.page) as other:
        expect(other.open(f"#{urlsplit(page.url).fragment}").get_by_role("rowheader")).to_have_text(["enriched"])
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("enriched")
    assert urlsplit(page.url).fragment == "/c/enriched"


def test_a_search_marks_what_matches_and_enter_goes_on_to_the_next(
    lw: lowwater.Client, story: Story, tab: Watched
) -> None:
    lw.register("hourly", inputs=["enriched"])
    lw.register("daily", inputs=["hourly"])
    story.tell(1, 40 * MINUTES)
    page = tab.open()
    expect(page.locator(".node")).to_have_count(4)
    page.get_by_role("searchbox").fill("ly")
    marked, current = page.locator(".node.match"), page.locator(".node.current b")
    expect(marked).to_have_count(2)
    expect(page.locator(".node")).to_have_count(4)
    for name, place in (("daily", "1 of 2"), ("hourly", "2 of 2"), ("daily", "1 of 2")):
        expect(current).to_have_text(name)
        expect(page.get_by_role("status").filter(has_text="Escape")).to_contain_text(f"{place} {name}")
        expect(page.locator("tr.led")).to_contain_text(name)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(marked).to_have_count(0)


def test_a_control_says_what_it_does(story: Story, tab: Watched) -> None:
    story.tell(1, 40 * MINUTES)
    page = tab.open()
    expect(page.locator(".node.blamed")).to_have_count(1)
    controls = page.locator("#main :is(button, select, .views a, .node, .bar[role=img]), .top :is(input, select)")
    assert controls.count() > 15
    assert [each.inner_text() for each in controls.all() if not each.get_attribute("title")] == []
    bar = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="enriched")).get_by_role("img")
    expect(bar).to_have_accessible_name(re.compile(r"^40 min behind.*; the tick: late after 30 min$"))


def test_a_replay_beside_live_data_is_not_called_late(lw: lowwater.Client, story: Story, tab: Watched) -> None:
    year = 365 * 24 * 60 * MINUTES
    lw.register("history")
    lease = lw.worker("history", name="exec-3").claim()
    lease.advance(None, oldest=None, frontier=int((time.time() - 13 * year) * 1e6))
    lease.flush(60)
    story.tell(1, 20)
    page = tab.open()
    expect(page.locator("h1")).to_contain_text("Both computations are on time")
    expect(page.get_by_text(re.compile(r"^1 more is far behind: .* more than 7 days old"))).to_be_visible()
    far = page.get_by_role("button", name="1 far behind")
    expect(far).to_have_attribute("title", re.compile("more than 7 days old"))
    far.click()
    expect(page.get_by_role("rowheader")).to_have_text(["history"])


def test_a_count_shows_those_alone_and_another_press_all_again(story: Story, tab: Watched) -> None:
    story.tell(1, 40 * MINUTES)
    page = tab.open()
    names = page.get_by_role("rowheader")
    expect(names).to_have_text(["enriched", "flights"])
    late = page.get_by_role("button", name="1 late")
    late.click()
    expect(names).to_have_text(["enriched"])
    expect(late).to_have_attribute("aria-pressed", "true")
    assert urlsplit(page.url).fragment == "/?only=late"
    late.click()
    expect(names).to_have_text(["enriched", "flights"])
    page.get_by_role("button", name="1 on time").click()
    expect(names).to_have_text(["flights"])
    page.keyboard.press("Escape")
    expect(names).to_have_count(2)
    assert urlsplit(page.url).fragment == "/"


def test_lag_in_a_replay_is_counted_from_the_newest_data_and_says_so(story: Story, tab: Watched) -> None:
    year = 365 * 24 * 60 * MINUTES
    story.tell(13 * year, 13 * year + 40 * MINUTES)
    page = tab.open()
    expect(page.locator("h1")).to_contain_text("1 of 2 computations is late: enriched, 40 min behind")
    expect(page.get_by_text(re.compile(r"newest event time .*, 13 y before now"))).to_be_visible()
    page.get_by_label("Lag against").select_option("clock")
    expect(page.locator("h1")).to_contain_text("Both computations are late; the worst is enriched, 13 y behind")
