"""Who may see the page, its API and /metrics: every forbidden thing is tried over HTTP, against the server that the authority runs."""

from __future__ import annotations

import http.client
import json
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import lowwater
from lowwater import errors
from lowwater_authority.access.policy import Access
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.ops.endpoint import Exposition, RulesHere
from lowwater_page import sessions
from lowwater_page.board import Board
from lowwater_page.follower import Follower
from lowwater_page.hosts import Hosts
from lowwater_page.page import Page
from lowwater_page.sessions import SESSION_SECONDS, SignedIn
from lowwater_server.http import HttpServer
from lowwater_server.sockets import listen
from lowwater_server.tls import Certificates, Files
from lowwater_server.visitors import TRIES, WrongTokens
from tests.process.browsing import Answer, ask
from tests.process.test_tls import OURS, put, trusting

pytestmark = pytest.mark.process

TOKENS = {"oncall": "tok-oncall-1", "oncall again": "tok-oncall-2", "scraper": "tok-scraper", "etl": "tok-etl"}
WRONG = "tok-nobodys"
API = (
    *("api/snapshot", "api/events", "api/ranges?computation=flights", "api/recent?computation=flights"),
    *("api/why?computation=flights", "api/whatever-comes", "api"),
)


def rules(*oncall: str, page: bool = True) -> Access:
    hashes = {name: sha256(token.encode()).hexdigest() for name, token in TOKENS.items()}
    tokens = [hashes[name] for name in oncall]
    first = (
        f'[[principal]]\nname = "oncall"\npage = {str(page).lower()}\ntoken_sha256 = {json.dumps(tokens)}\n'
        if tokens
        else ""
    )
    return Access.parse(
        (
            f"{first}"
            f'[[principal]]\nname = "scraper"\nmetrics = true\ntoken_sha256 = ["{hashes["scraper"]}"]\n'
            f'[[principal]]\nname = "etl"\ntoken_sha256 = ["{hashes["etl"]}"]\n'
            '[[principal.allow]]\nnamespace = "*"\nread = ["*"]\nreport = ["*"]\noperate = ["*"]\n'
        ).encode(),
        "access.toml",
    )


class Guarded:
    """A page with a guard, in this process; its rules and its clocks are the test's."""

    def __init__(self, port: int, certificates: Certificates | None = None) -> None:
        self.access = rules("oncall", "oncall again")
        self.now = 1_800_000_000.0
        self.ticks = 0.0
        self.page = f"{'http' if certificates is None else 'https'}://127.0.0.1:{port}/"
        self.visitors = SignedIn(
            RulesHere(lambda: self.access),
            secure=certificates is not None,
            port=port,
            clock=lambda: self.now,
            monotonic=lambda: self.ticks,
        )

    def ask(self, path: str, token: str = "", cookie: str = "", **headers: str) -> Answer:
        return ask(self.page, path, headers=presented(token, cookie) | headers)

    def sign_in(self, token: str, **headers: str) -> Answer:
        fields = {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        return ask(self.page, "session", "POST", fields, body=json.dumps({"token": token}).encode())

    def cookie(self, name: str = "oncall") -> str:
        answer = self.sign_in(TOKENS[name])
        assert answer.status == 204, answer.body
        return set_cookie(answer).partition(";")[0]


def presented(token: str, cookie: str) -> dict[str, str]:
    return ({"Authorization": f"Bearer {token}"} if token else {}) | ({"Cookie": cookie} if cookie else {})


def set_cookie(answer: Answer) -> str:
    cookie = answer.headers["Set-Cookie"]
    assert cookie is not None
    return str(cookie)


@contextmanager
def opened(certificates: Certificates | None = None) -> Iterator[Guarded]:
    listening = listen("127.0.0.1", 0)
    guarded = Guarded(listening.getsockname()[1], certificates)
    board = Board()
    # Nothing is asked of an authority here: what is refused is refused before that.
    follower = Follower(lambda _: lowwater.connect("127.0.0.1:1"), board, clock=lambda: 1, sharded=False)
    server = HttpServer(
        listening,
        [
            Page(board, follower, version="0", clock=lambda: 1, beat=0.2),
            Exposition(lambda _: (b"figures", "text/plain"), lambda: StoreState.REFUSES),
        ],
        certificates=certificates,
        visitors=guarded.visitors,
    )
    server.start()
    try:
        yield guarded
    finally:
        server.close()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with opened() as one:
        yield one


def refused(answer: Answer, status: int) -> bool:
    assert answer.status == status, (answer.status, answer.body)
    assert set(answer.json) == {"error"}
    assert not any(token in answer.json["error"] for token in (*TOKENS.values(), WRONG))
    assert (answer.headers["WWW-Authenticate"] is not None) == (status == 401)
    return answer.headers["Set-Cookie"] is None


def test_whoever_presents_nothing_or_nonsense_sees_nothing(guarded: Guarded) -> None:
    for path in (*API, "metrics"):
        assert refused(guarded.ask(path), 401)
    for text in ("Bearer ", "Basic b25jYWxsOnRvay1vbmNhbGwtMQ==", TOKENS["oncall"], "Bearer t\xf6k", f"Bearer {WRONG}"):
        assert refused(guarded.ask("api/snapshot", Authorization=text), 401)
    assert refused(guarded.sign_in(sha256(TOKENS["oncall"].encode()).hexdigest()), 401), "a hash is no token"
    assert refused(guarded.ask("api/snapshot", cookie=f"lowwater={TOKENS['oncall']}"), 401)
    assert refused(ask(guarded.page, f"api/snapshot?token={TOKENS['oncall']}"), 401), "not where proxies log it"


def test_the_shell_of_the_page_is_for_everybody_and_shows_nothing(guarded: Guarded) -> None:
    for path in ("", "static/app.js", "static/view/door.js", "healthz"):
        assert guarded.ask(path).status == 200
    assert guarded.ask("healthz").json["journal"] == "refuses writes", "which is no reason to restart a process"
    assert guarded.ask("session").json == {"required": True, "name": None}
    for path in ("static/../api/snapshot", "static/%2e%2e/api/snapshot", "%61pi/snapshot", "//api/snapshot"):
        assert guarded.ask(path).status in {401, 404}


@pytest.mark.parametrize(("who", "page", "metrics"), [("oncall", 200, 403), ("scraper", 403, 200), ("etl", 403, 403)])
def test_each_sees_what_the_file_allows(guarded: Guarded, who: str, page: int, metrics: int) -> None:
    answer_ = guarded.ask("api/snapshot", TOKENS[who])
    scraped = guarded.ask("metrics", TOKENS[who])
    assert (answer_.status, scraped.status) == (page, metrics)
    for answer, right in ((answer_, "page = true"), (scraped, "metrics = true")):
        if answer.status == 403:
            assert refused(answer, 403)
            assert right in answer.json["error"]
            assert who in answer.json["error"]
    if page == 403:
        assert refused(guarded.sign_in(TOKENS[who]), 403)


def test_a_browser_signs_in_once_and_out_again(guarded: Guarded) -> None:
    answer = guarded.sign_in(TOKENS["oncall"], Sec_Fetch_Site="same-origin", Origin=guarded.page.rstrip("/"))
    assert answer.status == 204
    cookie, *attributes = set_cookie(answer).split("; ")
    assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SESSION_SECONDS}"}
    assert not any(token in cookie for token in TOKENS.values())
    assert guarded.ask("session", cookie=cookie).json == {"required": True, "name": "oncall"}
    assert guarded.ask("api/snapshot", cookie=cookie).status == 200
    assert refused(guarded.ask("metrics", cookie=cookie), 403)
    assert refused(guarded.ask("api/snapshot", WRONG, cookie), 401), "a wrong token is not made good by a cookie"
    ended = ask(guarded.page, "session", "DELETE", {"Cookie": cookie})
    assert ended.status == 204
    assert {"Max-Age=0", "HttpOnly", "SameSite=Strict"} <= set(set_cookie(ended).split("; "))


def test_signing_out_ends_the_session_wherever_its_cookie_was_copied_to(guarded: Guarded) -> None:
    cookie, other = guarded.cookie(), guarded.cookie()
    assert cookie != other, "two sessions of one person, within one second too"
    assert ask(guarded.page, "session", "DELETE", {"Cookie": cookie}).status == 204
    assert refused(guarded.ask("api/snapshot", cookie=cookie), 401)
    assert not guarded.ask("session", cookie=cookie).json["name"]
    assert guarded.ask("api/snapshot", cookie=other).status == 200, "the other one goes on"
    assert guarded.ask("api/snapshot", cookie=guarded.cookie()).status == 200, "and one may sign in again"


def test_a_cookie_is_for_one_person_one_process_and_a_working_day(guarded: Guarded) -> None:
    cookie = guarded.cookie()
    name, _, value = cookie.partition("=")
    until, seal, who = value.split(".")
    assert guarded.ask("api/snapshot", cookie=cookie).status == 200
    flipped = seal[:-1] + ("0" if seal[-1] != "0" else "1")
    forged = [
        f"{int(until) + 1}.{seal}.{who}",
        f"{until}.{flipped}.{who}",
        f"{until}.{seal}.etl",
        f"{'9' * 5000}.{seal}.{who}",
        "",
    ]
    for each in forged:
        assert refused(guarded.ask("api/snapshot", cookie=f"{name}={each}"), 401), each
    with opened() as other:
        foreign = other.cookie().partition("=")[2]
        assert refused(guarded.ask("api/snapshot", cookie=f"{name}={foreign}"), 401)
    guarded.now = int(until) - 1
    assert guarded.ask("api/snapshot", cookie=cookie).status == 200
    guarded.now = int(until)
    assert refused(guarded.ask("api/snapshot", cookie=cookie), 401)
    assert guarded.ask("session", cookie=cookie).json["name"] is None


def test_a_cookie_ends_when_the_file_no_longer_names_its_token(guarded: Guarded) -> None:
    cookie, later = guarded.cookie(), guarded.cookie("oncall again")
    guarded.access = rules("oncall again")
    assert refused(guarded.ask("api/snapshot", cookie=cookie), 401), "its token was removed"
    assert guarded.ask("api/snapshot", cookie=later).status == 200
    guarded.access = rules("oncall again", page=False)
    assert refused(guarded.ask("api/snapshot", cookie=later), 403), "the right was taken"
    guarded.access = rules()
    assert refused(guarded.ask("api/snapshot", cookie=later), 401), "the principal was removed"


def test_a_stream_ends_when_its_viewer_is_removed(guarded: Guarded) -> None:
    connection = http.client.HTTPConnection(urlsplit(guarded.page).netloc, timeout=60)
    with ExitStack() as leaving:
        leaving.callback(connection.close)
        connection.request("GET", "/api/events", headers={"Cookie": guarded.cookie()})
        stream = leaving.enter_context(connection.getresponse())
        assert stream.status == 200
        while not stream.readline().startswith(b"event: beat"):
            pass
        guarded.access = rules()
        rest = stream.read()
    assert rest.count(b"event:") <= 2, "what was on its way"
    assert b"HTTP/1.1" not in rest


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Content_Type": "text/plain"}, 400),
    ],
)
def test_another_site_can_sign_nobody_in_or_out(guarded: Guarded, headers: dict[str, str], status: int) -> None:
    assert refused(guarded.sign_in(TOKENS["oncall"], **headers), status)
    if status == 403:
        fields = {name.replace("_", "-"): header for name, header in headers.items()}
        answer = ask(guarded.page, "session", "DELETE", {**fields, "Cookie": guarded.cookie()})
        assert refused(answer, 403)


def test_a_page_answers_only_under_its_own_names(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Else a site whose name is made to lead here would read the page by its viewer's browser."""
    caplog.set_level(logging.WARNING, sessions.__name__)
    cookie = guarded.cookie()
    for path in ("", "api/snapshot", "static/app.js", "session"):
        refused = guarded.ask(path, cookie=cookie, Host="evil.example")
        assert refused.status == 421, path
        assert "--page-host" in refused.json["error"]
    signing_in = guarded.sign_in(TOKENS["oncall"], Host="evil.example", Origin="http://evil.example")
    assert (signing_in.status, signing_in.headers["Set-Cookie"]) == (421, None)
    assert guarded.ask("healthz", Host="evil.example").status == 200, "a probe knows no name"
    assert guarded.ask("api/snapshot", cookie=cookie, Host="localhost:8080").status == 200
    [line] = [record for record in caplog.records if record.name == sessions.__name__]
    assert "the name 'evil.example': if" in line.getMessage(), "one line for all of them"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.7:7422", True),
        ("lowwater.example.org:443", True),
        ("a.b.wild.example.org", True),
        ("wild.example.org", False),
        ("evil.example", False),
    ],
)
def test_the_names_of_a_page(host: str, expected: bool) -> None:
    hosts = Hosts(["Lowwater.example.org", "*.wild.example.org", "0.0.0.0:7422"], machine="box.corp")
    assert hosts.take([host]) is expected
    assert Hosts(["*"]).take([host])
    assert hosts.take([]), "no browser"
    assert not hosts.take([host, "localhost"])


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"token": 7}', b'{"token": "\xff"}', b'{"token": "\\ud800"}', b"[" * 4000]
)
def test_a_sign_in_that_makes_no_sense_is_refused(guarded: Guarded, body: bytes) -> None:
    json_type = {"Content-Type": "application/json"}
    assert refused(ask(guarded.page, "session", "POST", json_type, body=body), 400)


def test_a_token_of_any_length_costs_little(guarded: Guarded) -> None:
    assert refused(guarded.sign_in("x" * 10_000), 413)
    nested = ask(guarded.page, "session", "POST", {"Content-Type": "application/json"}, body=b"[" * 100_000)
    assert refused(nested, 413)


def test_addresses_are_told_apart_as_far_as_memory_goes() -> None:
    wrong = WrongTokens()
    for _ in range(TRIES):
        wrong.count("10.0.0.1", 0.0)
    assert wrong.wait("10.0.0.1", 0.0) == pytest.approx(1.0)
    assert wrong.wait("10.0.0.2", 0.0) == 0.0
    for number in range(3000):
        wrong.count(f"host-{number}", 0.0)
    assert wrong.wait("one more", 0.0) > 0.0, "those beyond it share a bound"
    assert wrong.wait("10.0.0.1", 0.0) == pytest.approx(1.0)
    assert wrong.wait("one more", 5000.0) == 0.0


def test_wrong_tokens_are_limited_by_address(guarded: Guarded) -> None:
    cookie = guarded.cookie()
    for _ in range(TRIES):
        assert refused(guarded.ask("api/snapshot", WRONG), 401)
    for limited in (guarded.sign_in(WRONG), guarded.ask("api/snapshot", WRONG), guarded.ask("metrics", WRONG)):
        assert refused(limited, 429)
        assert 1 <= int(limited.headers["Retry-After"]) <= 2
    assert guarded.ask("api/snapshot", cookie=cookie).status == 200
    assert guarded.sign_in(TOKENS["oncall"]).status == 204, "the right token is not locked out behind a shared proxy"
    assert guarded.ask("api/snapshot", TOKENS["oncall"]).status == 200
    assert guarded.ask("metrics", TOKENS["scraper"]).status == 200
    assert refused(guarded.ask("api/snapshot"), 401), "nor is a missing token a wrong one"
    guarded.ticks += 1
    assert refused(guarded.ask("api/snapshot", WRONG), 401)
    assert refused(guarded.ask("api/snapshot", WRONG), 429)


def test_no_secret_is_logged(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    cookie = guarded.cookie()
    guarded.ask("api/snapshot", WRONG)
    guarded.ask("metrics", TOKENS["etl"])
    guarded.ask("api/snapshot", cookie=f"{cookie}x")
    guarded.sign_in(WRONG)
    ask(guarded.page, "session", "DELETE", {"Cookie": cookie})
    logged = "\n".join(str(vars(record)) for record in caplog.records)
    acts = re.findall(
        r"'act': '(\w+)', 'principal': '(\w+)'(?:, 'token': '\w{8}')?, 'from': '127.0.0.1', 'outcome': '(\w+)'", logged
    )
    assert set(acts) == {
        ("sign_in", "oncall", "done"),
        ("page", "anonymous", "refused"),
        ("metrics", "etl", "refused"),
        ("sign_in", "anonymous", "refused"),
        ("sign_out", "oncall", "done"),
    }
    reasons = set(re.findall(r"'outcome': 'refused', 'reason': '(\w+)'", logged))
    assert reasons == {errors.Unauthenticated.reason, errors.PermissionDenied.reason}, "as those of gRPC"
    for secret in (
        *TOKENS.values(),
        WRONG,
        cookie.partition("=")[2],
        *(sha256(token.encode()).hexdigest() for token in TOKENS.values()),
    ):
        assert secret not in logged


def test_over_tls_the_cookie_never_goes_out_in_the_clear(tmp_path: Path) -> None:
    pair = OURS.pair("127.0.0.1")
    certificates = Certificates(Files(put(tmp_path / "chain.pem", pair[0]), put(tmp_path / "key.pem", pair[1])))
    with opened(certificates) as one:
        body = json.dumps({"token": TOKENS["oncall"]}).encode()
        answer = ask(one.page, "session", "POST", {"Content-Type": "application/json"}, body=body, tls=trusting(OURS))
        assert answer.status == 204
        assert "Secure" in set_cookie(answer).split("; ")
        assert answer.headers["Strict-Transport-Security"] == "max-age=86400"
