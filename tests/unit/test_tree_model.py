"""The simulated tree of authorities, by cases that are worked out by hand, and its costs, by the lines that they come from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import tree_model
from benchmarks.tree_model import MEASURED, Costs, Lag, Loss, Outage, Plan, Recovery, Sender, Steps, lag, node, simulate
from lowwater_authority.engine import admission

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


def test_one_worker_without_a_queue_lags_by_its_spacing_and_the_fixed_times() -> None:
    done = run([Sender(first=5.0, spacing=100.0)], 1_000.0)
    # Sent at 5, there at 6, published at 15.5; and again each hundred seconds.
    assert done.published.times == [15.5 + 100 * turn for turn in range(10)]
    assert done.published.values == [5.0 + 100 * turn for turn in range(10)]
    # 10.5 s right behind a value, 110.5 s right before the next: evenly in between.
    assert lag(done.published, 15.5, 915.5) == pytest.approx(Lag(60.5, 109.5), abs=0.1)
    assert (done.acknowledged, done.rounds, done.busy) == (10, 10, 95.0)


def test_a_worker_that_may_send_more_often_than_it_is_acknowledged_waits() -> None:
    # There at 1, published at 10.5, acknowledged at 11.5, there again at 12.5: 11.5 s each.
    done = run([Sender(first=0.0, spacing=1.0)], 100.0)
    assert done.published.times[:3] == [10.5, 22.0, 33.5]
    assert done.published.values[:3] == [0.0, 11.5, 23.0]


def test_the_last_worker_holds_all_and_a_round_takes_what_came_meanwhile() -> None:
    workers = [Sender(0.0, 1_000.0), Sender(2.0, 1_000.0, updates=3), Sender(4.0, 1_000.0)]
    done = run(workers, 500.0)
    # The first is there at 1 and its round ends at 10.5. The others wait; theirs takes 3 + 4 + 2 x 2 + 4 x 0.5 = 13 s.
    assert done.rounds == 2
    assert done.updates == 5
    assert done.published == Steps([23.5], [0.0])


def test_below_its_capacity_a_node_takes_all_that_is_sent() -> None:
    plan = Plan(10**6)
    root = simulate(plan, MEASURED, 20.0)[0][0]
    assert root.messages() == pytest.approx(100, rel=0.01)
    assert root.updates == 10_000 * root.acknowledged
    assert root.core() == pytest.approx(100 * MEASURED.message + 10**6 * MEASURED.update + 100 * 645e-6, rel=0.05)


def test_a_reader_is_served_before_the_next_round() -> None:
    done = run([Sender(0.0, 1_000.0), Sender(1.0, 1_000.0), Sender(12.0, 1_000.0)], 500.0, readers=8)
    # The first round ends at 10.5 and moves nothing; the second at 20; the third, at 29.5, moves it and takes two seconds more.
    assert done.published.times == [29.5]
    assert done.deliveries == 8
    assert done.busy == 3 * 9.5 + 8 * 0.25
    # The next message is there at 12.5, and is taken after the deliveries, at 10.5 + 16 x 0.25.
    done = run([Sender(0.0, 10.0, source=Steps([0.0, 10.0], [1.0, 2.0]))], 500.0, readers=16)
    assert done.published == Steps([10.5, 24.0], [1.0, 2.0])


def test_a_node_reports_what_is_new_at_most_once_a_spacing() -> None:
    below = Steps([10.0, 11.0, 12.0, 50.0], [1.0, 2.0, 3.0, 4.0])
    done = run([Sender(0.0, 20.0, source=below)], 500.0)
    # 1 leaves at 10, is there at 11, published at 20.5. At 30 the newest is 3: published at 40.5. At 50 comes 4.
    assert done.published == Steps([20.5, 40.5, 60.5], [1.0, 3.0, 4.0])
    assert done.sent == done.acknowledged == 3


def test_a_level_adds_a_hop_and_a_round() -> None:
    plan = Plan(10_000, (1,), 10_000, spacing=1.0, up=0.01)
    costs = replace(MEASURED, sync_sigma=0.0)
    root, child = (nodes[0] for nodes in simulate(plan, costs, 5.0))
    added = costs.hop + costs.message + costs.update + costs.round + costs.sync
    # The first report waits for its phase.
    assert root.published.times[1:] == pytest.approx([when + added for when in child.published.times[1:]])
    assert root.published.values == child.published.values


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


def test_what_is_under_way_to_a_node_that_is_lost_is_sent_again() -> None:
    workers = [Sender(0.0, 1_000.0), Sender(0.5, 1_000.0)]
    done = run(workers, 500.0, outage=Outage(start=8.0, end=100.0, each=20.0))
    # The first is in a round that would have ended at 10.5. It comes back at 100, there at 101, durable at 110.5; the other one at 120: 130.5.
    assert done.lost == 2
    assert done.published == Steps([130.5], [100.0])
    assert conserved(done)


def test_a_recovery_is_its_parts() -> None:
    recovery = Recovery(detection=1.5, take=0.2, find=0.3, replay=1e-6, client=0.001)
    assert recovery.outage(10.0, 10**6) == Outage(10.0, 13.0, 0.001)
    plan = Plan(10**6)
    levels = simulate(plan, MEASURED, 15.0, loss=Loss(0, 5.0, recovery))
    # 3 s away; a hundred workers, of which the last one comes 0.099 s after that; at most two rounds of a hundred messages.
    seconds = tree_model.recovered(levels, 5.0)
    assert 3.099 < seconds < 3.099 + 2 * 100 * (MEASURED.message + 10_000 * MEASURED.update)


def test_the_scarcest_comes_first() -> None:
    plan = Plan(10**7)
    assert plan.workers * (MEASURED.message + plan.per_worker * MEASURED.update) > 1
    found = tree_model.limits(plan, simulate(plan, MEASURED, 15.0))
    assert [each.share for each in found] == sorted((each.share for each in found), reverse=True)
    by = {each.what: each for each in found}
    assert by["core of a root"].share > 0.99
    assert by["streams of a root"].figure == 1_000


def test_what_has_more_workers_than_streams_is_refused() -> None:
    assert tree_model.refused(Plan(8_193 * 10_000))
    assert not tree_model.refused(Plan(8_192 * 10_000))
    assert not tree_model.refused(Plan(8_193 * 10_000, (2,)))
    assert tree_model.refused(Plan(10**9, (8_193,)))


def test_what_a_number_of_ranges_needs() -> None:
    # 100 messages a second of 296 + 10,000 x 0.0889 us are 0.12 of a core; 10,000 of 296 + 100 x 0.0889 us are 3.05.
    assert tree_model.need(10**6, 10_000).shards == 1
    assert tree_model.need(10**6, 100).shards == 7
    assert tree_model.need(10**9, 10_000)[1:] == (100_000, 100_000 * 110 + 12e9, 237)
    assert tree_model.need(10**9, 10_000, spacing=2.0).shards == 119


def test_the_spacing_upwards_leaves_half_of_a_core() -> None:
    assert tree_model.spaced(Plan(10**8, (25,))).up == 0.02
    # 240 / 0.1 s x 296 us is 0.71 of a core, and at 0.2 s it is 0.36.
    assert tree_model.spaced(Plan(10**9, (240,))).up == 0.2
    assert tree_model.spaced(Plan(10**9, (16, 15))).up == 0.02


def test_a_value_that_is_not_there_yet_lags_for_ever() -> None:
    assert lag(Steps([], []), 0.0, 1.0) == Lag(math.inf, math.inf)
    assert lag(Steps([0.5], [0.0]), 0.0, 1.0) == Lag(math.inf, math.inf)
    assert Steps([1.0], [0.5]).at(0.9) == -math.inf
    assert Steps([1.0], [0.5]).reaches(0.6) == math.inf


# Where the costs come from


def test_a_lone_report_takes_what_was_measured() -> None:
    lines = kept("benchmarks.jsonl")
    alone = 2 * MEASURED.hop + MEASURED.message + MEASURED.round + MEASURED.sync
    assert alone * 1e3 == pytest.approx(lines["latency", "p50"]["value"], rel=0.01)
    tail = MEASURED.sync * (math.exp(2.326 * MEASURED.sync_sigma) - 1)
    assert (alone + tail) * 1e3 == pytest.approx(lines["latency", "p99"]["value"], rel=0.01)
    assert tree_model.STALLING.stall * 1e3 == pytest.approx(
        lines["scale", "p99_10000000"]["value"] - lines["scale", "p50_10000000"]["value"], rel=0.02
    )


@pytest.mark.parametrize("updates", [1, 10, 100, 1_000, 10_000])
def test_a_full_node_takes_what_was_measured(updates: int) -> None:
    measured = kept("benchmarks.jsonl")["batches", f"updates_per_second_{updates}"]
    assert updates / (MEASURED.message + updates * MEASURED.update) == pytest.approx(measured["value"], rel=0.25)


@pytest.mark.parametrize("streams", [1, 10, 100, 400])
def test_a_node_with_many_streams_takes_what_was_measured(streams: int) -> None:
    """These lines are no source of a cost: they say whether the model is true where nothing else was measured."""
    measured = kept("messages.jsonl")["messages", f"messages_per_second_{streams}"]
    done = node([Sender(0.0, 0.0) for _ in range(streams)], MEASURED, 10.0, Random(1))
    assert done.messages() == pytest.approx(measured["value"], rel=0.25)


def test_a_node_with_few_messages_takes_the_processor_that_was_measured() -> None:
    measured = kept("messages.jsonl")["messages", "paced_processor_per_message"]
    done = node([Sender(at / 500, 0.2) for at in range(measured["streams"])], MEASURED, 10.0, Random(1))
    assert done.messages() == pytest.approx(measured["rate"], rel=0.01)
    assert done.busy / done.acknowledged * 1e6 == pytest.approx(measured["value"], rel=0.25)


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


def test_recoveries_are_those_of_the_kept_lines() -> None:
    lines, before, herd, known = (
        kept("benchmarks.jsonl"),
        kept("performance_before.jsonl"),
        kept("herd.jsonl"),
        Recovery(),
    )
    serves = lines["recovery", "serves_10000000"]
    assert known.replay * 1e7 == pytest.approx(serves["value"] - serves["baseline_value"], rel=0.01)
    noticed, taken, new = (before["failover", f"{name}_p50"]["value"] for name in ("noticed", "taken", "raw_new"))
    assert known.take == pytest.approx(taken - noticed, abs=0.002)
    assert known.find == pytest.approx(new - taken, abs=0.002)
    back = herd["herd", "failover_last_after_taken"]
    assert known.client * 2_000 == pytest.approx(back["value"], rel=0.01)


def test_a_node_holds_the_bytes_that_were_measured_and_has_the_streams_that_are_let_in() -> None:
    assert tree_model.memory(10**7, 0) == pytest.approx(452e6, rel=0.01)
    assert tree_model.memory(5 * 10**5, 10) == pytest.approx(113.5e6 + 10 * 36e3, rel=0.01)
    assert tree_model.STREAMS == admission.STREAMS
