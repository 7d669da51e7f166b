"""Intervals of event time: which close, what is missing of one, and which names of files tell them apart."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import Completion, EstimatedInput, History, IncarnationChanged, InvalidArgument, Watermark, WatermarkView
from lowwater.cli.publish import Marker, event_of, target_of
from lowwater.core.intervals import Closings, Interval, upstream_below
from lowwater_authority.core.history import History as AuthorityHistory
from tests.kit.times import MIN, at, mark

EVERY = timedelta(hours=1)


def view(low: Watermark | int, name: str = "hourly", *inputs: str, **more: Any) -> WatermarkView:
    low = low if isinstance(low, Watermark) else Watermark(low)
    return replace(WatermarkView(name, registered=True, incarnation=1, low=low, inputs=inputs), **more)


def all_closed(closings: Closings, shown: WatermarkView) -> list[Interval]:
    intervals = []
    while (interval := closings.closed(shown)) is not None:
        intervals.append(interval)
    return intervals


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("zone", [BERLIN, ZoneInfo("Europe/London"), timezone(timedelta(hours=2))])
def test_days_of_a_local_zone_are_refused(zone: tzinfo) -> None:
    """London is at UTC in winter, and its days drift all the same. Hours do not."""
    start = datetime(2026, 1, 27, tzinfo=zone)
    with pytest.raises(InvalidArgument, match=r"start=.* is refused: pass a time in UTC, such as 2026-01-2[67]T"):
        Closings("x", timedelta(days=1), start)
    assert Closings("x", EVERY, start).next == Watermark.of(start)


class Told:
    """The published watermarks of a computation, and the authority's history of them."""

    def __init__(self, step: timedelta = EVERY, incarnation: int = 1) -> None:
        self._step, self._incarnation = step, incarnation
        self._low = MIN
        self._history = AuthorityHistory()

    def come(self, low: Watermark) -> WatermarkView:
        micros, step = low.micros, self._step // timedelta(microseconds=1)
        self._history.note(self._incarnation, step, old=self._low, low=micros, now=0)
        self._low = micros
        return view(low, incarnation=self._incarnation)

    @property
    def history(self) -> History:
        rows = [Completion(row.incarnation, Watermark(row.after), Watermark(row.through), 0) for row in self._history]
        return History("hourly", self._step, tuple(rows[-1:]), len(rows))


def ids(closings: Closings, truth: Told, shown: WatermarkView) -> list[str]:
    if closings.asks(shown):
        assert closings.closed(shown) is None
        closings.tell(truth.history)
    return [event_of(interval, "t")["id"] for interval in all_closed(closings, shown)]


@given(
    lows=st.lists(st.integers(0, 150), max_size=8).map(sorted),
    every=st.integers(1, 50),
    step=st.integers(1, 50),
    start=st.integers(-20, 120),
    seen=st.sets(st.integers(0, 9)),
    killed=st.integers(0, 9),
)
def test_what_is_published_depends_on_no_timing_and_no_restart(
    lows: list[int], every: int, step: int, start: int, seen: set[int], killed: int
) -> None:
    """One looks at every value. Another one looks at some, and is killed before its cursor moves. A third comes when all is over."""

    def closings() -> Closings:
        return Closings("hourly", timedelta(seconds=every), Watermark(start * 10**6), incarnation=1)

    truth = Told(timedelta(seconds=step))
    views = [truth.come(low) for low in [*(Watermark(low * 10**6) for low in lows), Watermark.FINISHED]]
    late = closings()
    all_of_them = ids(late, truth, views[-1])
    assert late.over
    always, seldom = closings(), closings()
    assert [name for one in views for name in ids(always, truth, one)] == all_of_them
    names = []
    for number, one in enumerate(views):
        if number in seen or one is views[-1]:
            if number >= killed:
                seldom, killed = closings(), 99
            names += ids(seldom, truth, one)
    assert set(names) == set(all_of_them)
    assert names[-1] == all_of_them[-1]


def test_each_interval_of_a_finished_computation_closes() -> None:
    truth = Told()
    truth.come(mark(12, 30))
    finished = truth.come(Watermark.FINISHED)
    closings = Closings("hourly", EVERY, at(10))
    assert closings.closed(finished) is None, "nobody has said yet how far it had come"
    closings.tell(truth.history)
    assert [(interval.start, interval.end) for interval in all_closed(closings, finished)] == [
        (mark(10), mark(11)),
        (mark(11), mark(12)),
        (mark(12), mark(13)),
        (mark(13), Watermark.FINISHED),
    ]
    assert closings.over


def test_a_history_of_another_incarnation_or_without_its_end_is_not_taken() -> None:
    closings, finished = Closings("hourly", EVERY, at(10), incarnation=1), view(Watermark.FINISHED)
    other, early = Told(incarnation=2), Told()
    other.come(Watermark.FINISHED)
    early.come(mark(12))
    for other_truth in (other, early, Told()):
        closings.tell(other_truth.history)
        assert closings.asks(finished)
        assert closings.closed(finished) is None


def test_another_incarnation_and_an_estimate_close_nothing() -> None:
    closings = Closings("hourly", EVERY, at(10))
    assert closings.closed(WatermarkView("hourly")) is None, "it may be registered later"
    assert len(all_closed(closings, view(mark(11)))) == 1
    with pytest.raises(IncarnationChanged, match="was reset: incarnation 2 began"):
        closings.closed(view(mark(15), incarnation=2))
    with pytest.raises(IncarnationChanged, match="was dropped"):
        closings.closed(WatermarkView("hourly", incarnation=1))
    with pytest.raises(IncarnationChanged, match="belong to incarnation 3"):
        Closings("hourly", EVERY, at(10), incarnation=3).closed(view(mark(15)))
    with pytest.raises(EstimatedInput, match="only estimated"):
        Closings("hourly", EVERY, at(10)).closed(view(mark(15), estimated=True))


@pytest.mark.parametrize(
    ("every", "start", "until", "field"),
    [
        (timedelta(0), at(10), None, "every"),
        (60, at(10), None, "every"),
        (EVERY, Watermark.FINISHED, None, "start"),
        (EVERY, at(10), at(10), "end"),
        (EVERY, at(10), at(11, 30), "until"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(every: Any, start: Any, until: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Closings("hourly", every, start, until=until)
    assert refused.value.metadata["field"] == field
    assert refused.value.metadata["fix"]


def test_of_what_is_upstream_only_that_is_told_which_is_below() -> None:
    views = {
        known_view.computation: known_view
        for known_view in [
            view(mark(10), "top", "left", "right", "gone"),
            view(mark(14), "left", "behind"),
            view(mark(12), "right", "source", "top"),
            view(mark(11), "source"),
            view(mark(1), "behind"),
            view(mark(1), "other"),
        ]
    }
    names = [known_view.computation for known_view in upstream_below("top", views, mark(14))]
    assert names == ["top", "right", "gone", "source"], "what only a complete one reads holds nothing; a ring ends"


@pytest.mark.parametrize(
    ("pattern", "every", "missing"),
    [
        ("/o/%Y/%m/%d/%H", EVERY, ""),
        ("/o/%Y-%m-%d", timedelta(days=2), ""),
        ("/o/%Y-%m-%d/%H", timedelta(hours=5), ""),
        ("/o/%%H%Y-%m-%d", EVERY, "%H"),
        ("/o/%m-%d/%H", EVERY, "%Y"),
        ("/o/%Y%m%d%H%M", timedelta(seconds=90), "%S"),
        ("/o/_SUCCESS", EVERY, "%Y and %m and %d and %H"),
    ],
)
def test_a_pattern_has_to_tell_intervals_apart(pattern: str, every: timedelta, missing: str) -> None:
    start = Watermark(mark(10).micros)
    if missing:
        with pytest.raises(InvalidArgument, match=f"put {missing} into the path"):
            target_of(f"file:{pattern}", every, start, "")
        return
    target = target_of(f"file:{pattern}", every, start, "")
    assert isinstance(target, Marker)
    micros = every // timedelta(microseconds=1)
    starts = [start.micros + k * micros for k in range(10_000 if every >= timedelta(hours=1) else 2_000)]
    paths = {target.path(Interval("x", 1, Watermark(start), Watermark(start + micros))) for start in starts}
    assert len(paths) == len(starts)


def test_the_folders_of_a_marker_are_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker makes its own folders durable, and those of a marker that was killed before it had done so."""
    synced: list[Path] = []
    fsync = os.fsync

    def noted(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink())
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    interval = Interval("hourly", 1, mark(10), mark(11))
    day = tmp_path / "out" / "2013-01-09"
    first, marker = (Marker(f"{tmp_path}/out/%Y-%m-%d/%H/_SUCCESS") for _ in range(2))
    for target in (first, marker):
        target.take({}, interval)
        assert {tmp_path, tmp_path / "out", day, day / "10"} <= set(synced)
        synced.clear()
    marker.take({}, replace(interval, start=mark(11), end=mark(12)))
    assert {day, day / "11"} == {path for path in synced if path.is_dir()}, "what it knows is left alone"


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("/o/%Y", "pass file:/PATH"),
        ("file:o/%Y", "absolute path"),
        ("file:/o/%s", "%s is not allowed"),
        ("ftp://there/x", "or https://"),
        ("https://", "a URL with a host"),
        ("https://there/a b", "a URL with a host"),
        ("https://me:secret@there/", "LOWWATER_PUBLISH_TOKEN"),
    ],
)
def test_targets_that_are_none(to: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says) as refused:
        target_of(to, EVERY, mark(10), "")
    assert refused.value.metadata["field"] == "to"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("to", "warned"), [("http://there/secret", True), ("http://127.0.0.1:1/x", False), ("https://there/x", False)]
)
def test_a_webhook_that_others_can_read_is_warned_of(to: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    target_of(to, EVERY, mark(10), "")
    errors_ = capsys.readouterr().err
    assert ("http://there is not encrypted" in errors_) is warned
    assert "secret" not in errors_


def test_a_token_that_is_none_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument, match="printable") as refused:
        target_of("https://there/", EVERY, mark(10), "secret\n")
    assert "secret" not in str(refused.value)
