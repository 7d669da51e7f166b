"""The simulated tree of authorities: nothing leads, and its costs are those of the lines that they come from."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import tree_model
from benchmarks.tree_model import MEASURED, Costs, Loss, Plan, Recovery, Sender, node, simulate

RESULTS = Path(__file__).parents[2] / "docs/results"

PLAIN = Costs(hop=1.0, message=2.0, update=0.5, round=3.0, sync=4.0, sync_sigma=0.0, delivery=0.25)
"""Whole seconds. A message of one update by itself takes 2 + 0.5 + 3 + 4 = 9.5 s from its arrival until it is published."""


def run(senders: list[Sender], until: float, **more: Any) -> tree_model.Node:
    return node(senders, PLAIN, until, Random(1), **more)


def conserved(done: tree_model.Node) -> bool:
    return done.sent == done.acknowledged + done.lost + done.waiting


def kept(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The kept lines by benchmark and metric, the first of each."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in map(json.loads, (RESULTS / name).read_text(encoding="utf-8").splitlines()):
        found.setdefault((line["benchmark"], line["metric"]), line)
    return found


@pytest.mark.parametrize("level", [0, 1, 2])
def test_nothing_leads_nothing_goes_back_and_no_message_is_forgotten(level: int) -> None:
    plan = Plan(10**6, (3, 4), 10_000, spacing=0.2)
    loss = Loss(level, 2.0, Recovery(0.3))
    for nodes in simulate(plan, MEASURED, 6.0, loss=loss):
        for each in nodes:
            times, values = each.published
            assert times == sorted(times)
            assert values == sorted(values)
            assert all(value < when for when, value in zip(times, values, strict=True))
            assert conserved(each)
    assert [[each.lost > 0 for each in nodes] for nodes in simulate(plan, MEASURED, 6.0, loss=loss)] == [
        [(at, index) == (level, 0) for index in range(count)] for at, count in enumerate((1, 3, 12))
    ]


def test_a_lone_report_takes_what_was_measured() -> None:
    lines = kept("benchmarks.jsonl")
    alone = 2 * MEASURED.hop + MEASURED.message + MEASURED.round + MEASURED.sync
    assert alone * 1e3 == pytest.approx(lines["latency", "p50"]["value"], rel=0.01)
    tail = MEASURED.sync * (math.exp(2.326 * MEASURED.sync_sigma) - 1)
    assert (alone + tail) * 1e3 == pytest.approx(lines["latency", "p99"]["value"], rel=0.01)
    assert tree_model.STALLING.stall * 1e3 == pytest.approx(
        lines["scale", "p99_10000000"]["value"] - lines["scale", "p50_10000000"]["value"], rel=0.02
    )


def test_other_costs_are_those_of_the_kept_lines() -> None:
    lines = kept("benchmarks.jsonl")
    assert 10_000 / (MEASURED.message + 10_000 * MEASURED.update) == pytest.approx(
        lines["ingest", "updates_per_second"]["value"], rel=0.01
    )
    assert MEASURED.delivery * 1e6 == pytest.approx(lines["fanout", "processor_per_delivery"]["value"], rel=0.01)
    for ranges, each in tree_model.BYTES_A_RANGE:
        assert each == pytest.approx(lines["scale", f"bytes_per_range_{ranges:.0f}"]["value"], rel=0.01)
    with_mass = (
        lines["growth", "round_of_a_report_heuristics_100"]["value"] - lines["growth", "round_of_a_report_100"]["value"]
    )
    assert with_mass == pytest.approx(tree_model.MASS * 1e3, rel=0.01)
