"""Key ranges that are split, merged and moved while a tracked stage runs: what comes out is the same, whatever dies; who cannot follow says why and goes on."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater import Layout, errors
from lowwater.cli import main
from lowwater_pipeline.computation import start
from lowwater_pipeline.dedup.stage import Deduplication
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.track.authority import Authority, Registration
from lowwater_spark.track.batch_log import BatchLog
from lowwater_spark.track.cut import Cut, layout_from_json
from lowwater_spark.track.part import Part
from tests.kit.times import MIN, at, mark, micros
from tests.spark.computations import Counts
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

NAMES = [f"{number}" for number in range(24)]


class Counted:
    """Hours counted by a computation, over files that are read one a batch."""

    def __init__(self, flow: Flow, lw: lowwater.Client) -> None:
        self.flow, self.lw = flow, lw
        self.sent: list[tuple[str, int]] = []
        self.checkpoint = flow.folder / "ck"
        self.probe: Callable[[str, int], None] = lambda *_: None

    def start(self, **options: Any) -> lws.TrackedQuery:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            for name, rows in outputs.items():
                batch.write(rows, self.flow.folder / name)

        query = start(
            Counts(),
            self.flow.read(maxFilesPerTrigger="1"),
            write,
            checkpoint=self.checkpoint,
            ranges=2,
            address=self.flow.address,
            probe=self._reached,
            **options,
        )
        self.flow.queries.append(query)
        return query

    def begins(self, upstream: Upstream, **options: Any) -> lws.TrackedQuery:
        """Start it, and have a batch with all keys."""
        upstream.at(9)
        query = self.start(**options)
        self.put(NAMES, 9)
        return query

    def ends(self, upstream: Upstream) -> None:
        """Have all windows closed, and compare what is counted."""
        upstream.at(12)
        self.flow.eventually(lambda: low(self.lw, "counts") == mark(12), "all windows are closed")
        self.check()

    def _reached(self, step: str, number: int) -> None:
        self.probe(step, number)

    def put(self, names: list[str], hour: int) -> int:
        """Have a batch with these keys; returns its number, when it is committed."""
        log = CheckpointLog(self.checkpoint)
        before = log.last_committed()
        self.flow.feed.put([row(name, hour) for name in names])
        self.sent += [(name, hour) for name in names]
        self.flow.eventually(lambda: log.last_committed() != before, "the batch is committed")
        after = log.last_committed()
        assert after is not None
        return after

    def ask(self, change: Callable[[Layout], Layout]) -> Layout:
        """Want another layout."""
        self.flow.eventually(lambda: self.lw.layout("counts").current is not None, "the owner says how it is cut")
        found = self.lw.layout("counts")
        wanted = change(found.base)
        version = self.lw.change_layout("counts", found.incarnation, wanted)
        return dataclasses.replace(wanted, version=version)

    def follow(self, wanted: Layout, hour: int) -> int:
        """Have batches until one has the layout; returns its number."""
        for _ in range(5):
            number = self.put(["0"], hour)
            entry = BatchLog(self.checkpoint).read(number)
            if entry is not None and entry.layouts.get(".") == wanted:
                return number
        raise AssertionError

    def check(self) -> None:
        """Every record is counted once, in its key's order."""
        counted, number, expected = Counter(self.sent), Counter[str](), []
        for (key, hour), n in sorted(counted.items(), key=lambda each: each[0][1]):
            expected.append((key, at(hour).replace(tzinfo=None), n, number[key]))
            number[key] += 1
        read = self.flow.spark.read.option("recursiveFileLookup", "true")
        hours = read.schema("key string, start timestamp, n long, number long").parquet(str(self.flow.folder / "hours"))
        assert sorted(map(tuple, hours.collect())) == sorted(expected)


@pytest.fixture
def counted(flow: Flow, lw: lowwater.Client) -> Counted:
    return Counted(flow, lw)


def test_what_is_counted_is_the_same_while_ranges_are_split_merged_and_moved(
    counted: Counted, lw: lowwater.Client, upstream: Upstream
) -> None:
    """Most keys are idle meanwhile, and their windows close at the end: nothing of them is lost."""
    counted.begins(upstream)
    seen: list[lowwater.Watermark] = []
    changes: list[Callable[[Layout], Layout]] = [
        lambda base: base.split(0, [0x2000, 0x5000]),
        lambda base: base.split(0x8000, [0x8001, 0xFFFF]).move(0x8000, 2),
        lambda base: base.merge(0x2000, 0x8001),
        lambda base: base.merge(0, 0xFFFF),
        lambda base: base.split(0, [0x1000, 0x3000, 0x9000]).merge(0x3000, 0x9000),
    ]
    for i, change in enumerate(changes):
        wanted = counted.ask(change)
        counted.follow(wanted, 10)
        seen.append(low(lw, "counts"))
        counted.flow.eventually(lambda: lw.layout("counts").current == wanted, "the owner says so")  # noqa: B023
        assert [each.start for each in sorted(lw.ranges("counts"), key=lambda each: each.start)] == wanted.bounds[:-1]
        counted.put(NAMES[i :: len(changes)], 10)
        upstream.at(9, 10 * (i + 1))
    upstream.at(12)
    counted.flow.eventually(lambda: low(lw, "counts") == mark(12), "all windows are closed")
    assert seen == sorted(seen), "no watermark goes back"
    assert seen[-1] <= mark(9), "and none leads what is held"
    counted.check()


def test_another_layout_that_is_wanted_while_one_is_replayed_is_followed_after_it(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    """The replay goes by the layout that was logged, and tells of its ranges. Where else a driver may die: ``test_layout_crashes.py``."""
    died: list[int] = []

    def fail(step: str, number: int) -> None:
        if step == "laid out":
            died.append(number)
        if died and step == "state":
            counted.probe = lambda *_: None
            raise RuntimeError(step)

    counted.begins(upstream)
    counted.probe = fail
    wanted = counted.ask(lambda base: base.split(0, [0x2000, 0x5000]))
    counted.put(["1"], 9)
    counted.flow.feed.put([row(name, 10) for name in NAMES])
    counted.sent += [(name, 10) for name in NAMES]
    with pytest.raises(Exception, match="state"):
        counted.flow.queries[-1].await_termination(120)
    counted.flow.queries.clear()
    later = counted.ask(lambda base: base.merge(0x2000, 0x5000))
    counted.start()
    log = CheckpointLog(counted.checkpoint)
    counted.flow.eventually(lambda: log.last_committed() == died[0], "it is replayed")
    entry = BatchLog(counted.checkpoint).read(died[0])
    assert entry is not None
    assert entry.layouts == {".": wanted}
    counted.follow(later, 10)
    assert "never arrived" not in caplog.text
    counted.ends(upstream)


def test_rule11_a_claim_without_an_answer_leaves_the_layout_as_it_is(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it was granted: the batch runs as before, the stage is claimed anew, and follows later."""
    claim, lost, anew, grants = Authority._claim, list[Cut](), list[Cut](), list[bool]()

    def away(self: Authority, cut: Cut, values: list[int], instead_of: int = 0) -> lowwater.Lease:
        if instead_of and not lost:
            lost.append(cut)
            if grants[-1]:
                claim(self, cut, values, instead_of)
            raise errors.Unavailable("nobody answers")
        if lost and not instead_of:
            anew.append(cut)
        return claim(self, cut, values, instead_of)

    counted.begins(upstream)
    monkeypatch.setattr(Authority, "_claim", away)
    for granted, slot in ((False, 0x2000), (True, 0x1000)):
        grants.append(granted)
        lost.clear()
        anew.clear()
        counted.flow.eventually(lambda: lw.layout("counts").current is not None, "the owner says so")
        before = lw.layout("counts").current
        assert before is not None
        wanted = counted.ask(lambda base: base.split(0, [slot]))  # noqa: B023
        counted.flow.eventually(lambda: lw.layout("counts").wanted == wanted, "it is wanted")  # noqa: B023
        number = -1
        while not lost:
            number = counted.put(["1"], 9)
        entry = BatchLog(counted.checkpoint).read(number)
        assert entry is not None
        assert entry.layouts.get(".", Layout()).version == before.version
        counted.put(["2"], 10)
        counted.flow.eventually(lambda: anew, "it is claimed anew")
        assert {len(cut) for cut in anew} == {len(before.starts)}
        counted.follow(wanted, 10)
    counted.ends(upstream)


def test_a_layout_that_is_refused_changes_nothing_and_is_not_asked_for_again(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query goes on, `lowwater hot` says why, and another layout is followed."""
    claim, asked = Authority._claim, list[int]()
    refusals = {1: errors.TooFarAhead, 2: errors.PermissionDenied, 3: errors.Overloaded}

    def refuse(self: Authority, cut: Cut, values: list[int], instead_of: int = 0) -> lowwater.Lease:
        if instead_of:
            asked.append(cut.layout.version)
            if cut.layout.version in refusals:
                raise refusals[cut.layout.version](f"not {cut.layout.version}")
        return claim(self, cut, values, instead_of)

    query = counted.begins(upstream)
    monkeypatch.setattr(Authority, "_claim", refuse)
    for version in refusals:
        counted.ask(lambda base: base.split(0, [0x8000 >> version]))  # noqa: B023
        while version not in asked:
            counted.put(["1"], 9)
        for _ in range(2):
            counted.put(["2"], 9)
        counted.flow.eventually(lambda: lw.layout("counts").refused == f"not {version}", "it says why")  # noqa: B023
    assert asked == [1, 2, 3]
    assert query.query.isActive
    counted.follow(counted.ask(lambda base: base.split(0, [0x800])), 10)
    counted.ends(upstream)


def test_a_restart_goes_on_with_its_layout(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was granted adopts nothing any more: it would take the computation back from who adopted it while its claim of another layout was lost."""
    claim, adopting = Authority._claim, list[bool]()

    def listen(self: Authority, cut: Cut, values: list[int], instead_of: int = 0) -> lowwater.Lease:
        adopting.append(self.registration.adopt)
        return claim(self, cut, values, instead_of)

    monkeypatch.setattr(Authority, "_claim", listen)
    query = counted.begins(upstream, adopt=True)
    wanted = counted.ask(lambda base: base.split(0, [0x1234]))
    counted.follow(wanted, 9)
    assert adopting == [True, False]
    query.stop()
    counted.flow.queries.clear()
    counted.start()
    assert {each.start for each in lw.ranges("counts")} == {*wanted.bounds[:-1]}
    counted.put(NAMES, 10)
    newest = CheckpointLog(counted.checkpoint).last_committed()
    version = json.loads((counted.checkpoint / f"lowwater/state/{newest}/manifest.json").read_bytes())
    assert layout_from_json(version["layout"]) == wanted
    assert version["format"] == 3, "a release that knows no layouts refuses it"
    counted.ends(upstream)


def test_a_replay_that_does_not_go_by_the_layout_that_was_logged_ends_the_query(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies when the first version of a layout is named, and the next run finds it."""

    def fail(step: str, number: int) -> None:
        del number
        if step == "state" and lw.layout("counts").wanted.version:
            raise RuntimeError(step)

    monkeypatch.setattr(Part, "follow_logged", lambda *_: None)
    counted.begins(upstream)
    counted.ask(lambda base: base.split(0, [0x2000]))
    counted.put(["1"], 9)
    counted.probe = fail
    counted.flow.feed.put([row("2", 9)])
    with pytest.raises(Exception, match="state"):
        counted.flow.queries[-1].await_termination(120)
    counted.flow.queries.clear()
    counted.probe = lambda *_: None
    counted.start()
    with pytest.raises(Exception, match=r"version 2 of the state in .* has version 1 of a layout, with 3 key ranges"):
        counted.flow.queries[-1].await_termination(120)
    counted.flow.queries.clear()


def names_below(spark: SparkSession, slot: int, count: int) -> list[str]:
    """Keys whose places are in the first slots."""
    places = spark.range(200_000).select(sf.col("id").cast("string").alias("key"))
    below = places.where(sf.xxhash64("key") < sf.lit((slot << 48) - 2**63)).limit(count)
    return sorted(each.key for each in below.collect())


def test_what_ranges_cost_is_told_and_a_hot_one_is_cut_by_itself(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """All keys are in the first 256th of the key space: one task has all of them until the range is cut there, part by part, at the median of its rows."""
    hot = names_below(counted.flow.spark, 0x100, 300)
    upstream.at(9)
    counted.start(balance=True)
    counted.put(hot, 9)
    counted.flow.eventually(lambda: lw.layout("counts").loads, "it is told")
    [load] = lw.layout("counts").loads
    assert (load.start, load.end, load.rows, load.heaviest) == (0, 0x8000, 300, 1)
    assert load.parts == (300, *[0] * 15)
    assert load.bytes > 0
    assert load.micros > 0
    assert main(["hot", "counts", "--address", counted.flow.address]) == 0
    assert "0x0000-0x8000" in capsys.readouterr().out
    for _ in range(60):
        counted.put(hot, 10)
        if sum(each.rows >= 75 for each in lw.layout("counts").loads) > 1:
            break
    else:
        pytest.fail("it never cuts the range where the rows are")
    found = lw.layout("counts")
    assert len(found.wanted) >= 3
    counted.ends(upstream)


def test_a_range_with_one_key_is_named_and_not_cut(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.at(9)
    counted.start(balance=True)
    for _ in range(6):
        counted.put(["0"] * 50 + ["1"], 9)
    found = lw.layout("counts")
    assert found.wanted.version == 0
    hottest = max(found.loads, key=lambda each: each.rows)
    assert hottest.ruled
    assert hottest.heaviest == 50
    address = ["--address", counted.flow.address]
    assert main(["hot", "counts", *address]) == 0
    assert "is ruled by one key, with 50 of its" in capsys.readouterr().out
    assert main(["split", "counts", f"{hottest.start:#06x}", *address]) == 2
    assert "no cut spreads them" in capsys.readouterr().err
    assert main(["split", "counts", f"{hottest.start:#06x}", "--into", "2", *address]) == 0
    assert main(["move", "counts", "0x0000", "2", *address]) == 0
    assert main(["merge", "counts", "0x0000", "0x8000", *address]) == 0
    assert main(["merge", "counts", "0x0000", "0x0001", *address]) == 2
    assert lw.layout("counts").wanted.version == 3
    upstream.at(12)
    counted.put(["0"], 11)
    counted.flow.eventually(lambda: low(lw, "counts") == mark(12), "all windows are closed")
    counted.check()


def test_a_function_over_tables_keeps_its_ranges_and_says_why(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    flow.feed.put([row("a", 9), row("b", 9)])
    upstream.at(9, 30)
    flow.start(flow.windows)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "it runs")
    found = lw.layout("stage")
    assert found.base.starts == (0, 0x4000, 0x8000, 0xC000)
    lw.change_layout("stage", found.incarnation, found.base.split(0, [0x1000]))
    for minute in (1, 2, 3):
        flow.feed.put([row("a", 10, minute)])
        upstream.at(10, minute)
        flow.eventually(lambda: low(lw, "stage") == mark(10), "it goes on")
    flow.eventually(lambda: "which key a row of it is of" in lw.layout("stage").refused, "it says why")
    assert "Write the stage as a computation" in lw.layout("stage").refused
    assert lw.layout("stage").current == Layout(0, (0, 0x4000, 0x8000, 0xC000))
    assert flow.closed() == [("09:00", "a", 1), ("09:00", "b", 1)]


def test_a_stage_without_state_follows(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(9, 30)
    flow.start(flow.plain)
    flow.feed.put([row("a", 9, 40)])
    flow.eventually(lambda: lw.layout("stage").current is not None, "it runs")
    found = lw.layout("stage")
    lw.change_layout("stage", found.incarnation, found.base.split(0, [0x1000]))
    for minute in (41, 42, 43):
        flow.feed.put([row("a", 9, minute)])
        upstream.at(9, minute)
        flow.eventually(lambda: low(lw, "stage") == mark(9, minute), "it is read")  # noqa: B023
    assert {each.start for each in lw.ranges("stage")} == {*found.base.split(0, [0x1000]).bounds[:-1]}


def test_deduplication_keeps_its_ranges_and_says_why(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(9)
    dedup = Deduplication("key", "t")

    def write(rows: DataFrame, batch: lws.Batch) -> None:
        batch.write(dedup.of(batch, rows).main, flow.folder / "out")

    flow.start(write)
    for minute in range(4):
        flow.feed.put([row("a", 9, minute), row("b", 9, minute)])
        flow.eventually(lambda: (lw.layout("stage").batch if lw.layout("stage").current else -1) == minute, "a batch")  # noqa: B023
        found = lw.layout("stage")
        if not minute:
            lw.change_layout("stage", found.incarnation, found.base.split(0, [0x1000]))
    assert "does not say which key" in lw.layout("stage").refused


def test_a_zombie_takes_no_ranges_by_another_layout(lw: lowwater.Client) -> None:
    """The replaced run has a greater generation by then: it has committed a batch more."""
    registration = Registration("one", (), (), 2, "here", 1, 1, b"", adopt=False)
    zombie = Authority(lw, registration)
    zombie.register()
    zombie.claim([MIN, MIN])
    newer = Authority(lw, dataclasses.replace(registration, ordinal=2))
    newer.register()
    newer.claim([MIN, MIN])
    cut = Cut(2, Layout(1, (0, 0x4000, 0x8000)))
    with pytest.raises(errors.StaleSequencer):
        zombie.claim_again(cut, [MIN] * 3, 2, "aa")
    assert newer.lease is not None
    assert not newer.lease.lost
    newer.claim_again(cut, [micros(9)] * 3, 2, "aa")
    assert len(newer.lease.live) == 3
    for each in (zombie, newer):
        each.close()


def test_it_breaks_when_the_claim_does_not_name_the_one_that_it_takes_the_place_of(
    lw: lowwater.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Authority._claim
    monkeypatch.setattr(Authority, "_claim", lambda self, cut, values, instead_of=0: claim(self, cut, values))
    with pytest.raises(pytest.fail.Exception):
        test_a_zombie_takes_no_ranges_by_another_layout(lw)
