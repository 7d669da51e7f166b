"""A computation that is cut into slices: one box and one row on the overview, its slices on its own page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import lowwater
from tests.browser.chromium import Watched


@pytest.fixture
def cut(lw: lowwater.Client) -> lowwater.Lease:
    lw.register("flights")
    lw.register("hourly", inputs=["flights"], slices=[b"\x40", b"\x80", b"\xc0"])
    return lw.worker("hourly", name="exec-7").claim(b"\x40", b"\x80")


@pytest.mark.usefixtures("cut")
def test_its_own_page_lists_them_and_each_leads_back(tab: Watched) -> None:
    page = tab.open("#/c/hourly")
    slices = page.get_by_role("region", name="Slices", exact=True)
    expect(page.get_by_role("region", name="Key ranges of its slices").locator("tbody tr")).to_have_count(4)
    expect(slices.locator("tbody tr")).to_have_count(4)
    expect(page.get_by_role("region", name="Why")).to_contain_text("hourly~0")
    slices.get_by_role("link", name="hourly~1").first.click()
    expect(page.locator("h1")).to_have_text("hourly~1")
    expect(page.locator(".crumbs")).to_contain_text("hourly, whose slice this is")
    expect(page.get_by_role("region", name="Key ranges").locator("tbody tr")).to_contain_text("exec-7")
    page.locator(".crumbs").get_by_role("link", name="hourly", exact=True).click()
    expect(page.locator("h1")).to_have_text("hourly")
    inputs = page.get_by_role("region", name="Around it")
    expect(inputs.get_by_role("link")).to_have_count(1)
    inputs.get_by_role("link", name="flights").click()
    expect(page.locator("h1")).to_have_text("flights")
    expect(page.get_by_role("region", name="Around it").get_by_role("link")).to_have_count(1)
