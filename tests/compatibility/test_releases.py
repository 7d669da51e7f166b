"""Each earlier version and this one talk to each other, replace each other, and read each other's journal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lowwater
from lowwater import Layout, RangeLoad, Watermark
from lowwater.watermark import MIN
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.run.authority import Authority, Registration
from tests.compatibility.environments import Environment
from tests.compatibility.running import Installed, Lows, Running, never_back, run
from tests.process.serving import Serving

CLIENTS = ("sync", "aio")
NAMESPACE = "n"


def lows(server: Serving) -> dict[str, int]:
    with lowwater.connect(server.address, namespace=NAMESPACE) as lw:
        return {name: view.low.micros for name, view in lw.get("flights", "enriched", "hourly").items()}


def last(saw: Lows) -> dict[str, int]:
    return {name: values[-1] for name, values in saw.items()}


def test_the_old_client_works_with_the_new_server(old: Environment, current: Serving) -> None:
    version = old.versions()["lowwater"]
    run(old.python, "sync", current.address, f"old-client-{version}")
    with lowwater.connect(current.address, namespace=f"old-client-{version}") as lw:
        assert [moment.through for moment in lw.history("enriched")][-1].finished


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_new_client_works_with_the_old_server(previous: Serving, kind: str) -> None:
    run(sys.executable, kind, previous.address, f"new-{kind}-client")


def test_the_first_release_refuses_what_it_does_not_know(first: Serving) -> None:
    with lowwater.connect(first.address, namespace="refused") as lw:
        lw.register("flights")
        with pytest.raises(lowwater.LowwaterError) as refused:
            lw.history("flights")
    assert refused.value.reason == "UNIMPLEMENTED"
    assert first.address in str(refused.value)


def test_the_first_release_says_that_it_knows_no_layouts_and_a_stage_keeps_its_ranges(first: Serving) -> None:
    with lowwater.connect(first.address, namespace="laid-out") as lw:
        stage = Authority(lw, Registration("stage", (), (), 2, "checkpoint", 0, 1, b"", adopt=False))
        with contextlib.closing(stage):
            stage.register()
            stage.claim([MIN, MIN])
            for batch in range(3):
                assert stage.prepare(batch, "aa", [], Reading(5), 5, covers_all=False) == ""
                assert stage.commit(batch, "", [RangeLoad(0, 0x8000, 9, 9, 9)]) == ""
                assert (stage.wanted, stage.problem) == (None, "")
            assert len(lw.ranges("stage")) == 2
            requests: list[Callable[[], object]] = [
                lambda: lw.layout("stage"),
                lambda: lw.change_layout("stage", 1, Layout(0, (0, 0x4000))),
            ]
            for ask in requests:
                with pytest.raises(lowwater.LowwaterError, match="it is older than this client") as refused:
                    ask()
                assert refused.value.reason == "UNIMPLEMENTED"
            assert not stage.propose(Layout(0, (0, 0x4000))), "nor does the balancer stop anything"
            assert stage.problem == ""
            assert stage.commit(2, "") == ""


def test_the_old_client_owns_what_it_claimed_whatever_layout_is_wanted(old: Environment, current: Serving) -> None:
    namespace = f"old-owner-{old.versions()['lowwater']}"
    with Running(old.python, "sync", current.address, namespace) as program:
        program.half()
        with lowwater.connect(current.address, namespace=namespace) as lw:
            for name in ("enriched", "hourly"):
                before = list(lw.ranges(name))
                assert lw.change_layout(name, 1, Layout(0, (0, 0x1000, 0x9000))) == 1
                assert [(key_range.start, key_range.watermark) for key_range in lw.ranges(name)] == [
                    (key_range.start, key_range.watermark) for key_range in before
                ]
                assert lw.layout(name).current is None, "it follows none"
        never_back(program.end())


def test_the_first_release_keeps_no_budget_and_nobody_takes_its_silence_for_one(first: Serving) -> None:
    """A plain client and a stage of Spark are told before anything is claimed."""
    with lowwater.connect(first.address, namespace="budgets") as lw:
        with pytest.raises(lowwater.InvalidArgument, match="upgrade the authority: this one has no lateness budgets"):
            lw.register("flights", lateness_budget=0.01)
        registration = Registration("stage", (), (), 2, "checkpoint", 0, 1, b"", adopt=False)
        with contextlib.closing(Authority(lw, replace(registration, lateness_budgets=(0.01,)))) as stage:
            with pytest.raises(lowwater.InvalidArgument, match="upgrade the authority"):
                stage.register()


@pytest.mark.parametrize("client", ["old sync", "new aio"])
def test_the_new_server_replaces_the_old_below_a_running_client(old: Environment, tmp_path: Path, client: str) -> None:
    age, kind = client.split()
    python = old.python if age == "old" else sys.executable
    with Installed(old, tmp_path / "data") as before, Running(python, kind, before.address, NAMESPACE) as program:
        half = program.half()
        before.kill()
        with Serving(tmp_path / "data", port=before.port) as after:
            assert lows(after) == last(half)
            saw = program.end()
            assert lows(after) == last(saw)
            with lowwater.connect(after.address, namespace=NAMESPACE) as lw:
                moments = list(lw.history("enriched"))
    never_back(saw)
    assert moments[0].after.unknown, "the old server's records tell when their steps became complete, too"
    assert [moment.through for moment in moments][-2:] == [
        Watermark.of(datetime(2013, 1, 9, 16, tzinfo=UTC)),
        Watermark.FINISHED,
    ]


def test_the_first_release_refuses_what_the_new_one_wrote(oldest: Environment, tmp_path: Path) -> None:
    """The first release would replay an added input without lowering the values beyond it. It refuses, and the new one goes on."""
    with Serving(tmp_path / "data") as new, Running(sys.executable, "sync", new.address, NAMESPACE) as program:
        half = program.half()
        new.kill()
        code, message = Installed(oldest, tmp_path / "data", port=new.port).refuse()
        assert code == 1
        assert "has format 2" in message
        assert "upgrade lowwater-authority" in message
        with Serving(tmp_path / "data", port=new.port) as again:
            assert lows(again) == last(half)
            never_back(program.end())
