"""Where computations stood lately: coarse samples keep the worst of their step, and take bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from lowwater import Watermark
from lowwater_page.samples import BLOCK, KEPT, PER_COMPUTATION, SPANS, STEP_SECONDS, Samples

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


def test_a_coarse_sample_is_the_worst_of_its_step() -> None:
    samples = Samples()
    after = run(samples, 30, 10)
    after = run(samples, 5, 300, start=after)
    after = run(samples, 25, 10, start=after)
    run(samples, 60, 20, start=after)
    [first, second] = samples.of("c0", SPANS["24h"])
    assert (first[0], second[0]) == (START + 55 * SECOND, START + 115 * SECOND)
    assert (first[0] - (first[1] or 0), second[0] - (second[1] or 0)) == (300 * SECOND, 20 * SECOND)
    assert second[0] - (second[2] or 0) == 10 * SECOND


@pytest.mark.parametrize("span", SPANS)
def test_no_more_than_the_span_is_told(span: str) -> None:
    samples = Samples()
    run(samples, 8 * 86_400, 10, step=300)
    found = samples.of("c0", SPANS[span])
    assert found[-1][0] == START + (8 * 86_400 - 300) * SECOND
    if span != "1h":  # of which as many samples are kept as are taken in it
        assert found[-1][0] - found[0][0] <= SPANS[span].seconds * SECOND
    assert all(b[0] - a[0] >= SPANS[span].step * SECOND for a, b in pairwise(found))
    assert len(found) <= KEPT[SPANS[span].step]


def test_a_gap_is_no_sample() -> None:
    """The process slept for a day and a half: nothing of the day before comes up again."""
    samples = Samples()
    run(samples, 600, 10)
    run(samples, 60, 20, start=START + 36 * 3600 * SECOND)
    found = samples.of("c0", SPANS["24h"])
    assert [time - (low or 0) for time, low, _ in found] == [20 * SECOND]
    heat = samples.heat(SPANS["24h"], 10, {}).lags["c0"]
    assert heat == [None] * (len(heat) - 1) + [20]


def test_what_has_no_time_has_no_lag() -> None:
    samples = Samples()
    samples.add(START, ["a", "b", "c"], [(UNKNOWN, UNKNOWN), (FINISHED, FINISHED), (START - SECOND, UNKNOWN)])
    assert samples.of("a", SPANS["24h"]) == [(START, None, None)]
    assert samples.of("b", SPANS["7d"]) == [(START, None, None)]
    assert samples.of("c", SPANS["7d"]) == [(START, START - SECOND, None)]
    assert {name: lags[-1] for name, lags in samples.heat(SPANS["1h"], 10, {}).lags.items()} == {
        "c": 1,
        "a": None,
        "b": None,
    }


@pytest.mark.parametrize("span", SPANS)
def test_the_heat_map_has_the_furthest_behind_first(span: str) -> None:
    samples = Samples()
    length = SPANS[span].column * 2
    after = run(samples, length, 10, 40, 20, step=SPANS[span].step)
    run(samples, length, 50, 20, 20, start=after, step=SPANS[span].step)
    heat = samples.heat(SPANS[span], 2, {})
    assert (heat.total, list(heat.lags)) == (3, ["c0", "c1"])
    assert [len(lags) for lags in heat.lags.values()] == [SPANS[span].seconds // SPANS[span].column] * 2
    assert heat.lags["c0"][-4:] == [10, 10, 50, 50]
    assert heat.lags["c1"][-4:] == [40, 40, 20, 20]
    assert all(lag is None for lag in heat.lags["c0"][:-4])
    assert heat.from_micros == after + length * SECOND - SPANS[span].seconds * SECOND


def test_a_new_incarnation_begins_with_nothing_and_a_dropped_one_leaves_nothing() -> None:
    samples = Samples()
    run(samples, 120, 10, 20)
    samples.begin("c0")
    samples.remove("c1")
    for span in SPANS.values():
        assert samples.of("c0", span) == samples.of("c1", span) == [] or {
            low for _, low, _ in samples.of("c0", span)
        } == {None}
    assert list(samples.heat(SPANS["6h"], 10, {}).lags.values()) == [[None] * 72]
    samples.add(START + 120 * SECOND, ["new"], [(START, START)])
    assert [low for _, low, _ in samples.of("new", SPANS["24h"])][-1] == START
    assert {low for _, low, _ in samples.of("new", SPANS["24h"])[:-1]} == {None}


def test_what_was_before_is_recalled_from_when_hours_were_complete() -> None:
    """An hour that is complete 40 minutes after its end was behind by so much then, and by less before, back to its end."""
    samples, hour, now = Samples(), 3600 * SECOND, START + 10 * 3600 * SECOND
    samples.add(now, ["a", "b"], [(now - 7 * SECOND, now), (now, now)])
    samples.recall(
        "a", [(START + 2 * hour, START + 2 * hour + 5 * SECOND), (START + 3 * hour, START + 3 * hour + 2400 * SECOND)]
    )
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


def test_what_is_recalled_hides_nothing_that_was_seen() -> None:
    samples = Samples()
    after = run(samples, 1800, 50)
    samples.recall(
        "c0", [(START, START + 20 * SECOND), (START - 8 * 86_400 * SECOND, START - 8 * 86_400 * SECOND + SECOND)]
    )
    samples.recall("c0", [(after + 3600 * SECOND, after + 7200 * SECOND)])  # of a clock that is ahead
    assert [lag for lag in samples.heat(SPANS["24h"], 1, {}).lags["c0"] if lag is not None] == [50, 50]


@pytest.mark.parametrize("span", SPANS)
def test_what_a_clock_that_went_back_had_said_of_the_future_is_forgotten(span: str) -> None:
    samples = Samples()
    run(samples, 600, 10, step=60)
    run(samples, 600, 7000, start=START + 4 * 3600 * SECOND, step=60)
    after = run(samples, 60, 30, start=START + 600 * SECOND)
    for _ in range(2):  # also when the clock has come there
        assert {lag for lag in samples.heat(SPANS[span], 10, {}).lags["c0"] if lag is not None} <= {10, 20, 30}
        found = samples.of("c0", SPANS[span])
        assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)
        assert {time - (low or 0) for time, low, _ in found} <= {10 * SECOND, 20 * SECOND, 30 * SECOND}
        assert found
        run(samples, 60, 20, start=START + 4 * 3600 * SECOND)
    assert after < START + 3600 * SECOND


def test_a_clock_that_went_back_shows_nothing_of_an_earlier_incarnation() -> None:
    samples = Samples()
    after = run(samples, 300, 10)
    samples.begin("c0")
    run(samples, 300, 10, start=after + 600 * SECOND)
    run(samples, 60, 20, start=after)
    assert {lag for lag in samples.heat(SPANS["1h"], 10, {}).lags["c0"] if lag is not None} == {20}


def test_a_replay_was_not_behind_before_it_began() -> None:
    """Nor is anything too far behind to be told."""
    samples, day, now = Samples(), 86_400 * SECOND, START + 10 * 86_400 * SECOND
    samples.add(now, ["a", "b"], [(now, now), (now, now)])
    began = now - 2 * day
    old = START - 6 * 365 * day
    samples.recall("a", [(old, began), (old + day, began + 3600 * SECOND)])
    samples.recall("b", [(-20 * 365 * day, began)])  # of 1950
    heat = samples.heat(SPANS["7d"], 10, {})
    column = (began - heat.from_micros) // (7200 * SECOND)
    assert all(lag is None for lags in heat.lags.values() for lag in lags[:column])
    assert heat.lags["a"][column] == pytest.approx((began - old) / SECOND, abs=7200)
    assert heat.lags["b"][column] == np.iinfo(np.int32).max


def test_the_worst_are_those_most_times_as_far_behind_as_is_late_of_them() -> None:
    samples = Samples()
    run(samples, 60, 3000, 900, 2000, 1)
    samples.add(START + 60 * SECOND, ["never"], [(UNKNOWN, UNKNOWN)])
    late = {"c0": 86_400.0, "c1": 60.0, "c3": 1e9}
    assert list(samples.heat(SPANS["1h"], 3, late).lags) == ["c1", "c2", "c0"]
    assert list(samples.heat(SPANS["1h"], 10, late).lags) == ["c1", "c2", "c0", "c3", "never"]


def test_a_row_in_any_block_is_its_own() -> None:
    """Of more computations than a block has, some dropped, their room given to others."""
    samples, many = Samples(), 3 * BLOCK + 7
    run(samples, 600, *range(1, many + 1), step=300)
    for i in range(0, many, 3):
        samples.remove(f"c{i}")
    lags = {f"c{i}": i + 1 for i in range(many) if i % 3} | {"new": 5000, "c1": 6000, f"c{many - 2}": 7000}
    at = START + 600 * SECOND
    samples.add(at, list(lags), [(at - lag * SECOND, at) for lag in lags.values()])
    for span in SPANS.values():
        heat = samples.heat(span, many, {})
        assert {name: max(each or 0 for each in found) for name, found in heat.lags.items()} == lags
        assert [low for _, low, _ in samples.of("c250", span)][-1] == at - 251 * SECOND


def test_the_heat_map_takes_little_memory_beside_the_samples() -> None:
    """A copy of all samples of an hour would be 11 KB a computation."""
    samples = Samples()
    run(samples, 3600, *([1] * 10 * BLOCK), step=60)
    tracemalloc.start()
    samples.heat(SPANS["1h"], 1000, {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 * BLOCK * 3000


def test_nothing_sampled_is_an_empty_heat_map() -> None:
    assert Samples().heat(SPANS["7d"], 10, {}).lags == {}


def test_memory_is_as_stated() -> None:
    """docs/status-page.md says how much of it a computation takes."""
    assert PER_COMPUTATION == 31_104
    tracemalloc.start()
    samples = Samples()
    run(samples, 10, *([1] * 200))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 200 * PER_COMPUTATION <= taken < 1.1 * 200 * PER_COMPUTATION


@pytest.mark.parametrize("seed", range(10))
def test_samples_are_those_of_the_definition(seed: int) -> None:
    """Against every sample that was ever taken, with gaps of any length."""
    chance = random.Random(seed)
    samples, taken, now = Samples(), list[tuple[int, int]](), START
    for _ in range(400):
        now += chance.choice([5, 5, 5, 60, 300, 4000]) * SECOND
        lag = chance.randrange(10_000)
        samples.add(now, ["a"], [(now - lag * SECOND, now - lag * SECOND)])
        taken.append((now, lag))
    for span in SPANS.values():
        heat = samples.heat(span, 1, {})
        for number, found in enumerate(heat.lags["a"]):
            begin = heat.from_micros + number * span.column * SECOND
            inside = [each for at, each in taken if begin <= at < begin + span.column * SECOND]
            assert found == max(inside, default=None)
