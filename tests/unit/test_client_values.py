"""Values of the client: event times, columns and histograms of them, folds over inputs, and what never goes down."""

from __future__ import annotations

import sys
import tracemalloc
from array import array
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowwater
from lowwater import (
    MAX,
    MIN,
    FinishRequired,
    Histogram,
    LatenessBudget,
    ServerTokenMismatch,
    StaleEpoch,
    Watermark,
    Watermarks,
    WatermarkView,
)
from lowwater.core.columns import Column
from lowwater.core.fold import Reading, fold_inputs, fold_of, injector_fold
from lowwater.core.ratchet import Ratchet
from lowwater.histogram import bucket_start
from lowwater.watermark import all_to_micros

INT64 = st.integers(MIN, MAX)


def test_a_watermark_of_every_kind_of_time() -> None:
    moment = datetime(2013, 1, 9, 15, 30, tzinfo=timezone(timedelta(hours=1)))
    micros = 1_357_741_800_000_000
    assert Watermark.of(moment) == Watermark.of(micros) == Watermark.of(Watermark(micros))
    assert Watermark.of(micros).datetime() == moment
    assert Watermark.of(micros).datetime().tzinfo is UTC


@given(INT64, INT64)
def test_watermarks_order_as_their_times(a: int, b: int) -> None:
    assert (Watermark(a) < Watermark(b)) == (a < b)
    assert Watermark.UNKNOWN <= Watermark(a) <= Watermark.FINISHED


def test_unknown_and_finished_have_no_date() -> None:
    assert Watermark.UNKNOWN.unknown
    assert Watermark.FINISHED.finished
    assert (str(Watermark.UNKNOWN), str(Watermark.FINISHED)) == ("unknown", "finished")
    for timeless in (Watermark.UNKNOWN, Watermark.FINISHED, Watermark(MAX - 1)):
        with pytest.raises(ValueError, match=r"date|years"):
            timeless.datetime()
    assert str(Watermark(MAX - 1)) == f"{MAX - 1} us"


@given(st.lists(INT64))
def test_every_container_of_integers_gives_the_same(times: list[int]) -> None:
    column = np.array(times, dtype=np.int64)
    for container in (times, tuple(times), array("q", times), column, iter(times), [Watermark(t) for t in times]):
        assert all_to_micros(container) == times


@pytest.mark.parametrize("kind", ["datetime64[ns]", "datetime64[us]", "float64"])
def test_arrays_whose_unit_would_be_a_guess_are_refused(kind: str) -> None:
    with pytest.raises(TypeError, match="astype"):
        all_to_micros(np.array([1, 2]).astype(kind))


def test_columns_of_watermarks() -> None:
    column = Watermarks([MIN, 5, MAX])
    assert list(column) == [Watermark.UNKNOWN, Watermark(5), Watermark.FINISHED] == column
    assert column[1:] == [Watermark(5), Watermark.FINISHED]
    assert np.asarray(column.micros).tolist() == [MIN, 5, MAX]
    assert column.micros.readonly
    assert lowwater.Watermark is Watermark


VALUES = st.integers(-3, 3) | st.sampled_from([MIN, MAX])


@pytest.fixture(params=["numpy", "plain"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.delitem(sys.modules, "numpy")
    return str(request.param)


either_way = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def columns(draw: st.DrawFn, count: int) -> tuple[Column, list[int]]:
    if draw(st.booleans()):
        plain = draw(st.lists(VALUES, min_size=count, max_size=count))
        return Column.of(plain), plain
    common = draw(VALUES)
    plain = [common] * count
    column = Column(count, common)
    for handle, micros in draw(st.lists(st.tuples(st.integers(0, count - 1), VALUES), max_size=6)):
        plain[handle] = column[handle] = micros
    return column, plain


@pytest.mark.usefixtures("arithmetic")
@either_way
@given(columns(40), VALUES, st.lists(st.integers(0, 39), unique=True))
def test_a_column_is_a_list(pair: tuple[Column, list[int]], limit: int, some: list[int]) -> None:
    column, plain = pair
    handles = array("I", sorted(some))
    assert list(column.values()) == plain
    assert [column[h] for h in range(40)] == plain
    assert list(column.values(handles)) == [plain[h] for h in handles]
    clamped = column.at_most(limit)
    assert list(clamped.values()) == [min(v, limit) for v in plain]
    assert column.holds_nothing == all(value == MAX for value in plain)
    if column.uniform is not None:
        assert set(plain) == {column.uniform}
    if some and column.value_of(handles) is not None:
        assert {plain[h] for h in handles} == {column.value_of(handles)}
    assert list(column.copy().values()) == plain


@pytest.mark.usefixtures("arithmetic")
@either_way
@given(columns(40), columns(40))
def test_differences_are_exact(these: tuple[Column, list[int]], those: tuple[Column, list[int]]) -> None:
    indices = these[0].differences(those[0])
    expected = [h for h in range(40) if these[1][h] != those[1][h]]
    assert (list(range(40)) if indices is None else list(indices)) == expected
    assert (these[0] == those[0]) == (not expected)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([1, None, Watermark(3)], id="list"),
        pytest.param(array("q", [1, MAX, 3]), id="array"),
        pytest.param(np.array([1, MAX, 3]), id="int64"),
        pytest.param(np.array([1, 9, MAX, 9, 3, 9])[::2], id="strided"),
        pytest.param(np.array([1, MAX, 3], dtype=">i8"), id="other byte order"),
        pytest.param(memoryview(array("q", [1, MAX, 3])), id="memoryview"),
    ],
)
def test_every_kind_of_sequence(values: object) -> None:
    assert list(Column.of(values).values()) == [1, MAX, 3]  # type: ignore[arg-type]


def test_a_million_ranges_that_hold_nothing_take_no_room() -> None:
    tracemalloc.start()
    column = Column(1_000_000, MAX)
    column[7] = 5
    clamped = column.at_most(10)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert clamped[7] == 5
    assert list(column.differences(Column(1_000_000, MAX)) or ()) == [7]


MS = 1_000
YEAR = 365 * 86_400 * 1_000_000

references = st.integers(0, 100 * YEAR)
ages = st.one_of(st.integers(0, 10 * MS), st.integers(0, YEAR), st.integers(0, 90 * YEAR))
times = st.one_of(st.integers(-YEAR, 100 * YEAR), st.sampled_from([MIN, MAX, 0]))


@given(references, ages)
def test_a_bucket_is_at_most_one_percent_of_its_age_or_one_millisecond(reference: int, age: int) -> None:
    t = reference - age
    assert 0 <= t - bucket_start(t, reference) < max(MS, age / 100)


@given(references, times)
def test_values_round_down_and_stay_in_64_bits(reference: int, t: int) -> None:
    assert MIN <= bucket_start(t, reference) <= t


@given(references, st.lists(times))
def test_many_at_once_is_one_by_one(reference: int, many: list[int]) -> None:
    at_once, one_by_one = Histogram(reference), Histogram(reference)
    at_once.add_many(many)
    for t in many:
        one_by_one.add(t)
    assert at_once == one_by_one
    starts, counts = at_once.columns()
    assert starts == sorted(set(starts))
    assert at_once.total == sum(counts) == len(many)
    assert dict(zip(starts, counts, strict=True)) == Counter(bucket_start(t, reference) for t in many)


@given(references, st.lists(ages), st.integers(0, 50 * YEAR))
def test_ageing_equals_building_fresh(reference: int, many: list[int], step: int) -> None:
    """For all records up to the old reference; later ones have already been put into one bucket."""
    aged, fresh = Histogram(reference), Histogram(reference + step)
    aged.add_many(reference - age for age in many)
    aged.age(reference + step)
    fresh.add_many(reference - age for age in many)
    assert aged == fresh


@given(references, references, st.lists(times), st.lists(times))
def test_merging_is_adding_under_the_later_reference(a: int, b: int, these: list[int], those: list[int]) -> None:
    one, two = Histogram(a), Histogram(b)
    one.add_many(these)
    two.add_many(those)
    other = two.copy()
    one.merge(two)
    assert two == other
    assert one.reference_micros == max(a, b)
    assert one.total == len(these) + len(those)


@given(references, st.lists(times))
def test_columns_rebuild_it(reference: int, many: list[int]) -> None:
    histogram = Histogram(reference)
    histogram.add_many(many)
    assert Histogram.from_columns(reference, *histogram.columns()) == histogram


def test_any_past_fits_into_some_thousand_buckets() -> None:
    histogram = Histogram(60 * YEAR)
    histogram.add_many(60 * YEAR - int(1.002**i) for i in range(17_500))
    assert 2_000 < len(histogram) < 3_600


SHARES = (500_000, 900_000, 990_000)


@st.composite
def drawn_views(draw: st.DrawFn, name: str) -> WatermarkView:
    low = draw(st.integers(0, 5) | st.sampled_from([MIN, MAX]))
    shares = draw(st.lists(st.sampled_from(SHARES), unique=True).map(sorted))
    lead = 0
    heuristics = []
    for share in reversed(shares):
        lead += draw(st.integers(0, 3))
        heuristics.append((share, Watermark(min(MAX, max(low, -5) + lead))))
    return WatermarkView(
        name,
        registered=draw(st.booleans()),
        incarnation=draw(st.integers(1, 2)),
        low=Watermark(low),
        shares=tuple(heuristics),
    )


@given(
    drawn_views("a"),
    drawn_views("b"),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sets(st.sampled_from(SHARES)),
)
def test_the_fold_is_the_minimum_of_what_counts(
    a: WatermarkView, b: WatermarkView, incarnations: tuple[int, int], shares: set[int]
) -> None:
    reading = Reading("c", ("a", "b"), 7, incarnations, tuple(sorted(shares, reverse=True)))
    folded = fold_inputs(("a", "b"), {"a": a, "b": b}, reading, stale_for=1.5)
    lows: list[int] = []
    heuristics: dict[int, list[int]] = {share: [] for share in shares}
    for view, incarnation in ((a, incarnations[0]), (b, incarnations[1])):
        counts = view.registered and incarnation in {0, view.incarnation}
        lows.append(view.low.micros if counts else MIN)
        for share, values in heuristics.items():
            larger = [(s, h.micros) for s, h in view.shares if s >= share]
            values.append((min(larger)[1] if larger else view.low.micros) if counts else MIN)
    assert folded.low.micros == min(lows)
    assert {round(share * 1_000_000): h.micros for share, h in folded.heuristic.items()} == {
        share: min(values) for share, values in heuristics.items()
    }
    assert folded.finished == (min(lows) == MAX)
    assert (folded.held_by is None) == folded.finished
    lives = tuple(view.incarnation if view.registered else 0 for view in (a, b))
    assert (folded.input_version, folded.incarnations, folded.stale_for) == (7, lives, 1.5)
    fold = fold_of(folded)
    assert (fold.low, dict(fold.frontiers)) == (min(lows), {s: min(v) for s, v in heuristics.items()})
    assert (fold.input_version, fold.input_incarnations) == (7, folded.incarnations)


def test_an_injectors_frontier_is_never_the_end() -> None:
    with pytest.raises(FinishRequired, match="finish"):
        injector_fold(MAX, ())


def test_the_budget_of_several_inputs_is_the_least_each_by_its_next_smaller_share() -> None:
    """At most the share of all records comes behind it, as of each input no more does. An input without a budget counts with its low."""

    def view(name: str, low: int, **budgets: int) -> WatermarkView:
        budgets_ = tuple(LatenessBudget(float(f"0.{s[1:]}"), Watermark(c), 0, 0, 0, 0.0) for s, c in budgets.items())
        return WatermarkView(name, registered=True, incarnation=1, low=Watermark(low), budgets=budgets_)

    a, b, c = view("a", 5, _001=20, _01=30), view("b", 6, _001=25), view("c", 7)
    both = fold_inputs(("a", "b"), {"a": a, "b": b}, None, 0.0)
    assert both.budget == {0.001: Watermark(20), 0.01: Watermark(25)}
    three = fold_inputs(("a", "b", "c"), {"a": a, "b": b, "c": c}, None, 0.0)
    assert three.budget == {0.001: Watermark(7), 0.01: Watermark(7)}
    assert (b.at_budget(9_999), b.at_budget(999)) == (Watermark(25), Watermark(6))
    other = Reading("c", ("a", "b"), 1, (2, 1), ())
    assert fold_inputs(("a", "b"), {"a": a, "b": b}, other, 0.0).budget[0.01].unknown, "of another incarnation"


views = st.builds(
    lambda incarnation, epoch, low, ahead: WatermarkView(
        "a",
        registered=True,
        incarnation=incarnation,
        epoch=epoch,
        low=Watermark(low),
        shares=((990_000, Watermark(low + ahead)),),
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 9),
    st.integers(0, 3),
)


@given(st.lists(views))
def test_values_order_by_incarnation_then_value_and_epochs_never_go_down(answers: list[WatermarkView]) -> None:
    ratchet = Ratchet()
    shown = ratchet.get("a")
    for answer in answers:
        version = ratchet.version
        if shown.registered and answer.epoch < shown.epoch:
            with pytest.raises(StaleEpoch):
                ratchet.admit(answer)
            assert ratchet.get("a") == shown
            continue
        changed = ratchet.admit(answer)
        now = ratchet.get("a")
        assert changed == (now != shown)
        assert changed == (ratchet.version > version)
        assert (now.incarnation, now.low) >= (shown.incarnation, shown.low)
        if now.incarnation == shown.incarnation:
            assert now.heuristic[0.99] >= shown.heuristic[0.99]
            assert now.low == max(shown.low, answer.low) if answer.incarnation == now.incarnation else True
        assert now.heuristic[0.99] >= now.low
        shown = now


def test_what_was_promised_is_not_forgotten() -> None:
    ratchet = Ratchet()
    ratchet.admit(WatermarkView("a", registered=True, incarnation=1, epoch=2, low=Watermark(9)))
    assert not ratchet.admit(WatermarkView("a", registered=False, epoch=1))
    assert ratchet.get("a").low == Watermark(9)


def test_the_first_deployment_is_the_only_one() -> None:
    ratchet = Ratchet()
    ratchet.check_token("one")
    ratchet.check_token("one")
    with pytest.raises(ServerTokenMismatch) as caught:
        ratchet.check_token("two")
    assert caught.value.metadata == {"expected": "one", "server_token": "two"}


def test_a_new_incarnation_hides_the_old_one_however_late_that_is_told() -> None:
    ratchet = Ratchet()
    old = WatermarkView(
        "c", registered=True, incarnation=1, epoch=3, low=Watermark(5), shares=((990_000, Watermark(6)),)
    )
    ratchet.admit(old)
    assert ratchet.begin("c", 2)
    assert ratchet.begin("unheard", 4)
    assert not ratchet.admit(old)
    assert not ratchet.begin("c", 2)
    view = ratchet.get("c")
    assert (view.registered, view.incarnation, view.epoch, view.low) == (True, 2, 3, Watermark.UNKNOWN)
    assert view.shares == ((990_000, Watermark.UNKNOWN),)
    assert ratchet.get("unheard").incarnation == 4
