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
from lowwater_spark.track import query as clock
from lowwater_spark.track.authority import PROBE_INTERVAL, Authority, Registration
from lowwater_spark.track.hook import GLANCE, QUIET
from lowwater_spark.track.query import _REST, INTERVAL, Tracked, TrackedQuery
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
    idle: bool = False
    wake: threading.Event = field(default_factory=threading.Event)
    looks: list[tuple[float, float]] = field(default_factory=list)
    enough: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

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

    def hear(self) -> tuple[()]:
        return ()  # it has no inputs

    def cannot_read(self, failure: str) -> None:
        """It reads no files."""

    def end(self, failure: str) -> None:
        """Nobody hears of the end."""

    def close(self) -> None:
        self.closed.set()


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


@dataclass
class Wake:
    """A wake-up call that comes when it is said to, in a time that only waiting moves on."""

    now: float = 100.0
    at: list[float] = field(default_factory=list)
    """When somebody calls."""
    waits: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float) -> bool:
        self.waits.append(timeout)
        if self.at and self.at[0] <= self.now + timeout:
            self.now = max(self.now, self.at.pop(0))
            return True
        self.now += timeout
        return False

    def clear(self) -> None:
        """Whoever calls has been heard."""


@dataclass
class Still:
    """A run of which nothing is to be seen."""

    checkpoint: Path
    wake: Wake
    idle: bool = True
    nearing: bool = False
    """Whether a batch is about to be committed."""
    asked: list[float] = field(default_factory=list)
    """When its inputs were asked."""
    glanced: list[float] = field(default_factory=list)

    def pace(self) -> float:
        return GLANCE if self.nearing else QUIET

    def news(self) -> bool:
        self.asked.append(self.wake.now)
        return False

    def committed(self) -> bool:
        self.glanced.append(self.wake.now)
        return False


@pytest.fixture
def still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Still:
    run = Still(tmp_path, Wake())
    monkeypatch.setattr(clock, "time", run.wake)
    return run


def pause(run: Still) -> float:
    """Wait for a look, and return how long that took."""
    since = run.wake.now
    assert not Tracked(cast("Run", run), interval=INTERVAL, owned=None)._pause(0.0)
    return run.wake.now - since


def test_a_stage_that_waits_for_nothing_is_looked_at_once_a_second(still: Still) -> None:
    assert pause(still) == pytest.approx(QUIET)
    assert len(still.wake.waits) <= 2, "and sleeps until then"
    still.idle = False
    assert pause(still) == pytest.approx(INTERVAL), "what nobody tells of is looked for as often as is said"


def test_a_stage_glances_often_only_while_a_batch_is_about_to_be_committed(still: Still) -> None:
    still.idle, still.nearing = False, True
    pause(still)
    assert len(still.glanced) >= INTERVAL / GLANCE - 2
    assert len(still.asked) == 1, "inputs are not asked by the way: they tell"


def test_inputs_are_asked_when_somebody_tells_of_news(still: Still) -> None:
    still.wake.at = [100.3, 100.4]
    pause(still)
    assert still.asked[1:] == [100.3, 100.4]
