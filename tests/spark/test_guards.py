"""Mistakes of a user's function or of its inputs that could pass unnoticed: each is refused or told, and nothing wrong is promised."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, StateLost, Unsupported
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.output.outputs import OpenOutputs
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.rows.ranges import range_bounds, range_column
from lowwater_spark.track.run.authority import Registration
from lowwater_spark.track.run.batch import Batch, MicroBatch
from lowwater_spark.track.run.progress import AfterBatch
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.run.status import KeyRange
from lowwater_spark.track.state.handover import publish_directory
from lowwater_spark.track.state.receipt import Destination
from tests.kit.times import at, mark
from tests.spark.flow import HOUR, Flow
from tests.spark.support import Upstream, as_before, low, place, row
from tests.spark.updates import HOURLY, hourly

NO_FRAME = cast(DataFrame, None)
"""A frame whose rows are not read before the refusal."""


def a_batch(checkpoint: Path, *, replayed: bool) -> Batch:
    """Batch 3 of a stage without an authority."""
    registration = Registration("stage", [], [], 2, "", 0, 1, b"", adopt=False)
    authority = SimpleNamespace(
        registration=registration,
        full_name="stage",
        lease=None,
        destination=lambda: Destination(None, "stage", 1),
    )
    part = StageRun(cast(Any, authority), Keyed(["key"], "t", 2, injector=False), checkpoint)
    part.section = place(checkpoint)
    part.open([], AfterBatch())
    run: Any = SimpleNamespace(lock=contextlib.nullcontext(), reader=None)
    facts = BatchFacts(3, "aa", Reading(14), MIN, replayed=replayed)
    return Batch(facts, part, MicroBatch(run, facts, OpenOutputs()))


def test_a_second_write_to_one_directory_is_found_under_any_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish_directory(out, "batch=3", "aa", lambda folder: (folder / "rows").touch(), ordinal=1)
    (tmp_path / "link").symlink_to(out)
    batch = a_batch(tmp_path / "ck", replayed=True)
    batch.write(NO_FRAME, out)
    for other in (tmp_path / "link", tmp_path / "x/../out"):
        with pytest.raises(ValueError, match="has been written to"):
            batch.write(NO_FRAME, other)


@pytest.mark.parametrize("mark", "{[*\\")
def test_paths_that_spark_takes_for_patterns(tmp_path: Path, mark: str) -> None:
    with pytest.raises(Unsupported, match="pattern"):
        a_batch(tmp_path / "ck", replayed=False).write(NO_FRAME, tmp_path / f"a{mark}")
    with pytest.raises(Unsupported, match="pattern"):
        a_batch(tmp_path / "ck", replayed=False).stateful(NO_FRAME, hourly, StructType([]), tmp_path / f"a{mark}/state")
    assert not list(tmp_path.glob("a*"))


def test_a_function_that_forgets_its_state_stops_and_holds(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    def fails(*_: Any) -> Any:
        msg = "swallowed"
        raise RuntimeError(msg)

    def returns_early(rows: DataFrame, batch: lws.Batch) -> None:
        if not rows.isEmpty():
            batch.stateful(rows, hourly, HOURLY).collect()

    def swallows_errors(rows: DataFrame, batch: lws.Batch) -> None:
        with contextlib.suppress(Exception):
            flow.out += [(batch.id, "", r.key, r.n) for r in batch.stateful(rows, fails, HOURLY).collect()]

    flow.feed.put([row("a", 9)])
    upstream.at(9, 30)
    query = flow.start(returns_early, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the window of nine is held")
    upstream.at(11)
    with pytest.raises(StateLost, match="batch 1 ended without"):
        query.await_termination(60)
    with pytest.raises(PythonException, match="swallowed"):
        flow.start(swallows_errors, stamp=HOUR).await_termination(60)
    assert low(lw, "stage") == mark(9)
    assert flow.out == []
    # A function that minds its state goes on from the same batch.
    flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "mended")
    assert flow.closed() == [("09:00", "a", 1)]


SWALLOWED: dict[str, Callable[[DataFrame, lws.Batch, Path], object]] = {
    "write": lambda rows, batch, out: batch.write(rows, out / "file/of/no/directory"),
    "write a pattern": lambda rows, batch, out: batch.write(rows, f"{out}/[a]"),
    "of": lambda rows, batch, out: batch.of("misspelt").write(rows, out),
    "frontier": lambda rows, batch, out: batch.frontier(at(23)),
    "finish": lambda rows, batch, out: batch.finish(),
}


def test_rule6_what_the_batch_raises_ends_it_if_caught(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    (flow.folder / "file").write_text("in the way")
    ends: list[str] = []
    mistakes: list[Callable[[DataFrame, lws.Batch, Path], object]] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        for method in (mistakes[-1], lambda rows, batch, folder: batch.write(rows, folder / "out")):
            try:
                method(rows, batch, flow.folder)
            except Exception as failure:  # noqa: BLE001 - the mistake under test
                ends.append(repr(failure))

    flow.feed.put([row("a", 9)])
    upstream.at(10)
    for what, mistake in SWALLOWED.items():
        ends.clear()
        mistakes.append(mistake)
        with pytest.raises((OSError, ValueError)) as raised:
            flow.start(write_batch).await_termination(60)
        assert ends == [repr(raised.value)] * 2, f"{what}: what comes after a failure would be skipped by the replay"
        assert low(lw, "stage").unknown
        assert not (flow.folder / "out").exists()
    # A function without the mistake runs the same batch again, whole.
    flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "mended")
    assert flow.spark.read.option("recursiveFileLookup", "true").parquet(str(flow.folder / "out")).count() == 1


class LatePath(os.PathLike[str]):
    def __init__(self, path: Path) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        self._path = path

    def __fspath__(self) -> str:
        self.reached.set()
        assert self.released.wait(60)
        return str(self._path)


def unjoined(path: LatePath, threads: list[threading.Thread]) -> Callable[[DataFrame, lws.Batch], None]:
    """A function that returns while a thread of it is within ``batch.write``."""

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        def write() -> None:
            with contextlib.suppress(Exception):  # of a query that has ended meanwhile
                batch.write(rows, path)

        threads.append(threading.Thread(target=write))
        threads[-1].start()
        assert path.reached.wait(60)

    return write_batch


def test_rule6_a_write_that_nobody_awaits_ends_the_batch(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    path, threads = LatePath(flow.folder / "out"), list[threading.Thread]()
    query = flow.start(unjoined(path, threads))
    with pytest.raises(ValueError, match=r"has returned while write of batch 0 still runs: .* Join the threads"):
        query.await_termination(60)
    assert low(lw, "stage").unknown
    path.released.set()
    for thread in threads:
        thread.join()
    # A function that waits runs the same batch again; what the thread has written by then is whole.
    flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "mended")
    assert flow.spark.read.option("recursiveFileLookup", "true").parquet(str(flow.folder / "out")).count() == 1


def test_rule6_no_batch_is_written_after_its_function(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    batches: list[lws.Batch] = []

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        batches.append(batch)
        flow.plain(rows, batch)

    flow.feed.put([row("a", 9)])
    upstream.at(10)
    flow.start(write_batch)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the first batch")
    calls: list[Callable[[lws.Batch], object]] = [
        lambda batch: batch.finish(),
        lambda batch: batch.write(NO_FRAME, flow.folder / "late"),
        lambda batch: batch.stateful(NO_FRAME, hourly, HOURLY),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="after the function had returned"):
            call(batches[0])
    assert not (flow.folder / "late").exists()


def test_a_wrong_stamp_is_found_and_not_promised(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(9, 15)
    query = flow.start(flow.windows)
    flow.eventually(lambda: low(lw, "stage") == mark(9, 15), "nothing is there")
    flow.feed.put([row("a", 9, 30)])
    with pytest.raises(ValueError, match=r"a stamp of 2013-01-09T09:00:00Z.*lowest possible is 2013-01-09T09:15:00Z"):
        query.await_termination(60)
    assert low(lw, "stage") == mark(9, 15)


UNTOLD: dict[str, Callable[[pa.Table, Any, pa.Array], Any]] = {
    "later, with pending": lambda state, oldest, pending: (None, None, at(9, 30), pending),
    "nothing, with state": lambda state, oldest, pending: (state, None, None, ()),
}
"""The answers of a function that holds the row of 9:30, which is to be written with 9:00."""


def test_rule6_a_range_that_says_it_holds_less_is_refused(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    flow.feed.put([row("a", 9, 30)])
    upstream.at(9, 10)
    record = r"a record of 2013-01-09T09:30:00Z, which will be written with the stamp 2013-01-09T09:00:00Z"
    for what, answer in UNTOLD.items():
        text = "None" if what.startswith("nothing") else "2013-01-09T09:30:00Z"
        with pytest.raises(ValueError, match=f"{record} or later, but its oldest stamp is said to be {text}"):
            flow.start(forgetful(answer), stamp=HOUR).await_termination(60)
        assert low(lw, "stage").unknown
    # What it says rightly is taken, and the batch is the same one.
    flow.start(flow.windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(9), "held by the row")


def forgetful(answer: Callable[[pa.Table, Any, pa.Array], Any]) -> Callable[[DataFrame, lws.Batch], None]:
    """Return a function for batches whose update answers so for the range that holds rows."""

    def update(handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark) -> Any:
        state_, emitted, oldest, pending = hourly(handle, state, rows, lowwater.Watermark(MIN))
        return answer(state_, oldest, pending) if state_.num_rows else (state_, emitted, oldest, pending)

    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        batch.stateful(rows, update, HOURLY)

    return write_batch


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"key": sf.upper}, r"the key key STRING, and the stage has the key upper\(key\) STRING"),
    ({"stamp": "event"}, "the stamp 1:00:00, and the stage has the stamp event"),
    ({"schema": "hour timestamp, n long"}, "the schema struct<hour:timestamp,key:string,n:bigint>, and"),
]
"""Changes of a stage that has state."""


def test_rule6_a_state_is_kept_for_key_stamps_and_schema(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    def start(*, key: Any = str, stamp: Any = HOUR, schema: str = HOURLY) -> lws.TrackedQuery:
        def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
            flow.out += [(batch.id, "", "", r.n) for r in batch.stateful(rows, hourly, schema).collect()]

        return flow.start(write_batch, key=key("key"), stamp=stamp)

    flow.feed.put([row("a", 9)])
    upstream.at(9, 30)
    query = start()
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the window of nine is held")
    query.stop()
    upstream.at(11)
    for other, text in OTHERS:
        with pytest.raises(CheckpointMismatch, match=text):
            start(**other).await_termination(60)
        assert (low(lw, "stage"), flow.out) == (mark(9), [])
    # As it was, it goes on. So does a checkpoint that a release has made which kept none of it, and it has it from then on.
    as_before(flow.folder / "ck")
    path = flow.folder / "ck/lowwater/state.json"
    entry = json.loads(path.read_text())
    created = entry.pop("made")
    path.write_text(json.dumps(entry))
    start(key=lambda name: sf.col(name).alias("k"))
    flow.eventually(lambda: low(lw, "stage") == mark(11), "the window is written")
    assert [n for *_, n in flow.out] == [1]
    assert Manifest(flow.folder / "ck")["state"] == {".": {**entry, "made": created}}


def range_of(flow: Flow, key: str) -> KeyRange:
    [[handle]] = flow.spark.createDataFrame([(key,)], "key string").select(range_column(["key"], 4)).collect()
    bounds = range_bounds(4)
    return KeyRange(handle, bounds[handle], bounds[handle + 1])


@pytest.mark.parametrize("state", [False, True], ids=["keeps nothing", "keeps state"])
def test_late_rows_are_counted_with_the_oldest_and_its_range(
    state: bool, flow: Flow, lw: lowwater.Client, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    flow.feed.put([row("a", 9)])
    upstream.at(11)
    query = flow.start(flow.windows if state else flow.plain, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "all is read")
    assert query.stage_status().late_range is None
    with caplog.at_level(logging.WARNING, "lowwater.spark"):
        flow.feed.put([row("a", 12), row("b", 8, 30), row("c", 10, 59), row("d", 11)])
        flow.eventually(lambda: query.stage_status().late_rows == 2, "two promises are broken")
        flow.feed.put([row("e", 9), *([] if state else [{"key": "f", "t": None}, {"key": "g", "t": None}])])
        flow.eventually(lambda: query.stage_status().late_rows == 3, "and a third one, not older")
    status = query.stage_status()
    assert status.untimed_rows == (0 if state else 2), "rows without a time are counted apart"
    assert ("has 2 rows without an event time" in caplog.text) is not state
    flow.eventually(
        lambda: ("Its worker has read 2 rows without an event time" in str(lw.why("stage"))) is not state,
        "why tells of them",
    )
    assert status.late_example == "2013-01-09T08:30:00Z in batch 1"
    assert status.late_range == range_of(flow, "b")
    messages = [record.getMessage() for record in caplog.records if "promised" in record.getMessage()]
    assert messages[0] == (
        f"batch 1 of stage has 2 rows below what its inputs had promised, the oldest at 2013-01-09T08:30:00Z, in key range {range_of(flow, 'b')}"
    )
    assert str(range_of(flow, "e")) in messages[1]
    assert low(lw, "stage") == mark(11), "what was promised stays promised"
    if state:
        flow.eventually(lambda: ("08:00", "b", 1) in flow.closed(), "a late row is processed all the same")


def test_rows_that_were_emitted_and_not_written_are_told(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    def write_batch(rows: DataFrame, batch: lws.Batch) -> None:
        emitted = batch.stateful(rows, hourly, HOURLY)
        batch.write(emitted if batch.low < mark(11) else rows, flow.folder / "out")

    flow.feed.put([row("a", 9), row("a", 10)])
    upstream.at(9)
    flow.start(write_batch, stamp=HOUR)
    for hour, messages in ((10, 0), (11, 1)):
        upstream.at(hour)
        flow.eventually(lambda: low(lw, "stage") >= mark(hour), "the next window is closed")  # noqa: B023
        assert caplog.text.count("no action has read") == messages
    assert " of stage has emitted rows" in caplog.text


def test_a_replay_says_again_which_row_was_late(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    fails = [True]

    def windows(rows: DataFrame, batch: lws.Batch) -> None:
        batch.stateful(rows, hourly, HOURLY)
        if batch.id == 1 and fails:
            fails.clear()
            msg = "after the version was made"
            raise RuntimeError(msg)

    flow.feed.put([row("a", 9)])
    upstream.at(11)
    query = flow.start(windows, stamp=HOUR)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "all is read")
    flow.feed.put([row("b", 8, 30)])
    with pytest.raises(RuntimeError, match="after the version"):
        query.await_termination(60)
    assert query.stage_status().late_rows == 0
    text = lw.ranges("stage").ranges[0].remarks
    assert (text.ended, text.failure) == (True, "after the version was made"), "a failed query is told from a hang"
    query = flow.start(windows, stamp=HOUR)
    flow.eventually(lambda: query.stage_status().batch == 1, "run again")
    assert (query.stage_status().late_rows, query.stage_status().late_range) == (1, range_of(flow, "b"))
