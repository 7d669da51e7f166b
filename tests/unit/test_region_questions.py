"""Who may ask the agent of a region: the real server at a socket, asked by the real client and by what a browser would send."""

from __future__ import annotations

import asyncio
import http.client
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowwater import errors
from lowwater._server.http import HttpServer, listen, listen_at
from lowwater.regions import Token
from lowwater.v1 import regions_pb2 as pb
from lowwater_authority.regions import region
from lowwater_authority.regions.agent import RegionAgent
from lowwater_authority.regions.config import BadConfig
from lowwater_authority.regions.questions import Pipelines, Questions

HOURLY = "hourly:clicks"
TOKEN = "t" * 32
JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"reference": HOURLY, "number": 1, "batch": 999}).encode()


class Asked:
    """The agent: what was said to it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.stale = 0.0
        self.linked = True
        self.idle_seconds = 0.0

    def status(self) -> dict[str, Any]:
        return {"store": "secret"}

    def owned(self, reference: str) -> pb.ReferenceView:
        return pb.ReferenceView(name=reference, number=1, batch=-1)

    def committed(self, reference: str, told: Any) -> None:
        if told.number != 1:
            raise errors.StaleAdoption("it is owned by number 1")
        self.told.append((reference, told.batch))


@asynccontextmanager
async def asked(*tokens: str, path: str = "") -> AsyncIterator[tuple[Asked, str]]:
    agent = Asked()
    listening = listen_at(path) if path else listen("127.0.0.1", 0)
    place = f"unix:{path}" if path else f"127.0.0.1:{listening.getsockname()[1]}"
    visitors = Pipelines(tokens, monotonic=lambda: 0.0)
    server = HttpServer(listening, [Questions(agent)], visitors=visitors)  # type: ignore[arg-type]
    server.start()
    try:
        yield agent, place
    finally:
        await asyncio.to_thread(server.close)


async def answer_of(
    place: str, headers: dict[str, str], body: bytes | None = None, path: str = "/"
) -> tuple[int, bytes]:
    """Status and body of the answer to a raw request."""

    def ask() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(place, timeout=60)
        try:
            connection.request("POST" if body else "GET", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def status_of(place: str, headers: dict[str, str], body: bytes | None = BODY) -> int:
    """What a raw request is answered."""
    return (await answer_of(place, headers, body, "/committed" if body else "/"))[0]


async def test_an_agent_that_hangs_is_not_healthy() -> None:
    """The server answers in a thread of its own, so only the agent's age tells."""
    async with asked(TOKEN) as (agent, place):
        for idle, status, says in ((60.0, 200, b'"idle_seconds": 60.0'), (62.0, 503, b"for 62 s: it hangs")):
            agent.idle_seconds = idle
            answer, body = await answer_of(place, {}, path="/healthz")
            assert (answer, says in body) == (status, True), body


def say(token: Token, batch: int) -> None:
    token.committed(token.read(), batch, "d", ())


async def test_a_page_in_a_browser_says_nothing_to_the_agent() -> None:
    """What a page of a stranger can send without asking: no token is needed on this machine, and all of it is refused."""
    async with asked() as (agent, place):
        for headers in (
            {"Content-Type": "text/plain"},
            {**JSON, "Origin": "https://evil.example"},
            {**JSON, "Origin": f"http://{place}"},
            {**JSON, "Sec-Fetch-Site": "cross-site"},
            {**JSON, "Host": "evil.example"},
            {**JSON, "Host": f"evil.example:{place.rpartition(':')[2]}"},
        ):
            assert await status_of(place, headers) in {403, 415}
        assert await status_of(place, {"Host": "evil.example"}, None) == 403
        assert agent.told == []
        await asyncio.to_thread(say, Token(HOURLY, place), 5)
        assert agent.told == [(HOURLY, 5)]


async def test_with_a_token_nobody_else_is_answered() -> None:
    async with asked(TOKEN, "o" * 32) as (agent, place):
        for wrong in ("", "w" * 32):
            with pytest.raises(errors.Unauthenticated, match="LOWWATER_REGION_TOKEN"):
                await asyncio.to_thread(Token(HOURLY, place, token=wrong).read)
        assert await status_of(place, {}, None) == 401
        assert (
            await status_of(place, {**JSON, "Authorization": f"Bearer {TOKEN}", "Origin": "https://evil.example"})
            == 403
        )
        for batch, right in enumerate((f"{TOKEN}\n", f"{'o' * 32},\n{TOKEN}")):
            await asyncio.to_thread(say, Token(HOURLY, place, token=right), batch)
        assert [batch for _, batch in agent.told] == [0, 1]
        assert await status_of(place, {**JSON, "Authorization": f"Bearer {TOKEN}", "Host": "region.svc"}) == 200


async def test_the_token_of_agent_and_pipeline_stands_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv(region.TOKENS, "w" * 32)
    monkeypatch.setenv(f"{region.TOKENS}_FILE", str(file))
    with pytest.raises(FileNotFoundError):
        Token(HOURLY)
    file.write_text(f"{TOKEN},\n{'o' * 32}\n")
    door = region.open_door(SimpleNamespace(listen="127.0.0.1:0", tls_cert=None, tls_key=None))  # type: ignore[arg-type]
    door.listening.close()
    assert door.tokens == (TOKEN, "o" * 32)
    async with asked(*door.tokens) as (agent, place):
        token = Token(HOURLY, place)
        await asyncio.to_thread(say, token, 1)
        file.write_text("w" * 32)
        with pytest.raises(errors.Unauthenticated):
            await asyncio.to_thread(say, token, 2)
        assert agent.told == [(HOURLY, 1)]


async def test_a_unix_socket_is_for_its_own_user(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    async with asked(path=str(path)) as (agent, place):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await asyncio.to_thread(say, Token(HOURLY, place), 7)
        assert agent.told == [(HOURLY, 7)]
        with pytest.raises(OSError, match="in use"):
            listen_at(str(path))
    async with asked(path=str(path)) as (_, place):  # what the last one left behind
        assert await asyncio.to_thread(Token(HOURLY, place).status) == {"store": "secret"}
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match="no socket"):
        listen_at(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("tokens", "place", "what"),
    [
        ("", "0.0.0.0:0", "other machines can reach --listen 0.0.0.0:0"),
        ("short", "127.0.0.1:0", "less than 32 characters"),
        (f"{TOKEN},short", "0.0.0.0:0", "less than 32 characters"),
        (TOKEN, "7440", "takes HOST:PORT or unix:PATH"),
    ],
)
def test_the_agent_does_not_start_open_to_others(
    tokens: str, place: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(region.TOKENS, tokens)
    with pytest.raises(BadConfig, match=what):
        region.open_door(SimpleNamespace(listen=place, tls_cert=None, tls_key=None))  # type: ignore[arg-type]


def test_the_process_fails_when_pipelines_can_no_longer_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: HttpServer) -> None:
        raise OSError("no descriptor left")

    async def once(_: RegionAgent) -> None:
        """Report nothing."""

    monkeypatch.setattr(HttpServer, "_serve", fail)
    monkeypatch.setattr(RegionAgent, "once", once)
    monkeypatch.setattr(region, "set_up", lambda *_, **__: None)
    config = tmp_path / "region.toml"
    config.write_text(
        '[[reference]]\ncomputation = "hourly"\ninputs = ["clicks"]\nregions = ["eu"]\nhome = "eu"\npolicy = "local"\n'
    )
    here = ("--authority=127.0.0.1:9", "--global=127.0.0.1:9", "--listen=127.0.0.1:0", f"--state={tmp_path / 'state'}")
    assert region.main(["--name=eu", f"--config={config}", *here]) == 2, "0 would say that somebody asked for the stop"
