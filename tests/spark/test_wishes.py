"""The driver of a stage follows the layouts that are wanted of it, over a real authority and without Spark: its batches are said to have run."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

import lowwater
from lowwater import Layout, RangeLoad, errors
from lowwater.cli import main
from lowwater_spark.checkpoint.log import Plan
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.rows.cut import EQUAL, Cut
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.rows.ranges import KEY_HASH
from lowwater_spark.track.run import stage_run as stage_runs
from lowwater_spark.track.run.authority import REPLACED, Authority, Registration
from lowwater_spark.track.run.batch import Outcome
from lowwater_spark.track.run.progress import AfterBatch
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.state.store import RangeEntry, StageSection, StateStore, StateVersion
from lowwater_spark.track.state.update import build_version
from tests.kit.times import MAX
from tests.process.serving import Serving
from tests.spark.support import make_version

HALVES = Layout(0, (0, 0x8000))


def registration(name: str) -> Registration:
    return Registration(name, (), (), 2, "here", 0, 1, b"", adopt=False)


def test_a_stage_on_what_is_cut_is_refused_with_what_to_do(lw: lowwater.Client) -> None:
    lw.register("cut", slices=[b"\x40", b"\x80"])
    with pytest.raises(lowwater.RegistrationConflict, match="registered in 3 slices, and a stage commits") as refused:
        Authority(lw, registration("cut")).enter(lambda _: None, lambda: pytest.fail("nothing is claimed"), None)  # type: ignore[arg-type]
    assert "another name" in refused.value.metadata["fix"]
    assert isinstance(refused.value, REPLACED), "it ends the query"


class Gate(lowwater.Client):
    meets: Callable[[Callable[[], object]], object] = staticmethod(lambda _claim: None)
    """Gets the claim; None: it is made."""
    bound: Sequence[int] = ()
    """The starts of the last claim's ranges."""

    def worker(self, *named: Any, **options: Any) -> Any:
        return Gated(super().worker(*named, **options), self)


class Gated:
    def __init__(self, worker: lowwater.Worker, gate: Gate) -> None:
        self.worker, self.gate = worker, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def claim(self, **options: Any) -> lowwater.Lease:
        if options["instead_of"]:
            self.gate.bound = options["bound"]
            self.gate.meets(lambda: self.worker.claim(**options))
        return self.worker.claim(**options)


class Owner:
    def __init__(
        self, lw: lowwater.Client, folder: Path, layout: Layout = EQUAL, ranges: int = 2, **options: Any
    ) -> None:
        wish = dataclasses.replace(registration("one"), ranges=ranges)
        keyed = Keyed("key", "t", ranges, injector=True, layout=layout, **options)
        self.authority = Authority(lw, wish)
        self.authority.cut = keyed.cut
        self.part = StageRun(self.authority, keyed, folder)
        self.part.section = StageSection(Manifest(folder), folder)
        self.part.open([], AfterBatch())
        self.number = 0
        self.claim()

    def claim(self) -> None:
        self.authority.problem = ""
        assert self.part.claim(None, threading.RLock())

    def batch(self, holds: Sequence[int] = (), **outcome: Any) -> Layout:
        number, self.number = self.number, self.number + 1
        self.part.follow_wanted(number, "aa")
        self.values = self.part.progress.values(Reading(5))
        layout, after = self.part.keyed.layout, AfterBatch(number, reading=Reading(5), held=holds)
        holding = self.authority.prepare(number, "aa", [], Reading(5), 5, covers_all=False)
        self.part.record(self.part.commit(Outcome(after, holding, **outcome)))
        return layout


@pytest.fixture
def owners(lw: lowwater.Client, tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as closing:

        def make(layout: Layout = EQUAL, client: lowwater.Client = lw, **options: Any) -> Owner:
            owner = Owner(client, tmp_path, layout, **options)
            closing.callback(owner.authority.close)
            return owner

        yield make


def hot(layout: Layout) -> tuple[RangeLoad, ...]:
    spans = zip(layout.starts, layout.ends, strict=True)
    return tuple(RangeLoad(start, end, 160, 0 if start else 1_000_000, 0, (10,) * 16, 1) for start, end in spans)


def test_one_version_that_stands_for_two_layouts_changes_no_range_and_is_told_with_the_fix(
    lw: lowwater.Client, owners: Any, authority: Serving, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    """The authority's journal was restored from a copy: there version 1 is another layout than the stage has followed."""
    lw.register("one", heuristics=(), key_hash=KEY_HASH)
    assert lw.change_layout("one", 1, Layout(0, (0, 0x4000))) == 1
    mine = Layout(1, (0, 0x2000, 0x6000))
    owner = owners(mine, balance=True)
    for _ in range(6):
        assert owner.batch(loads=hot(mine), tasks=2, workers=2) == mine
    layouts = lw.layout("one")
    assert (layouts.current, layouts.wanted) == (mine, Layout(1, (0, 0x4000))), "nobody overrules it unsaid"
    assert "restored from an older copy" in layouts.refused
    assert main(["hot", "one", "--address", authority.address]) == 0
    assert "Request a layout again, with lowwater split, merge or move" in capsys.readouterr().out
    assert len([message for message in caplog.messages if "is not followed" in message]) == 1

    assert main(["split", "one", "0x4000", "--at", "0x8000", "--address", authority.address]) == 0
    owner.batch()
    assert owner.batch() == Layout(2, (0, 0x4000, 0x8000))
    owner.batch()
    layouts = lw.layout("one")
    assert (layouts.current, layouts.refused) == (layouts.wanted, "")


def test_the_version_of_a_dropped_life_stops_neither_the_balancer_nor_a_claim(lw: lowwater.Client, owners: Any) -> None:
    lw.register("one", heuristics=(), key_hash=KEY_HASH)
    lw.change_layout("one", 1, Layout(0, (0, 0x4000)))
    lw.drop("one", force=True)
    owner = owners(balance=True)
    assert lw.layout("one").wanted == Layout(1), "its version alone is left"
    for _ in range(4):
        assert owner.batch(loads=hot(HALVES), tasks=2, workers=2) == EQUAL
    layout = lw.layout("one").wanted
    assert layout == Layout(2, (0, 0x4000, 0x8000)), "the hot range is cut at its median"
    owner.batch(loads=hot(HALVES), tasks=2, workers=2)
    assert owner.batch() == layout


def test_no_range_moves_to_an_absent_task(lw: lowwater.Client, owners: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = owners()
    owner.batch(partitions=4)
    lw.change_layout("one", 1, HALVES.move(0x8000, 5))
    for _ in range(3):
        assert owner.batch(partitions=4) == EQUAL
    refused = lw.layout("one").refused
    assert refused.startswith("the range that starts at 0x8000 is pinned to task 5, and a batch has 4 at most: ")
    assert "spark.sql.shuffle.partitions" in refused
    lw.change_layout("one", 1, Layout(1, (0, 0x8000), (0, 4)))
    owner.batch(partitions=4)
    assert owner.batch(partitions=4) == Layout(2, (0, 0x8000), (0, 4))

    monkeypatch.setattr(stage_runs, "can_pin", lambda: False)
    lw.change_layout("one", 1, Layout(2, (0, 0x8000), (0, 9)))
    owner.batch(partitions=4)
    assert owner.batch(partitions=4).version == 3, "Spark's hash decides then, whatever is said"


@pytest.fixture
def gate(lw: lowwater.Client) -> Iterator[Gate]:
    with Gate(lw.settings) as gate_:
        yield gate_


@pytest.mark.parametrize("granted", [False, True])
def test_rule11_an_unanswered_claim_cuts_nothing(lw: lowwater.Client, owners: Any, gate: Gate, granted: bool) -> None:
    def lost(claim: Callable[[], object]) -> None:
        if granted:
            claim()
        raise errors.Unavailable("nobody answers")

    owner = owners(client=gate)
    owner.batch()
    lw.change_layout("one", 1, HALVES.split(0, [0x2000]))
    owner.batch()
    gate.meets = lost
    assert owner.batch() == EQUAL
    assert owner.authority.lease is None, "it may be fenced by now"
    gate.meets = lambda _claim: None
    owner.claim()
    assert sorted(entry.start for entry in lw.ranges("one")) == HALVES.bounds[:-1]
    owner.batch()
    layout = lw.layout("one").wanted
    assert owner.batch() == layout == Layout(1, (0, 0x2000, 0x8000))
    assert sorted(entry.start for entry in lw.ranges("one")) == layout.bounds[:-1]


def test_rule1_united_ranges_are_claimed_from_the_least_of_them(lw: lowwater.Client, owners: Any, gate: Gate) -> None:
    owner = owners(client=gate)
    owner.batch()
    for version, starts, before, bound in (
        (0, (0, 0x4000, 0x8000), (2, 4), [2, 2, 4]),
        (1, (0, 0x4000), (3, 2, 4), [3, 2]),
    ):
        lw.change_layout("one", 1, Layout(version, starts))
        owner.batch(before)
        owner.batch(bound)
        assert (gate.bound, owner.values) == (bound, bound), "and stand there until the batch is committed"


def test_a_refused_layout_changes_nothing_and_is_asked_for_once(lw: lowwater.Client, owners: Any, gate: Gate) -> None:
    reasons: list[str] = []
    owner = owners(client=gate)
    owner.batch()
    for version, kind in enumerate((errors.TooFarAhead, errors.PermissionDenied, errors.Overloaded), 1):

        def refuse(_claim: Callable[[], object], kind: type[errors.LowwaterError] = kind) -> None:
            reasons.append(kind.reason)
            raise kind(f"not {kind.reason}")

        gate.meets = refuse
        lw.change_layout("one", 1, Layout(version - 1, (0, 0x8000 >> version, 0x8000)))
        for _ in range(4):
            assert owner.batch() == EQUAL
            if owner.authority.lease is None:
                owner.claim()
        assert len(reasons) == version
        assert lw.layout("one").refused == f"not {kind.reason}"
    gate.meets = lambda _claim: None
    lw.change_layout("one", 1, Layout(3, (0, 0x800, 0x8000)))
    owner.batch()
    assert owner.batch() == Layout(4, (0, 0x800, 0x8000))


def stage(folder: Path, name: str, layout: Layout) -> tuple[StageRun, StateStore]:
    place = StageSection(Manifest(folder), folder)
    place.manifest.take_over()
    store = StateStore.opened(place, folder / "state", 2, 4, ordinal=1)
    make_version(
        store, 4, "aa", lambda _: StateVersion(4, "aa", 0, [RangeEntry(oldest=7)] * len(Cut(2, layout)), layout=layout)
    )
    with lowwater.connect("127.0.0.1:1") as nobody:
        part = StageRun(Authority(nobody, registration(name)), Keyed("key", "t", 2, injector=True), folder)
    part.section = place
    return part, store


def entry(layout: Layout, batch: int = 4) -> BatchFacts:
    return BatchFacts(batch, "aa", Reading(5), 5, {".": layout} if layout.version else {})


@pytest.mark.parametrize(
    ("old", "logged"),
    [(Layout(5, (0, 9)), Layout(5, (0, 8))), (Layout(5, (0, 9)), EQUAL), (EQUAL, Layout(5, (0, 9)))],
)
def test_a_state_of_another_layout_than_was_logged_starts_nothing(tmp_path: Path, old: Layout, logged: Layout) -> None:
    part, _ = stage(tmp_path, "one", old)
    with pytest.raises(CheckpointMismatch, match="Restore the checkpoint as a whole"):
        part.durable(Plan(4, [], "aa", 0), entry(logged), MAX, ())


def built(store: StateStore, cut: Cut, logged: dict[int, Layout], batch: int = 5) -> Any:
    nothing: Any = None
    keyed = Keyed((), "", cut.ranges, injector=False, layout=cut.layout)
    facts = BatchFacts(batch, "aa", Reading(0), 0)
    return build_version(
        store, nothing, nothing, StructType(), keyed=keyed, facts=facts, destination=nothing, logged=logged.get
    )


@pytest.mark.parametrize("logged", [None, EQUAL, Layout(5, (0, 8)), Layout(4, (0, 9))])
def test_a_state_is_not_cut_that_the_log_has_otherwise(tmp_path: Path, logged: Layout | None) -> None:
    _, store = stage(tmp_path, "one", Layout(5, (0, 9)))
    with pytest.raises(CheckpointMismatch, match=r"4 of the state in .* has version 5 of a layout, with 2 key ranges"):
        built(store, Cut(2, Layout(6, (0, 7))), {} if logged is None else {4: logged})
