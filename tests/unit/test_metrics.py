"""What a scrape says is what is so: every figure against a truth that is known otherwise."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from lowwater import errors
from lowwater_authority.core.batches import PART_BYTES
from lowwater_authority.core.columns import BLOCK
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Grant, GroupReport, Prepare, TaskAttempt
from lowwater_authority.core.times import MAX
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.hub import Hub
from lowwater_authority.ops import metrics, range_survey
from lowwater_authority.ops.metrics import FIGURES, LoopLag, Metrics
from lowwater_authority.ops.range_survey import RangeSurvey, counted
from lowwater_authority.rpc.interceptors import Timing
from tests.kit.faults import FaultPlan, Outcome
from tests.kit.memory_journal import MemoryDisk
from tests.kit.times import HOUR, SECOND
from tests.property.core_driver import part
from tests.unit.metered import Metered, metered
from tests.unit.test_shard import Gate, Running


@pytest.fixture
async def one() -> AsyncIterator[Metered]:
    async with metered() as each:
        yield each


async def grown(one: Metered) -> dict[str, Grant]:
    """A computation that stands at 14:00, one that is finished, and one of which nothing is known."""
    grants = {}
    for name in ("time", "finished", "unknown"):
        await one.shard.register(Spec(name, heuristics=(990_000,)))
        if name != "unknown":
            grants[name] = await one.claim(name)
    await one.report(grants["time"], 14, name="time")
    await one.report(grants["finished"], MAX, name="finished", finish=True)
    return grants


# -- computations ------------------------------------------------------------------------------------------------------


async def test_a_watermark_is_a_timestamp_while_it_is_a_time_and_a_state_always(one: Metered) -> None:
    await grown(one)
    assert one.of("lowwater_low_watermark_timestamp_seconds") == {"time": 14 * 3600}
    assert one.of("lowwater_heuristic_watermark_timestamp_seconds", share="0.99") == {"time": 14 * 3600}
    for state in ("time", "finished", "unknown"):
        truth = {name: float(name == state) for name in ("time", "finished", "unknown")}
        assert one.of("lowwater_watermark_state", state=state) == truth


async def test_neither_unknown_nor_finished_is_ever_a_number(one: Metered) -> None:
    await grown(one)
    await one.survey.survey()
    for family in openmetrics(one.metrics.render("application/openmetrics-text; version=1.0.0")[0].decode()):
        for sample in family.samples:
            assert abs(sample.value) < 1e12, sample
            assert sample.value == sample.value, sample


async def test_when_it_moved_last_what_runs_longest_and_who_owns_it(one: Metered) -> None:
    await one.shard.register(Spec("guess", estimated=True))
    await one.shard.register(Spec("a"))
    grant = await one.claim()
    assert one.of("lowwater_low_watermark_change_timestamp_seconds") == {}
    one.now += 5 * SECOND
    moved = one.now
    report = GroupReport(grant.sequencer, np.array([HOUR]), oldest_operation=moved - 90 * SECOND)
    await one.shard.report([("a", report)], sender=b"s" * 16, number=(1, 1))
    one.now += 5 * SECOND
    await one.shard.report([("a", report)], sender=b"s" * 16, number=(1, 2))
    assert one.of("lowwater_low_watermark_change_timestamp_seconds") == {"a": moved / 1e6}
    assert one.of("lowwater_oldest_operation_timestamp_seconds") == {"a": moved / 1e6 - 90}
    assert one.of("lowwater_estimated") == {"a": 0, "guess": 1}
    assert one.of("lowwater_epoch") == {name: one.shard.epoch(name) for name in ("a", "guess")}
    assert one.value("lowwater_owned_computations") == one.value("lowwater_registered_computations") == 2


@pytest.mark.parametrize("ended", ["released", "finished", "taken over", "left by one of two"])
async def test_an_operation_of_whoever_has_left_or_finished_does_not_run_any_more(one: Metered, ended: str) -> None:
    await one.shard.register(Spec("a"))
    grant = await one.claim("a", b"", b"m")
    other = await one.claim("a", b"m", b"")
    for number, (claim, ago) in enumerate([(grant, 3600), (other, 60)]):
        report = GroupReport(claim.sequencer, np.array([HOUR]), oldest_operation=one.now - ago * SECOND)
        await one.shard.report([("a", report)], sender=b"s" * 16, number=(1, number + 1))
    operation = "lowwater_oldest_operation_timestamp_seconds"
    assert one.of(operation) == {"a": one.now / 1e6 - 3600}
    match ended:
        case "released":
            await one.shard.release("a", grant.sequencer)
            await one.shard.release("a", other.sequencer)
        case "finished":
            for number, claim in enumerate([grant, other]):
                done = GroupReport(claim.sequencer, np.array([MAX]), oldest_operation=one.now - 9 * SECOND, finish=True)
                await one.shard.report([("a", done)], sender=b"s" * 16, number=(1, number + 3))
        case "taken over":
            await one.claim("a")
        case _:
            await one.shard.release("a", grant.sequencer)
    assert one.of(operation) == ({"a": one.now / 1e6 - 60} if ended == "left by one of two" else {})


async def test_the_series_of_a_computation_that_went_away_disappear(one: Metered) -> None:
    await grown(one)
    await one.survey.survey()
    of_it = [each.name for each in FIGURES if "computation" in each.labels and one.of(each.name).keys() & {"time"}]
    assert len(of_it) >= 8
    one.shard.replaced({"time": (one.shard.epoch("time"), one.shard.epoch("time") + 1)})
    text = one.metrics.render()[0].decode()
    assert 'computation="time"' not in text
    assert 'computation="unknown"' in text
    await one.survey.survey()
    assert one.survey.counts.keys() == {"finished", "unknown"}


async def behind(one: Metered) -> None:
    """A stage at 11:00 that reads one of another shard at 14:00, whose root is here, at 15:00."""
    for spec in (Spec("flights"), Spec("enriched", inputs=("flights",)), Spec("hourly", inputs=("enriched",))):
        await one.shard.register(spec)
    epoch = one.shard.epoch("enriched")
    one.shard.replaced({"enriched": (epoch, epoch + 1)})
    await one.report(await one.claim("flights"), 15, name="flights")
    one.elsewhere.published = {"enriched": 14, "flights": 13}
    grant = await one.claim("hourly")
    await one.report(grant, 11, name="hourly", incarnations=(1,))
    await one.upstream.ask()


async def test_lags_are_of_what_is_published_here_and_of_what_other_shards_answer(one: Metered) -> None:
    """Nobody is asked for the root, which is served here."""
    await behind(one)
    assert set(one.elsewhere.asked) == {("enriched",)}
    assert one.of("lowwater_local_lag_seconds") == {"hourly": 3 * 3600}
    assert one.of("lowwater_global_lag_seconds") == {"hourly": 4 * 3600}


async def test_there_is_no_lag_behind_what_was_not_confirmed_lately(one: Metered) -> None:
    """A lag that stands still says that all is as it was, which nobody knows."""
    await behind(one)
    await one.shard.register(Spec("local", inputs=("flights",)))
    await one.report(await one.claim("local"), 12, name="local", incarnations=(1,))
    confirmed = one.value("lowwater_deployment_confirmed_timestamp_seconds")
    assert abs(time.time() - confirmed) < 10
    one.seconds += 31
    assert one.of("lowwater_local_lag_seconds") == {"local": 3 * 3600}, "all that it needs is published here"
    assert one.of("lowwater_global_lag_seconds") == {"hourly": 4 * 3600, "local": 3 * 3600}
    confirmed = one.value("lowwater_deployment_confirmed_timestamp_seconds")
    assert abs(time.time() - 31 - confirmed) < 10
    await one.upstream.ask()
    assert one.of("lowwater_local_lag_seconds") == {"hourly": 3 * 3600, "local": 3 * 3600}


async def test_a_shard_that_does_not_answer_holds_up_no_answer_of_another(one: Metered) -> None:
    inputs = ("asleep", "awake")
    for spec in (*map(Spec, inputs), *(Spec(f"of {each}".replace(" ", "-"), inputs=(each,)) for each in inputs)):
        await one.shard.register(spec)
    for name in inputs:
        epoch = one.shard.epoch(name)
        one.shard.replaced({name: (epoch, epoch + 1)})
    for name in inputs:
        await one.report(await one.claim(f"of-{name}"), 11, name=f"of-{name}", incarnations=(1,))
    one.elsewhere.published = dict.fromkeys(inputs, 14)
    await one.upstream.ask()
    assert one.of("lowwater_local_lag_seconds") == {"of-asleep": 3 * 3600, "of-awake": 3 * 3600}
    one.elsewhere.away = {"asleep"}
    one.elsewhere.published["awake"] = 15
    one.seconds += 31
    asking = asyncio.create_task(one.upstream.ask())
    while one.of("lowwater_local_lag_seconds") != {"of-awake": 4 * 3600}:
        assert not asking.done()
        await asyncio.sleep(0)
    confirmed = one.value("lowwater_deployment_confirmed_timestamp_seconds")
    assert abs(time.time() - 31 - confirmed) < 10, "that of the one which is behind"
    asking.cancel()


async def test_only_inputs_and_roots_that_others_serve_are_asked_for(one: Metered) -> None:
    """Of a chain of four with the last one here: its input, and the injector at the other end."""
    before: tuple[str, ...] = ()
    for name in ("root", "second", "third", "last"):
        await one.shard.register(Spec(name, inputs=before))
        before = (name,)
    for name in ("root", "second", "third"):
        epoch = one.shard.epoch(name)
        one.shard.replaced({name: (epoch, epoch + 1)})
    await one.shard.register(Spec("stranger"))
    epoch = one.shard.epoch("stranger")
    one.shard.replaced({"stranger": (epoch, epoch + 1)})
    one.elsewhere.asked.clear()
    await one.upstream.ask()
    assert set(one.elsewhere.asked) == {("root",), ("third",)}


@pytest.mark.parametrize(
    ("still_for", "input_at", "named"),
    [(20, 15, False), (40, 15, True), (40, 14, False), (40, None, False)],
    ids=["moved lately", "behind its input", "held by its input", "its input is unknown"],
)
async def test_a_holder_is_named_when_it_has_held_for_long_and_no_input_does(
    one: Metered, still_for: int, input_at: int | None, named: bool
) -> None:
    one.now = time.time_ns() // 1000 - still_for * SECOND
    await one.shard.register(Spec("root"))
    await one.shard.register(Spec("elsewhere"))
    await one.shard.register(Spec("stage", inputs=("elsewhere",)))
    one.shard.held.let_go({"elsewhere": (one.shard.held.epoch("elsewhere"), 0)})  # another shard serves it
    if input_at is not None:
        one.elsewhere.published["elsewhere"] = input_at
        await one.upstream.ask()
    grant = await one.claim("stage", b"", b"m", b"", worker="w", host="h")
    await one.report(grant, 15, 14, name="stage", incarnations=(1,))
    found = [labels for labels, value in one.samples("lowwater_holder_info") if value == 1]
    stage = {"computation": "stage", "worker": "w", "host": "h", "range": "[m, ..)"}
    assert [each for each in found if each["computation"] == "stage"] == [stage] * named
    root = {"computation": "root", "worker": "", "host": "", "range": "all keys"}
    assert [each for each in found if each["computation"] == "root"] == [root], (
        "it has never moved, and nothing is before it"
    )


# -- ranges ------------------------------------------------------------------------------------------------------------


def recounted(computation: Computation) -> tuple[Counter[str], int, int]:
    """States, holders and their oldest report, one range at a time."""
    ranges, _ = computation.map.all_ranges(10**6)
    of_claim: dict[object, set[bool]] = {}
    for each in ranges:
        of_claim.setdefault(each.owner.sequencer or each.start, set()).add(each.value == MAX)
    states = Counter[str]()
    for each in ranges:
        whole = of_claim[each.owner.sequencer or each.start] == {True}
        if whole and each.owner.state is not GroupState.RETIRED:
            states["finished"] += 1
        else:
            states["never_claimed" if each.owner.state is GroupState.NEVER else each.owner.state.name.lower()] += 1
    low = computation.published.low
    holding = [each for each in ranges if each.value <= low < MAX]
    return states, len(holding), min((e.owner.last_report for e in holding if e.owner.last_report), default=0)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_counted_as_one_by_one_whatever_was_done(seed: int) -> None:
    dice = random.Random(seed)
    computation = Computation(Spec("a"))
    seen = Counter[str]()
    for step in range(1, 120):
        now = 1000 * HOUR + step * SECOND
        owned = [s for s, group in computation.map.groups.items() if group.state is GroupState.OWNED]
        act = dice.choice(["claim", "report", "report", "report", "release", "retire"])
        keys = sorted(dice.sample(range(1, 40), dice.choice([2, 3, 9])))
        bounds = [bytes([key]) for key in keys] if dice.random() < 0.8 else [b"", b""]
        if act == "claim":
            computation.claim(ClaimRequest(bounds, request_id=step.to_bytes(16)), now)
        elif act == "report" and owned:
            group = computation.map.groups[dice.choice(owned)]
            choice = [MAX] if dice.random() < 0.2 else [h * HOUR for h in range(step, step + 4)] + [MAX]
            values = np.array([dice.choice(choice) for _ in range(group.count)], dtype=np.int64)
            said = GroupReport(group.sequencer, values, finish=True)
            computation.report(said, sender=b"s" * 16, number=(1, step), required=NO_FOLD, now=now)
        elif act == "release" and owned:
            computation.release(dice.choice(owned))
        elif act == "retire":
            computation.retire(bounds[0], bounds[-1], force=True, now=now)
        computation.take_record(now)
        computation.publish()
        computation._check()
        counts = counted(computation.map, computation.published.low, 7)
        truth = recounted(computation)
        assert (Counter({s: n for s, n in counts.states.items() if n}), counts.holding, counts.last_report) == truth
        assert sum(counts.states.values()) == len(computation.map)
        seen.update(state for state, number in counts.states.items() if number)
    assert len(seen) >= 4, "the run met most states"


@pytest.mark.parametrize("seed", range(5))
def test_ranges_are_counted_over_many_blocks(seed: int) -> None:
    """The minimum is kept by blocks of 4,096 ranges; claims begin and end anywhere in them."""
    dice = np.random.default_rng(seed)
    computation, now = Computation(Spec("a")), 1000 * HOUR
    edges = sorted(dice.choice(20_000, 6, replace=False).tolist())
    for number, (low, high) in enumerate(itertools.pairwise([0, *edges, 20_000])):
        bounds = [key.to_bytes(2) if 0 < key < 20_000 else b"" for key in range(low, high + 1)]
        grant = computation.claim(ClaimRequest(bounds, request_id=number.to_bytes(16)), now)
        values = dice.choice([1, 2, 3, 3, 3], high - low).astype(np.int64) * HOUR
        report = GroupReport(grant.sequencer, values if number % 2 else np.full(high - low, 3 * HOUR))
        computation.report(report, sender=b"s" * 16, number=(1, 1), required=NO_FOLD, now=now + number)
    computation.take_record(now)
    computation.publish()
    counts = counted(computation.map, computation.published.low, 7)
    assert (counts.holding, counts.last_report) == recounted(computation)[1:]
    assert counts.holding > 100


async def test_a_scrape_has_the_counts_of_the_last_survey(one: Metered) -> None:
    await one.shard.register(Spec("a"))
    await one.shard.register(Spec("b"))
    grant = await one.claim("a", b"", b"h", b"p", b"t", b"")
    reported = one.now
    await one.report(grant, 14, 15, 14, 16)
    one.now += 7 * SECOND
    await one.report(await one.claim("b"), 3, name="b")
    await one.survey.survey()
    first = one.survey.counts["a"]
    await one.shard.retire("a", b"t", b"", force=True)
    assert one.of("lowwater_ranges", state="owned") == {"a": 4, "b": 1}
    await one.survey.survey()
    assert one.of("lowwater_ranges", state="owned") == {"a": 3, "b": 1}
    assert one.of("lowwater_ranges", state="retired") == {"a": 1, "b": 0}
    assert one.of("lowwater_holding_ranges") == {"a": 2, "b": 1}
    assert one.of("lowwater_last_report_timestamp_seconds") == {"a": reported / 1e6, "b": one.now / 1e6}
    again = one.survey.counts
    assert again["a"] is not first
    await one.survey.survey()
    assert all(one.survey.counts[name] is again[name] for name in "ab"), "what has not changed is not counted again"


async def test_a_survey_that_fails_ends_neither_the_rounds_nor_the_surveys(
    one: Metered, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it fails within a round or beside it, reports go on and the next survey counts."""
    await one.shard.register(Spec("a"))
    began = asyncio.Event()

    def bad(*_: object) -> None:
        began.set()
        raise IndexError("as this test wants it")

    with monkeypatch.context() as patched:
        patched.setattr(range_survey, "counted", bad)
        with pytest.raises(errors.LowwaterError, match="internal error"):
            await one.survey.survey()
        patched.setattr(range_survey, "PERIOD", 0.0)
        for broken in (range_survey, one.survey):
            patched.setattr(broken, "counted" if broken is range_survey else "survey", bad)
            began.clear()
            running = asyncio.create_task(one.survey.run())
            await asyncio.wait_for(began.wait(), 10)
            await asyncio.sleep(0)
            assert not running.done()
            running.cancel()
            await asyncio.wait((running,))
    assert not one.task.done()
    assert "as this test wants it" in caplog.text
    await one.report(await one.claim("a"), 14)
    await one.survey.survey()
    assert one.of("lowwater_ranges", state="owned") == {"a": 1}


async def test_a_claim_counts_as_a_report_and_whoever_took_over_has_not_been_silent(one: Metered) -> None:
    await one.shard.register(Spec("a"))
    await one.report(await one.claim(), 14)
    one.now += 90 * SECOND
    await one.claim()
    await one.survey.survey()
    assert one.of("lowwater_last_report_timestamp_seconds") == {"a": one.now / 1e6}
    view = one.shard.view("a")
    assert view is not None
    assert view.holder is not None
    assert (view.holder.since, view.holder.owner.last_report) == (one.now - 90 * SECOND, one.now)


async def test_an_owner_that_died_with_the_authority_is_silent_from_the_recovery_on() -> None:
    """The time of a claim is not journaled, so that after a restart nobody knows when its owner was heard of."""
    disk = MemoryDisk()
    before = await Running(disk).start()
    await before.shard.register(Spec("a"))
    await before.shard.register(Spec("free"))
    grant = await before.claim()
    await before.claim("free", b"", b"m")
    await before.stop()
    after = Running(disk)
    after.now = recovered = before.now + HOUR
    await after.start()
    view = after.shard.view("a")
    assert view is not None
    assert view.holder is not None
    assert view.holder.owner.last_report == 0
    survey = RangeSurvey(after.shard)
    for _ in range(2):
        await survey.survey()
        assert survey.counts["a"].last_report == survey.counts["free"].last_report == recovered
        after.now += 60 * SECOND
    await after.shard.retire("free", b"", b"m", force=True)
    await after.report(grant, 14)
    await survey.survey()
    assert survey.counts["a"].last_report == after.now
    assert survey.counts["free"].last_report == 0, "what nobody ever claimed has no owner to be silent"
    await after.stop()


async def test_rule2_a_survey_waits_for_what_is_staged_to_be_durable() -> None:
    gate = Gate()
    async with metered(gate) as one:
        await one.shard.register(Spec("a"))
        await one.survey.survey()
        gate.open.clear()
        gate.reached.clear()
        claim = asyncio.create_task(one.claim("a", b"", b"m", b""))
        await gate.reached.wait()
        survey = asyncio.create_task(one.survey.survey())
        await asyncio.sleep(0)
        assert one.of("lowwater_ranges", state="never_claimed") == {"a": 1}, "the claim is not shown yet"
        assert not survey.done()
        gate.open.set()
        await asyncio.gather(claim, survey)
        assert one.of("lowwater_ranges", state="never_claimed") == {"a": 0}
        assert one.of("lowwater_ranges", state="owned") == {"a": 2}


# -- events ------------------------------------------------------------------------------------------------------------


async def test_rounds_and_appends_are_those_of_the_journal(one: Metered) -> None:
    await one.shard.register(Spec("a"))
    grant = await one.claim()
    for hour in range(5):
        await one.report(grant, hour)
    await one.survey.survey()
    await one.shard.ranges("a", below=None, limit=10)
    journal = one.shard.journal.statistics()
    assert one.value("lowwater_rounds_total") == 7, "a registration, a claim, five reports; and no question"
    assert one.value("lowwater_round_requests_count") == one.value("lowwater_round_requests_sum") == 7
    assert one.value("lowwater_journal_append_seconds_count") == journal.appends
    assert one.value("lowwater_journal_appended_bytes_total") == journal.bytes > 0
    assert one.value("lowwater_journal_snapshots_total") == journal.snapshots == 0
    assert one.value("lowwater_queued_requests") == 0


async def test_an_append_that_failed_is_an_error_and_no_bytes() -> None:
    disk = FaultPlan()
    async with metered(disk) as one:
        await one.shard.register(Spec("a"))
        before, replays = (
            one.value(name)
            for name in ("lowwater_journal_appended_bytes_total", "lowwater_journal_replay_seconds_count")
        )
        disk.then(Outcome.FAILED)
        with pytest.raises(errors.JournalFailed):
            await one.claim()
        assert one.value("lowwater_journal_errors_total", outcome="failed") == 1
        assert one.value("lowwater_journal_errors_total", outcome="unknown") == 0
        assert one.value("lowwater_journal_appended_bytes_total") == before
        assert one.value("lowwater_journal_append_seconds_count") == 2
        after = one.value("lowwater_journal_replay_seconds_count")
        assert after == replays + 1, "what was staged is forgotten by a replay"


def test_rule7_what_was_conflated_stays_counted_when_its_subscriber_leaves() -> None:
    hub, computation = Hub(), Computation(Spec("a"))
    slow, other = hub.subscribe(["a"]), hub.subscribe(["b"])
    for _ in range(4):
        hub.publish([computation.published])
    assert hub.conflated == slow.statistics().conflated == 3
    assert other.statistics().conflated == 0
    hub.unsubscribe(slow)
    hub.publish([computation.published])
    assert hub.conflated == 3


async def test_a_push_is_measured_from_the_publish_that_waits_longest() -> None:
    clock = iter([100.0, 107.5, 200.0, 200.25])
    hub, computation = Hub(lambda: next(clock)), Computation(Spec("a"))
    subscription = hub.subscribe([])
    hub.publish([computation.published])
    hub.publish([computation.published])
    await subscription.take(1)
    assert subscription.waited == 7.5
    hub.publish([computation.published])
    await subscription.take(1)
    assert subscription.waited == 0.25
    await subscription.take(0)
    assert subscription.waited == 0.25, "nothing was taken"


class Answers:
    """What a handler may do, behind the interceptor."""

    def __init__(self, observer: Metrics) -> None:
        self.server = grpc.aio.server(interceptors=[Timing(observer)])
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(getattr(self, name)) for name in ("Fine", "Bad", "Bug")
        }
        handlers["Many"] = grpc.unary_stream_rpc_method_handler(self.Many)
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("s.S", handlers)])
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def Fine(self, request: bytes, context: Any) -> bytes:
        return request

    async def Bad(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
        return b""

    async def Bug(self, request: bytes, context: Any) -> bytes:
        raise ZeroDivisionError

    async def Many(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"1"
        yield b"2"


async def test_unary_calls_are_counted_by_how_they_ended_and_streams_pass_by() -> None:
    metrics = Metrics("9.9")
    answers = Answers(metrics)
    await answers.server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{answers.port}") as raw:
        channel: Any = raw
        for _ in range(3):
            assert await channel.unary_unary("/s.S/Fine")(b"x") == b"x"
        for method in ("Bad", "Bug", "Nobody"):
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/s.S/{method}")(b"")
        assert [each async for each in channel.unary_stream("/s.S/Many")(b"")] == [b"1", b"2"]
    await answers.server.stop(None)
    got = {
        tuple(sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        if family.name == "lowwater_calls"
        for sample in family.samples
    }
    assert got == {("Fine", "OK"): 3, ("Bad", "FAILED_PRECONDITION"): 1, ("Bug", "UNKNOWN"): 1}
    assert metrics.registry.get_sample_value("lowwater_call_seconds_count", {"method": "Fine"}) == 3


def test_claims_are_granted_or_refused() -> None:
    metrics = Metrics("9.9")
    metrics.claimed()
    metrics.claimed()
    metrics.refused("Claim", "OLDER_CLAIM")
    metrics.refused("Watch", "UNAVAILABLE")
    metrics.reported(10, {"STALE_SEQUENCER": 2})
    value = metrics.registry.get_sample_value
    assert value("lowwater_claims_total", {"outcome": "granted"}) == 2
    assert value("lowwater_claims_total", {"outcome": "refused"}) == 1
    assert value("lowwater_refused_calls_total", {"method": "Claim", "reason": "OLDER_CLAIM"}) == 1
    assert value("lowwater_refused_reports_total", {"reason": "STALE_SEQUENCER"}) == 2
    assert (value("lowwater_reports_total"), value("lowwater_reported_ranges_total")) == (1, 10)
    assert value("lowwater_build_info", {"version": "9.9"}) == 1


async def test_the_memory_of_computations_is_told(one: Metered) -> None:
    def held() -> dict[str, float]:
        return {labels["what"]: value for labels, value in one.samples("lowwater_held_bytes")}

    await one.shard.register(Spec("a"))
    await one.shard.register(Spec("b"))
    grant = await one.claim("a", b"", b"m", b"")
    assert held() == {"ranges": 2 * 16 * BLOCK, "parts": 0, "histories": 0}
    for hour in range(3):
        await one.report(grant, hour)
    task = TaskAttempt(0, 0, 0)
    one.shard.stage_task("a", grant.sequencer, 1, task, part({0: 5}))
    assert held() == {"ranges": 2 * 16 * BLOCK, "parts": PART_BYTES + 12, "histories": 3 * 32}
    one.shard.prepare("a", Prepare(grant.sequencer, 1, b"", [task], 5, False, NO_FOLD, 0, {}))
    await one.shard.commit("a", grant.sequencer, 1)
    assert held()["parts"] == 0
    assert one.value("lowwater_tombstone_bytes") == 0
    await one.shard.drop("b", force=True)
    assert one.value("lowwater_tombstone_bytes") == 25


async def test_what_is_known_to_be_newest_stands_still_while_an_append_hangs() -> None:
    gate = Gate()
    async with metered(gate) as one:
        await one.shard.register(Spec("a"))
        before = time.time()
        assert one.value("lowwater_journal_confirmed_timestamp_seconds") >= before, "nothing is under way: now"
        gate.open.clear()
        gate.reached.clear()
        claim = asyncio.create_task(one.claim())
        await gate.reached.wait()
        assert one.value("lowwater_journal_confirmed_timestamp_seconds") == one.now / 1e6
        gate.open.set()
        await claim


# -- the event loop ----------------------------------------------------------------------------------------------------


async def stalled() -> list[float]:
    """What is observed while something holds the loop for 0.35 s."""
    observed: list[float] = []
    over = asyncio.get_running_loop().create_future()

    def observe(seconds: float) -> None:
        observed.append(seconds)
        if seconds < 0.05 and sum(observed) > 0.2 and not over.done():
            over.set_result(None)

    lag = LoopLag(observe)
    asyncio.get_running_loop().call_soon(time.sleep, 0.35)
    await asyncio.wait_for(over, 20)
    lag.stop()
    return observed


async def test_the_loop_lag_has_the_stall_and_all_who_would_have_waited_in_it() -> None:
    observed = await stalled()
    late = sorted(observed, reverse=True)
    assert late[0] >= 0.2, "due after 0.1 s, and woken after 0.35 s"
    assert late[1] >= 0.1
    assert all(each >= 0 for each in observed)


async def test_the_loop_lag_goes_on_after_a_long_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_MISSED", 2)
    observed = await stalled()
    assert len([each for each in observed if each > 0.05]) <= 3


# -- the exposition ----------------------------------------------------------------------------------------------------


async def test_a_scrape_has_what_is_declared_and_nothing_else(one: Metered) -> None:
    await grown(one)
    await one.survey.survey()
    declared = {figure.name: figure for figure in FIGURES}
    families = {}
    for family in one.metrics.registry.collect():
        if family.name.startswith("lowwater_"):
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            families[family.name + suffix] = family
    assert families.keys() == declared.keys()
    for name, family in families.items():
        figure = declared[name]
        assert (family.type, family.documentation) == (figure.kind, figure.says)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(figure.labels), name


def test_the_documentation_lists_them_as_they_are() -> None:
    command = [sys.executable, "-m", "scripts.document_metrics", "--check"]
    checked = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


async def test_an_accept_header_chooses_the_format(one: Metered) -> None:
    text, plain = one.metrics.render("text/plain")
    assert plain.startswith("text/plain")
    assert b"lowwater_rounds_total" in text
    body, newer = one.metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert newer.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("module", ["lowwater", "lowwater.aio", "lowwater.cli", "lowwater_spark"])
def test_nothing_imports_prometheus_client_unasked(module: str) -> None:
    check = f"import sys, {module}; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_client_says_when_a_registry_has_a_client_already() -> None:
    from lowwater import Client, Settings
    from lowwater.prometheus import FIGURES as CLIENT
    from lowwater.prometheus import register

    with Client(Settings("127.0.0.1:1")) as lw:
        registry = CollectorRegistry()
        collector = register(lw, registry=registry)
        with pytest.raises(ValueError, match="lowwater_client"):
            register(lw, registry=registry)
        figures = {family.name for family in registry.collect()}
        assert figures == {figure.name.removesuffix("_total") for figure in CLIENT}
        assert registry.get_sample_value("lowwater_client_reports_total") == 0
    assert [sample for family in collector.collect() for sample in family.samples] == [], "it is closed"
    registry.unregister(collector)


def test_the_totals_of_clients_do_not_fall_when_one_is_closed() -> None:
    """What it did stays done; what it had open is gone."""
    from lowwater import Client, Settings
    from lowwater.prometheus import register

    with Client(Settings("127.0.0.1:1")) as kept, Client(Settings("127.0.0.1:1")) as closed:
        registry = CollectorRegistry()
        register(kept, closed, registry=registry)
        for lw, refused in ((kept, 2), (closed, 3)):
            lw._runtime().connection.router.refused = refused
        assert registry.get_sample_value("lowwater_client_refused_redirects_total") == 5
        closed.close()
        kept._runtime().connection.router.refused += 1
        assert registry.get_sample_value("lowwater_client_refused_redirects_total") == 6
        assert registry.get_sample_value("lowwater_client_claims") == 0
