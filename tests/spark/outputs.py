"""One contract for every output of a batch: each batch once, none instead of another, and its readers wait for its writer.

`test_outputs.py` and `tests/iceberg/test_outputs.py` run the rules over their outputs: ``output`` is any of them, ``marked`` one
whose marks say what it has and who wrote it. The others are guarded: who does not own the computation is refused by its claim.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.support import Upstream, low, row

COLUMNS = "key string, t timestamp"

PATIENCE = 180


class Output:
    place: Path | str | None = None
    """What ``complete_through`` takes; None: this output does not say how far it is complete."""
    older = ""
    """The refusal of a checkpoint that is older than what stands in an output that has marks."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.made: list[tuple[int, bool]] = []

    def write(self, rows: DataFrame, batch: lws.Batch) -> bool:
        raise NotImplementedError

    def keys(self) -> list[str]:
        raise NotImplementedError

    def read(self) -> DataFrame:
        raise NotImplementedError

    def start(self, **options: Any) -> lws.TrackedQuery:
        def write(rows: DataFrame, batch: lws.Batch) -> None:
            # The rows of a batch that runs again stand in another order and in other files.
            spread = rows.withColumn("by", sf.rand()).repartition(2, "by").drop("by")
            self.made.append((batch.id, self.write(spread, batch)))

        return self.flow.start(write, ranges=2, **options)

    def feed(self, lw: lowwater.Client, upstream: Upstream, key: str, hour: int) -> None:
        self.flow.feed.put([row(key, hour)])
        upstream.at(hour)
        self.flow.eventually(lambda: low(lw, "stage") == mark(hour), f"{key} is committed")


class TestOutput:
    def test_a_repeated_batch_is_there_once(self, output: Output, lw: lowwater.Client, upstream: Upstream) -> None:
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
        assert output.made[:2] == [(0, True), (0, False)]
        assert all(new for _, new in output.made[2:])
        assert output.keys() == ["a", "b", "c"]
        if output.place is not None:
            assert lws.complete_through(flow.spark, output.place, ["stage"]).low >= mark(9)

    def test_an_outdated_checkpoint_is_refused(self, marked: Output, lw: lowwater.Client, upstream: Upstream) -> None:
        flow, checkpoint, copy = marked.flow, marked.flow.folder / "ck", marked.flow.folder / "copy"
        for key, hour in (("a", 9), ("b", 10)):
            query = marked.start()
            marked.feed(lw, upstream, key, hour)
            query.stop()
            if key == "a":
                shutil.copytree(checkpoint, copy)
        flow.queries.clear()
        shutil.rmtree(checkpoint)
        copy.rename(checkpoint)
        flow.feed.put([row("c", 9)])
        flow.address = "127.0.0.1:1"  # the authority would refuse it as well
        with pytest.raises(CheckpointMismatch, match=marked.older):
            marked.start().await_termination(PATIENCE)
        flow.queries.clear()
        assert marked.keys() == ["a", "b"]

    def test_a_reader_follows_the_writer_and_is_refused_when_it_does_not_name_it(
        self, marked: Output, lw: lowwater.Client, upstream: Upstream
    ) -> None:
        flow = marked.flow

        def read(inputs: Sequence[str]) -> None:
            stage = lws.stage(
                flow.spark, "next", inputs=inputs, key="key", event_time="t", ranges=2, address=flow.address
            )
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
        assert sorted(each.key for each in rows.collect()) == ["a", "b"]
