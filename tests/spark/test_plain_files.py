"""What a plain query reads of a checkpoint and keeps in it. No Spark here."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

import lowwater
from lowwater import errors
from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.control import END, ControlSource, Offset
from lowwater_spark.sources.files import FileSource
from lowwater_spark.sources.source_log import NOTHING
from lowwater_spark.track.events import BatchEvent, Events
from lowwater_spark.track.inputs import UNREAD, Change, Origin, Reading, still_counts
from lowwater_spark.track.plain import LastReading
from lowwater_spark.track.plan import Checked
from tests.spark.support import begun, lines

READING = Reading(14, {990_000: 15}, 3, (1, 7))


def test_the_last_reading_is_kept_whole_and_tied_to_its_batch(tmp_path: Path) -> None:
    last = LastReading(begun(tmp_path))
    assert last.load(NOTHING) == UNREAD
    last.save(5, READING)
    assert last.saved == READING
    assert [LastReading(begun(tmp_path)).load(batch) for batch in (5, 9)] == [READING, READING]
    assert LastReading(begun(tmp_path)).load(4) == UNREAD, "the claim says whether the run is behind"
    with pytest.raises(CheckpointMismatch, match="of batch 5, but the commit log ends at batch 3"):
        LastReading(begun(tmp_path)).load(3)


def test_a_kept_reading_counts_for_the_same_incarnations_of_the_same_inputs() -> None:
    def registered(version: int, *incarnations: int) -> lowwater.Computation:
        skew = timedelta(days=1)
        return lowwater.Computation("stage", ("a", "b"), (0.99,), "xxhash64", skew, 1, version, incarnations)

    assert still_counts(READING, 4, registered(3, 1, 7)) == READING
    assert still_counts(READING, 4, registered(4, 1, 7)) == UNREAD, "nothing was read of the new inputs"
    assert still_counts(UNREAD, 4, registered(3, 2, 7)) == UNREAD
    with pytest.raises(errors.IncarnationChanged, match="since batch 4"):
        still_counts(READING, 4, registered(3, 1, 8))


def test_one_rule_says_what_has_become_of_the_inputs() -> None:
    now = Origin(3, (1, 7))
    found = {
        before: now.since(before)
        for before in (now, Origin(3, (1, 0)), Origin(3, (1, 6)), Origin(3, (1,)), Origin(2, (1, 7)), UNREAD.origin)
    }
    none, reset, inputs = Change.NONE, Change.RESET, Change.INPUTS
    assert list(found.values()) == [none, none, reset, reset, inputs, inputs]
    assert Origin(3, (1, 0)).since(now) is reset, "an input that is gone is not the same one"


def plan(watermark: int) -> Plan:
    return Plan(0, lines(0), "", watermark)


def test_what_spark_holds_is_bounded_by_the_watermark_of_the_committed_batch() -> None:
    files = FileSource("/in", recursive=False)
    holds = Checked([files], retention=timedelta(seconds=2))
    driven = Checked([ControlSource("/told"), files], retention=timedelta(seconds=2))
    nothing = Checked([files])
    assert [nothing.spark_bound(each) for each in (None, plan(0), plan(5_000))] == [MAX] * 3
    assert [holds.spark_bound(each) for each in (None, plan(0), plan(5_000))] == [MIN, MIN, 3_000_000]
    ends = [driven.spark_bound(plan(end)) for end in (END, 221_845_392_000_000)]
    assert ends == [MAX, MAX], "the second one stood for MAX in checkpoints of earlier versions"
    assert [driven.spark_bound(each) for each in (None, plan(5_000))] == [MIN, 3_000_000]
    assert holds.spark_bound(plan(END)) < MAX, "rows may be dated so; only a control says that nothing comes any more"


def test_a_control_has_no_place_in_a_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    given = [*lines(3), json.dumps(Offset(5).to_json()), "-"]
    (tmp_path / "offsets/2").write_text("\n".join(["v1", '{"batchWatermarkMs":7}', *given]))
    found = CheckpointLog(tmp_path).plan(2)
    assert found is not None
    assert (list(found.lines), found.watermark) == (given, 7)
    assert CheckpointLog(tmp_path).last_planned() == 2
    with pytest.raises(CheckpointMismatch, match="not the offset of a file source"):
        FileSource("/in", recursive=False).open(begun(tmp_path), 1).read_to(found.lines[1])
    control = ControlSource(str(tmp_path)).open(begun(tmp_path), 1)
    control.read_to(found.lines[1])
    with pytest.raises(CheckpointMismatch, match="not the offset of a control source"):
        control.read_to(found.lines[0])
    assert control.evidence(found.lines[1]) == []


class Progress:
    """A progress event, as py4j shows one."""

    def __init__(
        self, batch: int, time: str, oldest: int | None, dropped: int = 0, untimed: tuple[int, ...] = ()
    ) -> None:
        self.batch, self.time, self.oldest, self.dropped, self.untimed = batch, time, oldest, dropped, untimed

    def batchId(self) -> int:
        return self.batch

    def timestamp(self) -> str:
        return self.time

    def observedMetrics(self) -> dict[str, Progress]:
        found = {} if self.oldest is None else {"lowwater.oldest": self}
        return found | {f"lowwater.untimed.{n}": Progress(0, "", each) for n, each in enumerate(self.untimed)}

    def isNullAt(self, _: int) -> bool:
        return False

    def getLong(self, column: int) -> int:
        """The oldest time, and then one row without a time."""
        assert self.oldest is not None
        return 1 if column else self.oldest

    def stateOperators(self) -> list[Progress]:
        return [self] if self.dropped else []

    def durationMs(self) -> Progress:
        return self

    def containsKey(self, step: str) -> bool:
        return step != "addBatch" or self.time != "idle"

    def numRowsDroppedByWatermark(self) -> int:
        return self.dropped


class Recent:
    """A query that remembers its last three events."""

    def __init__(self) -> None:
        self._jsq = self
        self.events: list[Progress] = []

    def lastProgress(self) -> Progress | None:
        return self.events[-1] if self.events else None

    def recentProgress(self) -> list[Progress]:
        return self.events[-3:]


def test_each_event_is_seen_once_and_an_idle_one_hides_no_batch() -> None:
    query = Recent()
    events = Events(query)  # type: ignore[arg-type]
    assert events.poll() == []
    query.events = [Progress(0, "a", 5), Progress(1, "b", None, dropped=2)]
    assert events.poll() == [BatchEvent(0, 5, 0, untimed=1), BatchEvent(1, None, 2)]
    assert events.poll() == []
    query.events += [Progress(2, "idle", None), Progress(2, "c", 7, untimed=(3, 4))]
    assert events.poll() == [BatchEvent(2, None, 0, ran=False), BatchEvent(2, 7, 0, untimed=7)], "of two driven frames"
    query.events += [Progress(n, f"{n}", n) for n in range(3, 9)]
    assert [event.batch for event in events.poll()] == [6, 7, 8], "what Spark has forgotten is not shown"
