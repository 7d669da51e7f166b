"""A scrape's figures agree with a truth that is known otherwise."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from lowwater.core.events import Limited, event
from lowwater.core.text import without_passwords, without_secrets
from lowwater.views import NO_REMARKS, Remarks
from lowwater_authority.core.columns import BLOCK
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, Grant, GroupReport
from lowwater_authority.core.times import MAX
from lowwater_authority.core.topology import Spec
from lowwater_authority.ops import range_survey
from lowwater_authority.ops.log_events import ALERTED, MOST_SERIES, OTHER
from lowwater_authority.ops.metrics import FIGURES, LoopLag, Metrics
from lowwater_authority.ops.range_survey import counted
from lowwater_server.logging import set_up
from tests.kit.times import HOUR, SECOND
from tests.unit.metered import Metered, metered
from tests.unit.test_shard import Gate


@pytest.fixture
async def one() -> AsyncIterator[Metered]:
    async with metered() as metrics:
        yield metrics


async def grown(one: Metered) -> dict[str, Grant]:
    """A computation that stands at 14:00, one that is finished, and one of which nothing is known."""
    grants = {}
    for name in ("time", "finished", "unknown"):
        await one.shard.graph.register(Spec(name, heuristics=(990_000,)))
        if name != "unknown":
            grants[name] = await one.claim(name)
    await one.report(grants["time"], 14, name="time")
    await one.report(grants["finished"], MAX, name="finished", finish=True)
    return grants


async def test_a_watermark_is_a_timestamp_while_it_is_a_time_and_a_state_always(one: Metered) -> None:
    await grown(one)
    assert one.of("lowwater_low_watermark_timestamp_seconds") == {"time": 14 * 3600}
    assert one.of("lowwater_heuristic_watermark_timestamp_seconds", share="0.99") == {"time": 14 * 3600}
    for state in ("time", "finished", "unknown"):
        truth = {name: float(name == state) for name in ("time", "finished", "unknown")}
        assert one.of("lowwater_watermark_state", state=state) == truth


async def test_when_it_moved_last_what_runs_longest_and_who_owns_it(one: Metered) -> None:
    await one.shard.graph.register(Spec("guess", estimated=True))
    await one.shard.graph.register(Spec("a"))
    grant = await one.claim()
    assert one.of("lowwater_low_watermark_change_timestamp_seconds") == {}
    one.now += 5 * SECOND
    moved = one.now
    report = GroupReport(grant.sequencer, np.array([HOUR]), oldest_operation=moved - 90 * SECOND)
    await one.shard.owners.report([("a", report)], sender=b"s" * 16, number=(1, 1))
    one.now += 5 * SECOND
    await one.shard.owners.report([("a", report)], sender=b"s" * 16, number=(1, 2))
    assert one.of("lowwater_low_watermark_change_timestamp_seconds") == {"a": moved / 1e6}
    assert one.of("lowwater_oldest_operation_timestamp_seconds") == {"a": moved / 1e6 - 90}
    assert one.of("lowwater_estimated") == {"a": 0, "guess": 1}
    assert one.of("lowwater_epoch") == {name: one.shard.served.epoch(name) for name in ("a", "guess")}
    assert one.value("lowwater_owned_computations") == one.value("lowwater_registered_computations") == 2


async def test_the_series_of_a_computation_that_went_away_disappear(one: Metered) -> None:
    await grown(one)
    await one.survey.survey()
    of_it = [item.name for item in FIGURES if "computation" in item.labels and one.of(item.name).keys() & {"time"}]
    assert len(of_it) >= 8
    one.shard.served.lose({"time": (one.shard.served.epoch("time"), one.shard.served.epoch("time") + 1)})
    text = one.metrics.render()[0].decode()
    assert 'computation="time"' not in text
    assert 'computation="unknown"' in text
    await one.survey.survey()
    assert one.survey.counts.keys() == {"finished", "unknown"}


async def behind(one: Metered) -> None:
    """A stage at 11:00 that reads one of another shard at 14:00, whose root is here, at 15:00."""
    for spec in (Spec("flights"), Spec("enriched", inputs=("flights",)), Spec("hourly", inputs=("enriched",))):
        await one.shard.graph.register(spec)
    epoch = one.shard.served.epoch("enriched")
    one.shard.served.lose({"enriched": (epoch, epoch + 1)})
    await one.report(await one.claim("flights"), 15, name="flights")
    one.elsewhere.published = {"enriched": 14, "flights": 13}
    grant = await one.claim("hourly")
    await one.report(grant, 11, name="hourly", incarnations=(1,))
    await one.upstream.ask()


async def test_lags_are_of_what_is_published_here_and_of_what_other_shards_answer(one: Metered) -> None:
    """The root is served here, so no shard is asked for it."""
    await behind(one)
    assert set(one.elsewhere.asked) == {("enriched",)}
    assert one.of("lowwater_local_lag_seconds") == {"hourly": 3 * 3600}
    assert one.of("lowwater_global_lag_seconds") == {"hourly": 4 * 3600}


async def test_there_is_no_lag_behind_what_was_not_confirmed_lately(one: Metered) -> None:
    """A lag that stands still says that all is as it was, which nobody knows."""
    await behind(one)
    await one.shard.graph.register(Spec("local", inputs=("flights",)))
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


@pytest.mark.parametrize(
    ("still_for", "input_at", "named"),
    [(20, 15, False), (40, 15, True), (40, 14, False), (40, None, False)],
    ids=["moved lately", "behind its input", "held by its input", "its input is unknown"],
)
async def test_a_holder_is_named_after_a_while(one: Metered, still_for: int, input_at: int | None, named: bool) -> None:
    one.now = time.time_ns() // 1000 - still_for * SECOND
    await one.shard.graph.register(Spec("root"))
    await one.shard.graph.register(Spec("elsewhere"))
    await one.shard.graph.register(Spec("stage", inputs=("elsewhere",)))
    one.shard.held.lose({"elsewhere": (one.shard.held.epoch("elsewhere"), 0)})  # another shard serves it
    if input_at is not None:
        one.elsewhere.published["elsewhere"] = input_at
        await one.upstream.ask()
    grant = await one.claim("stage", b"", b"m", b"", worker="w", host="h")
    await one.report(grant, 15, 14, name="stage", incarnations=(1,))
    holders = [labels for labels, value in one.samples("lowwater_holder_info") if value == 1]
    stage = {"computation": "stage", "worker": "w", "host": "h", "range": "[m, ..)"}
    assert [holder for holder in holders if holder["computation"] == "stage"] == [stage] * named
    root = {"computation": "root", "worker": "", "host": "", "range": "all keys"}
    assert [holder for holder in holders if holder["computation"] == "root"] == [root], "never moved, nothing before it"


@pytest.mark.parametrize(
    ("remarks", "state"),
    [
        (None, "not_begun"),
        (NO_REMARKS, ""),
        (Remarks(ended=True), "stopped"),
        (Remarks(ended=True, failure="no"), "failed"),
    ],
)
async def test_a_holder_that_has_ended_or_not_begun_is_told(one: Metered, remarks: Remarks | None, state: str) -> None:
    one.now = time.time_ns() // 1000 - 20 * SECOND
    await one.shard.graph.register(Spec("a"))
    grant = await one.claim()
    if remarks is not None:
        one.now += SECOND
        report = GroupReport(grant.sequencer, np.array([HOUR]), remarks=remarks)
        await one.shard.owners.report([("a", report)], sender=b"s" * 16, number=(1, 1))
    await one.survey.survey()
    assert [labels["state"] for labels, _ in one.samples("lowwater_holder_state")] == [state] * bool(state)


async def test_a_holder_is_stopped_only_if_no_other_worker_holds_too(one: Metered) -> None:
    """Else no alert would tell of the other one, which may have died."""
    one.now = time.time_ns() // 1000 - 20 * SECOND
    await one.shard.graph.register(Spec("a"))
    grants = [await one.claim("a", b"", b"m"), await one.claim("a", b"m", b"")]
    one.now += SECOND
    told: list[list[str]] = []
    for ended in ((False, False), (True, False), (False, True), (True, True), ()):
        for grant in [] if ended else grants:
            await one.shard.owners.release("a", grant.sequencer)
        for number, (grant, remark) in enumerate(zip(grants, ended, strict=False)):
            report = GroupReport(grant.sequencer, np.array([HOUR]), remarks=Remarks(ended=remark))
            await one.shard.owners.report([("a", report)], sender=bytes([number] * 16), number=(1, len(told) + 1))
        await one.survey.survey()
        told.append([labels["state"] for labels, _ in one.samples("lowwater_holder_state")])
    assert told == [[], [], [], ["stopped"], ["stopped"]], "also after they have released all that they own"


def recounted(computation: Computation) -> tuple[Counter[str], int, int]:
    """States, holders and their oldest report, one range at a time."""
    ranges, _ = computation.map.all_ranges(10**6)
    of_claim: dict[object, set[bool]] = {}
    for entry in ranges:
        of_claim.setdefault(entry.owner.sequencer or entry.start, set()).add(entry.value == MAX)
    states = Counter[str]()
    for entry in ranges:
        whole = of_claim[entry.owner.sequencer or entry.start] == {True}
        if whole and entry.owner.state is not GroupState.RETIRED:
            states["finished"] += 1
        else:
            stopped = entry.owner.state is GroupState.UNOWNED and entry.owner.remarks == Remarks(ended=True)
            named = {GroupState.NEVER: "never_claimed", GroupState.UNOWNED: "stopped" if stopped else "unowned"}
            states[named.get(entry.owner.state, entry.owner.state.name.lower())] += 1
    low = computation.published.low
    holding = [entry for entry in ranges if entry.value <= low < MAX]
    return states, len(holding), min((e.owner.last_report for e in holding if e.owner.last_report), default=0)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_counted_as_one_by_one_whatever_was_done(seed: int) -> None:
    dice = random.Random(seed)
    computation = Computation(Spec("a"))
    states = Counter[str]()
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
            report = GroupReport(group.sequencer, values, finish=True)
            computation.report(report, sender=b"s" * 16, number=(1, step), required=NO_FOLD, now=now)
        elif act == "release" and owned:
            computation.release(dice.choice(owned), now)
        elif act == "retire":
            computation.retire(bounds[0], bounds[-1], force=True, now=now)
        computation.take_record(now)
        computation.publish()
        computation.check()
        counts = counted(computation.map, computation.published.low, 7)
        truth = recounted(computation)
        assert (Counter({s: n for s, n in counts.states.items() if n}), counts.holding, counts.last_report) == truth
        assert sum(counts.states.values()) == len(computation.map)
        states.update(state for state, number in counts.states.items() if number)
    assert len(states) >= 4, "the run met most states"


async def test_rule2_a_survey_waits_for_what_is_staged_to_be_durable() -> None:
    gate = Gate()
    async with metered(gate) as one:
        await one.shard.graph.register(Spec("a"))
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


async def test_a_survey_that_fails_ends_neither_the_rounds_nor_the_surveys(one: Metered) -> None:
    await one.shard.graph.register(Spec("a"))
    surveys = asyncio.Queue[None]()

    class Bad(range_survey.RangeSurvey):
        async def survey(self) -> None:
            surveys.put_nowait(None)
            raise IndexError("as this test wants it")

    running = asyncio.create_task(Bad(one.shard).run(period=0.0))
    for _ in range(2):
        await asyncio.wait_for(surveys.get(), 60)
    running.cancel()
    await one.report(await one.claim("a"), 14)
    await one.survey.survey()
    assert one.of("lowwater_ranges", state="owned") == {"a": 1}


async def test_rounds_and_appends_are_those_of_the_journal(one: Metered) -> None:
    await one.shard.graph.register(Spec("a"))
    grant = await one.claim()
    for hour in range(5):
        await one.report(grant, hour)
    await one.survey.survey()
    await one.shard.reads.ranges("a", below=None, limit=10)
    assert one.value("lowwater_held_bytes", what="ranges") == 16 * BLOCK
    journal = one.shard.journal.statistics()
    assert one.value("lowwater_rounds_total") == 7, "a registration, a claim, five reports; and no question"
    assert one.value("lowwater_round_requests_count") == one.value("lowwater_round_requests_sum") == 7
    assert one.value("lowwater_journal_append_seconds_count") == journal.appends
    assert one.value("lowwater_journal_appended_bytes_total") == journal.bytes > 0
    assert one.value("lowwater_journal_snapshots_total") == journal.snapshots == 0
    assert one.value("lowwater_queued_requests") == 0


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


async def stalled() -> list[float]:
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
    assert all(lag >= 0 for lag in observed)


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


async def test_an_accept_header_chooses_the_format(one: Metered) -> None:
    text, plain = one.metrics.render("text/plain")
    assert plain.startswith("text/plain")
    assert b"lowwater_rounds_total" in text
    body, newer = one.metrics.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert newer.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_nothing_imports_prometheus_client_unasked() -> None:
    check = "import sys, lowwater.aio, lowwater.cli, lowwater_spark; sys.exit('prometheus_client' in sys.modules)"
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


SECRET = "pa:ss/wo@rd"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def logged(chosen: str | None, stream: io.StringIO | None = None) -> str:
    """Return the log of three lines: one of ours, one of a library, one with a traceback."""
    out = stream or io.StringIO()
    set_up(chosen, stream=out)
    extra = event("reset", computation="hourly", host="", ranges=2, inputs=["a"])
    logging.getLogger("lowwater_authority.engine.shard").warning("%s was %s", "hourly", "reset", extra=extra)
    logging.getLogger("redis").warning("cannot reach %s", f"redis://lowwater:{SECRET}@redis:6379/0")
    logging.getLogger("redis").info("of no interest")
    try:
        raise ValueError(f"rediss://:{SECRET}@redis is away")
    except ValueError:
        logging.getLogger("lowwater_authority").exception("broken", extra=event("internal_error"))
    return out.getvalue()


def test_json_has_a_line_an_event_with_its_fields() -> None:
    first, second, third = map(json.loads, logged("json").splitlines())
    assert list(first) == ["time", "level", "event", "message", "computation", "ranges", "inputs", "logger"]
    assert first["time"].endswith("Z")
    del first["time"]
    assert first == {
        "level": "warning",
        "event": "reset",
        "message": "hourly was reset",
        "computation": "hourly",
        "ranges": 2,
        "inputs": ["a"],
        "logger": "lowwater_authority.engine.shard",
    }
    assert (second["event"], second["logger"]) == ("log", "redis"), "what other libraries log is a line as well"
    assert third["event"] == "internal_error"
    assert third["exception"].startswith("Traceback")


def test_text_is_the_time_the_level_and_the_sentence() -> None:
    lines = logged("text").splitlines()
    assert lines[0].split(" ", 1)[1] == "warning hourly was reset"
    assert lines[2].endswith("error   broken")
    assert lines[3].startswith("  Traceback")


def test_nobody_forges_a_line_of_text() -> None:
    """A worker calls itself what it likes, and so does whoever makes an exception."""
    out = io.StringIO()
    set_up("text", stream=out)
    logger = logging.getLogger("lowwater_authority.engine.shard")
    forged = "exec\x1b[2J\r\n2026-01-01T00:00:00.000Z error   FORGED\u2028"
    logger.info("claimed by %s", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        logger.exception("broken")
    first, second, *rest = out.getvalue().split("\n")[:-1]
    assert first.endswith("claimed by exec\\x1b[2J\\r\\n2026-01-01T00:00:00.000Z error   FORGED\\u2028")
    assert second.endswith("error   broken")
    assert all(line.startswith("  ") and line.isprintable() for line in rest), rest


def test_a_terminal_gets_text_and_a_program_json() -> None:
    assert not logged(None, Terminal()).startswith("{")
    assert logged(None).startswith("{")


@pytest.mark.parametrize("chosen", ["text", "json"])
def test_no_password_of_a_url_is_logged(chosen: str) -> None:
    text = logged(chosen)
    assert SECRET not in text
    assert "wo@rd" not in text
    assert "redis://lowwater:***@redis:6379/0" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis+cluster://u:p@a:1,b:2#x", "redis+cluster://u:***@a:1,b:2#x"),
        ("redis://:p@a and redis://u:q@b", "redis://:***@a and redis://u:***@b"),
        (
            "rediss://h?ssl_password=p&db=1 and redis://h?Password=q",
            "rediss://h?ssl_password=***&db=1 and redis://h?Password=***",
        ),
        ("http://127.0.0.1:7421/metrics of a@b", "http://127.0.0.1:7421/metrics of a@b"),
        ("hdfs://host:8020/v@2 and webhdfs://a:1/x@y", "hdfs://host:8020/v@2 and webhdfs://a:1/x@y"),
        ("postgres://u:9?p@a:1/x and hdfs://u:9@a", "postgres://u:***@a:1/x and hdfs://u:***@a"),
        ("redis://:12/3@a redis://u:12@a", "redis://:***@a redis://u:***@a"),
    ],
)
def test_what_is_a_password_and_what_is_not(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    if text == shown:
        assert without_secrets(text) == shown


def test_what_happens_again_and_again_is_told_once_in_a_while_with_the_count() -> None:
    quiet = Limited(10)
    assert [quiet.count("a", now) for now in (0, 1, 9.9, 10, 10.1)] == [1, 0, 0, 3, 0]
    assert quiet.count("b", 9) == 1, "each for itself"
    for key in range(5_000):
        quiet.count(key, 100 + key)
    assert len(vars(quiet)["_reported"]) <= 1_001, "bounded while keys come and go"


DOCUMENTED = Path(__file__).parents[2] / "docs/reference/logs.md"
log = logging.getLogger("a.library")


def log_counts(metrics: Metrics) -> dict[tuple[str, str], float]:
    text = metrics.render()[0].decode()
    counts = re.findall(r'^lowwater_log_events_total\{event="(.*)",level="(.*)"\} (.*)$', text, re.MULTILINE)
    return {(name, level): float(value) for name, level, value in counts}


def test_lines_are_counted_by_event_and_level_while_the_process_serves() -> None:
    metrics = Metrics("1")
    with metrics.counting_log():
        log.error("it is lost", extra=event("store_lost_records"))
        log.error("it is lost again", extra=event("store_lost_records"))
        log.warning("a line without an event")
        log.info("news are not log_counts", extra=event("claimed"))
    log.error("behind the end", extra=event("store_lost_records"))
    lines = log_counts(metrics)
    assert lines.pop(("store_lost_records", "error")) == 2
    assert lines.pop((OTHER, "warning")) == 1
    assert lines == {pair: 0 for pair in ALERTED if pair != ("store_lost_records", "error")}, "so that 1 is an increase"


def test_made_up_events_are_a_bounded_number_of_series() -> None:
    metrics = Metrics("1")
    with metrics.counting_log():
        for number in range(3 * MOST_SERIES):
            log.warning("anything", extra=event(f"made_up_{number}"))
    lines = log_counts(metrics)
    assert len(lines) <= MOST_SERIES + 2
    assert sum(lines.values()) == 3 * MOST_SERIES


def test_what_alerts_are_about_is_documented() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", DOCUMENTED.read_text(), re.MULTILINE))
    for name, level in ALERTED:
        assert level in documented[name], name
