"""One contract for every output of a batch: each batch once, none instead of another, and its readers wait for its writer.

`test_outputs.py` and `tests/iceberg/test_outputs.py` run the rules over their outputs. ``kind`` is every kind of the product, and a toy: a run
writes into it without a query. ``output`` and ``marked`` are written by a stage; ``marked`` says who wrote it. The others are guarded: who does
not own the computation is refused by its claim.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater.watermark import MIN
from lowwater_spark.complete.mark import ClaimEpoch, Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.inputs import UNREAD
from lowwater_spark.track.output.outputs import BatchOutput, OpenOutputs, OutputTurn, write_once
from lowwater_spark.track.rows.keyed import floor_stamp
from lowwater_spark.track.state.store import StageSection
from tests.kit.times import at, mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, begun, low, row

COLUMNS = "key string, t timestamp"

PATIENCE = 180


def nothing(_step: str) -> None:
    """Do nothing at a step of a write that nobody watches."""


@dataclass
class OutputRun:
    """One run of a stage, that writes batches into an output without a query."""

    checkpoint: Path
    kinds: Sequence[str]
    to: str
    number: int = 1
    name: str = "stage"
    life: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    outputs: OpenOutputs = field(default_factory=OpenOutputs)

    def __post_init__(self) -> None:
        self.place = StageSection(begun(self.checkpoint, self.number), self.checkpoint)

    def open(
        self,
        frame: DataFrame,
        batch: int,
        *,
        plan: str = "",
        replayed: bool = False,
        through: lowwater.Watermark = mark(9),  # noqa: B008 - a value
        probe: Callable[[str], None] = nothing,
        window: timedelta | None = timedelta(hours=1),
    ) -> tuple[BatchOutput, OutputTurn]:
        claim = ClaimEpoch(self.life, 7)
        turn = OutputTurn(
            BatchFacts(batch, plan or f"plan {batch}", UNREAD, MIN, replayed=replayed),
            self.number,
            self.name,
            self.place,
            lambda: claim,
            lambda: Standing(through.micros, claim),
            probe,
        )
        output = self.outputs.open(self.kinds, frame, turn, self.to, self.options, window=window, taken=set())
        return output, turn

    def write(self, frame: DataFrame, batch: int, **about: Any) -> bool:
        output, turn = self.open(frame, batch, **about)
        return write_once(output, frame, turn)


class Killed(BaseException):
    """kill -9 at a step."""


class OutputCase:
    """A place that a stage writes into. A kind says how, and how it is read."""

    kinds: Sequence[str]
    options: Mapping[str, Any] = {}
    place: Path | str | None = None
    """The place that ``complete_through`` takes; None: this output does not say how far it is complete."""
    root: Path | None = None
    """The directory that has what a killed run leaves half written; None: the output's format has none."""
    stored: Sequence[int] = range(6)
    """The batches, of six, of which removal leaves something."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.to = str(flow.folder / "result")
        self.writes: list[tuple[int, bool]] = []
        self.runs: list[OutputRun] = []

    # -- without a query -----------------------------------------------------------------------------

    def run(self, number: int) -> OutputRun:
        self.runs.append(OutputRun(self.flow.folder / "ck", self.kinds, self.to, number, options=self.options))
        return self.runs[-1]

    def rows(self, *keys: str, later: timedelta = timedelta()) -> DataFrame:
        return self.fit(self.flow.spark.createDataFrame([(key, at(9) + later) for key in keys], COLUMNS))

    def fit(self, rows: DataFrame) -> DataFrame:
        """The rows in the columns that the output takes."""
        return rows

    def batches(self) -> list[int]:
        """The batches whose rows can be read, if each row's key is the number of its batch."""
        return sorted(map(int, self.keys()))

    def have_read(self, batch: int) -> None:
        """Leave the bookmark of a reader that has committed a batch."""

    def left(self) -> list[int]:
        """The batches of which removal has left something."""
        return self.batches()

    def close(self) -> None:
        for run in self.runs:
            run.outputs.close()

    # -- by a stage ----------------------------------------------------------------------------------

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        """Write a batch; returns whether this run has written it."""
        raise NotImplementedError

    def table(self) -> DataFrame:
        """All that is there, in :data:`COLUMNS`."""
        raise NotImplementedError

    def keys(self) -> list[str]:
        return sorted(row.key for row in self.table().collect())

    def read(self) -> DataFrame:
        """The stream of a stage that reads it."""
        raise NotImplementedError

    def start(self, **options: Any) -> lws.TrackedQuery:
        def write(rows: DataFrame, batch: lws.Batch) -> None:
            # The rows of a batch that runs again stand in another order and in other files.
            spread = rows.withColumn("by", sf.rand()).repartition(2, "by").drop("by")
            self.writes.append((batch.id, self.write(spread, batch)))

        return self.flow.start(write, ranges=2, stamp=timedelta(milliseconds=1), **options)

    def feed(self, lw: lowwater.Client, upstream: Upstream, key: str, hour: int) -> None:
        self.flow.feed.put([row(key, hour)])
        upstream.at(hour)
        self.flow.eventually(lambda: low(lw, "stage") == mark(hour), f"{key} is committed")


def test_a_batch_that_is_written_twice_is_there_once(kind: OutputCase) -> None:
    first = kind.run(1)
    assert first.write(kind.rows("a", "b"), 0)
    assert not first.write(kind.rows("b"), 0, replayed=True)
    again = kind.run(2)
    assert not again.write(kind.rows("b", "a").repartition(2), 0, replayed=True)
    assert again.write(kind.rows("c"), 1)
    assert kind.keys() == ["a", "b", "c"]


def test_a_crash_at_any_step_is_completed_by_the_next_run(kind: OutputCase) -> None:
    steps: list[str] = []
    kind.run(1).write(kind.rows("0"), 0, probe=steps.append)
    assert len(steps) > 1
    as_killed = kind.flow.folder / "as killed"
    for batch, step in enumerate(steps, 1):

        def die(reached: str, step: str = step) -> None:
            if reached == step:
                if kind.root is not None:
                    shutil.copytree(kind.root, as_killed)  # what a run does when it fails, one that is killed does not
                raise Killed

        with pytest.raises(Killed):
            kind.run(2 * batch).write(kind.rows(str(batch)), batch, probe=die)
        if kind.root is not None:
            shutil.rmtree(kind.root)
            as_killed.rename(kind.root)
        kind.run(2 * batch + 1).write(kind.rows(str(batch)), batch, replayed=True)
    assert kind.batches() == list(range(len(steps) + 1))
    assert kind.root is None or not any(path.name.startswith((".lowwater-", ".run-")) for path in kind.root.iterdir())


def test_a_mark_reads_back_as_it_was_written(kind: OutputCase) -> None:
    kind.run(1).write(kind.rows("a"), 0, plan="this plan", through=mark(10))
    output, turn = kind.run(2).open(kind.rows("a"), 0, plan="any plan")
    mark_found = output.find(turn)
    assert mark_found is not None
    assert (mark_found.batch, mark_found.digest) == (0, "this plan")
    assert output.says_complete == (kind.place is not None)
    if kind.place is not None:
        answer = lws.complete_through(kind.flow.spark, kind.place, ["stage"]).writers["stage"]
        assert (answer.low, answer.life, answer.epoch, answer.why) == (mark(10), 1, 7, "")


def test_a_zombies_write_is_refused(kind: OutputCase) -> None:
    zombie = kind.run(1)
    assert zombie.write(kind.rows("a"), 0)
    newer = kind.run(2)

    def overtake(step: str) -> None:
        if step == "output read":
            assert newer.write(kind.rows("b"), 1, plan="newer")

    with pytest.raises(CheckpointMismatch):
        zombie.write(kind.rows("z"), 1, probe=overtake, replayed=True)
    with pytest.raises(CheckpointMismatch, match="made from another plan"):
        zombie.write(kind.rows("z"), 1, replayed=True)
    with pytest.raises(CheckpointMismatch, match="no run of this checkpoint had begun batch 1"):
        zombie.write(kind.rows("z"), 1, plan="newer")
    assert kind.keys() == ["a", "b"]


def test_removal_takes_only_what_is_its_own(kind: OutputCase) -> None:
    run = kind.run(1)
    strange = [] if kind.root is None else [kind.root / "batch=0x" / "_theirs", kind.root / "_theirs" / "0.json"]
    for path in strange:
        path.parent.mkdir(parents=True)
        path.write_text("theirs")
    for batch in range(6):
        run.write(kind.rows(str(batch)), batch)
        kind.have_read(batch)
    assert kind.left() == list(kind.stored)
    assert [path.read_text() for path in strange] == ["theirs"] * len(strange)


def test_microseconds_are_kept_or_the_watermark_is_floored(kind: OutputCase) -> None:
    later = timedelta(microseconds=1_700)
    run = kind.run(1)
    output, _ = run.open(kind.rows("a"), 0)
    window = None
    if output.resolution > timedelta(microseconds=1):
        for coarse in (None, output.resolution / 2):
            with pytest.raises(Unsupported, match="Declare a stamp of the stage"):
                run.open(kind.rows("a"), 0, window=coarse)
        window = output.resolution
    run.write(kind.rows("a", later=later), 0, window=window)
    promised = lowwater.Watermark.of(at(9) + later).micros
    [stored] = kind.table().selectExpr("unix_micros(t) AS t").collect()
    assert floor_stamp(promised, window) <= stored.t <= promised


def test_a_batch_that_runs_again_is_there_once(output: OutputCase, lw: lowwater.Client, upstream: Upstream) -> None:
    def fail(reached: str, number: int) -> None:
        if (reached, number) == ("written", 0):
            raise ConnectionResetError("killed")

    flow = output.flow
    flow.feed.put([row("a", 9), row("b", 9)])
    upstream.at(9)
    with pytest.raises(Exception, match="killed"):
        output.start(probe=fail).await_termination(PATIENCE)
    flow.queries.clear()
    assert output.keys() == ["a", "b"], "it was written, and it is not committed"
    output.start()
    flow.eventually(lambda: low(lw, "stage") == mark(9), "the batch is committed")
    output.feed(lw, upstream, "c", 10)
    assert output.writes[:2] == [(0, True), (0, False)]
    assert all(new for _, new in output.writes[2:])
    assert output.keys() == ["a", "b", "c"]
    if output.place is not None:
        assert lws.complete_through(flow.spark, output.place, ["stage"]).low >= mark(9)


def test_a_reader_follows_the_writer_that_it_names(marked: OutputCase, lw: lowwater.Client, upstream: Upstream) -> None:
    flow = marked.flow

    def read(inputs: Sequence[str]) -> None:
        stage = lws.stage(flow.spark, "next", inputs=inputs, key="key", event_time="t", ranges=2, address=flow.address)
        flow.queries.append(stage.foreach_batch(marked.read(), flow.plain, checkpoint=flow.folder / "next"))

    marked.start()
    marked.feed(lw, upstream, "a", 9)
    with pytest.raises(Unsupported, match="stage writes"):
        read(["source"])
    assert not (flow.folder / "next").exists(), "nothing is touched"
    read(["stage"])
    marked.feed(lw, upstream, "b", 10)
    flow.eventually(lambda: low(lw, "next") == mark(10), "the reader follows")
    rows = flow.spark.read.option("recursiveFileLookup", "true").schema(COLUMNS).parquet(str(flow.folder / "out"))
    assert sorted(row.key for row in rows.collect()) == ["a", "b"]
