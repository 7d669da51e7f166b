"""Where a driver dies, and what becomes of its key ranges in that batch: one table, over a computation with timers.

A row of it is a batch in which the driver ends at one step, while its ranges are split, merged, moved, or stay; the next run goes on. All rows run over one checkpoint, and the low watermark moves on between
them, so that timers fire in the batches that are cut off. In the end each window is there once, and is what one batch of all records has. (With all that the authority may do meanwhile, and with zombies:
``tests/simulation``.)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pytest

import lowwater
from lowwater import Layout
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.track.batch_log import BatchLog
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row
from tests.spark.test_layouts import NAMES, Counted

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def split(base: Layout) -> Layout:
    """Cut the widest range."""
    size, start = max((end - start, start) for start, end in zip(base.starts, base.ends, strict=True))
    return base.split(start, [start + size // 2 + 1])


def merge(base: Layout) -> Layout:
    """Unite the last two."""
    return base.merge(*base.starts[-2:])


def move(base: Layout) -> Layout:
    """Pin the first one, or no more."""
    return base.move(0, 0 if base.tasks and base.tasks[0] else 2)


CHANGES: Final[Mapping[str, Callable[[Layout], Layout] | None]] = {
    "none": None,
    "split": split,
    "merge": merge,
    "move": move,
}

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
SHORT: Final = [("state", "split"), ("written", "merge"), ("laid out", "move"), ("prepared", "split")]

FIRST, LAST = 9, 22
"""Hours of the records."""


class Died(RuntimeError):
    """Stands for the end of a driver."""


class Table:
    """The rows of the table, one after another over one checkpoint."""

    def __init__(self, counted: Counted, lw: lowwater.Client, upstream: Upstream) -> None:
        self.counted, self.lw, self.upstream = counted, lw, upstream
        self.done = Counter[str]()
        self.log = CheckpointLog(counted.checkpoint)

    def run(self, rows: Sequence[tuple[str, str]]) -> None:
        """Run rows, then have everything close, and compare."""
        seen = []
        self.upstream.at(FIRST)
        self.counted.start()
        self.counted.put(NAMES, FIRST)
        for i, (point, change) in enumerate(rows):
            hour = FIRST + (LAST - FIRST) * i // len(rows)
            self.upstream.at(hour)
            self.fails_at(point, change, hour, NAMES[i % 5 :: 5])
            seen.append(low(self.lw, "counts"))
            assert seen[-1] <= mark(hour), "no watermark leads"
        self.upstream.at(LAST + 2)
        self.counted.flow.eventually(lambda: low(self.lw, "counts") == mark(LAST + 2), "all windows are closed")
        assert seen == sorted(seen), "no watermark goes back"
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
        wanted = None if how is None else counted.ask(how)
        for each in (["0"], names, ["1"]):
            counted.flow.feed.put([row(name, hour) for name in each])
            counted.sent += [(name, hour) for name in each]
        with pytest.raises(Exception, match=point):
            query.await_termination(120)
        counted.flow.queries.clear()
        counted.start()
        number = died[-1]
        counted.flow.eventually(lambda: (self.log.last_committed() or 0) >= number, "it is committed")
        if wanted is not None:
            entry = BatchLog(counted.checkpoint).read(number)
            assert entry is not None
            # What was claimed and not logged is claimed again by a later batch.
            assert (entry.layouts.get(".") == wanted) == (point != "laid out")
            if point == "laid out":
                counted.follow(wanted, hour)
        self.done["kills"] += 1
        self.done[change] += 1


@pytest.mark.parametrize(
    "rows", [pytest.param(SHORT, id="some"), pytest.param(TABLE, id="all", marks=pytest.mark.long)]
)
def test_wherever_a_driver_dies_and_whatever_its_ranges_become_each_window_is_written_once(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, rows: list[tuple[str, str]]
) -> None:
    table = Table(Counted(flow, lw), lw, upstream)
    table.run(rows)
    print(json.dumps(table.done))
    assert table.done["kills"] == len(rows)
