"""Where a driven watermark may stand, how it travels to Spark, and which rows are late for it. Nothing is started."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater.watermark import MAX, MIN
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.drive.late import LateRule
from lowwater_spark.drive.plan import (
    Steps,
    check_checkpoint,
    check_ending,
    check_proven,
    given_offsets,
    steps_for,
    steps_of,
)
from lowwater_spark.drive.watermark import Driving, WatermarkLost, _Driven
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import Source
from lowwater_spark.sources.control import END, NOTHING_GIVEN, ClockValue, Control, ControlSource, Drive, Offset, later
from lowwater_spark.sources.control_reader import ControlReader, RememberingReader
from lowwater_spark.sources.files.source import FileSource
from lowwater_spark.track.plan.bounds import Window
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.plan.operators import KINDS, Operator
from tests.kit.times import MINUTE

times = st.integers(1_000, 4_000_000_000_000_000)
lengths = st.integers(1, 48).map(lambda n: n * 5 * MINUTE)


def windows() -> st.SearchStrategy[tuple[int, int, int]]:
    shapes = st.tuples(lengths, lengths, st.integers(0, 59)).filter(lambda shape: shape[1] <= shape[0])
    return shapes.map(lambda shape: (shape[0], shape[1], shape[2] * MINUTE % shape[1]))


def window_of(shape: tuple[int, int, int]) -> Window:
    length, slide, start = (timedelta(microseconds=length_) for length_ in shape)
    return Window(length, slide, start)


def ends(time: int, shape: tuple[int, int, int]) -> list[int]:
    length, slide, start = shape
    first = start + (time - start) // slide * slide
    bounds = []
    while first > time - length:
        bounds.append(first + length)
        first -= slide
    return bounds


@given(times, st.lists(windows(), min_size=1, max_size=3))
def test_the_row_exactly_at_w_is_late_for_no_window(low: int, shapes: list[tuple[int, int, int]]) -> None:
    """Spark drops a row from the windows that end at its watermark or before; a row at the low watermark belongs to none of them."""
    value = steps_of(map(window_of, shapes), step=None, before=False).value(low) * 1_000
    assert value <= low
    assert all(end > value for shape in shapes for end in ends(low, shape))


@given(times, st.lists(windows(), min_size=1, max_size=3))
def test_every_window_that_is_complete_closes(low: int, shapes: list[tuple[int, int, int]]) -> None:
    """The step holds no window back: each end at or below the low watermark is reached by the value."""
    value = steps_of(map(window_of, shapes), step=None, before=False).value(low) * 1_000
    newest = max((end for shape in shapes for end in ends(low - shape[1], shape) if end <= low), default=0)
    assert value >= newest


@given(times, st.integers(1, 10_000_000).map(lambda n: timedelta(milliseconds=n)))
def test_the_row_exactly_at_w_is_late_for_nothing_else(low: int, step: timedelta) -> None:
    """Everything but a windowed aggregation drops a row whose time *is* the watermark."""
    assert steps_of([], step=step, before=True).value(low) * 1_000 < low


def test_a_session_that_a_row_exactly_at_w_joins_is_still_open() -> None:
    hour = window_of((60 * MINUTE, 60 * MINUTE, 0))
    session = None
    for windows, before in (([], True), ([hour], False), ([session], True), ([hour, session], True)):
        operators = [Operator(KINDS["Aggregate"], ("t",), window, driven=True) for window in windows]
        assert steps_for(Checked([], operators), Drive("", (), "t")).before == before


def test_nothing_is_known_and_nothing_will_come() -> None:
    for before in (False, True):
        steps = steps_of([], step=timedelta(hours=1), before=before)
        assert steps.value(MIN) == NOTHING_GIVEN
        assert steps.value(MAX) == END
        assert steps.value(MAX - 1) == END - 1
        assert steps.value(-5) == NOTHING_GIVEN


@given(
    st.lists(st.integers(0, 5_000_000_000_000), min_size=1, max_size=50), st.integers(0, 5_000_000_000_000), windows()
)
def test_late_is_what_loses_a_window(rows: list[int], watermark: int, shape: tuple[int, int, int]) -> None:
    late = LateRule("", [shape]).late(np.array(rows), watermark)
    assert late.tolist() == [any(end <= watermark for end in ends(row, shape)) for row in rows]


def test_late_by_the_watermark_of_the_batch_before(tmp_path: Path) -> None:
    """Spark's late filter in batch N is the watermark that batch N - 1 ran with."""
    (tmp_path / "offsets").mkdir()
    for batch, mark in enumerate((0, 20_000, 30_000)):
        settings = json.dumps({"batchWatermarkMs": mark})
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{settings}\n-\n")
    rule = LateRule(str(tmp_path))
    assert [rule.watermark(batch) for batch in range(4)] == [0, 0, 20_000_000, 30_000_000]


def test_rule_8_an_offset_survives_sparks_log() -> None:
    offset = Offset(1_357_722_000_000, {"flights": 2, "weather": 1}, 7)
    assert Offset.of_line(json.dumps(offset.to_json())) == offset
    assert Offset.of_line("-") == Offset()
    for line in ('{"logOffset":3}', "3", '{"watermarkMs": 1}'):
        with pytest.raises(ValueError, match="is not the offset of a control source"):
            Offset.of_line(line)


def test_rule_3_a_clock_that_is_behind_moves_nothing() -> None:
    """After a restart Spark's log has the last value, and what the clock says first may be less."""
    start = Offset(20_000, {"a": 1}, 1).to_json()
    for offset in (Offset(10_000, {"a": 1}, 2), Offset(20_000, {"a": 1}, 1)):
        assert later(start, offset) is start, "Spark compares offsets as texts"
    for offset in (Offset(20_001, {"a": 1}, 1), Offset(20_000, {"a": 1}, 2)):
        assert later(start, offset) == offset.to_json()


def test_rule_3_a_control_that_is_passed_no_offset_remembers_it(tmp_path: Path) -> None:
    """Before Spark 4.2 the control learns the query's last offset from a range, and then goes by its own answers."""
    control, reader = Control(tmp_path), RememberingReader(str(tmp_path))
    control.reserve()
    with pytest.raises(RuntimeError, match="nobody drives this query"):
        reader.latestOffset()
    control.write_value(ClockValue(Offset(5, {"a": 1}, 1)))
    logged = {"watermarkMs": 7, "incarnations": {"a": 1}, "run": 1}
    assert reader.partitions(logged, logged) == []
    assert reader.latestOffset() is logged, "Spark compares offsets as texts"
    for value, answer in ((Offset(9, {}, 1), 9), (Offset(8, {}, 1), 9), (Offset(9, {}, 2), 9), (Offset(10, {}, 2), 10)):
        control.write_value(ClockValue(value))
        assert reader.latestOffset()["watermarkMs"] == answer
    assert reader.latestOffset()["run"] == 2
    [move] = reader.partitions(logged, reader.latestOffset())
    assert [*reader.read(move)] == [(10,)]


def test_rule_3_a_control_that_is_passed_no_offset_goes_by_the_batch_of_an_older_run(tmp_path: Path) -> None:
    """An older run commits a batch after Spark has named the newest offset: the reader learns of it from the next range."""
    control, reader = Control(tmp_path), RememberingReader(str(tmp_path))
    control.reserve()
    control.write_value(ClockValue(Offset(10)))
    known, unknown = Offset(10).to_json(), Offset(11).to_json()
    assert reader.partitions(known, known) == []
    answer = reader.latestOffset()
    assert answer == known
    assert reader.partitions(unknown, answer) == [], "no control row takes the watermark back"
    assert reader.latestOffset() is unknown


def test_rule_8_a_checkpoint_may_change_between_old_and_new_spark(tmp_path: Path) -> None:
    """Each reader of the control goes on from the offset that the other one has logged."""
    control, passed, remembers = Control(tmp_path), ControlReader(str(tmp_path)), RememberingReader(str(tmp_path))
    control.reserve()
    control.write_value(ClockValue(Offset(10, {"a": 1})))
    logged = remembers.latestOffset()
    assert json.loads(json.dumps(logged)) == passed.latestOffset(logged, None)
    control.write_value(ClockValue(Offset(9, {"a": 1})))
    assert passed.latestOffset(logged, None) is logged, "a clock that is behind"
    control.write_value(ClockValue(Offset(11, {"a": 1})))
    logged = passed.latestOffset(logged, None)
    control.write_value(ClockValue(Offset(10, {"a": 1})))
    again = RememberingReader(str(tmp_path))
    assert again.partitions(logged, logged) == []
    assert again.latestOffset() is logged


def session(version: str) -> Any:
    """A session, of which only the version is asked."""
    return SimpleNamespace(version=version)


HOURLY = Operator(KINDS["Aggregate"], ("t",), window_of((60 * MINUTE, 60 * MINUTE, 0)), driven=True)
SLIDING = Operator(KINDS["Aggregate"], ("t",), window_of((60 * MINUTE, 10 * MINUTE, 0)), driven=True)
UNPROVEN: dict[str, tuple[list[Operator], dict[int, Drive]]] = {
    "a join of two streams": ([Operator(KINDS["Join"], ("t", "u"), None, driven=True)], {0: Drive("", ("a",), "t")}),
    "several driven frames": ([HOURLY], {0: Drive("", ("a",), "t"), 1: Drive("", ("b",), "t")}),
    "late=": ([HOURLY], {0: Drive("", ("a",), "t", late="/late")}),
    "an aggregation that is not by": (
        [Operator(KINDS["Aggregate"], ("t",), None, driven=True)],
        {0: Drive("", ("a",), "t")},
    ),
    "windows that overlap": ([SLIDING], {0: Drive("", ("a",), "t")}),
    "windows over windows": ([HOURLY, HOURLY], {0: Drive("", ("a",), "t")}),
    "a stateful function": (
        [Operator(KINDS["TransformWithStateInPySpark"], ("t",), None, driven=True)],
        {0: Drive("", ("a",), "t")},
    ),
}
"""What is refused before Spark 4.2: operators and drives, by a part of the message."""


@pytest.mark.parametrize("what", UNPROVEN)
def test_what_no_test_runs_on_an_older_spark_is_refused_there(what: str) -> None:
    operators, drives = UNPROVEN[what]
    check_proven(session("4.2.0"), Checked([], operators), drives)
    for version in ("4.0.5", "4.1.1"):
        with pytest.raises(Unsupported, match=what) as refused:
            check_proven(session(version), Checked([], operators), drives)
        assert version in str(refused.value)
        assert ("Leave late out" if what == "late=" else "batch.stateful()") in refused.value.fix


@pytest.mark.parametrize("operators", [[], [HOURLY]])
def test_windows_of_one_frame_are_driven_on_an_older_spark(operators: list[Operator]) -> None:
    check_proven(session("4.0.5"), Checked([], operators), {0: Drive("", ("a",), "t")})


def test_no_fix_of_a_trigger_is_refused_itself() -> None:
    """Spark 4.2 refuses `once` as well, so on an older Spark it is no way out to use 4.2."""
    check_ending(session("4.1.1"), {"processingTime": "1 second"})
    check_ending(session("4.2.0"), {"availableNow": True})
    for trigger, version, fix in (
        ({"once": True}, "4.1.1", "Leave the trigger out"),
        ({"once": True}, "4.2.0", 'Use trigger={"availableNow": True}'),
        ({"availableNow": True}, "4.1.1", "Leave the trigger out"),
    ):
        with pytest.raises(Unsupported) as refused:
            check_ending(session(version), trigger)
        assert refused.value.fix.startswith(fix)
        assert ("lw.wait(" in refused.value.fix) == (version == "4.1.1")
        assert "once" not in trigger or "4.2" not in refused.value.fix


def driving_over(checkpoint: Path, *batches: tuple[int, int]) -> tuple[Driving, Control]:
    """A run over committed batches: the control's offset in the plan of each, and Spark's watermark after it."""
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True)
    for batch, (offset, watermark) in enumerate(batches):
        line = json.dumps(Offset(offset, {"a": 1}).to_json())
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{line}\n")
        (checkpoint / "commits" / str(batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')
    drive = Drive(str(checkpoint / "control"), ("a",), "t")
    driving = Driving(checkpoint, Checked([], []), {0: drive})
    control = Control(drive.directory)
    control.reserve()
    driving._driven[0] = _Driven(drive, Steps(), control, ClockValue(Offset(10, {"a": 1})))
    return driving, control


def test_rule_3_a_batch_that_an_older_run_commits_does_not_end_the_query(tmp_path: Path) -> None:
    """Spark before 4.2 may log a lower offset once after it; its watermark stays, and the clock goes by the greatest offset."""
    driving, control = driving_over(tmp_path, (10, 10), (11, 11), (10, 11))
    driving._check_followed()
    value = control.last_value()
    assert value is not None
    assert value.offset == Offset(11, {"a": 1})


@pytest.mark.parametrize("watermark", [9, 12])
def test_rule_3_a_watermark_that_no_offset_explains_ends_the_query(watermark: int, tmp_path: Path) -> None:
    driving, control = driving_over(tmp_path, (10, 10), (11, 11), (10, watermark))
    with pytest.raises(WatermarkLost, match="start from a new one, into a new output, with adopt=True"):
        driving._check_followed()
    assert control.last_value() is None, "no value is given out by such a log"


def test_executors_of_an_earlier_release_load_the_control() -> None:
    """Spark pickles the reader and its partitions by name. Release 0.3 has these two."""
    [move] = ControlReader("").partitions(Offset().to_json(), Offset(1).to_json())
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in (ControlReader, type(move))}
    assert names == {f"lowwater_spark.sources.control_reader.{name}" for name in ("ControlReader", "_Move")}


def test_an_input_that_comes_later_is_refused(tmp_path: Path) -> None:
    """The watermark in the checkpoint knows nothing of what a late input still holds. Fewer inputs are fine."""
    log = CheckpointLog(tmp_path)
    one, two = Drive("", ("a",), "t"), Drive("", ("a", "b"), "t")
    assert given_offsets(log, {0: two}) == {0: Offset()}
    (tmp_path / "offsets").mkdir()
    for batch, offset in enumerate((Offset(), Offset(5, {"a": 1}), Offset(6, {"a": 1, "b": 1}))):
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}\n")
        if offset.watermark == 5:
            with pytest.raises(CheckpointMismatch, match="without b, which may hold older rows"):
                given_offsets(log, {0: two})
        else:
            assert given_offsets(log, {0: two}) == {0: offset}
        assert given_offsets(log, {0: one}) == {0: offset}


@pytest.mark.parametrize("driven", [True, False])
def test_driven_queries_and_others_take_no_checkpoint_of_each_other(driven: bool, tmp_path: Path) -> None:
    control, file = json.dumps(Offset(5, {"a": 1}).to_json()), '{"logOffset":0}'
    plain: list[Source] = [FileSource("/in", recursive=False)]
    with_control = [ControlSource("/control"), *plain]
    (tmp_path / "offsets").mkdir()
    check_checkpoint(tmp_path, with_control)
    (tmp_path / "offsets/0").write_text("\n".join(["v1", "{}", *([control] if driven else []), file]))
    fits, other = (with_control, plain) if driven else (plain, with_control)
    check_checkpoint(tmp_path, fits)
    with pytest.raises(CheckpointMismatch, match=r"no lws.drive.* with 1" if driven else r"1 lws.drive.*not driven"):
        check_checkpoint(tmp_path, other)


def test_a_control_is_driven_once(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.last_value() is None
    control.reserve()
    control.write_value(ClockValue(Offset(5)))
    assert control.last_value() == ClockValue(Offset(5))
    with pytest.raises(ValueError, match="runs in another query already"):
        Control(tmp_path).reserve()
    assert control.asked() == 0
    Control(tmp_path).ask(3)
    assert control.asked() == 3
    control.write_value(ClockValue(Offset(6, {"a": 1}), 3, final=True))
    assert Control(tmp_path).last_value() == ClockValue(Offset(6, {"a": 1}), 3, final=True)
    control.close()
    assert control.last_value() is None
    control.reserve()
    assert control.last_value() is None
    assert control.asked() == 0
