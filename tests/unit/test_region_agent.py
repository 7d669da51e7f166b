"""A region's agent keeps its state and acts on it: the parts that need no process."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import stat
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from lowwater import Watermark, WatermarkView, errors
from lowwater.core.attempts import error_of_call
from lowwater.core.events import ATTRIBUTE
from lowwater.regions import Token
from lowwater.v1 import regions_pb2 as pb
from lowwater.v1 import regions_pb2_grpc
from lowwater_authority.access.policy import Access, Action, Allowance, Principal
from lowwater_authority.engine.observer import Observer
from lowwater_authority.rpc.guard import Guard
from lowwater_regions import questions, region
from lowwater_regions.agent import PipelineReport, RegionAgent, goes_on
from lowwater_regions.change import Change, Unread
from lowwater_regions.config import BadConfig, ReferenceConfig, StateFolder, read_config
from lowwater_regions.figures import FIGURES, ReferenceFigures
from lowwater_regions.questions import Pipelines, Questions
from lowwater_regions.reference import LOCAL, SERVING, STOPPED_STORE, Reference
from lowwater_regions.references import Agent, References, Session
from lowwater_regions.registry import Registry
from lowwater_regions.servicer import RegionServicer
from lowwater_server.audit import Audit
from lowwater_server.http import HttpServer
from lowwater_server.sockets import listen, listen_at
from lowwater_server.tokens import digest
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.served import served
from tests.kit.times import SECOND
from tests.unit.test_client_routing import Failed

GOOD = """
[[reference]]
computation = "hourly"
inputs = ["views", "clicks"]
regions = ["B", "A"]
home = "A"
replicated = "mirror"
"""


def view(number: int) -> pb.ReferenceView:
    return pb.ReferenceView(name="hourly:clicks", owner="A", number=number)


@pytest.mark.parametrize(
    ("record", "number", "expected"),
    [
        (None, 1, True),  # it was registered just now
        (None, 2, False),  # nobody knows what was before
        (("A", 3), 3, True),
        (("A", 3), 4, True),  # a recovery, or a release that was not claimed
        (("A", 3), 5, False),  # another owner, and the way back
        (("B", 3), 4, False),
        (("A", 3), 1030, False),
        (("A", "3"), 3, False),  # it cannot be read
    ],
)
def test_a_computation_goes_on_if_always_own(record: tuple[str, object] | None, number: int, expected: bool) -> None:
    before = None if record is None else json.dumps({"owner": record[0], "number": record[1]})
    assert goes_on(before, view(number), "A") is expected


def test_a_file_is_read_and_its_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "region.toml"
    path.write_text(GOOD)
    [one] = read_config(path, "A")
    assert (one.name, one.regions, one.low, one.policy) == ("hourly:clicks+views", ("A", "B"), "hourly", "replicated")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (('replicated = "mirror"', ""), "is replicated: say with replicated"),
        (('["B", "A"]', '["B", "C"]'), "may not be owned by A"),
        (('home = "A"', 'home = "A"\nhoem = "A"'), "hoem"),
        (('home = "A"', 'home = "A"\nlow = "no name"'), "'no name' is no name of a local computation"),
        (('home = "A"', 'home = "A"\nsinks = [{name = "lake", fences = "no"}]'), "fences of a sink"),
        (("[[reference]]", GOOD + "[[reference]]"), "is the reference of two tables"),
        (("[[reference]]", GOOD.replace("views", "others") + "[[reference]]"), "hourly is the low of two tables"),
        (("[[reference]]", "[[reference"), "region.toml"),
    ],
)
def test_a_file_that_makes_no_sense_says_what_to_change(tmp_path: Path, change: tuple[str, str], text: str) -> None:
    path = tmp_path / "region.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(BadConfig, match=text):
        read_config(path, "A")


def test_a_folder_serves_one_agent_at_a_time_and_counts_its_runs(tmp_path: Path) -> None:
    first = StateFolder(tmp_path, 100)
    with pytest.raises(BadConfig, match="another agent uses"):
        StateFolder(tmp_path, 100)
    first.state.records["hourly:clicks"] = '{"number": 1}'
    first.state.store = "token"
    first.save()
    first.close()
    second = StateFolder(tmp_path, 50)  # the clock went back
    assert second.state.run == first.state.run + 1
    assert (second.state.agent, second.state.store, second.state.records) == (
        first.state.agent,
        "token",
        {"hourly:clicks": '{"number": 1}'},
    )
    second.close()
    for damaged in ("{", '{"records": {"hourly:clicks": "{}"}}', '{"records": {"hourly:clicks": 3}}'):
        (tmp_path / "state.json").write_text(damaged)
        with pytest.raises(BadConfig, match="is damaged"):
            StateFolder(tmp_path, 100)


class Local:
    def __init__(self) -> None:
        self.views = {
            name: WatermarkView(name, registered=True, incarnation=1, low=Watermark(50))
            for name in ("hourly", "daily", "mirror")
        }
        self.denied = ""

    async def get(self, *names: str) -> dict[str, WatermarkView]:
        if self.denied in names:
            raise errors.PermissionDenied("not for this token")
        return {name: self.views[name] for name in names}

    async def reset(self, name: str) -> None:
        life = self.views[name].incarnation + 1
        self.views[name] = WatermarkView(name, registered=True, incarnation=life)


class Center:
    """A global authority that says what it is told to say, and keeps what it was asked."""

    def __init__(self) -> None:
        self.views: dict[str, pb.ReferenceView] = {}
        self.requests: list[tuple[str, Any]] = []
        self.away = False

    def own(self, name: str, number: int, owner: str = "A", moving_to: str = "", step: str = "") -> None:
        record = json.dumps({"owner": owner, "number": number})
        self.views[f"{name}:clicks"] = pb.ReferenceView(
            name=f"{name}:clicks", owner=owner, number=number, record=record, moving_to=moving_to, move_step=step
        )

    def __getattr__(self, method: str) -> Any:
        if not method[0].isupper():
            raise AttributeError(method)

        async def call(request: Any, **_: Any) -> pb.RegionResponse:
            self.requests.append((method, request))
            if self.away:
                raise Failed
            return pb.RegionResponse(store_token="token", references=self.views.values())

        return call

    def reported(self) -> Any:
        return [request for method, request in self.requests if method == "Report"][-1]


class World:
    """An agent of region A between the two."""

    def __init__(self, folder: Path) -> None:
        self.local, self.center = Local(), Center()
        self.now = 0.0
        self.folder = StateFolder(folder, 0)
        entries = [
            ReferenceConfig(name, ("clicks",), ("A", "B"), "A", low=name, replicated="mirror")
            for name in ("hourly", "daily")
        ]
        self.agent = RegionAgent(
            "A",
            entries,
            self.folder,
            self.local,  # type: ignore[arg-type]
            self.center,
            where="global",
            metadata=tuple,
            monotonic=lambda: self.now,
        )

    def reason(self, name: str = "hourly:clicks") -> str:
        try:
            self.agent.owned(name)
        except errors.LowwaterError as error:
            return error.reason
        return ""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which the agent owns both references by their first number."""
    world_ = World(tmp_path)
    for name in ("hourly", "daily"):
        world_.center.own(name, 1)
    yield world_
    world_.folder.close()


async def test_a_fresh_number_is_asked_of_the_global_authority(world: World) -> None:
    """A region that wakes up goes by what it was told before; a sink that cannot fence would let it fence its successor."""
    await world.agent.once()
    assert (await world.agent.confirm_owned("hourly:clicks")).number == 1
    world.center.own("hourly", 2, owner="B")
    assert world.agent.owned("hourly:clicks").number == 1
    with pytest.raises(errors.StaleAdoption, match=r"B owns hourly:clicks, by the adoption number 2, and"):
        await world.agent.confirm_owned("hourly:clicks")
    world.agent.linked = False
    assert (await world.agent.confirm_owned("daily:clicks")).number == 1
    assert world.center.requests[-1][0] == "Confirm"
    world.center.away = True
    with pytest.raises(errors.Unavailable):
        await world.agent.confirm_owned("daily:clicks")
    world.center.away = False
    await world.agent.once()
    assert world.center.requests[-1][0] == "Confirm", "a request had no answer"


async def test_a_record_that_cannot_be_read_keeps_no_other_reference_from_being_confirmed(world: World) -> None:
    world.folder.state.records = {"hourly:clicks": '{"number": "x"}', "daily:clicks": '{"owner": "A", "number": 1}'}
    await world.agent.once()
    method, request = world.center.requests[0]
    assert (method, dict(request.numbers)) == ("Confirm", {"daily:clicks": 1})
    assert world.reason("daily:clicks") == world.reason() == ""
    assert world.local.views["hourly"].incarnation == 2, "nobody knows who had it, so it begins anew"


async def test_what_was_read_before_the_own_computation_was_reset_is_not_reported(world: World) -> None:
    """The value stems from a time when the region went on without knowing that it had been replaced."""
    await world.agent.once()
    world.center.own("hourly", 2, owner="B")
    await world.agent.once()
    read = world.local.get

    async def get(*names: str) -> dict[str, WatermarkView]:
        views = await read(*names)
        # Between the read and the report another request is answered: the region is the owner again.
        world.center.own("hourly", 3)
        raising.append(asyncio.create_task(world.agent.raised("daily:clicks", 1, "lake", "")))
        for _ in range(100):
            await asyncio.sleep(0)
        return views

    raising: list[asyncio.Task[None]] = []
    world.local.get = get  # type: ignore[method-assign]
    await world.agent.once()
    await raising[0]
    assert {progress.reference for progress in world.center.reported().progress} == {"daily:clicks"}
    world.local.get = read  # type: ignore[method-assign]
    await world.agent.once()
    states = {progress.reference: (progress.number, progress.life) for progress in world.center.reported().progress}
    assert states["hourly:clicks"] == (3, 2)


async def test_rule9_what_was_read_under_one_owner_does_not_arrive_under_the_next_one(world: World) -> None:
    """The next owner may have begun anew: rows of the last one would count as its rows."""
    arrival, call = PipelineReport(batch=7, digest="d"), world.center.Arrive

    async def arrive(request: Any, **more: Any) -> Any:
        # While one reference arrives, the pipeline tells that the other one has, under the owner that it has by now.
        world.agent.arrived("daily:clicks", arrival)
        return await call(request, **more)

    world.center.Arrive = arrive  # type: ignore[attr-defined]
    world.center.own("hourly", 2, "B", "A", "stopped")
    world.center.own("daily", 2, "B")
    await world.agent.once()
    world.agent.arrived("hourly:clicks", arrival)
    world.center.own("daily", 3, "B", "A", "stopped")
    await world.agent.once()
    replicas = [request.replica for method, request in world.center.requests if method == "Arrive"]
    assert {replica.reference: replica.number for replica in replicas} == {"hourly:clicks": 2, "daily:clicks": 2}


async def test_a_planned_move_goes_step_by_step(world: World) -> None:
    """Out of the region for hourly, into it for daily."""
    position = pb.SourcePosition(topic="views", offset=3)
    world.center.own("daily", 2, "B")
    await world.agent.once()
    world.agent.committed("hourly:clicks", PipelineReport(number=1, stopped=True))
    world.agent.arrived("daily:clicks", PipelineReport(batch=7, digest="d", positions=[position]))
    calls: list[tuple[str, Any]] = []
    for out, into in (("wanted", "stopped"), ("stopped", "released"), ("arrived", "")):
        world.center.own("hourly", 1, "A", "B", out)
        world.center.own("daily", 2, "B", "A" * bool(into), into)
        world.center.requests.clear()
        await world.agent.once()
        calls += [request for request in world.center.requests if request[0] != "Report"]
        assert world.reason() == "REGION_REFUSED", "it commits nothing more"
    world.agent.pipeline_reports.clear()
    assert world.reason() == "REGION_REFUSED", "nor does it when the agent was started anew"
    stop, arrive, claim, release = (request for _, request in calls)
    assert [method for method, _ in calls] == ["Stop", "Arrive", "ClaimReference", "ReleaseReference"]
    assert (stop.progress.reference, release.reference) == ("hourly:clicks", "hourly:clicks")
    assert (arrive.batch, arrive.digest, list(arrive.replica.positions)) == (7, "d", [position])
    assert (claim.batch, claim.digest, list(claim.positions)) == (7, "d", [position])


async def test_rule4_a_region_commits_by_no_number_but_the_one_that_it_owns_and_is_ready_for(world: World) -> None:
    await world.agent.once()
    world.center.own("hourly", 1, "A", "B", "released")
    await world.agent.once()
    assert world.reason() == "STALE_ADOPTION"
    with pytest.raises(errors.StaleAdoption, match="owned by number 1, not 2"):
        world.agent.committed("daily:clicks", PipelineReport(number=2))
    world.center.away = True
    await world.agent.once()
    assert world.reason("daily:clicks") == "", "it goes on by the number that it has"
    world.center.away = False

    async def fail(*_: Any, **__: Any) -> None:
        raise errors.Unavailable("not now")

    world.local.reset = fail  # type: ignore[method-assign]
    world.center.own("daily", 5)
    await world.agent.once()
    assert world.reason("daily:clicks") == "UNCONFIRMED", "its computation is not reset yet"


async def test_the_first_of_two_agents_hands_out_nothing_more(world: World) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise errors.SecondAgent("another agent speaks for region A")

    await world.agent.once()
    assert world.reason() == ""
    world.center.Report = refuse  # type: ignore[attr-defined]
    with pytest.raises(errors.SecondAgent):
        await world.agent.once()
    assert world.reason() == "UNCONFIRMED"


async def test_an_estimate_is_not_reported(world: World) -> None:
    await world.agent.once()
    world.center.own("daily", 2, owner="B")
    await world.agent.once()
    for name in ("hourly", "mirror"):
        world.local.views[name] = WatermarkView(name, registered=True, incarnation=1, low=Watermark(99), estimated=True)
    await world.agent.once()
    assert not world.center.reported().progress
    assert not world.center.reported().replicas


async def test_rule9_an_older_incarnation_is_not_relayed(world: World) -> None:
    world.agent.watermarks = [pb.GlobalWatermark(computation="hourly", incarnation=2, published_micros=7)]
    world.folder.state.relayed["global/hourly"] = 3
    await world.agent._relay()
    assert "older than 3" in world.agent.refusals["global/hourly"]


async def test_a_computation_that_may_not_be_read_keeps_no_other_from_being_reported(world: World) -> None:
    await world.agent.once()
    world.local.denied = "hourly"
    await world.agent.once()
    assert [progress.reference for progress in world.center.reported().progress] == ["daily:clicks"]


async def test_a_pipeline_that_has_stopped_gets_no_number_before_the_move_is_cancelled(world: World) -> None:
    world.center.own("hourly", 1, moving_to="B", step="wanted")
    await world.agent.once()
    stopped = PipelineReport(1, 7, "d", [], stopped=True)
    for _ in range(2):
        world.agent.committed("hourly:clicks", stopped)  # may be said again
    assert world.reason() == "REGION_REFUSED"
    with pytest.raises(errors.RegionRefused):
        world.agent.committed("hourly:clicks", PipelineReport(1, 8, "e"))
    world.center.own("hourly", 1)  # cancelled
    await world.agent.once()
    assert world.reason() == ""
    world.center.own("hourly", 1, moving_to="B", step="wanted")  # and begun anew: nobody has stopped for this one
    await world.agent.once()
    await world.agent.once()
    assert world.reason() == ""
    assert "Stop" not in [method for method, _ in world.center.requests]


@pytest.mark.parametrize(
    "body",
    [
        {"number": 1 << 70},
        {"batch": float("inf")},
        {"digest": "\ud800"},
        {"positions": [["c", "t", 1 << 40, 0]]},
        {"positions": [["c", "t", 0, 0]] * 1001},
        [],
    ],
)
async def test_what_a_pipeline_says_is_refused_where_it_would_end_every_report(body: Any) -> None:
    async def read() -> Any:
        return body if isinstance(body, list) else {"reference": "hourly:clicks", "number": 1, **body}

    with pytest.raises(errors.InvalidArgument, match="is malformed"):
        await questions.report_in(SimpleNamespace(json=read))  # type: ignore[arg-type]


HOURLY = "hourly:clicks"
TOKEN = "t" * 32
JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"reference": HOURLY, "number": 1, "batch": 999}).encode()


class Asked:
    """The agent: what was said to it."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, Any]] = []
        self.stale = 0.0
        self.linked = True
        self.idle_seconds = 0.0

    def status(self) -> dict[str, Any]:
        return {"store": "secret"}

    def owned(self, reference: str) -> pb.ReferenceView:
        return pb.ReferenceView(name=reference, number=1, batch=-1)

    def committed(self, reference: str, commit: Any) -> None:
        if commit.number != 1:
            raise errors.StaleAdoption("it is owned by number 1")
        self.commits.append((reference, commit.batch))


@asynccontextmanager
async def answering(*tokens: str, path: str = "") -> AsyncIterator[tuple[Asked, str]]:
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


async def answer_of(at: str, headers: dict[str, str], body: bytes | None = None, path: str = "/") -> tuple[int, bytes]:

    def ask() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(at, timeout=60)
        try:
            connection.request("POST" if body else "GET", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def status_of(place: str, headers: dict[str, str], body: bytes | None = BODY) -> int:
    return (await answer_of(place, headers, body, "/committed" if body else "/"))[0]


async def test_an_agent_that_hangs_is_not_healthy() -> None:
    """The server answers in a thread of its own, so only the agent's age tells."""
    async with answering(TOKEN) as (agent, place):
        for idle, status, says in ((60.0, 200, b'"idle_seconds": 60.0'), (62.0, 503, b"for 62 s: it hangs")):
            agent.idle_seconds = idle
            answer, body = await answer_of(place, {}, path="/healthz")
            assert (answer, says in body) == (status, True), body


def say(token: Token, batch: int) -> None:
    token.committed(token.read(), batch, "d", ())


async def test_a_page_in_a_browser_says_nothing_to_the_agent() -> None:
    """A stranger's page can send this without asking: no token is needed on this machine, and all of it is refused."""
    async with answering() as (agent, place):
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
        assert agent.commits == []
        await asyncio.to_thread(say, Token(HOURLY, place), 5)
        assert agent.commits == [(HOURLY, 5)]


async def test_with_a_token_nobody_else_is_answered() -> None:
    async with answering(TOKEN, "o" * 32) as (agent, place):
        for wrong in ("", "w" * 32):
            with pytest.raises(errors.Unauthenticated, match="LOWWATER_REGION_TOKEN"):
                await asyncio.to_thread(Token(HOURLY, place, token=wrong).read)
        assert await status_of(place, {}, None) == 401
        assert await status_of(place, {**JSON, "Authorization": f"Bearer {TOKEN}", "Origin": "https://evil.org"}) == 403
        for batch, right in enumerate((f"{TOKEN}\n", f"{'o' * 32},\n{TOKEN}")):
            await asyncio.to_thread(say, Token(HOURLY, place, token=right), batch)
        assert [batch for _, batch in agent.commits] == [0, 1]
        assert await status_of(place, {**JSON, "Authorization": f"Bearer {TOKEN}", "Host": "region.svc"}) == 200


async def test_the_token_of_agent_and_pipeline_is_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv(region.TOKENS, "w" * 32)
    monkeypatch.setenv(f"{region.TOKENS}_FILE", str(file))
    with pytest.raises(FileNotFoundError):
        Token(HOURLY)
    file.write_text(f"{TOKEN},\n{'o' * 32}\n")
    door = region.open_door(SimpleNamespace(listen="127.0.0.1:0", tls_cert=None, tls_key=None))  # type: ignore[arg-type]
    door.listening.close()
    assert door.tokens == (TOKEN, "o" * 32)
    async with answering(*door.tokens) as (agent, place):
        token = Token(HOURLY, place)
        await asyncio.to_thread(say, token, 1)
        file.write_text("w" * 32)
        with pytest.raises(errors.Unauthenticated):
            await asyncio.to_thread(say, token, 2)
        assert agent.commits == [(HOURLY, 1)]


async def test_a_unix_socket_is_for_its_own_user(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    async with answering(path=str(path)) as (agent, place):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await asyncio.to_thread(say, Token(HOURLY, place), 7)
        assert agent.commits == [(HOURLY, 7)]
        with pytest.raises(OSError, match="in use"):
            listen_at(str(path))
    async with answering(path=str(path)) as (_, place):  # what the last one left behind
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
def test_no_agent_starts_open_to_others(tokens: str, place: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


SALES = "sales/hourly:clicks"


def principal(name: str, *regions: str, allow: tuple[Allowance, ...] = ()) -> Principal:
    return Principal(name, allow, regions=regions, digests=(digest(name),))


ACCESS = Access(
    [
        principal("eu", "eu"),
        principal("both", "eu", "us"),
        principal("sandbox", allow=(Allowance("sandbox", {Action.REPORT: ("only-this",)}),)),
        principal("ops", allow=(Allowance("*", {Action.OPERATE: ("*",), Action.READ: ("*",)}),)),
    ]
)


class Callers:
    """Calls by a token, with turns of their own."""

    def __init__(self, stub: Any, registry: Registry) -> None:
        self.stub = stub
        self.registry = registry
        self._turn = 0

    async def ask(self, who: str, method: str, request: Any, region: str = "", **more: Any) -> Any:
        if region:
            self._turn += 1
            token = self.registry.references.store.token
            request.caller.CopyFrom(
                pb.RegionCaller(
                    region=region, agent=region, run=1, nonce="n", turn=self._turn, store_token=token, **more
                )
            )
        try:
            return await getattr(self.stub, method)(request, metadata=(("authorization", f"Bearer {who}"),))
        except grpc.RpcError as failure:
            raise error_of_call(failure, "here") from None

    async def register(self, who: str, region: str = "", inputs: str = "clicks", *regions: str) -> Any:
        request = pb.RegisterReferenceRequest(
            computation="sales/hourly", inputs=[inputs], regions=regions or ("eu", "us"), home="eu", policy="local"
        )
        return await self.ask(who, "RegisterReference", request, region)


@asynccontextmanager
async def serving(disk: MemoryDisk) -> AsyncIterator[Callers]:
    registry = Registry(
        MemoryJournal(disk, shared=True),
        clock=lambda: 1,
        monotonic=lambda: 1,
        token=lambda: "store",
        suspect_after=10 * SECOND,
        lately=0,
    )
    await registry.open()
    guard = Guard(ACCESS, observer=Observer(), audit=Audit(lambda: 0.0), insiders=[], monotonic=lambda: 0.0)
    add = partial(regions_pb2_grpc.add_RegionServiceServicer_to_server, RegionServicer(registry))
    async with served(add, interceptors=[guard]) as address, grpc.aio.insecure_channel(address) as channel:
        yield Callers(regions_pb2_grpc.RegionServiceStub(channel), registry)
    await registry.close()


async def test_a_token_speaks_only_for_the_regions_it_names(disk: MemoryDisk) -> None:
    [service] = pb.DESCRIPTOR.services_by_name.values()
    calls = [method for method in service.methods if "caller" in method.input_type.fields_by_name]
    async with serving(disk) as center:
        await center.register("ops")
        before = center.registry.position
        for who, region in (("sandbox", "eu"), ("sandbox", "nowhere"), ("eu", "us"), ("ops", "eu")):
            for method in calls:
                request = getattr(pb, method.input_type.name)()
                # Who speaks for no region at all is refused before the request is read.
                with pytest.raises(
                    errors.PermissionDenied, match=f"does not speak for region '{region}'|speaks for no region"
                ):
                    await center.ask(who, method.name, request, region, seen=10**12)
        assert (center.registry.position, center.registry.references.store.state) == (before, SERVING)
        answer = await center.ask("eu", "Confirm", pb.ConfirmRequest(), "eu")
        assert [reference.name for reference in answer.references] == [SALES]


async def test_a_new_reference_takes_all_regions_that_it_concerns_or_an_operator(disk: MemoryDisk) -> None:
    async with serving(disk) as center:
        with pytest.raises(errors.PermissionDenied, match="region 'us'"):
            await center.register("eu", "eu")
        for who in ("eu", "sandbox"):
            with pytest.raises(errors.PermissionDenied, match="operate"):
                await center.register(who)
        await center.register("both", "eu")
        await center.register("eu", "eu")  # as it is: every agent says so at its start
        with pytest.raises(errors.PermissionDenied, match="region 'us'"):
            await center.register(
                "eu", "eu", "views", "eu"
            )  # the least of both is the global watermark of the computation
        assert list(center.registry.references.references) == [SALES]
        await center.register("ops", "", "views")


async def test_calls_of_regions_stand_in_the_audit_log(disk: MemoryDisk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lowwater_authority.audit")
    async with serving(disk) as center:
        await center.register("ops")
        await center.ask("eu", "Confirm", pb.ConfirmRequest(), "eu")
        with pytest.raises(errors.RegionRefused):
            await center.ask("eu", "Stop", pb.StopRequest(progress=pb.ReferenceProgress(reference=SALES)), "eu")
        with pytest.raises(errors.PermissionDenied):
            await center.ask("sandbox", "Report", pb.RegionReportRequest(), "eu")
        early = pb.ReferenceProgress(reference="none:clicks", batch=-1)
        [single] = (await center.ask("eu", "Report", pb.RegionReportRequest(progress=[early]), "eu")).refused
        refusals = {("Stop", errors.RegionRefused.reason): 1, ("Report", single.reason): 1}
        assert center.registry.refused == refusals, "whole calls, and a single reference of a report that is taken"
        decision = pb.DecideRequest(reference=SALES, decision=pb.DECISION_ALLOW_AUTOMATIC, who="the CFO")
        with pytest.raises(errors.RegionRefused):
            await center.ask("ops", "Decide", decision)
        await center.ask("ops", "Recover", pb.RecoverRequest(regions=["eu", "us"]))
    lines_told = [getattr(record, ATTRIBUTE) for record in caplog.records if record.name == "lowwater_authority.audit"]
    [decided] = [item for item in (getattr(line, ATTRIBUTE) for line in caplog.records) if item["event"] == "decision"]
    assert (decided["decision"], decided["reference"], decided["principal"]) == ("allow_automatic", SALES, "ops")
    lines = [(line["principal"], line["act"], line.get("computation", ""), line["outcome"]) for line in lines_told]
    assert lines == [
        ("ops", "register_reference", SALES, "done"),
        ("eu", "confirm", "eu", "done"),
        ("eu", "stop", SALES, "failed"),
        ("sandbox", "Report", "", "refused"),
        ("ops", "allow_automatic", SALES, "failed"),
        ("ops", "recover", "eu,us", "done"),
    ]


def test_a_scrape_tells_who_is_silent_and_what_is_published() -> None:
    now, date = 100 * SECOND, 5000 * SECOND
    core = References(10 * SECOND, 0, 0)
    reference = Reference("hourly", ("clicks",), ("A", "B", "C"), LOCAL, "A", number=7, published=3 * SECOND)
    unread = {"daily:clicks": Unread("no record", b"")}
    core.apply(Change((reference, Reference("weekly", ("clicks",), ("A", "B"), LOCAL, "A")), unread=unread).encode())
    core.sessions = {
        region: Session(Agent("agent", 1, "nonce"), now - silent * SECOND) for region, silent in (("A", 30), ("B", 2))
    }
    metrics = CollectorRegistry()
    refused = Counter({("Report", "STALE_ADOPTION"): 2})
    registry = SimpleNamespace(references=core, monotonic=lambda: now, clock=lambda: date, refused=refused)
    metrics.register(ReferenceFigures(registry))  # type: ignore[arg-type]

    def value(name: str, **labels: str) -> float | None:
        return metrics.get_sample_value(name, labels)

    owned = {"reference": "hourly:clicks", "region": "A"}
    assert value("lowwater_reference_published_timestamp_seconds", **owned) == 3
    assert value("lowwater_reference_published_timestamp_seconds", reference="weekly:clicks", region="A") is None
    assert value("lowwater_reference_adoption_number", **owned) == 7
    assert value("lowwater_reference_suspect", **owned) == 1
    heard_at = [value("lowwater_region_heard_timestamp_seconds", region=region) for region in "ABC"]
    assert heard_at == [4970, 4998, None]
    assert [value("lowwater_region_suspect", region=region) for region in "ABC"] == [1, 0, 1]
    assert (value("lowwater_damaged_references"), value("lowwater_global_serving")) == (1, 1)
    assert value("lowwater_region_refusals_total", method="Report", reason="STALE_ADOPTION") == 2
    core.apply(Change(store=core.store._replace(state=STOPPED_STORE)).encode())
    assert value("lowwater_global_serving") == 0
    families = {family.name: family for family in metrics.collect()}
    assert {name: (family.type, family.documentation) for name, family in families.items()} == {
        figure.name.removesuffix("_total"): (figure.kind, figure.says) for figure in FIGURES
    }
