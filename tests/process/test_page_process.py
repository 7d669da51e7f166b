"""The status page as a process of its own: a client like any other, which says when the authority is away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowwater
from tests.kit.eventually import eventually
from tests.process.accessing import PATIENCE, SOON, Tokens, rules_of, write
from tests.process.browsing import Json, Viewer, ask
from tests.process.page_process import PageProcess
from tests.process.serving import Serving

pytestmark = pytest.mark.process

HOUR = 3_600_000_000
NOON = 1_357_732_800_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """An authority without a page."""
    one = Serving(tmp_path / "data")
    one.http = "off"
    with one:
        yield one


def report(address: str, name: str, at: int, **options: Any) -> None:
    """Somebody is done with everything before a time."""
    with lowwater.connect(address, timeout=PATIENCE, **options) as lw:
        lw.register(name)
        lease = lw.worker(name, name="exec-7").claim()
        lease.advance(None, oldest=None, frontier=at)
        lease.flush(30)


def snapshot(page: PageProcess, token: str = "") -> Json:
    """The newest state."""
    answer = ask(page.page, "api/snapshot", headers={"Authorization": f"Bearer {token}"} if token else {})
    assert answer.status == 200, answer.body
    return answer.json


def lows(found: Json) -> dict[str, int | None]:
    """The low watermarks that are times."""
    return {each["name"]: each["low"]["micros"] for each in found["computations"]}


def test_it_shows_what_is_published_and_answers_questions(server: Serving, tmp_path: Path) -> None:
    report(server.address, "flights", NOON)
    with PageProcess(tmp_path, server.address) as page, Viewer(page.page) as viewer:
        viewer.until(lambda seen: seen.low("flights") == NOON)
        report(server.address, "flights", NOON + HOUR)
        viewer.until(lambda seen: seen.low("flights") == NOON + HOUR)
        found = snapshot(page)
        assert (found["shards"], found["away"]) == ([], None)
        assert 0 <= found["stale_for"] < 30
        for question in ("ranges", "history", "why", "recent"):
            assert ask(page.page, f"api/{question}", computation="flights").status == 200
        assert ask(page.page, "api/why", computation="nobody").status == 404
        assert ask(page.page, "").status == ask(page.page, "static/app.js").status == 200
        assert ask(page.page, "metrics").status == 404, "these are the authority's"
        assert ask(page.page, "session").json == {"required": False, "name": None}
        assert page.stop() == 0


def test_it_says_since_when_the_authority_is_away_and_shows_on_what_it_knows(server: Serving, tmp_path: Path) -> None:
    report(server.address, "flights", NOON)
    with PageProcess(tmp_path, server.address) as page, Viewer(page.page) as viewer:
        viewer.until(lambda seen: seen.low("flights") == NOON)
        server.kill()

        def told(seen: Viewer) -> Json | None:
            away: Json | None = json.loads(seen.events[-1].data)["away"]
            return away

        viewer.until(lambda seen: told(seen) is not None, 60)
        first = told(viewer)
        assert first is not None
        assert server.address in first["sentence"]
        assert lows(snapshot(page)) == {"flights": NOON}
        eventually(lambda: snapshot(page)["stale_for"] > 8)
        again = snapshot(page)["away"]
        assert again["since_micros"] == first["since_micros"], "it is away since then"
        assert ask(page.page, "healthz").json.keys() == {"status", "stale_for"}, "which tells nobody where it is"
        server.start()
        report(server.address, "flights", NOON + HOUR)
        viewer.until(lambda seen: seen.low("flights") == NOON + HOUR and told(seen) is None, 60)
        assert viewer.ends == 0, "nobody had to connect again"
        assert {kind for kind, _ in viewer.lows["flights"]} == {1}


def test_it_begins_without_an_authority_and_says_so(server: Serving, tmp_path: Path) -> None:
    server.kill()
    with PageProcess(tmp_path, server.address) as page:
        assert ask(page.page, "").status == ask(page.page, "healthz").status == 200
        refused = ask(page.page, "api/snapshot")
        assert refused.status == 503, "nobody can tell who may look"
        assert server.address in refused.json["error"]
        server.start()
        report(server.address, "flights", NOON)
        eventually(lambda: ask(page.page, "api/snapshot").status == 200)
        eventually(lambda: lows(snapshot(page)) == {"flights": NOON})


def test_the_authority_says_who_may_look_and_nobody_new_is_let_in_while_it_is_away(tmp_path: Path) -> None:
    tokens, path = Tokens(), tmp_path / "access.toml"

    def rules(*names: str) -> str:
        everything = [("*", {"read": ["*"], "report": ["*"]})]
        people = [rules_of(name, tokens[name], (), "page = true") for name in names]
        return "".join([rules_of("board", tokens["board"], everything), *people, rules_of("etl", tokens["etl"], ())])

    path.write_text(rules("oncall", "guest"))
    server = Serving(tmp_path / "data", "--access", str(path))
    server.http, server.constants = "off", SOON
    with server, PageProcess(tmp_path, server.address, token=tokens["board"]) as page:
        report(server.address, "flights", NOON, token=tokens["board"])

        def status(name: str = "") -> int:
            given = {"Authorization": f"Bearer {tokens[name]}"} if name else {}
            return ask(page.page, "api/snapshot", headers=given).status

        assert [status(), status("nobody"), status("etl"), status("board")] == [401, 401, 403, 403]
        eventually(lambda: lows(snapshot(page, tokens["oncall"])) == {"flights": NOON})
        assert status("guest") == 200
        json_type = {"Content-Type": "application/json"}
        body = json.dumps({"token": tokens["oncall"]}).encode()
        signed_in = ask(page.page, "session", "POST", json_type, body=body)
        assert signed_in.status == 204
        cookie = {"Cookie": str(signed_in.headers["Set-Cookie"]).partition(";")[0]}
        assert ask(page.page, "session", headers=cookie).json == {"required": True, "name": "oncall"}
        write(path, rules("oncall"))
        eventually(lambda: status("guest") == 401)
        assert ask(page.page, "api/snapshot", headers=cookie).status == 200, "a neighbour's removal is his own"
        server.kill()
        assert status("late") == 503
        assert ask(page.page, "session", "POST", json_type, body=json.dumps({"token": "x" * 43}).encode()).status == 503
        eventually(lambda: ask(page.page, "api/snapshot", headers=cookie).json["stale_for"] > 8)
        assert ask(page.page, "session", "DELETE", headers=cookie).status == 204
        for secret in tokens.values():
            assert secret not in page.log


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--listen", "7422"], "page"),
        (["--tls-cert", "/nowhere.pem"], "--tls-key"),
        (["--ca", "/nowhere.pem"], "nowhere"),
    ],
)
def test_what_it_cannot_serve_with_it_says_and_ends(flags: list[str], says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lowwater_authority.web", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
