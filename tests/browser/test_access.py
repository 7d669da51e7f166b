"""The page for everyone: by keyboard alone, on a phone, in the dark, in colours that can be told apart, with names for what is read aloud."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import Watched, watched
from tests.browser.story import Story
from tests.process.serving import Serving

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
ROUTES = ("#/", "#/c/enriched")


FOCUSED = """() => {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    return [element.getAttribute("aria-label") ?? element.textContent.trim(), style.outlineStyle, parseFloat(style.outlineWidth)];
}"""


def visit(tab: Watched, route: str) -> Page:
    page = tab.open(route)
    if "/c/" in route:
        page.locator(".strip .card").wait_for()
        page.locator(".sentences").wait_for()
        page.locator(".chart canvas").wait_for()
    return page


def test_everything_is_reached_by_the_keyboard_and_focus_is_seen(story: Story, tab: Watched) -> None:
    story.tell(1, 40 * 60)
    page = tab.open()
    # A page that knows of nothing yet has little to reach.
    expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline, width = page.evaluate(FOCUSED)
        reached.append(name)
        assert outline != "none", f"nobody sees that {name!r} has the focus"
        assert width > 0
        if name.startswith("enriched, late"):
            break
    assert reached[0] == "To the content"
    assert reached[-1].startswith("enriched, late"), reached
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("enriched")
    expect(page.locator("h1")).to_be_focused()
    page.locator(".strip .card").wait_for()
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.locator(".cell:focus").count():
            break
    expect(page.locator(".cell:focus")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".strip .card-title")).to_contain_text("[0x2000, 0x4000)")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_contain_text("1 of 2 computations is late")


def test_what_a_worker_waits_for_is_text_and_fits(browser: Browser, server: Serving, story: Story) -> None:
    path = f"/in/<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">/{'o' * 111}.json"
    assert len(path) == 200
    story.tell(1, 8400, waiting_for=path)
    for screen in ({}, PHONE):
        with watched(browser, server.page, **screen) as tab:
            page = tab.open()
            expect(page.locator("h1")).to_contain_text(f", waiting for {path}.")
            for route in ("", "#/c/enriched"):
                visit(tab, route)
                wide, room = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
                assert wide <= room, f"{route} is {wide} pixels wide"
            expect(page.locator(".strip .facts").get_by_text(path, exact=True)).to_be_visible()
            expect(page.locator(".sentences li").last).to_contain_text(f"waiting for {path}")
            assert page.locator("script:not([src]):not([type]), img[src=x]").count() == 0
            assert page.title() != "run"
    story.tell(1, 8400)
    with watched(browser, server.page) as tab:
        page = tab.open("#/c/enriched")
        expect(page.locator(".strip .facts")).to_be_visible()
        expect(page.get_by_text("Waits for")).to_have_count(0)
