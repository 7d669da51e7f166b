"""Times of the viewer's own zone: chosen, shared, and always with the zone said."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, Route, expect

from tests.browser.chromium import WAIT_MILLIS, watched
from tests.browser.story import Story
from tests.process.serving import Serving

expect.set_options(timeout=WAIT_MILLIS)

ZONE = "Asia/Kolkata"
"""Half an hour off the hour, and without summer time."""


def test_times_are_told_in_the_zone_that_was_chosen(browser: Browser, server: Serving, story: Story) -> None:
    story.tell(600, 40 * 60)
    held = datetime.fromtimestamp(time.time() - 40 * 60, UTC)
    with watched(browser, server.page, timezone_id=ZONE) as tab:
        page = tab.open()
        switch = page.get_by_label("Zone of all times")
        low = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="enriched")).locator(".low time")
        expect(switch).to_have_value("utc")
        expect(low).to_have_attribute("title", re.compile(f"^{held:%Y-%m-%d %H:}.* UTC$"))
        switch.select_option("local")
        there = held.astimezone(ZoneInfo(ZONE))
        expect(low).to_have_attribute("title", re.compile(rf"^{there:%Y-%m-%d %H:}.* (IST|GMT\+5:30)$"))
        expect(switch).to_contain_text(re.compile(r"(IST|GMT\+5:30) \(local\)"))
        assert urlsplit(page.url).fragment == "/?zone=local"
        expect(page.locator(".node-marks").first).to_contain_text(re.compile(r"\d\d:\d\d"))

        page.goto(f"{tab.url}#/c/enriched?zone=local")
        expect(page.locator(".chart .u-series").first).to_contain_text(re.compile(r"(IST|GMT\+5:30)"))
        expect(page.locator(".sentences time").first).to_have_attribute("title", re.compile(r"(IST|GMT\+5:30)$"))
        page.goto(f"{tab.url}#/?zone=local&view=heat")
        expect(page.locator(".heat-said")).to_contain_text(re.compile(r"(IST|GMT\+5:30)"))
        expect(page.locator(".heat-axis")).to_contain_text(re.compile(r"(IST|GMT\+5:30)"))


def test_a_week_in_which_summer_time_ends_says_so(browser: Browser, server: Serving, story: Story) -> None:
    story.tell(1, 40 * 60)
    begins = datetime(2026, 10, 22, tzinfo=UTC).timestamp()
    week = {
        "from_micros": int(begins * 1e6),
        "column_seconds": 7200,
        "since_micros": int(begins * 1e6),
        "total": 1,
        "lags": {"enriched": [10, 20] * 42},
    }

    def tell(asked: Route) -> None:
        asked.fulfill(body=json.dumps(week), content_type="application/json")

    with watched(browser, server.page, timezone_id="Europe/Berlin") as tab:
        tab.page.route("**/api/heat?*", tell)
        page = tab.open("#/?zone=local&view=heat&span=7d")
        expect(page.locator(".heat-axis")).to_contain_text(re.compile(r"CEST, then CET|GMT\+2, then GMT\+1"))
        page.get_by_text("The same as a table").click()
        row = page.get_by_role("region", name="Lag over time as a table").get_by_role("row").nth(1)
        expect(row).to_contain_text(re.compile(r"22 Oct( 2026)? 04:00 (CEST|GMT\+2)"))
