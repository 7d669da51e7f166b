"""One cell, held to its promise: rows late and out of order, five kills of the job and two of the sidecar, compared with the batch answer."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import lowwater
from tests.compatibility.environments import clean_environ
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.matrix.cells import Cell
from tests.matrix.jobs import JOBS, Job, Window
from tests.matrix.places import Hand, Place, opened, python_of
from tests.process.serving import serving
from tests.spark.support import Upstream, low

HALF: Final = timedelta(minutes=30)
LATEST: Final = timedelta(minutes=100)
"""A row is at most so much older than the newest before it, and Spark waits for two hours."""

JOB_KILLS: Final = 5
SIDECAR_KILLS: Final = 2
STEPS: Final = 14
BOUND: Final = 300.0
"""Seconds in which the frontier is reached after the last kill, on a busy machine."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    job_kills: int
    sidecar_kills: int
    values: int
    """Watermarks that were seen."""
    wrong: int
    """Windows that are not as in the batch answer, or not there once."""
    leads: int
    """Rows that came below what had been published before them."""
    seconds: float
    """From the end of the last kill until the frontier was reached."""

    @property
    def exact(self) -> bool:
        return not self.wrong and not self.leads


class Watch:
    """Each watermark that is published, and the files that the output had by then."""

    def __init__(self, address: str, hand: Hand, job: Job) -> None:
        self._address, self._hand, self._job = address, hand, job
        self.published: list[tuple[lowwater.Watermark, set[str]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        with lowwater.connect(self._address) as reader:
            thread = threading.Thread(target=self._watch, args=[reader])
            thread.start()
            try:
                yield
            finally:
                reader.close()
                thread.join()

    def _watch(self, reader: lowwater.Client) -> None:
        try:
            for view in reader.watch(self._job.name):
                self.published.append((view.low, self._job.files(self._hand)))
        except lowwater.LowwaterError:
            pass

    def leads(self, rows: list[tuple[str, str, int, int]]) -> int:
        """Count the rows that came out after something above them had been published."""
        stamps = [(file, lowwater.Watermark(start * 1_000_000)) for file, _, start, _ in rows]
        return sum(
            any(file not in before and stamp < value for value, before in self.published) for file, stamp in stamps
        )


def held(
    cell: Cell, folder: Path, *, seed: int = 1, job_kills: int = JOB_KILLS, sidecar_kills: int = SIDECAR_KILLS
) -> Outcome:
    """Run a cell. ``folder`` is empty, and has whatever was written afterwards. Takes one to four minutes."""
    chance = random.Random(f"{cell} {seed}")
    (folder / "authority").mkdir(parents=True)
    with ExitStack() as ending:
        server = ending.enter_context(serving(folder / "authority"))
        lw = ending.enter_context(lowwater.connect(server.address))
        place = ending.enter_context(opened(cell, folder))
        hand = Hand(place, python_of(cell.reader))
        ending.callback(hand.end)
        upstream = Upstream(lw)
        job = JOBS[cell.kind](place)
        lw.register(job.name, inputs=[upstream.name], key_hash="xxhash64")
        watch = Watch(server.address, hand, job)
        sidecar = Sidecar(place, job, server.address, hand)
        rows: list[tuple[str, datetime]] = []

        def put(newest: datetime, *, all_at: bool = False) -> None:
            """Put a row of each of three keys: the newest, and two that are older."""
            ages = [timedelta(0), timedelta(minutes=20), chance.random() * LATEST]
            new = [(key, newest - (timedelta(0) if all_at else age)) for key, age in zip("abc", ages, strict=True)]
            rows.extend(new)
            hand.put([{"key": key, "t": t.isoformat()} for key, t in new])
            promised = newest if all_at else newest - LATEST
            upstream.lease.advance(None, oldest=None, frontier=promised)
            upstream.lease.flush(60)

        def check() -> None:
            job.check()
            sidecar.check()

        killed = {STEPS - 1, *chance.sample(range(2, STEPS - 1), job_kills - 1)}
        killed_sidecar = set(chance.sample(range(2, STEPS), sidecar_kills))
        put(at(8))
        job.start()
        ending.callback(job.kill)
        eventually(lambda: hand.begun(job.checkpoint), "the query has committed a batch", check=job.check)
        sidecar.start()
        ending.callback(sidecar.kill)
        ending.enter_context(watch.watching())
        seen = low(lw, job.name)
        for step in range(1, STEPS):
            put(at(8) + step * HALF)
            threading.Event().wait(chance.random() * 2)
            if step in killed:
                job.kill()
                job.start()
            if step in killed_sidecar:
                sidecar.kill()
                sidecar.start()
            if step % 4 == 0:
                eventually(lambda: low(lw, job.name) > seen, "the watermark moves", seconds=BOUND, check=check)  # noqa: B023
                seen = low(lw, job.name)
        since = time.monotonic()
        put(at(30), all_at=True)

        eventually(
            lambda: low(lw, job.name) == mark(job.frontier), "the frontier is reached", seconds=BOUND, check=check
        )
        seconds = time.monotonic() - since
        written = job.rows(hand)
    return Outcome(
        job_kills,
        sidecar_kills,
        len({value for value, _ in watch.published}),
        different(job.expected(rows), job.found(written)),
        watch.leads(written),
        round(seconds, 1),
    )


def different(expected: Counter[Window], found: Counter[Window]) -> int:
    """Return how many windows are wrong: missing, too many, or with another count.

    >>> different(Counter({("a", 0, 2): 1, ("b", 0, 1): 1}), Counter({("a", 0, 2): 2, ("c", 0, 1): 1}))
    3
    """
    return (found - expected).total() + (expected - found).total()


class Sidecar:
    """``lowwater-spark track`` over the job's checkpoint."""

    def __init__(self, place: Place, job: Job, address: str, hand: Hand) -> None:
        self._folder = place.folder
        promises = ["sink-visible-before-commit", "nothing-skipped", "history"]
        promises += ["same-operators"] if place.cell.kind == "spark35" else []
        promises += ["single-driver"] if place.cell.store in ("s3", "gcs") else []
        (self._folder / "queries.toml").write_text(job.declaration(promises))
        self._python = python_of(place.cell.reader, reports=True)
        program = [self._python, "-m", "lowwater_spark.sidecar.command", "track", str(self._folder / "queries.toml")]
        self._command = [*program, "--state", str(self._folder / "state"), "--address", address]
        for name, value in place.settings(place.cell.reader).items():
            self._command += ["--conf", f"{name}={value}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = (
            {**clean_environ(), "PYSPARK_PYTHON": self._python} if self._python != sys.executable else dict(os.environ)
        )
        with (self._folder / "sidecar.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environ, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "sidecar.log").read_text()[-4000:]
