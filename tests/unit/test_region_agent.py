"""What a region's agent keeps and what it makes of it: the parts that need no process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowwater import Watermark, WatermarkView, errors
from lowwater.v1 import regions_pb2 as pb
from lowwater_authority.regions import questions
from lowwater_authority.regions.agent import PipelineReport, RegionAgent, _goes_on
from lowwater_authority.regions.config import BadConfig, Kept, StateFolder, read_config
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
    ("record", "number", "goes_on"),
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
def test_an_own_computation_goes_on_only_if_nobody_else_can_have_owned_it(
    record: tuple[str, object] | None, number: int, goes_on: bool
) -> None:
    before = None if record is None else json.dumps({"owner": record[0], "number": record[1]})
    assert _goes_on(before, view(number), "A") is goes_on


def test_a_file_is_read_and_its_defaults_are_those_of_the_documentation(tmp_path: Path) -> None:
    path = tmp_path / "region.toml"
    path.write_text(GOOD)
    [kept] = read_config(path, "A")
    assert (kept.name, kept.regions, kept.low, kept.policy) == (
        "hourly:clicks+views",
        ("A", "B"),
        "hourly",
        "replicated",
    )


@pytest.mark.parametrize(
    ("change", "said"),
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
def test_a_file_that_makes_no_sense_says_what_to_change(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "region.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(BadConfig, match=said):
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
    """A local authority."""

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
        self.asked: list[tuple[str, Any]] = []
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
            self.asked.append((method, request))
            if self.away:
                raise Failed
            return pb.RegionResponse(store_token="token", references=self.views.values())

        return call

    def reported(self) -> Any:
        """The last report."""
        return [request for method, request in self.asked if method == "Report"][-1]


class World:
    """An agent of region A between the two."""

    def __init__(self, folder: Path) -> None:
        self.local, self.center = Local(), Center()
        self.now = 0.0
        self.folder = StateFolder(folder, 0)
        kept = [Kept(name, ("clicks",), ("A", "B"), "A", low=name, replicated="mirror") for name in ("hourly", "daily")]
        self.agent = RegionAgent(
            "A",
            kept,
            self.folder,
            self.local,  # type: ignore[arg-type]
            self.center,
            where="global",
            metadata=tuple,
            monotonic=lambda: self.now,
        )

    def reason(self, name: str = "hourly:clicks") -> str:
        """Why there is no number."""
        try:
            self.agent.owned(name)
        except errors.LowwaterError as error:
            return error.reason
        return ""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """It owns both references by their first number."""
    made = World(tmp_path)
    for name in ("hourly", "daily"):
        made.center.own(name, 1)
    yield made
    made.folder.close()


async def test_a_fresh_number_is_asked_of_the_global_authority(world: World) -> None:
    """A region that wakes up goes by what it was told before; a sink that cannot fence would let it fence its successor."""
    await world.agent.once()
    assert (await world.agent.asked("hourly:clicks")).number == 1
    world.center.own("hourly", 2, owner="B")
    assert world.agent.owned("hourly:clicks").number == 1
    with pytest.raises(
        errors.StaleAdoption, match=r"region B owns hourly:clicks, by the adoption number 2, and region A does not"
    ):
        await world.agent.asked("hourly:clicks")
    world.agent.linked = False
    assert (await world.agent.asked("daily:clicks")).number == 1
    assert world.center.asked[-1][0] == "Confirm"
    world.center.away = True
    with pytest.raises(errors.Unavailable):
        await world.agent.asked("daily:clicks")
    world.center.away = False
    await world.agent.once()
    assert world.center.asked[-1][0] == "Confirm", "a request had no answer"


async def test_a_record_that_cannot_be_read_keeps_no_other_reference_from_being_confirmed(world: World) -> None:
    world.folder.state.records = {"hourly:clicks": '{"number": "x"}', "daily:clicks": '{"owner": "A", "number": 1}'}
    await world.agent.once()
    method, request = world.center.asked[0]
    assert (method, dict(request.numbers)) == ("Confirm", {"daily:clicks": 1})
    assert world.reason("daily:clicks") == world.reason() == ""
    assert world.local.views["hourly"].incarnation == 2, "nobody knows who had it, so it begins anew"


async def test_what_was_read_before_the_own_computation_was_reset_is_not_reported(world: World) -> None:
    """It stems from a time when the region went on without knowing that it had been replaced."""
    await world.agent.once()
    world.center.own("hourly", 2, owner="B")
    await world.agent.once()
    read = world.local.get

    async def get(*names: str) -> dict[str, WatermarkView]:
        found = await read(*names)
        # Between the read and the report another request is answered: the region is the owner again.
        world.center.own("hourly", 3)
        raising.append(asyncio.create_task(world.agent.raised("daily:clicks", 1, "lake", "")))
        for _ in range(100):
            await asyncio.sleep(0)
        return found

    raising: list[asyncio.Task[None]] = []
    world.local.get = get  # type: ignore[method-assign]
    await world.agent.once()
    await raising[0]
    assert {each.reference for each in world.center.reported().progress} == {"daily:clicks"}
    world.local.get = read  # type: ignore[method-assign]
    await world.agent.once()
    told = {each.reference: (each.number, each.life) for each in world.center.reported().progress}
    assert told["hourly:clicks"] == (3, 2)


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
    told = [request.replica for method, request in world.center.asked if method == "Arrive"]
    assert {each.reference: each.number for each in told} == {"hourly:clicks": 2, "daily:clicks": 2}


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
    assert [each.reference for each in world.center.reported().progress] == ["daily:clicks"]


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
    assert "Stop" not in [method for method, _ in world.center.asked]


@pytest.mark.parametrize(
    "body",
    [
        {"number": 1 << 70},
        {"number": -1},
        {"batch": 1 << 70},
        {"batch": float("inf")},
        {"digest": "\ud800"},
        {"digest": "x" * 2000},
        {"positions": [["c", "t", 1 << 40, 0]]},
        {"positions": [["c", "t", 0]]},
        {"positions": [["c", "t", 0, 0]] * 1001},
        {"reference": None},
        [],
    ],
)
async def test_what_a_pipeline_says_is_refused_where_it_would_end_every_report(body: Any) -> None:
    async def read() -> Any:
        return body if isinstance(body, list) else {"reference": "hourly:clicks", "number": 1, **body}

    with pytest.raises(errors.InvalidArgument, match="is malformed"):
        await questions._report_in(SimpleNamespace(json=read))  # type: ignore[arg-type]
