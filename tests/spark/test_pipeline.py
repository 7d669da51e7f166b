"""Pipelines by one command, with Spark: their output is what a batch computes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lowwater
from lowwater_pipeline.computation import Computation, Input, Output
from lowwater_pipeline.graph import Folder, Pipeline, PipelineError, Table, Topic
from lowwater_pipeline.graph.removal import Refused, remove
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.session import QUICK
from tests.spark.support import SETTINGS, Feed, Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]

PAGE = (ROOT / "docs/concepts/computations.md").read_text(encoding="utf-8").partition("\n## Pipelines: ")[2]
MODULE = re.sub(r'"(searches|clicks)"\)', r'"\1", format="json")', PAGE.split("```python\n")[1].split("```")[0])
"""The module of the page, over JSON."""

CONF = SETTINGS | QUICK


class Zeitgeist:
    """The module in a folder, what it reads, and the command on it."""

    def __init__(self, folder: Path, address: str, lw: lowwater.Client) -> None:
        self.folder = folder
        self.address = address
        self.searches, self.clicks = Feed(folder / "root/searches"), Feed(folder / "root/clicks")
        self.upstreams = [Upstream(lw, "searches"), Upstream(lw, "clicks")]
        (folder / "zeitgeist.py").write_text(MODULE)
        self.processes: list[subprocess.Popen[str]] = []
        self.log = folder / "log"

    def search(self, query: str, *minutes: int) -> None:
        self.searches.put(
            [
                {"rid": f"{query} {second}", "query": query, "ts": at(9, minute, second).isoformat()}
                for second, minute in enumerate(minutes)
            ]
        )

    def click(self, query: str, *minutes: int) -> None:
        self.clicks.put([{"q": query, "at": at(9, minute, 30).isoformat()} for minute in minutes])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lowwater_pipeline", "run", "zeitgeist.py", "--root", "root"]
        command += ["--address", self.address, "--master", "local[2]", *arguments]
        command += [f"--conf={name}={value}" for name, value in CONF.items()]
        env = dict(os.environ) | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self.log.open("w") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        return process

    def rows(self, output: str) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = []
        for file in (self.folder / "root/outputs" / output).glob("batch=*/*.parquet"):
            rows += pq.ParquetFile(file).read().to_pylist()
        for row in rows:
            row["start"] = row["start"].minute
        return sorted(rows, key=lambda row: (row["query"], row["start"]))


@pytest.fixture
def zeitgeist(tmp_path: Path, authority: Serving, lw: lowwater.Client) -> Iterator[Zeitgeist]:
    zeitgeist_ = Zeitgeist(tmp_path, authority.address, lw)
    yield zeitgeist_
    for process in zeitgeist_.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def minute(query: str, start: int, n: int, **more: int) -> dict[str, Any]:
    return {"query": query, "start": start, "n": n, **more}


COUNTED = [minute("a", 0, 1), minute("a", 1, 2), minute("a", 2, 3), minute("b", 5, 1)]
SPIKES = [minute("a", 0, 1, clicks=0), minute("a", 1, 2, clicks=1), minute("b", 5, 1, clicks=2)]


def test_the_command_runs_all_until_the_inputs_are_finished(zeitgeist: Zeitgeist, lw: lowwater.Client) -> None:
    zeitgeist.search("a", 0, 1, 2)
    zeitgeist.click("A", 0, 2)
    for upstream in zeitgeist.upstreams:
        upstream.at(9, 1)
    process = zeitgeist.start("--until-finished")
    eventually(lambda: zeitgeist.rows("counts/minutes"), "the first minute is there", seconds=300)
    zeitgeist.search("a", 1, 2, 2)
    zeitgeist.search("b", 5)
    zeitgeist.click("b", 3, 4)
    for upstream in zeitgeist.upstreams:
        upstream.lease.finish()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert zeitgeist.rows("counts/minutes") == COUNTED
    assert zeitgeist.rows("spikes/spikes") == SPIKES
    assert low(lw, "spikes").finished


class Passes(Computation):
    def __init__(self, name: str, source: str, key: str = "key") -> None:
        self.name = name  # type: ignore[misc]
        self.inputs = [Input(source, key=key, event_time="t")]  # type: ignore[misc]
        self.outputs = {"rows": Output("key string, t timestamp", event_time="t")}  # type: ignore[misc]

    def process_record(self, ctx: Any, record: Any) -> None:
        ctx.produce("rows", {"key": ctx.key, "t": record["t"]})


SOURCE = {"source": Folder("key string, t timestamp", "in", format="json")}


def test_tables_and_topics_between_computations_keep_times_to_the_microsecond(
    spark: SparkSession, tmp_path: Path, authority: Serving, lw: lowwater.Client, kafka: Kafka
) -> None:
    source, feed = Upstream(lw), Feed(tmp_path / "in")
    time = at(9).replace(microsecond=123_457)
    kafka.create(tmp_path.name, 2)
    pipeline = Pipeline(
        "p",
        [Passes("first", "source"), Passes("second", "first"), Passes("third", "second")],
        sources=SOURCE,
        outputs={"first": Table(), "second.rows": Topic(tmp_path.name, kafka.address, brokers=1)},
        ranges=2,
    )
    running = pipeline.start(spark, tmp_path, address=authority.address)
    try:
        assert (list(running.queries), running.failed) == (["first", "second", "third"], {})
        feed.put([{"key": "a", "t": time.isoformat()}])
        source.at(10)
        eventually(lambda: low(lw, "third") == lowwater.Watermark.of(at(10)), "all is through", seconds=120)
    finally:
        running.stop()
    out = spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path / "outputs/third/rows"))
    assert [tuple(row) for row in out.selectExpr("key", "unix_micros(t)").collect()] == [
        ("a", lowwater.Watermark.of(time).micros)
    ]


def test_one_is_added_and_removed(spark: SparkSession, tmp_path: Path, authority: Serving, lw: lowwater.Client) -> None:
    source, feed = Upstream(lw), Feed(tmp_path / "in")
    first, second = Passes("first", "source"), Passes("second", "first")
    before = Pipeline("p", [first], sources=SOURCE, ranges=2)
    after = Pipeline("p", [first, second], sources=SOURCE, ranges=2)

    def put(key: str, hour: int, *names: str) -> None:
        feed.put([{"key": key, "t": at(hour, 30).isoformat()}])
        source.at(hour + 1)
        for name in names:
            eventually(lambda: low(lw, name) == mark(hour + 1), f"{name} is through", seconds=120)  # noqa: B023

    running = before.start(spark, tmp_path, address=authority.address)
    try:
        put("a", 9, "first")
        added = after.start(spark, tmp_path, address=authority.address, only=["second"])
        put("b", 10, "second")
        with pytest.raises(Refused, match="second runs: stop its process first"):
            remove(tmp_path, "second", lw, discard=True)
        added.stop()
        remove(tmp_path, "second", lw, discard=True, silence=1)
        put("c", 11, "first")
        assert running.look(print, {}), "the other one goes on"
        out = spark.read.option("recursiveFileLookup", "true").schema("key string, t timestamp")
        assert sorted(row.key for row in out.parquet(str(tmp_path / "outputs/second/rows")).collect()) == ["a", "b"]
        assert not lw.get("second")["second"].registered
    finally:
        running.stop()


def test_what_only_spark_knows_is_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path, authority: Serving, lw: lowwater.Client
) -> None:
    Feed(tmp_path / "in")
    wrong = [Passes("first", "source"), Passes("second", "first", key="upper(k)"), Passes("third", "first", key="t")]
    pipeline = Pipeline("p", wrong, sources=SOURCE)
    with pytest.raises(PipelineError, match="the pipeline p cannot run") as refused:
        pipeline.start(spark, tmp_path, address=authority.address)
    second, third = refused.value.problems
    assert second.startswith("second: AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION]")
    assert "`k`" in second
    assert third.startswith("third: TypeError: the key of third is of timestamp; take text, bytes")
    assert not (tmp_path / "checkpoints").exists()
    assert "first" not in lw.get()
    with pytest.raises(ValueError, match="root is not absolute"):
        pipeline.start(spark, "root", address=authority.address)


def test_times_in_topics_may_have_any_fraction_of_a_second_or_none(spark: SparkSession) -> None:
    times = ["09:00:00Z", "09:00:00.5Z", "09:00:00.123Z", "09:00:00.123457Z", "10:00:00+01:00", "10:00:00.5+01:00"]
    messages = spark.createDataFrame([(f'{{"t": "2013-01-09T{time}"}}'.encode(),) for time in times], "value binary")
    rows = Topic.rows(messages, "t timestamp").selectExpr("unix_micros(t)").collect()
    nine = lowwater.Watermark.of(at(9)).micros
    assert [row[0] for row in rows] == [nine + micros for micros in (0, 500_000, 123_000, 123_457, 0, 500_000)]
