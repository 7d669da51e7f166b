"""The page blames whom `lowwater why` blames: both walks over the same random pipelines, for every computation, as time goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from lowwater import RangeState, RangeView, Watermark, WatermarkView
from lowwater._core.why import find_way
from lowwater_page import records
from lowwater_page.board import Board
from tests.browser.chromium import watched
from tests.kit.times import SECOND
from tests.process.serving import Serving

PIPELINES: Final = 200
NOW: Final = 1_795_000_000 * SECOND
LATER: Final = (0, 1, 10, 60)
"""Seconds after which each pipeline is judged again, though nothing has changed: a worker falls silent by time alone."""

LOWS: Final = (*(Watermark(NOW - seconds * SECOND) for seconds in (5, 40, 41, 3000, 9000)), Watermark.UNKNOWN)
"""Few, so that inputs are often equally low."""

JUDGE: Final = """async ([pipelines, now, later]) => {
    const { EMPTY, replace } = await import("/static/model/board.js");
    const { judge, way } = await import("/static/model/verdict.js");
    return pipelines.map((computations) => {
        const board = replace(EMPTY, { time_micros: now, stale_for: 0, version: "1", shards: [], computations });
        return later.map((seconds) => {
            const { verdicts } = judge(board, now + seconds * 1e6, { late: 1800, from: "" });
            return [...verdicts.values()].map(({ computation: { name }, guilty }) => [name, guilty, [name, ...way(name, verdicts)]]);
        });
    });
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, shared: Serving) -> Iterator[Page]:
    with watched(browser, shared.page) as tab:
        yield tab.open()


def a_holder(dice: random.Random, low: Watermark) -> RangeView | None:
    """Somebody alive, more often than not; else silent, gone, never there, retired, finished or not known."""
    if dice.random() < 0.1:
        return None
    state = dice.choice((*[RangeState.OWNED] * 9, *RangeState))
    ages = (1, 1, 1, 5, 14, 15, 16, 600)
    reported, since = (NOW - dice.choice(ages) * SECOND * (dice.random() < 0.9) for _ in range(2))
    return RangeView(
        start=b"\x40",
        end=b"\x80",
        watermark=low,
        state=state,
        worker="exec-7",
        host="node-4",
        sequencer=9,
        since_micros=dice.choice((0, since)),
        last_report_micros=dice.choice((0, reported, reported, reported, reported)),
        waiting_for=dice.choice(("", "", "/in/daily.json")),
    )


def a_pipeline(dice: random.Random) -> dict[str, WatermarkView]:
    """Up to sixteen computations that read those before them, and now and then one that nobody has registered."""
    views: dict[str, WatermarkView] = {}
    for number in range(dice.randint(1, 16)):
        name = f"c{dice.randint(0, 999):03}-{number}"
        inputs = tuple(dice.sample(list(views), min(len(views), dice.choice((0, 1, 1, 2, 3, 5)))))
        if dice.random() < 0.05:
            inputs = (*inputs[:1], "missing", *inputs[1:])
        if dice.random() < 0.04:
            views[name] = WatermarkView(name, inputs=inputs)
            continue
        allowed = min((views[each].low if each in views else Watermark.UNKNOWN for each in inputs), default=LOWS[0])
        below = [each for each in LOWS if each <= allowed]
        low = dice.choice((allowed, allowed, dice.choice(below), dice.choice(LOWS), Watermark.FINISHED))
        if low.finished and dice.random() < 0.6:
            low = allowed
        views[name] = WatermarkView(
            name,
            registered=True,
            incarnation=1,
            low=low,
            inputs=inputs,
            holder=a_holder(dice, low),
            oldest_operation_micros=dice.choice((0, 0, NOW - 600 * SECOND)),
            since_micros=NOW - dice.choice((1, 60)) * SECOND,
            estimated=dice.random() < 0.2,
            ranges=1,
        )
    return views


def told(views: Mapping[str, WatermarkView]) -> list[Any]:
    """What the API tells the page of a pipeline, in no order."""
    board = Board()
    for view in views.values():
        board.admit(view)
    return [records.computation(view, board) for view in views.values()]


def holds_alone(view: WatermarkView, views: Mapping[str, WatermarkView]) -> bool:
    """Whether a computation could be further by what its inputs are."""
    lows = [views[each].low if each in views else Watermark.UNKNOWN for each in view.inputs]
    return view.registered and bool(lows) and view.low < min(lows)


def test_the_page_blames_whom_lowwater_why_blames(page: Page) -> None:
    """The guilty one, and the way to it, are those of the command's walk, for each computation and at each time."""
    dice = random.Random("who is to blame")
    pipelines = [a_pipeline(dice) for _ in range(PIPELINES)]
    found = page.evaluate(JUDGE, [[told(views) for views in pipelines], NOW, list(LATER)])
    passed = turned = ties = 0
    for number, (views, moments) in enumerate(zip(pipelines, found, strict=True)):
        before: dict[str, str] = {}
        for seconds, verdicts in zip(LATER, moments, strict=True):
            assert {name for name, *_ in verdicts} == set(views)
            for name, guilty, names in verdicts:
                way = find_way(name, views, NOW + seconds * SECOND)
                case = f"pipeline {number}, {seconds} s later: {name}"
                assert guilty == way.names[-1], case
                assert names == list(way.names), case
                passed += guilty != name and holds_alone(views[name], views)
                turned += before.get(name, guilty) != guilty
                ties += bool(way.others)
                before[name] = guilty
    # The pipelines are such that it matters.
    assert passed > 50, "hardly any walk passed a living stage that holds by itself"
    assert turned > 50, "hardly any verdict changed with time alone"
    assert ties > 100, "hardly any computation was held by several"
