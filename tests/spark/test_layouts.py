"""Key ranges that are split, merged and moved while a tracked stage runs: what comes out is the same, whatever dies; who cannot follow says why and goes on."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater import Layout, errors
from lowwater.cli import main
from lowwater_pipeline.computation import start
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.rows.cut import Cut
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.batch_log import BatchLog
from tests.kit.eventually import PATIENCE
from tests.kit.times import MAX, MIN, at, mark, micros
from tests.spark.computations import Counts
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

NAMES = [f"{number}" for number in range(24)]


class Counted:
    def __init__(self, flow: Flow, lw: lowwater.Client) -> None:
        self.flow, self.lw = flow, lw
        self.sent: list[tuple[str, int]] = []
        self.checkpoint = flow.folder / "ck"
        self.probe: Callable[[str, int], None] = lambda *_: None

    def start(self, **options: Any) -> lws.TrackedQuery:
        def write(outputs: Mapping[str, DataFrame], batch: lws.Batch) -> None:
            assert not batch._own_facts().layouts, "each task gets these facts"
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
        upstream.at(9)
        query = self.start(**options)
        self.put(NAMES, 9)
        return query

    def ends(self, upstream: Upstream) -> None:
        upstream.at(12)
        self.flow.eventually(lambda: low(self.lw, "counts") == mark(12), "all windows are closed")
        self.check()

    def _reached(self, step: str, number: int) -> None:
        self.probe(step, number)

    def put(self, names: list[str], hour: int) -> int:
        log = CheckpointLog(self.checkpoint)
        before = log.last_committed()
        self.flow.feed.put([row(name, hour) for name in names])
        self.sent += [(name, hour) for name in names]
        self.flow.eventually(lambda: log.last_committed() != before, "the batch is committed")
        after = log.last_committed()
        assert after is not None
        return after

    def ask(self, change: Callable[[Layout], Layout]) -> Layout:
        self.flow.eventually(lambda: self.lw.layout("counts").current is not None, "the owner says how it is cut")
        current = self.lw.layout("counts")
        layout = change(current.base)
        version = self.lw.change_layout("counts", current.incarnation, layout)
        return dataclasses.replace(layout, version=version)

    def follow(self, layout: Layout, hour: int) -> int:
        for _ in range(5):
            number = self.put(["0"], hour)
            entry = BatchLog(self.checkpoint).read(number)
            if entry is not None and entry.layouts.get(".") == layout:
                return number
        raise AssertionError

    def check(self) -> None:
        counted, number, expected = Counter(self.sent), Counter[str](), []
        for (key, hour), n in sorted(counted.items(), key=lambda pair: pair[0][1]):
            expected.append((key, at(hour).replace(tzinfo=None), n, number[key]))
            number[key] += 1
        read = self.flow.spark.read.option("recursiveFileLookup", "true")
        hours = read.schema("key string, start timestamp, n long, number long").parquet(str(self.flow.folder / "hours"))
        assert sorted(map(tuple, hours.collect())) == sorted(expected)


@pytest.fixture
def counted(flow: Flow, lw: lowwater.Client) -> Counted:
    return Counted(flow, lw)


def test_counts_are_the_same_while_ranges_change(counted: Counted, lw: lowwater.Client, upstream: Upstream) -> None:
    counted.begins(upstream)
    lows: list[lowwater.Watermark] = []
    changes: list[Callable[[Layout], Layout]] = [
        lambda base: base.split(0, [0x2000, 0x5000]),
        lambda base: base.split(0x8000, [0x8001, 0xFFFF]).move(0x8000, 2),
        lambda base: base.merge(0x2000, 0x8001),
    ]
    for i, change in enumerate(changes):
        asked = counted.ask(change)
        counted.follow(asked, 10)
        lows.append(low(lw, "counts"))
        counted.flow.eventually(lambda: lw.layout("counts").current == asked, "the owner says so")  # noqa: B023
        assert [item.start for item in sorted(lw.ranges("counts"), key=lambda item: item.start)] == asked.bounds[:-1]
        counted.put(NAMES[i :: len(changes)], 10)
        upstream.at(9, 10 * (i + 1))
    upstream.at(12)
    counted.flow.eventually(lambda: low(lw, "counts") == mark(12), "all windows are closed")
    assert lows == sorted(lows), "no watermark goes back"
    assert lows[-1] <= mark(9), "and none leads what is held"
    counted.check()


def names_below(spark: SparkSession, slot: int, count: int) -> list[str]:
    places = spark.range(200_000).select(sf.col("id").cast("string").alias("key"))
    below = places.where(sf.xxhash64("key") < sf.lit((slot << 48) - 2**63)).limit(count)
    return sorted(row.key for row in below.collect())


def test_what_ranges_cost_is_told(
    counted: Counted, lw: lowwater.Client, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    hot = names_below(counted.flow.spark, 0x100, 300)
    upstream.at(9)
    counted.start()
    counted.put(hot, 9)
    counted.flow.eventually(lambda: lw.layout("counts").loads, "it is told")
    [load] = lw.layout("counts").loads
    assert (load.start, load.end, load.rows, load.heaviest) == (0, 0x8000, 300, 1)
    assert load.parts == (300, *[0] * 15)
    assert load.bytes > 0
    assert load.micros > 0
    assert main(["hot", "counts", "--address", counted.flow.address]) == 0
    assert "0x0000-0x8000" in capsys.readouterr().out


def test_a_zombie_takes_no_ranges_by_another_layout(lw: lowwater.Client) -> None:
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
    for query in (zombie, newer):
        query.close()


def test_ranges_of_another_cut_are_finished_although_those_before_were(lw: lowwater.Client) -> None:
    injector = Authority(lw, Registration("one", (), (), 2, "here", 1, 1, b"", adopt=False))
    injector.register()
    injector.claim([MIN, MIN])
    injector.renew(Reading(MAX), [MAX, micros(9)])
    injector.drop_lease()
    injector.cut = Cut(2, Layout(1, (0, 0x4000, 0x8000)))
    injector.claim([MIN] * 3)
    injector.renew(Reading(MAX), [MAX] * 3)
    assert injector.lease is not None
    injector.lease.flush(PATIENCE)
    assert low(lw, "one") == lowwater.Watermark(MAX)
    injector.close()


def split(base: Layout) -> Layout:
    size, start = max((end - start, start) for start, end in zip(base.starts, base.ends, strict=True))
    return base.split(start, [start + size // 2 + 1])


def merge(base: Layout) -> Layout:
    return base.merge(*base.starts[-2:])


def move(base: Layout) -> Layout:
    return base.move(0, 0 if base.tasks and base.tasks[0] else 2)


CHANGES: Mapping[str, Callable[[Layout], Layout] | None] = {"none": None, "split": split, "merge": merge, "move": move}

POINTS: Final = {
    "laid out": "the claim of the new ranges is granted, and nothing is logged",
    "begun": "the layout is logged, with the low watermark and the clock",
    "state": "the version is named: its timers have fired",
    "written": "its rows are handed over",
    "staged": "the tasks have told what they hold",
    "prepared": "the authority knows what the commit will say",
    "committed": "Spark has committed it, and the authority has not",
    "told": "the authority has, and the run has not taken notice",
}

TABLE: Final = [(point, change) for point in POINTS for change in CHANGES if (point, change) != ("laid out", "none")]
SHORT: Final = [("state", "split"), ("laid out", "move")]

FIRST, LAST = 9, 22
"""Hours of the records."""


class Died(RuntimeError):
    """Stands for the end of a driver."""


class Table:
    def __init__(self, counted: Counted, lw: lowwater.Client, upstream: Upstream) -> None:
        self.counted, self.lw, self.upstream = counted, lw, upstream
        self.log = CheckpointLog(counted.checkpoint)

    def run(self, rows: Sequence[tuple[str, str]]) -> None:
        lows = []
        self.upstream.at(FIRST)
        self.counted.start()
        self.counted.put(NAMES, FIRST)
        for i, (point, change) in enumerate(rows):
            hour = FIRST + (LAST - FIRST) * i // len(rows)
            self.upstream.at(hour)
            self.fails_at(point, change, hour, NAMES[i % 5 :: 5])
            lows.append(low(self.lw, "counts"))
            assert lows[-1] <= mark(hour), "no watermark leads"
        self.upstream.at(LAST + 2)
        self.counted.flow.eventually(lambda: low(self.lw, "counts") == mark(LAST + 2), "all windows are closed")
        assert lows == sorted(lows), "no watermark goes back"
        self.counted.check()

    def fails_at(self, point: str, change: str, hour: int, names: Sequence[str]) -> None:
        """Have a batch that begins with the change and ends at the point, and the next run, which commits it."""
        counted, how = self.counted, CHANGES[change]
        query, begins, died = counted.flow.queries[-1], "begun" if how is None else "laid out", list[int]()

        def fail(step: str, number: int) -> None:
            if step == begins:
                died.append(number)
            if died and step == point:
                counted.probe = lambda *_: None
                raise Died(point)

        # Before anybody asks: a batch of the row before may be the one that hears of it, and the next begins at once.
        counted.probe = fail
        layout = None if how is None else counted.ask(how)
        for group in (["0"], names, ["1"]):
            counted.flow.feed.put([row(name, hour) for name in group])
            counted.sent += [(name, hour) for name in group]
        with pytest.raises(Exception, match=point):
            query.await_termination(120)
        counted.flow.queries.clear()
        counted.start()
        number = died[-1]
        counted.flow.eventually(lambda: (self.log.last_committed() or 0) >= number, "it is committed")
        if layout is not None:
            entry = BatchLog(counted.checkpoint).read(number)
            assert entry is not None
            # What was claimed and not logged is claimed again by a later batch.
            assert (entry.layouts.get(".") == layout) == (point != "laid out")
            if point == "laid out":
                counted.follow(layout, hour)


@pytest.mark.parametrize("rows", [pytest.param(SHORT, id="few"), pytest.param(TABLE, id="all", marks=pytest.mark.long)])
def test_wherever_a_driver_dies_and_whatever_its_ranges_become_each_window_is_written_once(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, rows: list[tuple[str, str]]
) -> None:
    table = Table(Counted(flow, lw), lw, upstream)
    table.run(rows)
