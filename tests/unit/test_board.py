"""The board of the status page: newest values, lags along the graph, samples, and who has to be told of what."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lowwater import Watermark, WatermarkView
from lowwater_page.board import Board
from lowwater_page.samples import SPANS
from tests.kit.times import HOUR

UNKNOWN = Watermark.UNKNOWN.micros
FINISHED = Watermark.FINISHED.micros
HOUR_SPAN = SPANS["1h"]


def view(name: str, low: int, *inputs: str, incarnation: int = 1, share: int | None = None) -> WatermarkView:
    shares = () if share is None else ((990_000, Watermark(share)),)
    return WatermarkView(
        name, registered=True, incarnation=incarnation, low=Watermark(low), shares=shares, inputs=inputs
    )


def board(*views: WatermarkView) -> Board:
    filled = Board()
    for view in views:
        filled.admit(view)
    return filled


def test_rule3_no_value_goes_back_within_an_incarnation() -> None:
    old = board(view("a", 2 * HOUR, incarnation=2))
    for older in (view("a", HOUR, incarnation=2), view("a", 3 * HOUR, incarnation=1)):
        old.admit(older)
        assert old.view("a") == view("a", 2 * HOUR, incarnation=2)
    old.admit(view("a", UNKNOWN, incarnation=3))
    assert old.view("a") == view("a", UNKNOWN, incarnation=3)


def test_a_new_incarnation_drops_the_samples_of_the_old_one() -> None:
    old = board(view("a", 5), view("b", 5))
    old.sample(1)
    old.admit(view("a", UNKNOWN, incarnation=2))
    assert old.recent("a", HOUR_SPAN) == []
    old.sample(2)
    old.admit(view("a", 1, incarnation=2))
    old.sample(3)
    assert old.recent("a", HOUR_SPAN) == [(2, None, None), (3, 1, 1)]
    assert old.recent("b", HOUR_SPAN) == [(1, 5, 5), (2, 5, 5), (3, 5, 5)]


@pytest.mark.parametrize("seed", range(20))
def test_lags_and_changes_are_those_of_the_definition(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"c{i}" for i in range(12)]
    inputs = {name: tuple(chance.sample(names[:i], chance.randint(0, min(i, 3)))) for i, name in enumerate(names)}
    shown, lows, before = Board(), dict.fromkeys(names, UNKNOWN), dict[str, tuple[int, float | None, float | None]]()

    def roots(name: str) -> list[str]:
        return [root for source in inputs[name] for root in roots(source)] if inputs[name] else [name]

    def lag(ahead: Sequence[str], name: str) -> float | None:
        if not inputs[name]:
            return None
        least = min(lows[source] for source in ahead)
        if {least, lows[name]} & {UNKNOWN, FINISHED}:
            return None
        return max(0.0, (least - lows[name]) / 1e6)

    for _ in range(200):
        name = chance.choice(names)
        lows[name] = max(lows[name], chance.choice([UNKNOWN, FINISHED, *([chance.randrange(HOUR)] * 20)]))
        shown.admit(view(name, lows[name], *inputs[name]))
        changed_names = shown.names()
        if chance.random() < 0.3:
            changed = shown.changes()
            now = {one: (lows[one], shown.local_lag(one), shown.global_lag(one)) for one in changed_names}
            assert {one for one in changed_names if now[one] != before.get(one)} <= set(changed)
            assert len(changed) == len(set(changed))
            before = now
        unheard = set(names) - set(changed_names)
        for one in changed_names:
            if not unheard & set(inputs[one]):
                assert shown.local_lag(one) == lag(inputs[one], one)
            if not unheard & {above for path in _upstream(one, inputs) for above in path}:
                assert shown.global_lag(one) == lag(roots(one), one)


def _upstream(name: str, inputs: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [inputs[name], *(path for source in inputs[name] for path in _upstream(source, inputs))]
