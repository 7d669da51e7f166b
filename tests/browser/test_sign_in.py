"""The door in a real browser: a token opens it, a wrong one does not, and nothing is shown before."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest
from playwright.sync_api import Browser, Page, expect

import lowwater
from tests.browser.chromium import watched
from tests.process.serving import Serving, serving

TOKEN = "a-token-of-the-test"
RULES = f"""
[[principal]]
name = "oncall"
page = true
token_sha256 = ["{sha256(TOKEN.encode()).hexdigest()}"]
[[principal.allow]]
namespace = "*"
report = ["*"]
read = ["*"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("door")
    rules = folder / "access.toml"
    rules.write_text(RULES)
    with serving(folder, "--access", str(rules), page="127.0.0.1:0") as one:
        with lowwater.connect(one.address, token=TOKEN) as lw:
            lw.register("flights")
        yield one


def sign_in(page: Page, token: str) -> None:
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")


def test_a_person_signs_in_sees_what_the_link_showed_and_signs_out(browser: Browser, server: Serving) -> None:
    with watched(browser, server.page) as tab:
        page = tab.open("#/c/flights")
        expect(page.locator("h1")).to_have_text("Sign in")
        assert "flights" not in page.content()
        sign_in(page, TOKEN)
        expect(page.locator("h1")).to_have_text("flights")
        expect(page.locator(".link")).to_contain_text("live")
        assert page.evaluate("document.cookie") == "", "no script reads the cookie"
        assert TOKEN not in page.content() + page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        page.reload()
        expect(page.locator("h1")).to_have_text("flights")
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("h1")).to_have_text("Sign in")
        assert "flights" not in page.content(), "nor in the title, from the first moment on"
        assert page.context.cookies() == []


def test_a_wrong_token_is_told_and_another_may_be_typed(browser: Browser, server: Serving) -> None:
    with watched(browser, server.page) as tab:
        page = tab.open()
        sign_in(page, "wrong")
        expect(page.get_by_role("alert")).to_have_text(
            "This token is nobody's: it is wrong, was removed, or has expired."
        )
        sign_in(page, TOKEN)  # over the wrong one, which is selected
        expect(page.locator(".link")).to_contain_text("live")
        # A browser writes this to its console, whatever a page does about it.
        [expected] = [problem for problem in tab.problems if "the server responded with a status of 401" in problem]
        tab.problems.remove(expected)
