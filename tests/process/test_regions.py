"""Two regions and a global authority as real processes: kill -9 of each, a region that comes back, and a planned move."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater import errors
from lowwater.cli import main
from lowwater.v1 import regions_pb2 as pb
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.regions import HOURLY, Operator, Process, Sink, Site

BASE = 1_356_998_400_000_000
"""2013-01-01T00:00Z."""


class World:
    def __init__(self, folder: Path, *flags: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.center = Process(
            folder / "global",
            *("global", "--data", str(folder / "global" / "data"), "--listen", self.address, "--http", "off"),
            *("--log-format", "json", *flags),
        )
        self.center.start()
        self.operator = Operator(self.address)
        self.a, self.b = (Site(name, folder, self.address) for name in "AB")
        self.sink = Sink(folder / "sink.sqlite")
        self.readers = [Reader(site) for site in (self.a, self.b)]
        for site in (self.a, self.b):
            site.agent.start()

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()
        for site in (self.a, self.b):
            site.close()
        self.operator.close()
        if self.center.process is not None:
            self.center.kill()


class Reader:
    """A local pipeline that follows the global name, from before it is there."""

    def __init__(self, site: Site) -> None:
        self.shown: list[tuple[int, int]] = []
        self._lw = lowwater.connect(site.authority.address)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for view in self._lw.watch("global/hourly"):
            self.shown.append((view.incarnation, view.low.micros))

    def stop(self) -> None:
        self._lw.close()
        self._thread.join(60)
        assert self.shown == sorted(self.shown), "it went back"


def ready(world_: World) -> World:
    world_.a.adoption()
    eventually(lambda: world_.b.refusal() == "STALE_ADOPTION", seen=world_.b.agent.log)
    return world_


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A owns hourly, and both regions are confirmed. However slow the machine is, nobody becomes suspect."""
    world_ = World(tmp_path, "--suspect-after", "1h")
    try:
        yield ready(world_)
    finally:
        world_.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[World]:
    """The same; a region that was killed is suspect soon, and so may be one that is slow."""
    world_ = World(tmp_path, "--suspect-after", "2s", "--adopt-again-after", "0s")
    try:
        yield ready(world_)
    finally:
        world_.close()


def test_a_region_is_lost_taken_over_and_comes_back(hasty: World) -> None:
    world = hasty
    a, b, sink = world.a, world.b, world.sink
    assert a.work(sink, BASE + 10)
    b.mirror_to(BASE + 5)
    for site in (a, b):
        eventually(lambda site=site: site.published() == BASE + 5, seen=site.agent.log)  # type: ignore[misc]

    # The agent is killed; the pipeline is paused with the number that it has.
    paused = a.token.read()
    a.agent.kill()
    assert a.refusal() == "UNAVAILABLE"
    with pytest.raises(errors.RegionRefused, match=r"none of its regions"):
        world.operator.decide(pb.DECISION_ADOPT, "C")
    world.operator.adopt("B")
    assert b.adoption().number == 2
    assert b.work(sink, BASE + 20)
    assert not sink.write(paused.number, a.batch + 1, BASE + 11), "the paused pipeline has written"
    assert world.operator.reference().sinks[0].fenced == 2

    # It comes back, and stands by.
    a.agent.start()
    eventually(lambda: a.refusal() == "STALE_ADOPTION", seen=a.agent.log)
    a.mirror_to(BASE + 20)
    view = world.operator.reference()
    assert (view.owner, view.number, list(view.holds_for)) == ("B", 2, ["A"])
    eventually(lambda: world.operator.reference().low_micros == BASE + 20)
    assert world.operator.reference().published_micros == BASE + 5

    # What only A had is given up.
    world.operator.decide(pb.DECISION_WRITE_OFF)
    for site in (a, b):
        eventually(lambda site=site: site.published() == BASE + 20, seen=site.agent.log)  # type: ignore[misc]
    view = world.operator.reference()
    assert (view.accepted_micros, view.written_off) == (BASE + 5, True)
    assert "what survived" in view.complete_of
    assert [batch[:2] for batch in sink.batches()] == [(1, 0), (2, 0)]


def test_second_processes_and_requests_that_make_no_sense_are_refused(world: World, tmp_path: Path) -> None:
    free = f"127.0.0.1:{free_port()}"
    agent = [free if argument == world.a.listen else argument for argument in world.a.arguments]
    center = ["global", "--data", str(tmp_path / "global" / "data"), "--listen", "127.0.0.1:0"]
    for name, arguments, says in (
        ("second", [*agent, "--state", str(tmp_path / "second-state")], "another agent speaks for region A"),
        ("third", [*agent, "--state", str(tmp_path / "A" / "state")], "another agent uses"),
        ("center", center, "is in use by"),
    ):
        process = Process(tmp_path / name, *arguments)
        process.begin()
        assert process.wait() == 2
        assert says in process.log()
    caller = pb.RegionCaller(region="C", agent="a", nonce="n", turn=1)
    bad: list[tuple[str, Any, str]] = [
        ("Confirm", pb.ConfirmRequest(caller=pb.RegionCaller(agent="a", nonce="n")), "caller.region"),
        ("Report", pb.RegionReportRequest(caller=pb.RegionCaller(region="C")), "caller.agent"),
        ("Decide", pb.DecideRequest(reference=HOURLY), "decision"),
        ("Decide", pb.DecideRequest(reference=HOURLY, decision=pb.DECISION_ADOPT, who="automatic"), "who"),
        ("Recover", pb.RecoverRequest(), "regions"),
        ("RegisterReference", pb.RegisterReferenceRequest(caller=caller, computation="no name"), "computation"),
    ]
    for method, request, field in bad:
        with pytest.raises(errors.InvalidArgument) as refused:
            world.operator.ask(method, request)
        assert refused.value.metadata["field"] == field
    wrong = pb.DecideRequest(reference=HOURLY, decision=pb.DECISION_LOCAL, store_token="other")
    with pytest.raises(errors.ServerTokenMismatch):
        world.operator.ask("Decide", wrong)
    assert world.a.adoption().number == 1


def test_operators_see_and_decide_by_commands(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*words: str) -> tuple[int, str]:
        code = main(["references", *words, "--global", world.address])
        output = capsys.readouterr()
        return code, output.out + output.err

    world.b.mirror_to(BASE + 10)
    assert world.a.work(world.sink, BASE + 10)
    eventually(lambda: world.b.published() == BASE + 10, seen=world.b.agent.log)
    code, text = command("list")
    assert code == 0
    assert re.search(r"hourly:clicks +A +1 +2013-01-01T00:00:00.000010Z", text), text
    code, text = command("adopt", HOURLY, "--to", "B", "--yes")
    assert code == 2
    assert "its owner A is alive; move it, which loses nothing" in text
    code, text = command("write-off", HOURLY)
    assert code == 2
    assert "Pass --yes" in text
    assert command("automatic", HOURLY, "--on")[0] == 0
    assert command("policy", HOURLY, "local")[0] == 0
    code, text = command("show", HOURLY, "--json")
    record = json.loads(text)["references"][0]
    assert (record["automatic"], record["policy"], record["published_micros"]) == (True, "local", BASE + 10)
    code, text = command("automatic", "other:clicks", "--on")
    assert code == 2
    assert "it has no sink" in text
    assert command("move", HOURLY, "--to", "B")[0] == 0
    assert "moving to B: wanted" in command("show", HOURLY)[1]
    assert command("cancel-move", HOURLY)[0] == 0
    code, text = command("show", "gone:clicks")
    assert code == 2
    assert "there is no reference" in text
