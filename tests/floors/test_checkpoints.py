"""Jobs of other versions of PySpark, tracked by their checkpoints: what each version writes there is read by this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lowwater
import lowwater_spark as lws
from lowwater_spark.errors import Unsupported
from tests.compatibility.environments import clean_environ
from tests.floors.environments import CLIENTS
from tests.floors.test_floor import LOWEST, TRACKED, python_with
from tests.kit.eventually import eventually
from tests.kit.program import run_program
from tests.kit.times import mark
from tests.process.serving import serving
from tests.spark.support import Feed, Upstream, low, row

OLDEST = "3.5.7"
"""A patch of the oldest line whose checkpoints are read. Nothing else of lowwater runs on it."""

WITH: dict[str, tuple[Any, ...]] = {OLDEST: ((),), TRACKED: (CLIENTS, *LOWEST)}
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


def run(pyspark: str, folder: Path, kind: str) -> None:
    python = python_with(pyspark, *WITH[pyspark])
    environ = {name: value for name, value in clean_environ().items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    done = run_program(
        [python, "-I", str(JOB), str(folder), kind], cwd=folder, env={**environ, "PYSPARK_PYTHON": python}, timeout=600
    )
    assert done.returncode == 0, done.stderr[-5_000:]


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
@pytest.mark.parametrize("pyspark", [OLDEST, TRACKED])
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
