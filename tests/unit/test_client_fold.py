"""The local fold over inputs, against a naive oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import MAX, MIN, FinishRequired, Inputs, LatenessBudget, RangeState, RangeView, Watermark, WatermarkView
from lowwater._core.fold import Reading, fold_inputs, fold_of, injector_fold
from lowwater._core.watches import _same

SHARES = (500_000, 900_000, 990_000)


@st.composite
def views(draw: st.DrawFn, name: str) -> WatermarkView:
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


@given(views("a"), views("b"), st.tuples(st.integers(0, 2), st.integers(0, 2)), st.sets(st.sampled_from(SHARES)))
def test_the_fold_is_the_minimum_of_what_counts(
    a: WatermarkView, b: WatermarkView, incarnations: tuple[int, int], wanted: set[int]
) -> None:
    reading = Reading("c", ("a", "b"), 7, incarnations, tuple(sorted(wanted, reverse=True)))
    seen = fold_inputs(("a", "b"), {"a": a, "b": b}, reading, stale_for=1.5)
    lows: list[int] = []
    heuristics: dict[int, list[int]] = {share: [] for share in wanted}
    for view, incarnation in ((a, incarnations[0]), (b, incarnations[1])):
        counts = view.registered and incarnation in {0, view.incarnation}
        lows.append(view.low.micros if counts else MIN)
        for share, values in heuristics.items():
            larger = [(s, h.micros) for s, h in view.shares if s >= share]
            values.append((min(larger)[1] if larger else view.low.micros) if counts else MIN)
    assert seen.low.micros == min(lows)
    assert {round(share * 1_000_000): h.micros for share, h in seen.heuristic.items()} == {
        share: min(values) for share, values in heuristics.items()
    }
    assert seen.finished == (min(lows) == MAX)
    assert (seen.held_by is None) == seen.finished
    known = tuple(view.incarnation if view.registered else 0 for view in (a, b))
    assert (seen.input_version, seen.incarnations, seen.stale_for) == (7, known, 1.5)
    fold = fold_of(seen)
    assert (fold.low, dict(fold.frontiers)) == (min(lows), {s: min(v) for s, v in heuristics.items()})
    assert (fold.input_version, fold.input_incarnations) == (7, seen.incarnations)


def test_an_input_never_heard_of_counts_as_unknown_and_is_named() -> None:
    seen = fold_inputs(("a", "b"), {"a": WatermarkView("a", registered=True, low=Watermark(5))}, None, 0.0)
    assert seen.low.unknown
    assert seen.held_by == "b (not registered)"
    assert not seen.each["b"].registered


def test_who_holds_is_told_down_to_the_worker() -> None:
    holder = RangeView(b"\x40", b"\x80", Watermark(5), RangeState.OWNED, "exec-7", "host-3", 9, 0, 0)
    view = WatermarkView("flights", registered=True, incarnation=1, low=Watermark(5), holder=holder)
    assert fold_inputs(("flights",), {"flights": view}, None, 0.0).held_by == (
        "flights [0x40, 0x80), owned by exec-7 on host-3"
    )


def test_an_input_in_another_incarnation_is_told_apart() -> None:
    view = WatermarkView("flights", registered=True, incarnation=3, low=Watermark(5))
    seen = fold_inputs(("flights",), {"flights": view}, Reading("c", ("flights",), 1, (2,), ()), 0.0)
    assert seen.low.unknown
    assert seen.held_by == "flights (in incarnation 3, which this claim does not read)"
    assert seen.incarnations == (3,)


def test_an_input_registered_after_the_claim_counts_in_any_incarnation() -> None:
    view = WatermarkView("flights", registered=True, incarnation=3, low=Watermark(5))
    assert fold_inputs(("flights",), {"flights": view}, Reading("c", ("flights",), 1, (0,), ()), 0.0).low == Watermark(
        5
    )


def test_an_injector_folds_its_own_frontier() -> None:
    fold = injector_fold(5, (990_000,))
    assert (fold.low, fold.frontiers, fold.input_version, fold.input_incarnations) == (5, ((990_000, 5),), 0, ())


def test_an_injectors_frontier_is_never_the_end() -> None:
    with pytest.raises(FinishRequired, match="finish"):
        injector_fold(MAX, ())


def test_the_budget_of_several_inputs_is_the_least_each_by_its_next_smaller_share() -> None:
    """Of all records at most the share comes behind it: of each input no more does. One without a budget stands with its low."""

    def view(name: str, low: int, **budgets: int) -> WatermarkView:
        found = tuple(LatenessBudget(float(f"0.{s[1:]}"), Watermark(c), 0, 0, 0, 0.0) for s, c in budgets.items())
        return WatermarkView(name, registered=True, incarnation=1, low=Watermark(low), budgets=found)

    a, b, c = view("a", 5, _001=20, _01=30), view("b", 6, _001=25), view("c", 7)
    both = fold_inputs(("a", "b"), {"a": a, "b": b}, None, 0.0)
    assert both.budget == {0.001: Watermark(20), 0.01: Watermark(25)}
    three = fold_inputs(("a", "b", "c"), {"a": a, "b": b, "c": c}, None, 0.0)
    assert three.budget == {0.001: Watermark(7), 0.01: Watermark(7)}
    assert (b.at_budget(9_999), b.at_budget(999)) == (Watermark(25), Watermark(6))
    other = Reading("c", ("a", "b"), 1, (2, 1), ())
    assert fold_inputs(("a", "b"), {"a": a, "b": b}, other, 0.0).budget[0.01].unknown, "of another incarnation"


def test_a_fold_that_has_another_budget_alone_shows_something_else() -> None:
    """Or whoever watches inputs is not told that one has moved."""

    def fold(budget: int) -> Inputs:
        found = LatenessBudget(0.01, Watermark(budget), 0, 0, 0, 0.0)
        view = WatermarkView("a", registered=True, incarnation=1, low=Watermark(5), budgets=(found,))
        return fold_inputs(("a",), {"a": view}, None, 0.0)

    assert _same(fold(20), fold(20))
    assert not _same(fold(20), fold(21))
