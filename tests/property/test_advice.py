"""The advice about delays, against a replay of rows by Spark's rule, written down plainly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lowwater import Completion, History, Watermark
from lowwater.core.advice import Between, advise
from lowwater.core.event_times import BatchTimes, EventTimes

MILLISECOND = 1_000
BASE = 1_357_722_000_000_000
"""2013-01-09T09:00Z, in microseconds: the end of a window of any length below."""

rows = st.integers(0, 40 * MILLISECOND).map(lambda offset: BASE + offset)
micro_batches = st.lists(st.lists(rows, max_size=6), min_size=3, max_size=9)
milliseconds = st.integers(1, 45).map(lambda count: count * MILLISECOND)
windows = st.sampled_from([0, 4 * MILLISECOND, 10 * MILLISECOND])


def reported(batches: list[list[int]], most: int) -> EventTimes:
    """What Spark reports of batches: times in whole milliseconds, rounded down."""
    event_times = EventTimes(most=most)
    for number, batch in enumerate(batches):
        times = [row // MILLISECOND * MILLISECOND for row in batch]
        mean = sum(times) // len(times) // MILLISECOND * MILLISECOND if times else 0
        event_times.note(
            BatchTimes(
                number, 10 * number, 10 * number + 5, len(batch), (min(times), mean, max(times)) if times else None
            )
        )
    return event_times


def dropped(batches: list[list[int]], delay: int, window: int) -> int:
    """Replay the rows. The watermark of a batch is of all batches before it; a batch drops by the one before."""
    watermarks = [0]
    for batch in batches:
        greatest = max((row // MILLISECOND * MILLISECOND for row in batch), default=0)
        watermarks.append(max(watermarks[-1], greatest - delay))
    lost = 0
    for batch, watermark in zip(batches[1:], watermarks, strict=False):
        for row in batch:
            lost += (row // window + 1) * window <= watermark if window else row <= watermark
    return lost


@given(batches=micro_batches, delay=milliseconds, window=windows, most=st.sampled_from([1, 2, 3, 100]))
def test_the_rows_that_spark_would_drop_lie_within_the_bounds(
    batches: list[list[int]], delay: int, window: int, most: int
) -> None:
    event_times = reported(batches, most)
    advice = advise(
        event_times,
        delays=[timedelta(microseconds=delay)],
        window=timedelta(microseconds=window) if window else None,
    )
    assert advice.rows + advice.unjudged_rows == sum(map(len, batches)), "every row is accounted for"
    if not advice.rows:
        assert dropped(batches, delay, window) == 0
        return
    (loss,) = advice.losses
    assert loss.rows.least <= dropped(batches, delay, window) <= loss.rows.most
    for needed in advice.delays:
        allowed = int(needed.share * advice.rows)
        enough, too_short = round(needed.delay.most * 1e6), round(needed.delay.least * 1e6) - MILLISECOND
        assert dropped(batches, enough, window) <= allowed
        assert too_short < 0 or dropped(batches, too_short, window) > allowed
    for shorter, longer in pairwise(advice.curve):
        assert longer.rows.least <= shorter.rows.least
        assert longer.rows.most <= shorter.rows.most


@given(batches=micro_batches, delay=milliseconds, window=windows.filter(bool))
def test_batches_of_rows_at_one_time_are_judged_exactly(batches: list[list[int]], delay: int, window: int) -> None:
    batches = [batch[:1] * len(batch) for batch in batches]
    advice = advise(
        reported(batches, 100), delays=[timedelta(microseconds=delay)], window=timedelta(microseconds=window)
    )
    for loss in advice.losses:
        assert loss.rows == Between(*(dropped(batches, delay, window),) * 2)


@given(batches=micro_batches, time=st.integers(0, 90), steps=st.integers(1, 3), most=st.sampled_from([2, 100]))
def test_waits_are_what_had_been_read_beyond_a_step(batches: list[list[int]], time: int, steps: int, most: int) -> None:
    event_times, step = reported(batches, most), 10 * MILLISECOND
    after, through = BASE, BASE + steps * step
    history = History(
        "hourly",
        timedelta(microseconds=step),
        (Completion(1, Watermark(after), Watermark(through), time),),
        1,
    )
    event_times.idle(datetime.fromtimestamp(90 / 1e6, UTC).isoformat())
    waits = advise(event_times, history).waits
    if waits is None or not waits.by_rows:
        first = next(iter(event_times), None)
        assert first is None or time < first.ended
        return

    def read(until: int) -> int:
        begun = [batch for number, batch in enumerate(batches) if 10 * number <= until and batch]
        return max(max(batch) // MILLISECOND * MILLISECOND for batch in begun)

    surely, perhaps = read(time - 5), read(time)
    worst = Between((surely - after - step) / 1e6, (perhaps - after - step) / 1e6)
    median = Between(
        worst.least - (steps - 1 - (steps - 1) // 2) * step / 1e6,
        worst.most - (steps - 1 - (steps - 1) // 2) * step / 1e6,
    )
    assert waits.steps == steps
    for between, exact in ((waits.worst, worst), (waits.median, median)):
        assert between.least <= exact.least + 1e-9
        assert between.most >= exact.most - 1e-9
