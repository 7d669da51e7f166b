"""The status page as a process of its own: a client like any other, which says when the authority is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater.core.events import ATTRIBUTE
from lowwater_authority.page_child import PageChild
from tests.kit.eventually import eventually, eventually_async
from tests.kit.ports import free_port
from tests.kit.program import is_running
from tests.process.accessing import PATIENCE, SOON, Tokens, rules_of, write
from tests.process.browsing import Json, Viewer, ask
from tests.process.conftest import Refused
from tests.process.page_process import PageProcess
from tests.process.serving import Serving

pytestmark = pytest.mark.process

HOUR = 3_600_000_000
NOON = 1_357_732_800_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
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
    answer = ask(page.page, "api/snapshot", headers={"Authorization": f"Bearer {token}"} if token else {})
    assert answer.status == 200, answer.body
    return answer.json


def lows(view: Json) -> dict[str, int | None]:
    return {computation["name"]: computation["low"]["micros"] for computation in view["computations"]}


def test_it_shows_what_is_published_and_answers_questions(server: Serving, tmp_path: Path) -> None:
    report(server.address, "flights", NOON)
    with PageProcess(tmp_path, server.address, "--page-host=lowwater.example.org") as page, Viewer(page.page) as viewer:
        viewer.until(lambda shown: shown.low("flights") == NOON)
        report(server.address, "flights", NOON + HOUR)
        viewer.until(lambda shown: shown.low("flights") == NOON + HOUR)
        view = snapshot(page)
        assert (view["shards"], view["away"]) == ([], None)
        assert 0 <= view["stale_for"] < 30
        for question in ("ranges", "history", "why", "recent"):
            assert ask(page.page, f"api/{question}", computation="flights").status == 200
        assert ask(page.page, "api/why", computation="nobody").status == 404
        assert ask(page.page, "").status == ask(page.page, "static/app.js").status == 200
        assert ask(page.page, "metrics").status == 404, "these are the authority's"
        assert ask(page.page, "", headers={"Host": "lowwater.example.org"}).status == 200
        assert ask(page.page, "session").json == {"required": False, "name": None}
        assert page.stop() == 0


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
            headers = {"Authorization": f"Bearer {tokens[name]}"} if name else {}
            return ask(page.page, "api/snapshot", headers=headers).status

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
        stale = ask(page.page, "api/snapshot", headers=cookie).json["stale_for"]
        eventually(lambda: ask(page.page, "api/snapshot", headers=cookie).json["stale_for"] > stale)
        assert ask(page.page, "session", "DELETE", headers=cookie).status == 204
        for secret in tokens.values():
            assert secret not in page.log


class Beside(Serving):
    """An authority that starts a page beside itself."""

    def __init__(self, folder: Path, *flags: str) -> None:
        super().__init__(folder / "data", "--log-format", "json", *flags, page="127.0.0.1:0")
        self.http = "off"


def test_an_authority_serves_a_page_beside_itself_which_ends_with_it(tmp_path: Path) -> None:
    with Beside(tmp_path) as server:
        report(server.address, "flights", NOON)
        with Viewer(server.page) as viewer:
            viewer.until(lambda shown: shown.low("flights") == NOON)
        first = server.page_pid()
        assert server.stop() == 0
        assert not is_running(first)
        assert server.events("page_ended") == []
        server.start()
        eventually(lambda: server.page_pid() != first)
        second = server.page_pid()
        eventually(lambda: ask(server.page, "healthz").status == 200)
        server.kill()
        eventually(lambda: not is_running(second))


def test_a_page_that_dies_is_begun_anew_at_its_place_and_nobody_else_hears_of_it(tmp_path: Path) -> None:
    with Beside(tmp_path) as server, lowwater.connect(server.address) as lw:
        lw.register("flights")
        lease = lw.worker("flights").claim()
        dead = server.page_pid()
        os.kill(dead, signal.SIGKILL)
        lease.advance(None, oldest=None, frontier=NOON)
        lease.flush(30)
        eventually(lambda: server.page_pid() != dead)
        # The socket listens all the time: who comes meanwhile waits for the next one.
        assert ask(server.page, "api/snapshot").json["away"] is None
        eventually(lambda: lows(ask(server.page, "api/snapshot").json) == {"flights": NOON})
        endings = [(event["reason"], event["again_seconds"]) for event in server.events("page_ended")]
        assert endings == [("signal 9", 1.0)]


async def test_a_page_that_ends_again_and_again_is_begun_anew_each_time_later(caplog: pytest.LogCaptureFixture) -> None:
    def waits() -> list[float]:
        lines = [vars(record).get(ATTRIBUTE, {}) for record in caplog.records]
        return [line["again_seconds"] for line in lines if line["event"] == "page_ended"]

    listening = socket.create_server(("127.0.0.1", 0))
    child = PageChild(listening, ["--nonsense"], os.environ, encrypted=False, again_seconds=(0.001, 30.0))
    running = asyncio.create_task(child.run())
    await eventually_async(lambda: len(waits()) >= 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert waits()[:3] == [0.001, 0.002, 0.004]


def test_a_page_that_does_not_end_keeps_no_journal_open(tmp_path: Path) -> None:
    server = Beside(tmp_path)
    server.constants = {"page_child:END_SECONDS": 3600.0}
    with server:
        page = server.page_pid()
        os.kill(page, signal.SIGSTOP)
        try:
            server.signal(signal.SIGTERM)
            eventually(lambda: server.events("stopped"))
            assert is_running(page)
        finally:
            os.kill(page, signal.SIGKILL)
        assert server.wait() == 0


class Elsewhere(Beside):
    """One whose working folder has a file that is called as a module that the page imports."""

    def program(self) -> list[str]:
        folder = self.data.parent / "work"
        folder.mkdir()
        (folder / "aiohttp.py").write_text("raise SystemExit(9)")
        code = f"import os, sys; os.chdir({str(folder)!r}); from lowwater_authority.serve import main; sys.exit(main(sys.argv[1:]))"
        return [sys.executable, "-P", "-c", code]


def test_what_lies_in_the_working_folder_is_not_run(tmp_path: Path) -> None:
    with Elsewhere(tmp_path) as server:
        first = server.page_pid()
        eventually(lambda: ask(server.page, "healthz").status == 200)
        assert (server.page_pid(), server.events("page_ended")) == (first, [])


def test_the_page_beside_an_authority_asks_it_who_may_look_and_has_none_of_its_secrets(tmp_path: Path) -> None:
    tokens, path = Tokens(), tmp_path / "access.toml"
    path.write_text(
        rules_of("etl", tokens["etl"], [("*", {"report": ["*"]})])
        + rules_of("oncall", tokens["oncall"], (), "page = true")
    )
    with Beside(tmp_path, "--access", str(path)) as server:
        report(server.address, "flights", NOON, token=tokens["etl"])
        headers = {"Authorization": f"Bearer {tokens['oncall']}"}
        eventually(lambda: ask(server.page, "api/snapshot", headers=headers).status == 200)
        eventually(lambda: lows(ask(server.page, "api/snapshot", headers=headers).json) == {"flights": NOON})
        assert ask(server.page, "api/snapshot").status == 401
        assert ask(server.page, "api/snapshot", headers={"Authorization": f"Bearer {tokens['etl']}"}).status == 403
        command = Path(f"/proc/{server.page_pid()}/cmdline").read_bytes()
        assert not any(token.encode() in command for token in tokens.values())
        variables = Path(f"/proc/{server.page_pid()}/environ").read_bytes().split(b"\0")
        assert {item.partition(b"=")[0] for item in variables if item.startswith(b"LOWWATER_")} == {b"LOWWATER_TOKEN"}


class ByDefault(Serving):
    """An authority that is not told anything about a page."""

    def flags_of_page(self) -> list[str]:
        return []

    def warned(self) -> list[Json]:
        lines = [json.loads(line) for line in (self.data.parent / "serve.log").read_text().splitlines()]
        return [line for line in lines if line["event"] == "page_absent"]


def port_of(url: str) -> int:
    return int(url.rstrip("/").removesuffix("/metrics").rpartition(":")[2])


def neighbours() -> tuple[int, int]:
    """Two ports behind each other that are free, below those that the system gives to connections."""
    for _ in range(100):
        first = free_port()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", first + 1)):
            return first, first + 1
    raise AssertionError("there are no two free ports behind each other")


def test_the_page_comes_by_itself_at_the_port_after_http_and_keeps_no_authority_from_serving(tmp_path: Path) -> None:
    first, second = neighbours()
    server = ByDefault(tmp_path / "data")
    server.http = f"127.0.0.1:{first}"
    with socket.create_server(("127.0.0.1", second)), server:
        assert server.page == "off"
        report(server.address, "flights", NOON)
        [line] = server.warned()
        assert f"127.0.0.1:{second}" in line["reason"]
        assert ask(server.endpoint, "metrics").status == 200
        assert server.stop() == 0
    with server:
        assert (port_of(server.metrics), port_of(server.page)) == (first, second)
        eventually(lambda: ask(server.page, "healthz").status == 200)
        assert ask(server.endpoint, "api/snapshot").status == 404


@pytest.mark.parametrize("flag", ["--http", "--page"])
def test_a_place_that_cannot_be_is_refused_with_the_flag(flag: str, tmp_path: Path, refused_start: Refused) -> None:
    error = refused_start("--data", str(tmp_path / "data"), "--page", "off", flag, "127.0.0.1:65536")
    assert f"{flag} takes HOST:PORT" in error
    assert "not '127.0.0.1:65536'" in error
