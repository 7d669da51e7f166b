"""The pauses of a query's clock and of its search for an authority that is away: whatever fails, nothing is asked without a rest."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql.streaming.query import StreamingQuery

import lowwater
from lowwater import errors
from lowwater_spark.track.authority import PROBE_INTERVAL, Authority, Registration
from lowwater_spark.track.query import _REST, TrackedQuery
from lowwater_spark.track.run import Run

TAKES = 0.05
REGISTRATION = Registration("stage", ("source",), (), 1, "identity", 0, 1, b"", adopt=False)


class Query:
    """What a clock asks of Spark's handle."""

    isActive = True  # noqa: N815 - Spark's name

    def stop(self) -> None:
        """Nothing runs."""


@dataclass
class Failing:
    """A run that always has news and whose every look fails, after a while."""

    checkpoint: Path
    authority: Authority
    failure: BaseException | None = None
    stopping: bool = False
    listens: bool = False
    looks: list[tuple[float, float]] = field(default_factory=list)
    enough: threading.Event = field(default_factory=threading.Event)

    def news(self) -> bool:
        return True

    def tick(self, *, last: bool = False) -> None:
        since = time.monotonic()
        threading.Event().wait(TAKES)  # what a call that is not answered takes
        self.looks.append((since, time.monotonic()))
        if len(self.looks) == 4:
            self.enough.set()
        if not last:
            raise errors.Unavailable("nobody answers")

    def cannot_read(self, failure: str) -> None:
        """It reads no files."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def away(tmp_path: Path) -> Authority:
    """An authority's client, with nobody at its address."""
    return Authority(lowwater.Client(lowwater.Settings(f"unix:{tmp_path}/nobody", timeout=0.2)), REGISTRATION)


def test_the_clock_rests_after_a_look_that_failed(tmp_path: Path, away: Authority) -> None:
    run = Failing(tmp_path, away)
    query = TrackedQuery(cast("Run", run), cast("StreamingQuery", Query()), interval=60.0, owned=None)
    assert run.enough.wait(60)
    query.stop()
    for (_, ended), (begun, _) in zip(run.looks[:4], run.looks[1:4], strict=False):
        assert begun - ended >= 0.9 * _REST * TAKES, "looks take a fifth of the time"


def test_the_pause_between_two_probes_begins_when_the_first_has_failed(
    away: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call may wait longer than the pause is."""
    now, asked = 100.0, 0

    def get(*_: str) -> None:
        nonlocal now, asked
        now, asked = now + 3 * PROBE_INTERVAL, asked + 1
        raise errors.Unavailable("nobody answers")

    monkeypatch.setattr(away, "clock", lambda: now)
    monkeypatch.setattr(away._quick, "get", get)
    away.lost(errors.Unavailable("nobody answers"))
    assert (away.probe(), asked) == (False, 0), "the pause begins when it was lost"
    now += PROBE_INTERVAL
    assert (away.probe(), asked) == (False, 1)
    assert (away.probe(), asked) == (False, 1), "the first call has taken three pauses"
    now += PROBE_INTERVAL
    assert (away.probe(), asked) == (False, 2)
