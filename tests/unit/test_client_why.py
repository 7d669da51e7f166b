"""Who holds a computation: the walk upstream, and the sentences."""

import pytest

from lowwater import Ranges, RangeState, RangeView, Watermark, WatermarkView
from lowwater._core.why import explain, find_guilty

HOUR = 3_600_000_000
NOW = 1_357_740_000_000_000  # 2013-01-09 14:00


def view(name: str, low: int | Watermark, *inputs: str, registered: bool = True, oldest: int = 0) -> WatermarkView:
    return WatermarkView(
        name,
        registered=registered,
        incarnation=1,
        low=low if isinstance(low, Watermark) else Watermark(NOW + low),
        inputs=inputs,
        oldest_operation_micros=oldest,
    )


def held(low: int | Watermark, state: RangeState = RangeState.OWNED, *, silent: int = 1, since: int = 60) -> RangeView:
    never = state is RangeState.NEVER_CLAIMED
    return RangeView(
        start=b"\x40",
        end=b"\x80",
        watermark=low if isinstance(low, Watermark) else Watermark(NOW + low),
        state=state,
        worker="" if never else "exec-7",
        host="" if never else "host-3",
        sequencer=0 if never else 9,
        since_micros=NOW - since * 1_000_000,
        last_report_micros=0 if never else NOW - silent * 1_000_000,
    )


def ranges(*views: RangeView, total: int | None = None) -> Ranges:
    return Ranges(views, len(views) if total is None else total)


def told(name: str, views: list[WatermarkView], found: Ranges) -> list[str]:
    by_name = {each.computation: each for each in views}
    guilty = find_guilty(name, by_name)
    why = explain(name, by_name, NOW, found if guilty is not None else Ranges((), 0))
    assert guilty in {None, why.guilty.computation}
    assert str(why) == "\n".join(str(hop) for hop in why)
    assert all(hop.upstream == after.computation for hop, after in zip(why.hops, why.hops[1:], strict=False))
    return [hop.sentence for hop in why]


def test_the_walk_follows_the_lowest_input_to_the_silent_range() -> None:
    pipeline = [
        view("hourly", -3 * HOUR, "enriched", "weather"),
        view("weather", -HOUR),
        view("enriched", -3 * HOUR, "flights"),
        view("flights", -HOUR),
    ]
    assert told("hourly", pipeline, ranges(held(-3 * HOUR, silent=720), held(0), total=64)) == [
        "hourly stands at 2013-01-09T11:00:00Z, 3 h behind the clock; that is as far as its input enriched allows.",
        "enriched stands at 2013-01-09T11:00:00Z, 3 h behind the clock, 2 h behind its input flights, which stands at "
        "2013-01-09T13:00:00Z: held by [0x40, 0x80) at 2013-01-09T11:00:00Z, owned by exec-7 on host-3, silent for 12 min "
        "(1 of 64 key ranges shown).",
    ]


def test_data_is_old_and_system_is_stuck_are_told_apart() -> None:
    [sentence] = told("flights", [view("flights", -HOUR, oldest=NOW - 60_000_000)], ranges(held(-HOUR)))
    assert sentence == (
        "flights stands at 2013-01-09T13:00:00Z, 1 h behind the clock: held by [0x40, 0x80) at 2013-01-09T13:00:00Z, owned by "
        "exec-7 on host-3, which is alive and has stood there for 1 min. The oldest operation has been running for 1 min."
    )


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (held(Watermark.UNKNOWN, RangeState.NEVER_CLAIMED), "at unknown, which no worker ever claimed."),
        (held(-HOUR, RangeState.UNOWNED), "which nobody owns since exec-7 on host-3 left it, silent for 1 s."),
        (held(-HOUR, since=0), "alive and has stood there for 0 ms."),
    ],
)
def test_how_ranges_are_told(holder: RangeView, words: str) -> None:
    assert told("flights", [view("flights", Watermark.UNKNOWN)], ranges(holder))[-1].endswith(words)


def test_an_input_that_is_not_registered_is_where_the_walk_ends() -> None:
    sentences = told("hourly", [view("hourly", Watermark.UNKNOWN, "typo")], ranges())
    assert sentences[0] == "hourly is unknown; that is as far as its input typo allows."
    assert sentences[1].startswith("typo is not registered")


def test_a_finished_computation_needs_no_excuse() -> None:
    assert told("hourly", [view("hourly", Watermark.FINISHED, "a"), view("a", Watermark.FINISHED)], ranges()) == [
        "hourly is finished: nothing will ever come."
    ]


def test_a_stage_behind_a_finished_input_is_to_blame_itself() -> None:
    [sentence] = told("hourly", [view("hourly", -HOUR, "a"), view("a", Watermark.FINISHED)], ranges(held(-HOUR)))
    assert "behind its input a, which is finished: held by" in sentence


def test_ranges_that_moved_on_meanwhile_are_no_error() -> None:
    [sentence] = told("flights", [view("flights", -HOUR)], ranges())
    assert sentence.endswith("its workers have just moved on.")
