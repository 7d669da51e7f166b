"""The sender of attach() reports to a real authority; the book is written by hand, as Spark's threads would."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest

import lowwater
from lowwater import errors
from lowwater.core.causes import Cause, cause_of
from lowwater.watermark import MIN
from lowwater_spark.attach import sender as sender_module
from lowwater_spark.attach.book import Book, QueryStatus
from lowwater_spark.attach.progress import BatchProgress
from lowwater_spark.attach.sender import RETRY, SILENCE, Sender
from tests.kit.clock import Clock
from tests.kit.eventually import eventually
from tests.kit.times import micros
from tests.process.serving import Serving
from tests.spark.support import Upstream


class Driver:
    """A book with a sender: a Spark driver without Spark."""

    def __init__(
        self,
        address: str,
        timeout: float = 1.0,
        inputs: Mapping[str, Sequence[str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock(0.0, over=time.monotonic)
        self.book = Book(lambda name, query: f"spark.{name or query}", self.clock)
        settings = lowwater.Settings(address, timeout=timeout)
        self.sender = Sender(self.book, lowwater.Client(settings), self.clock, inputs)
        self.sender.start()
        self._batches = count()

    def batch(self, query: str, watermark: int | None, run: str = "r1", *, name: str = "hourly") -> None:
        self.book.progressed(BatchProgress(query, run, name, next(self._batches), watermark, 1, 1.0, 0, 0, 0.1))

    def end(self, query: str, run: str = "r1", failure: str | None = None) -> None:
        self.book.terminated(query, run, failure)

    def status(self, query: str) -> QueryStatus:
        return next(each for each in self.book.queries() if each.query == query)

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        with self.book.changed:
            self.book.changed.notify_all()


Drivers = Callable[..., Driver]


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    with contextlib.ExitStack() as stack:

        def make(address: str, timeout: float = 1.0, **options: Any) -> Driver:
            driver = Driver(address, timeout, **options)
            stack.callback(driver.sender.stop)
            return driver

        yield make


def view(lw: lowwater.Client, name: str = "spark.hourly") -> lowwater.WatermarkView:
    return lw.get(name)[name]


def leave(lw: lowwater.Client, query: str) -> None:

    def given_back() -> bool:
        holder = view(lw).holder
        return holder is not None and (holder.worker, holder.state) == (f"query {query}", lowwater.RangeState.UNOWNED)

    eventually(given_back, f"{query} has left")


def reported(driver: Driver, query: str, watermark: int) -> None:
    eventually(lambda: driver.status(query).reported.micros == watermark, f"{query} at {watermark}")


def test_a_restart_goes_on_and_a_new_checkpoint_must_catch_up(
    authority: Serving, lw: lowwater.Client, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    first = drivers(authority.address)
    first.batch("q1", micros(12))
    reported(first, "q1", micros(12))
    first.sender.stop()
    again = drivers(authority.address)
    again.batch("q1", None, run="r2")
    eventually(lambda: again.sender.delivered, "claimed again")
    assert view(lw).low.micros == micros(12), "no watermark yet takes nothing back"
    again.end("q1", "r2", "it broke\nat line 1")
    leave(lw, "q1")
    holder = view(lw).holder
    assert holder is not None
    assert holder.remarks == lowwater.Remarks(ended=True, failure="it broke"), "so it is not shown as stopped"
    with caplog.at_level(logging.WARNING, "lowwater.spark"):
        again.batch("fresh", micros(9))
        reported(again, "fresh", micros(9))
    assert "stays there until the query has caught up" in caplog.text
    assert (view(lw).low.micros, again.status("fresh").published.micros) == (micros(12), micros(12))
    again.batch("fresh", micros(13))
    reported(again, "fresh", micros(13))
    assert view(lw).low.micros == micros(13)


def test_the_second_query_of_a_name_is_refused_until_the_first_has_left(
    authority: Serving, lw: lowwater.Client, drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = drivers(authority.address), drivers(authority.address)
    one.batch("q1", micros(12))
    reported(one, "q1", micros(12))
    with caplog.at_level(logging.WARNING, "lowwater.spark"):
        two.batch("q2", micros(10))
        eventually(lambda: two.status("q2").problem, "refused")
    assert "query q1 on" in two.status("q2").problem
    assert len([record for record in caplog.records if "is not reported as" in record.message]) == 1
    assert two.status("q2").reported.micros == MIN
    assert lw.ranges("spark.hourly").ranges[0].worker == "query q1"
    # The first one lives, and has reported again: the second looks, and waits on.
    one.batch("q1", micros(13))
    reported(one, "q1", micros(13))
    looks = two.sender.delivered
    two.later(SILENCE)
    eventually(lambda: two.sender.delivered > looks, "looked again")
    assert two.status("q2").reported.micros == MIN
    one.end("q1")
    leave(lw, "q1")
    assert cause_of(view(lw), time.time_ns() // 1000) is Cause.STOPPED
    two.later(SILENCE)
    reported(two, "q2", micros(10))
    assert (two.status("q2").problem, view(lw).low.micros) == ("", micros(13))


HOURLY = {"spark.hourly": ("source",)}


def test_declared_inputs_are_drawn_and_hold_it(authority: Serving, lw: lowwater.Client, drivers: Drivers) -> None:
    upstream = Upstream(lw)
    upstream.at(9)
    driver = drivers(authority.address, inputs=HOURLY)
    driver.batch("q1", micros(12))
    driver.batch("q2", micros(12), name="beside")
    assert driver.book.wait(20), "a look at the inputs is nothing that Spark has told"
    assert [driver.status(query).reported.micros for query in ("q1", "q2")] == [micros(9), micros(12)]
    assert lw.topology().computations["spark.hourly"].inputs == ("source",)
    assert (view(lw).low.micros, view(lw).estimated) == (micros(9), True)
    assert "source" in str(lw.why("spark.hourly"))

    def follows(watermark: int) -> bool:
        driver.later(RETRY)
        return driver.status("q1").reported.micros == watermark

    upstream.at(11)
    eventually(lambda: follows(micros(11)), "its input has moved")
    upstream.at(13)
    eventually(lambda: follows(micros(12)), "its own is the lesser")
    assert (driver.status("q1").watermark.micros, view(lw).low.micros) == (micros(12), micros(12))


def test_an_exact_computation_is_not_touched(authority: Serving, lw: lowwater.Client, drivers: Drivers) -> None:
    lw.register("spark.hourly")
    driver = drivers(authority.address)
    driver.batch("q1", micros(9))
    eventually(lambda: "REGISTRATION_CONFLICT" in driver.status("q1").problem, "refused")
    assert not view(lw).estimated
    driver.batch("q2", micros(9), name="other")
    reported(driver, "q2", micros(9))


def test_a_lost_authority_is_left_alone_and_refound(authority: Serving, lw: lowwater.Client, drivers: Drivers) -> None:
    driver = drivers(authority.address, timeout=0.3)
    driver.batch("q1", micros(9))
    reported(driver, "q1", micros(9))
    authority.signal(signal.SIGSTOP)
    for hour in (10, 11, 12):
        failures = driver.sender.failures
        driver.batch("q1", micros(hour))
        driver.later(sender_module.RETRY)
        eventually(lambda before=failures: driver.sender.failures > before, "an attempt failed")  # type: ignore[misc]  # a default binds
    assert driver.sender.breaker.is_open
    assert driver.sender.problem
    failures, conflated = driver.sender.failures, driver.book.conflated
    for hour in range(13, 20):
        driver.batch("q1", micros(hour))
    assert driver.book.conflated >= conflated + 6
    assert driver.sender.failures == failures, "it is left alone"
    authority.signal(signal.SIGCONT)

    def probed() -> bool:
        driver.later(10)
        return driver.status("q1").reported.micros == micros(19)

    eventually(probed, "the newest, after a probe")
    assert (driver.sender.problem, view(lw).low.micros) == ("", micros(19))


@pytest.mark.parametrize("failure", [None, "it broke"])
def test_a_new_run_takes_back_the_end_of_one_whose_release_failed(
    authority: Serving, lw: lowwater.Client, drivers: Drivers, monkeypatch: pytest.MonkeyPatch, failure: str | None
) -> None:
    def away(_lease: lowwater.Lease) -> None:
        raise errors.Unavailable("cut off")

    driver = drivers(authority.address)
    driver.batch("q1", micros(9))
    reported(driver, "q1", micros(9))
    monkeypatch.setattr(lowwater.Lease, "release", away)
    driver.end("q1", failure=failure)
    eventually(lambda: driver.sender.failures, "the release failed")
    assert cause_of(view(lw), time.time_ns() // 1000) is (Cause.FAILED if failure else Cause.STOPPED)
    monkeypatch.undo()
    driver.book.started("q1", "r2", "hourly")
    driver.later(RETRY)
    eventually(lambda: not driver.status("q1").problem, "the new run is reported")
    holder = view(lw).holder
    assert holder is not None
    assert (holder.state, holder.remarks) == (lowwater.RangeState.OWNED, lowwater.Remarks())


def test_a_bug_in_the_reports_of_one_query_leaves_the_others_alone(
    authority: Serving, drivers: Drivers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = drivers(authority.address)
    deliver = Sender._deliver

    def broken(self: Sender, saying: Any, speaker: Any) -> None:
        if saying.query == "broken":
            raise ZeroDivisionError
        deliver(self, saying, speaker)

    def fails(tries: int) -> None:
        driver.batch("broken", micros(9), name="other")
        eventually(lambda: driver.sender.failures == tries, "it failed")
        driver.later(RETRY)
        driver.batch("q1", micros(9 + tries))  # reported behind "broken", if that is tried again now
        reported(driver, "q1", micros(9 + tries))
        assert driver.sender.failures == tries, "it is not tried each second, with a traceback each time"
        driver.later(SILENCE)

    monkeypatch.setattr(Sender, "_deliver", broken)
    for tries in range(1, 6):
        fails(tries)
    assert not driver.sender.breaker.is_open
    assert driver.book.swallowed == driver.sender.failures == len([r for r in caplog.records if r.exc_info])
