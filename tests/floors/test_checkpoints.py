"""Jobs of other versions of PySpark, tracked by their checkpoints: what each version writes there is read by this one."""

from __future__ import annotations

import itertools
import json
import operator
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.files.sink_log import list_sink
from tests.compatibility.environments import clean_environ
from tests.floors.environments import CLIENTS, OLDEST
from tests.floors.test_floor import FLOOR, LOWEST, python_with
from tests.kit.eventually import eventually
from tests.kit.program import run_program
from tests.kit.times import at, mark
from tests.process.serving import serving
from tests.spark.retained import Oracle
from tests.spark.support import Feed, Upstream, low, row

WITH: dict[str, tuple[Any, ...]] = {OLDEST: ((),), FLOOR: (CLIENTS, *LOWEST)}
"""The packages of each environment besides PySpark. The environments that `test_floor.py` makes are used again."""

JOB = Path(__file__).with_name("job.py")

# The first time they fetch 350 MB each.
pytestmark = pytest.mark.timeout(1500)

Follow = Callable[..., lws.Sidecar]


@pytest.fixture
def lw(tmp_path: Path) -> Iterator[lowwater.Client]:
    (tmp_path / "authority").mkdir()
    with serving(tmp_path / "authority") as server, lowwater.connect(server.address) as client:
        yield client


@pytest.fixture
def follow(tmp_path: Path, lw: lowwater.Client) -> Iterator[Follow]:
    sidecars: list[lws.Sidecar] = []

    def start(**declared: Any) -> lws.Sidecar:
        defaults: dict[str, Any] = {
            "checkpoint": str(tmp_path / "ck"),
            "inputs": ["source"],
            "sources": [f"files:{tmp_path / 'in'}"],
            "promises": ["history", "nothing-skipped", "same-operators", "sink-visible-before-commit"],
            "output": str(tmp_path / "out"),
            "state": tmp_path / "state",
        }
        sidecars.append(lws.track("stage", client=lw, **{**defaults, **declared}))
        return sidecars[-1]

    yield start
    for sidecar in sidecars:
        sidecar.stop()


def program(pyspark: str, folder: Path, kind: str) -> tuple[list[str], dict[str, str]]:
    """The command of a job, and its environment."""
    python = python_with(pyspark, *WITH[pyspark])
    environ = {name: value for name, value in clean_environ().items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    return [python, "-I", str(JOB), str(folder), kind], {**environ, "PYSPARK_PYTHON": python}


def run(pyspark: str, folder: Path, kind: str) -> None:
    command, environ = program(pyspark, folder, kind)
    done = run_program(command, cwd=folder, env=environ, timeout=600)
    assert done.returncode == 0, done.stderr[-5_000:]


@contextmanager
def running(pyspark: str, folder: Path, kind: str) -> Iterator[None]:
    """A job that goes on until it is killed, its JVM with it."""
    command, environ = program(pyspark, folder, kind)
    with (folder / "job.log").open("a") as shown:
        job = subprocess.Popen(
            [*command, "on"], cwd=folder, env=environ, stdout=shown, stderr=shown, start_new_session=True
        )
        try:
            yield
            assert job.poll() is None, (folder / "job.log").read_text()[-5_000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()


@pytest.mark.long
def test_a_job_that_comes_and_goes_is_tracked(tmp_path: Path, lw: lowwater.Client, follow: Follow) -> None:
    feed, upstream = Feed(tmp_path / "in"), Upstream(lw)
    feed.put([row("a", 9)])
    run(OLDEST, tmp_path, "rows")
    sidecar = follow()
    upstream.at(10)
    eventually(lambda: low(lw, "stage") == mark(10), "all that there is is committed")
    feed.put([row("b", 10)])
    upstream.at(11)
    eventually(lambda: sidecar.status().waiting_for != (), "the job is away, so a file waits")
    assert low(lw, "stage") == mark(10)
    run(OLDEST, tmp_path, "rows")
    eventually(lambda: low(lw, "stage") == mark(11), "it has read it")


@pytest.mark.long
@pytest.mark.parametrize("pyspark", [OLDEST, FLOOR])
def test_what_spark_holds_is_found(tmp_path: Path, lw: lowwater.Client, follow: Follow, pyspark: str) -> None:
    feed, upstream = Feed(tmp_path / "in"), Upstream(lw)
    upstream.at(12)
    feed.put([row("a", 9, 10), row("a", 11)])
    run(pyspark, tmp_path, "windows")
    with pytest.raises(Unsupported, match=r"stateStoreSave.*how far below its watermark"):
        follow()
    with pytest.raises(Unsupported, match=r'operators = \["join"\] is declared.*the state of aggregation'):
        follow(retention="1h", stamp="1h", output_mode="append", operators=["join"])
    follow(retention="1h", stamp="1h", output_mode="append")
    # The watermark of 10:40 has closed the hour of nine, and that of ten is open.
    eventually(lambda: low(lw, "stage") == mark(9), "Spark's watermark less the hour, and the window of that")


@pytest.mark.long
def test_rule1_windows_over_a_join_are_tracked_through_kills(
    tmp_path: Path, lw: lowwater.Client, follow: Follow
) -> None:
    left, right, upstream = Feed(tmp_path / "in"), Feed(tmp_path / "right"), Upstream(lw)
    lw.register("stage", inputs=["source"], key_hash="xxhash64")
    log, out = CheckpointLog(tmp_path / "ck"), tmp_path / "out"
    declared: dict[str, Any] = {
        "sources": [f"files:{left.folder}", f"files:{right.folder}"],
        # The window, how long the join keeps a row of the left, and the millisecond.
        "retention": timedelta(hours=1, minutes=30, milliseconds=1),
        "stamp": "1h",
        "output_mode": "append",
        "operators": ["aggregation", "join"],
    }
    rows: list[tuple[str, int, int]] = []

    def put(step: int) -> None:
        """Twenty minutes. Each other time the rows of ``b`` are late by a quarter of an hour, less than Spark's delay."""
        start = 9 * 60 + 20 * step
        new = [(key, minute, minute + 5) for key, minute in (("a", start), ("b", start - 15 * (step % 2)))]
        left.put([row(key, 0, t) for key, t, _ in new])
        right.put([{"other": key, "u": at(0, u).isoformat()} for key, _, u in new])
        rows.extend(new)
        upstream.at(0, start)

    def planned() -> list[int]:
        """How far the newest plan reads each source: Spark counts the batches that had new files."""
        plan = log.newest()
        lines = ["-", "-"] if plan is None else plan.lines
        return [-1 if line == "-" else json.loads(line)["logOffset"] for line in lines]

    def put_in_a_batch(step: int) -> None:
        before = planned()
        put(step)
        eventually(lambda: all(map(operator.gt, planned(), before)), "the rows of both sources are planned")

    killed_in_a_batch = []
    oracle = Oracle(lw.settings.address, out)
    steps = iter(range(17))
    with oracle.watching("stage"):
        for _ in range(3):
            sidecar = None
            with running(OLDEST, tmp_path, "joined"):
                for step in itertools.islice(steps, 5):
                    put_in_a_batch(step)
                    sidecar = sidecar or follow(**declared)
                batch = log.last_planned()
                assert batch is not None
                killed_in_a_batch.append(not log.committed(batch))
            assert sidecar is not None
            sidecar.stop()
        assert any(killed_in_a_batch)
        for step in steps:
            put(step)
        follow(**declared)
        run(OLDEST, tmp_path, "joined")
        # The newest rows are at 14:20 and 14:25, so Spark's watermark is at 14:00, by the older of both.
        eventually(lambda: low(lw, "stage") == mark(12), "Spark's watermark less the retention, and the window of that")
    assert oracle.broken() == []
    assert len(oracle.values()) >= 3
    pairs = [(key, u) for key, t, _ in rows for other, _, u in rows if key == other and t <= u <= t + 30]
    expected = Counter((key, at(u // 60)) for key, u in pairs)
    lines = [line for file in list_sink(str(out)) for line in Path(file.path).read_text().splitlines()]
    counts = [(line["key"], datetime.fromisoformat(line["t"]), line["count"]) for line in map(json.loads, lines)]
    found = {(key, start): count for key, start, count in counts}
    assert len(found) == len(counts), "each window comes once"
    assert found.items() <= expected.items()
    assert {window for window in expected if window[1] < at(12)} <= found.keys(), "all below the watermark"
