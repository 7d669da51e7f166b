"""The page remembers computations, answers its viewers' questions, and recalls values from the authority."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

import lowwater
from lowwater import Watermark, WatermarkView, errors
from lowwater_page.board import Board
from lowwater_page.follower import Follower
from lowwater_page.questions import MOST_ASKED, MOST_KEPT, THREADS, Questions
from lowwater_page.recall import Recall
from lowwater_page.samples import PER_COMPUTATION, SPANS, STEP_SECONDS, Samples
from tests.kit.eventually import eventually, eventually_async
from tests.kit.times import HOUR

SECOND = 1_000_000
START = 1_767_225_600 * SECOND
"""Midnight, when steps of every length begin."""

UNKNOWN = Watermark.UNKNOWN.micros
FINISHED = Watermark.FINISHED.micros


def run(samples: Samples, seconds: int, *lags: int, start: int = START, step: int = STEP_SECONDS) -> int:
    """Take samples in which computations are so many seconds behind; gives the time behind the last."""
    names = [f"c{i}" for i in range(len(lags))]
    for at in range(start, start + seconds * SECOND, step * SECOND):
        samples.add(at, names, [(at - lag * SECOND, at - lag * SECOND // 2) for lag in lags])
    return start + seconds * SECOND


def test_what_has_no_time_has_no_lag() -> None:
    samples = Samples()
    samples.add(START, ["a", "b", "c"], [(UNKNOWN, UNKNOWN), (FINISHED, FINISHED), (START - SECOND, UNKNOWN)])
    assert samples.of("a", SPANS["24h"]) == [(START, None, None)]
    assert samples.of("b", SPANS["7d"]) == [(START, None, None)]
    assert samples.of("c", SPANS["7d"]) == [(START, START - SECOND, None)]
    assert {n: lag[-1] for n, lag in samples.heat(SPANS["1h"], 10, {}).lags.items()} == {"c": 1, "a": None, "b": None}


def test_a_new_incarnation_begins_with_nothing_and_a_dropped_one_leaves_nothing() -> None:
    past = Samples()
    run(past, 120, 10, 20)
    past.begin("c0")
    past.remove("c1")
    for span in SPANS.values():
        assert past.of("c0", span) == past.of("c1", span) == [] or {low for _, low, _ in past.of("c0", span)} == {None}
    assert list(past.heat(SPANS["6h"], 10, {}).lags.values()) == [[None] * 72]
    past.add(START + 120 * SECOND, ["new"], [(START, START)])
    assert [low for _, low, _ in past.of("new", SPANS["24h"])][-1] == START
    assert {low for _, low, _ in past.of("new", SPANS["24h"])[:-1]} == {None}


def test_what_was_before_is_recalled_from_when_hours_were_complete() -> None:
    """An hour that is complete 40 minutes after its end was behind by so much then, and by less before, back to its end."""
    samples, h, now = Samples(), 3600 * SECOND, START + 10 * 3600 * SECOND
    samples.add(now, ["a", "b"], [(now - 7 * SECOND, now), (now, now)])
    samples.recall("a", [(START + 2 * h, START + 2 * h + 5 * SECOND), (START + 3 * h, START + 3 * h + 2400 * SECOND)])
    assert not samples.recall("c", [(START, START)])
    heat = samples.heat(SPANS["24h"], 10, {})
    assert heat.since_micros == now
    first = (START - heat.from_micros) // (900 * SECOND)
    lags = heat.lags["a"]
    assert lags[first + 8 : first + 17] == [5, None, None, None, 899, 1799, 2400, None, None]
    assert lags[-1] == 7
    assert heat.lags["b"] == [None] * 95 + [0]
    assert [low for time, low, _ in samples.of("b", SPANS["24h"]) if time < now] == [None] * len(
        samples.of("b", SPANS["24h"])[:-1]
    )


@pytest.mark.parametrize("span", SPANS)
def test_what_a_clock_that_went_back_had_said_of_the_future_is_forgotten(span: str) -> None:
    samples = Samples()
    run(samples, 600, 10, step=60)
    run(samples, 600, 7000, start=START + 4 * 3600 * SECOND, step=60)
    after = run(samples, 60, 30, start=START + 600 * SECOND)
    for _ in range(2):  # also when the clock has come there
        assert {lag for lag in samples.heat(SPANS[span], 10, {}).lags["c0"] if lag is not None} <= {10, 20, 30}
        kept_samples = samples.of("c0", SPANS[span])
        assert [time for time, _, _ in kept_samples] == sorted(time for time, _, _ in kept_samples)
        assert {time - (low or 0) for time, low, _ in kept_samples} <= {10 * SECOND, 20 * SECOND, 30 * SECOND}
        assert kept_samples
        run(samples, 60, 20, start=START + 4 * 3600 * SECOND)
    assert after < START + 3600 * SECOND


def test_the_worst_are_those_most_times_as_far_behind_as_is_late_of_them() -> None:
    samples = Samples()
    run(samples, 60, 3000, 900, 2000, 1)
    samples.add(START + 60 * SECOND, ["never"], [(UNKNOWN, UNKNOWN)])
    late = {"c0": 86_400.0, "c1": 60.0, "c3": 1e9}
    assert list(samples.heat(SPANS["1h"], 3, late).lags) == ["c1", "c2", "c0"]
    assert list(samples.heat(SPANS["1h"], 10, late).lags) == ["c1", "c2", "c0", "c3", "never"]


def test_memory_is_as_stated() -> None:
    """docs/operate/status-page.md says how much of it a computation takes."""
    assert PER_COMPUTATION == 31_104
    tracemalloc.start()
    samples = Samples()
    run(samples, 10, *([1] * 200))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 200 * PER_COMPUTATION <= used < 1.1 * 200 * PER_COMPUTATION


@pytest.mark.parametrize("seed", range(10))
def test_samples_are_those_of_the_definition(seed: int) -> None:
    """Against every sample that was ever taken, with gaps of any length."""
    chance = random.Random(seed)
    samples, lags, now = Samples(), list[tuple[int, int]](), START
    for _ in range(400):
        now += chance.choice([5, 5, 5, 60, 300, 4000]) * SECOND
        lag = chance.randrange(10_000)
        samples.add(now, ["a"], [(now - lag * SECOND, now - lag * SECOND)])
        lags.append((now, lag))
    for span in SPANS.values():
        heat = samples.heat(span, 1, {})
        for number, worst in enumerate(heat.lags["a"]):
            begin = heat.from_micros + number * span.column * SECOND
            inside = [lag_ for at, lag_ in lags if begin <= at < begin + span.column * SECOND]
            assert worst == max(inside, default=None)


class Asked:
    """A question that counts how often it is asked, and at most how often at once; its answers wait until they are let go."""

    def __init__(self) -> None:
        self.times = 0
        self.most = 0
        self.free = threading.Event()
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, client: lowwater.Client) -> Any:
        with self._lock:
            self.times += 1
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.free.wait(30)
        with self._lock:
            self._now -= 1
        return {"times": self.times}


@pytest.fixture
async def asking() -> AsyncIterator[Questions]:
    # Nothing here goes over the network.
    with lowwater.connect("localhost:1") as client:
        questions = Questions(lambda: client)
        yield questions
        questions.close()


async def test_who_asks_the_same_gets_the_same_answer(asking: Questions) -> None:
    question = Asked()
    waiting = [asyncio.create_task(asking.ask(("why", "a"), question)) for _ in range(50)]
    await eventually_async(lambda: question.times == 1)
    question.free.set()
    assert await asyncio.gather(*waiting) == [b'{"times":1}'] * 50
    assert await asking.ask(("why", "a"), question) == b'{"times":1}'
    assert question.times == 1


async def test_few_are_asked_at_once_and_more_than_can_wait_are_refused(asking: Questions) -> None:
    question = Asked()
    waiting = [asyncio.create_task(asking.ask(("why", f"{i}"), question)) for i in range(MOST_ASKED)]
    await eventually_async(lambda: question.times == THREADS)
    with pytest.raises(errors.Overloaded, match=str(MOST_ASKED)):
        await asking.ask(("why", "another"), question)
    same = asyncio.create_task(asking.ask(("why", "0"), question))  # is asked already
    question.free.set()
    assert len(await asyncio.gather(*waiting, same)) == MOST_ASKED + 1
    assert question.most == THREADS
    await asking.ask(("why", "another"), question)


async def test_only_so_many_answers_are_kept() -> None:
    asking = Questions(lambda: cast("lowwater.Client", None), good_seconds=60.0)
    question = Asked()
    question.free.set()
    for i in range(MOST_KEPT + 10):
        await asking.ask(("why", f"{i}"), question)
    before = question.times
    await asking.ask(("why", f"{MOST_KEPT + 9}"), question)
    assert question.times == before
    await asking.ask(("why", "0"), question)
    assert question.times == before + 1


class Away:
    """A client's answers while the shard of some computations is away."""

    def __init__(self, *away: str) -> None:
        self.away = set(away)
        self.answered: list[str] = []

    def history(self, name: str, limit: int) -> list[Any]:
        if name in self.away:
            raise errors.Unavailable("no shard answers")
        self.answered.append(name)
        return [SimpleNamespace(through=lowwater.Watermark(HOUR), time_micros=2 * HOUR, incarnation=1)][:limit]


def test_a_shard_that_is_away_keeps_only_its_own_waiting() -> None:
    board, client = Board(), Away("a")
    for name in ("a", "b", "c"):
        board.admit(WatermarkView(name, registered=True, incarnation=1, low=lowwater.Watermark(HOUR)))
    board.sample(3 * HOUR)
    recalling = Recall(lambda: cast("lowwater.Client", client), board, again_seconds=0.01)
    recalling.want()
    try:
        eventually(lambda: client.answered == ["b", "c"])
        client.away.clear()
        eventually(lambda: client.answered == ["b", "c", "a"])
    finally:
        recalling.close()


class Emptied:
    """A client of an authority whose computations have all been dropped."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def get(self, *names: str) -> dict[str, WatermarkView]:
        return {name: WatermarkView(name, registered=False, incarnation=1) for name in names}

    def watch(self) -> list[WatermarkView]:
        self.closed.wait()
        return []

    def identify(self) -> None:
        pass

    def statistics(self) -> Any:
        return SimpleNamespace(watcher=SimpleNamespace(stale_for=0.0))

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_follower_begins_anew_and_forgets_what_was_dropped(looked_at: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The watch that begins with a look brings nothing where nothing is left."""
    board, failures = Board(), [OSError("first"), OSError("second")]
    board.admit(WatermarkView("flights", registered=True, incarnation=1, low=Watermark(HOUR)))

    def connect(_: float) -> Any:
        if failures:
            raise failures.pop()
        return Emptied()

    follower = Follower(connect, board, clock=lambda: START, sharded=False)
    if looked_at:
        follower.look()
    follower.start()
    try:
        eventually(lambda: not board.names(), "the dropped computation is forgotten")
    finally:
        follower.close()
    assert caplog.text.count("the status page's follower failed; it begins anew in") == 2
