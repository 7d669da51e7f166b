"""Everything that is asked of a client, on threads and on asyncio: bad input is refused with the field and the fix."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowwater
import lowwater.aio
from lowwater import MAX, MIN, Arrived, Histogram, Remarks, TaskAttempt, Watermark, Watermarks
from lowwater._async.lease import Lease as AioLease
from lowwater._async.runtime import Runtime as AioRuntime
from lowwater._sync.runtime import Runtime
from lowwater.core import wire
from lowwater.core.claims import Grant
from lowwater.core.columns import Column
from lowwater.core.fold import Reading
from lowwater.core.lease import LeaseState, Report
from lowwater.core.watches import MOST_NAMES
from lowwater.histogram import MOST_RECORDS
from lowwater_authority.core import groups

UTC = dt.UTC
ONE = TaskAttempt(1, 2, 3)


class Shell:
    """A client without a server, on threads or on asyncio, used as if it were on threads."""

    def __init__(self, *, on_asyncio: bool) -> None:
        self._runner = asyncio.Runner() if on_asyncio else None
        settings: dict[str, Any] = {"address": "127.0.0.1:1", "timeout": 0.001}
        self.lw: Any = lowwater.aio.connect(**settings) if on_asyncio else lowwater.connect(**settings)

    def use(self, function: Callable[[Any], Any], target: Any = None) -> Any:
        if self._runner is None:
            return _first(function(target or self.lw))

        async def run() -> Any:
            result = function(target or self.lw)
            if inspect.isasyncgen(result):
                return await anext(result)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(run())

    def lease(self) -> Any:
        reading = Reading("c", (), 0, (), (990_000,))
        state = LeaseState("c", 7, Column(2, 0), reference=0)
        grant = Grant(state, (b"", b"m", b""), Watermarks([0, 0]), reading)
        settings = self.lw.settings
        if self._runner is None:
            return lowwater.Lease(Runtime(settings), grant)
        return self.use(lambda _: AioLease(AioRuntime(settings), grant))

    def close(self) -> None:
        self.use(lambda lw: lw.close())
        if self._runner is not None:
            self._runner.close()


def _first(result: Any) -> Any:
    return next(result) if inspect.isgenerator(result) else result


@pytest.fixture(scope="module", params=[False, True], ids=["threads", "asyncio"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    started = Shell(on_asyncio=request.param)
    yield started
    started.close()


def no_number(bits: int, least: int = 0) -> list[Any]:
    """Return values that do not fit into so many bits, and values that are no whole number."""
    return [least - 1, 2**bits, 0.5, float("nan"), "1", None, b"1", np.float64(1), np.int64(-1), Decimal(1)]


NO_TEXT = [b"a", 5, None, ["a"], "\ud800", object()]
NO_KEY = ["a", 5, None, bytearray(b"a"), [b"a"]]
NO_LIST = ["a", b"a", 5, 0.5, None]
NO_FLAG = ["", 1, None]
NO_TIMEOUT = [-0.1, 1e10, float("nan"), float("inf"), 10**400, "1", True, dt.timedelta(1)]
NO_LENGTH = [dt.timedelta(0), dt.timedelta(microseconds=2**62), 5, 0.5, "1"]
NO_STEP = [*NO_LENGTH, dt.timedelta(seconds=1, microseconds=-1), dt.timedelta(days=366, microseconds=1)]
NO_SHARE = [0.0, 1.0, float("nan"), 1e-9, None, "0.5", b"1", True, [0.5], 1j, 10**400]
NO_TASK = [TaskAttempt(2**32, 0, 0), TaskAttempt(0, -1, 0), TaskAttempt(0, 0, 2**64), None, (1, 2, 3), "1"]
NO_NAME = [*NO_TEXT, "", "a/b/c", "a b", "a\n", "x" * 129, "ä"]


def stage(lw: Any, *, sequencer: Any = 1, batch: Any = 1, task: Any = ONE, **fields: Any) -> Any:
    return lw.batches.stage_task("a", sequencer, batch, task, **{"handles": [0], "oldest": [0], **fields})


def prepared(lw: Any, *, sequencer: Any = 1, batch: Any = 1, **fields: Any) -> Any:
    return lw.batches.prepare("a", sequencer, batch, **{"digest": b"", "tasks": [], "bound": 0, "seen": None, **fields})


Bad = tuple[Callable[[Any, Any], Any], str, list[Any]]

BAD: dict[str, Bad] = {
    "register name": (lambda lw, v: lw.register(v), "name", NO_TEXT),
    "register an input": (lambda lw, v: lw.register("a", ["b", v]), "inputs[1]", NO_TEXT),
    "register a share": (lambda lw, v: lw.register("a", heuristics=[0.5, v]), "heuristics", NO_SHARE),
    "register lateness_budget": (
        lambda lw, v: lw.register("a", lateness_budget=v),
        "lateness_budget",
        [0, 0.6, 0.00001, "0.01", [0.01, 1], True, -0.1, float("nan")],
    ),
    "register key_hash": (lambda lw, v: lw.register("a", key_hash=v), "key_hash", NO_TEXT),
    "register max_skew": (lambda lw, v: lw.register("a", max_skew=v), "max_skew", NO_LENGTH),
    "register history_step": (lambda lw, v: lw.register("a", history_step=v), "history_step", NO_STEP),
    "register estimated": (lambda lw, v: lw.register("a", estimated=v), "estimated", NO_FLAG),
    "set_inputs": (lambda lw, v: lw.set_inputs("a", v), "inputs", NO_LIST),
    "retire start": (lambda lw, v: lw.retire("a", v, b""), "start", NO_KEY),
    "retire force": (lambda lw, v: lw.retire("a", b"", b"", v), "force", NO_FLAG),
    "inputs read": (lambda lw, v: lw.inputs("a", v).read(), "names", NO_NAME),
    "watch": (lambda lw, v: lw.watch("a", v), "names", NO_NAME),
    "wait timeout": (lambda lw, v: lw.wait("a", 0, v), "timeout", NO_TIMEOUT),
    "ranges limit": (lambda lw, v: lw.ranges("a", limit=v), "limit", no_number(32, 1)),
    "worker identity": (lambda lw, v: lw.worker("a", identity=v), "identity", NO_TEXT),
    "worker generation": (lambda lw, v: lw.worker("a", generation=v), "generation", no_number(64)),
    "claim start": (lambda lw, v: lw.worker("a").claim(v), "start", NO_KEY),
    "claim bounds": (lambda lw, v: lw.worker("a").claim(bounds=[b"", v]), "bounds[1]", NO_KEY),
    "claim digest": (lambda lw, v: lw.worker("a").claim(batch_digest=v), "batch_digest", NO_KEY),
    "claim adopt": (lambda lw, v: lw.worker("a").claim(adopt=v), "adopt", NO_FLAG),
    "stage sequencer": (lambda lw, v: stage(lw, sequencer=v), "sequencer", no_number(64)),
    "stage task": (lambda lw, v: stage(lw, task=v), "task", NO_TASK),
    "stage handles": (lambda lw, v: stage(lw, handles=v), "handles", NO_LIST),
    "stage a handle": (lambda lw, v: stage(lw, handles=[0, v]), "handles[1]", no_number(32)),
    "stage finished": (lambda lw, v: stage(lw, finished=v), "finished", no_number(41)),
    "stage pending": (lambda lw, v: stage(lw, pending=v), "pending", [5, [1], "1", b""]),
    "prepare tasks": (lambda lw, v: prepared(lw, tasks=v), "tasks", NO_LIST),
    "prepare a task": (lambda lw, v: prepared(lw, tasks=[ONE, v]), "task", NO_TASK),
    "prepare seen": (lambda lw, v: prepared(lw, seen=v), "seen", [5, "seen", {}]),
    "prepare covers_all": (lambda lw, v: prepared(lw, covers_all=v), "covers_all", NO_FLAG),
    "prepare frontiers": (lambda lw, v: prepared(lw, frontiers=[v]), "frontiers", [5, "1"]),
    "prepare operation": (lambda lw, v: prepared(lw, oldest_operation=v), "oldest_operation", [MIN, -1]),
    "commit sequencer": (lambda lw, v: lw.batches.commit("a", v, 1), "sequencer", no_number(64)),
}
"""The call, the field that the refusal names, and the values that are refused."""


def refusal(shell: Shell, call: Callable[[Any, Any], Any], value: Any, target: Any = None) -> lowwater.InvalidArgument:
    with pytest.raises(lowwater.InvalidArgument) as error:
        shell.use(lambda client: call(client, value), target)
    return error.value


def check_refusal(error: lowwater.InvalidArgument, field: str) -> None:
    assert error.metadata["field"].startswith(field)
    assert error.metadata["fix"]
    assert error.metadata["field"] in str(error)
    assert error.metadata["fix"] in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_the_field_and_the_fix(shell: Shell, name: str) -> None:
    call, field, values = BAD[name]
    before = shell.use(lambda lw: lw.statistics())
    for value in values:
        check_refusal(refusal(shell, call, value), field)
    assert shell.use(lambda lw: lw.statistics()) == before, "nothing is followed, so no stream is opened"


GOOD: list[Callable[[Any], Any]] = [
    lambda lw: lw.register(
        "n/a", ("b",), [0.5, np.float64(0.99)], max_skew=dt.timedelta(microseconds=1), history_step=dt.timedelta(366)
    ),
    lambda lw: lw.register("a", max_skew=dt.timedelta(microseconds=2**62 - 1), history_step=dt.timedelta(seconds=1)),
    lambda lw: lw.ranges("a", limit=np.int64(1)),
    lambda lw: lw.history("a", limit=2**32 - 1),
    lambda lw: lw.worker("a", generation=2**64 - 1, ordinal=np.uint64(2**64 - 1)).claim(bounds=(b"", b"m", b"")),
    lambda lw: stage(lw, sequencer=2**64 - 1, handles=np.array([0, 2**32 - 1]), finished=MOST_RECORDS),
    lambda lw: stage(lw, task=TaskAttempt(2**32 - 1, 2**32 - 1, 2**64 - 1), handles=[], oldest=[]),
    lambda lw: prepared(lw, frontiers={0.99: 5}.items(), oldest_operation=dt.datetime.now(UTC)),
]


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_what_is_right_to_the_last_value_goes_out(shell: Shell, number: int) -> None:
    with pytest.raises((lowwater.Unavailable, lowwater.Timeout)):
        shell.use(GOOD[number])


def test_more_names_than_the_authority_takes_are_refused_and_the_client_goes_on(shell: Shell) -> None:
    names = [f"c{i}" for i in range(MOST_NAMES + 1)]
    with pytest.raises(lowwater.InvalidArgument, match="name none, for all") as error:
        shell.use(lambda lw: lw.inputs(*names).read())
    assert error.value.metadata["field"] == "names"
    reader = shell.use(lambda lw: lw.inputs(*names[:-1]))
    shell.use(lambda reader: reader.read(), reader)
    with pytest.raises(lowwater.InvalidArgument, match="name none, for all"):
        shell.use(lambda lw: lw.inputs(names[-1]).read())
    shell.use(lambda reader: reader.close(), reader)
    shell.use(lambda lw: lw.inputs(names[-1]).read())


SETTINGS: dict[str, tuple[str, list[Any]]] = {
    "address": ("address", ["", b"a:1", 5]),
    "token": ("token", ["a\nb", "\x00", "ä", "\x7f", b"t", 5]),
    "root_certificates": ("root_certificates", ["a", 5, b""]),
    "private_key": ("certificate_chain", [b"k"]),
    "certificate_chain": ("private_key", [b"c"]),
    "server_token": ("server_token", NO_TEXT),
    "namespace": ("namespace", ["a/b", "a b", 5, None]),
    "timeout": ("timeout", [*NO_TIMEOUT, 0, None]),
    "report_interval": ("report_interval", [*NO_TIMEOUT, 0.0, None]),
    "watch_interval": ("watch_interval", [*NO_TIMEOUT, None, 1.001, 3600]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_reach_nothing_are_refused(name: str) -> None:
    field, values = SETTINGS[name]
    for value in values:
        for connect in (lowwater.connect, lowwater.aio.connect):
            with pytest.raises(lowwater.InvalidArgument) as error:
                connect(**{name: value})
            check_refusal(error.value, field)
        with pytest.raises(lowwater.InvalidArgument):
            replace(lowwater.Settings("there:1"), **{name: value})


def test_no_address_is_the_default_and_an_empty_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWWATER_ADDRESS", raising=False)
    assert lowwater.connect().settings.address == "localhost:7420"
    monkeypatch.setenv("LOWWATER_ADDRESS", "there:1")
    assert lowwater.connect(None).settings.address == "there:1"
    with pytest.raises(lowwater.InvalidArgument, match="host:port"):
        lowwater.connect("")


def full(extra: int) -> Histogram:
    histogram = Histogram(0)
    histogram.add(-(10**12), MOST_RECORDS)
    histogram.add(5, extra)
    return histogram


SAID: dict[str, Bad] = {
    "finished": (lambda lease, v: advance(lease, finished=v), "finished", [*no_number(41), MOST_RECORDS + 1]),
    "pending": (lambda lease, v: advance(lease, pending=full(v)), "pending", [1, MOST_RECORDS]),
    "operation": (
        lambda lease, v: advance(lease, oldest_operation=v),
        "oldest_operation",
        [MIN, -1, 253_402_300_800_000_000, MAX, dt.datetime(1969, 1, 1, tzinfo=UTC)],
    ),
    "waiting for": (
        lambda lease, v: advance(lease, waiting_for=v),
        "waiting_for",
        [None, 5, b"file", ["file"], "x" * 201, "ü" * 101, "\x1b[2J", "a\nb", "\x85", "\ud800"],
    ),
    "arrived": (
        lambda lease, v: advance(lease, arrived=v),
        "arrived",
        [5, {1: 2}, *(Arrived(0, bad) for bad in ({756: 1}, {1: -1}, {1: 2**41}, {"1": 1})), Arrived(MIN, {})],  # type: ignore[arg-type]
    ),
    "remarks": (lambda lease, v: advance(lease, remarks=v), "remarks", [None, "ended", (0, True, "", 0)]),
    "a failure": (
        lambda lease, v: advance(lease, remarks=Remarks(failure=v)),
        "remarks.failure",
        [None, "x" * 201, "a\nb"],
    ),
    "untimed rows": (
        lambda lease, v: advance(lease, remarks=Remarks(untimed_rows=v)),
        "remarks.untimed_rows",
        [None, -1, 2**63, "1"],
    ),
    "a handle": (lambda lease, v: advance(lease, oldest={v: 5}), "handle", no_number(1)),
    "finish handles": (lambda lease, v: lease.finish(v), "handles", NO_LIST[:4]),
    "finish a handle": (lambda lease, v: lease.finish([0, v]), "handle", no_number(1)),
    "flush": (lambda lease, v: lease.flush(v), "timeout", NO_TIMEOUT),
}


def advance(lease: Any, **fields: Any) -> None:
    lease.advance(None, **{"oldest": None, "frontier": 10, **fields})


@pytest.mark.parametrize("name", SAID)
def test_what_a_lease_refuses_changes_nothing(shell: Shell, name: str) -> None:
    call, field, values = SAID[name]
    lease = shell.lease()
    advance(lease, oldest=[5, 7], pending=[5], finished=3)
    for value in values:
        check_refusal(refusal(shell, call, value, lease), field)
    assert lease._state.version == 1
    group = lease._state.take()
    assert list(group.values) == [5, 7]
    assert group.mass.recent == 3


@given(steps=st.lists(st.tuples(st.integers(-1, 2**41), st.integers(0, 2**41), st.integers(MIN, MAX)), max_size=6))
@settings(max_examples=100)
def test_whatever_is_said_is_sent_and_the_authority_takes_it(shell: Shell, steps: list[tuple[int, int, int]]) -> None:
    assert MOST_RECORDS == groups.MOST_RECORDS
    lease = shell.lease()
    for finished, pending, time in steps:
        histogram = Histogram(0)
        try:
            histogram.add(0, pending)
            advance(lease, finished=finished, pending=histogram, oldest=time, oldest_operation=time)
        except ValueError:
            continue
    group = lease._state.take()
    if group is not None:
        message = wire.report_request(Report(1, (group,))).report.groups[0]
        assert sum(message.mass.pending.counts) + message.mass.recent <= groups.MOST_RECORDS


NO_TIMES = [
    *(dt.datetime(2013, 1, 9), dt.date(2013, 1, 9), dt.timedelta(1), True, 0.5, float("nan"), "5", MAX + 1, MIN - 1),  # noqa: DTZ001 - that it has no zone is what is wrong
    *(Decimal(1), 1j, np.float64(1), np.bool_(True), np.datetime64(1, "us"), object(), [1]),
]
FIX = re.compile("zone|microseconds|64 bits")

TAKES_ONE: dict[str, Callable[[lowwater.Client, Any], object]] = {
    "Watermark.of": lambda _, t: Watermark.of(t),
    "Watermarks": lambda _, t: Watermarks([0, t]),
    "Histogram": lambda _, t: Histogram(t),
    "Histogram.add": lambda _, t: Histogram(0).add(t),
    "Histogram.add of none": lambda _, t: Histogram(0).add(t, 0),
    "Histogram.add_many": lambda _, t: Histogram(0).add_many([0, t]),
    "Histogram.age": lambda _, t: Histogram(0).age(t),
    "Histogram.from_columns reference": lambda _, t: Histogram.from_columns(t, [], []),
    "Histogram.from_columns starts": lambda _, t: Histogram.from_columns(0, [t], [1]),
    "Client.wait": lambda lw, t: lw.wait("a", t),
    "Client.complete": lambda lw, t: lw.complete("a", t),
    "Client.ranges": lambda lw, t: lw.ranges("a", below=t),
    "Client.history": lambda lw, t: lw.history("a", since=t),
    "Batches.stage_task": lambda lw, t: lw.batches.stage_task("a", 1, 1, ONE, handles=[0], oldest=[t]),
    "Batches.prepare bound": lambda lw, t: prepared(lw, bound=t),
    "Batches.prepare frontier": lambda lw, t: prepared(lw, frontiers=[(0.99, t)]),
    "Batches.prepare operation": lambda lw, t: prepared(lw, oldest_operation=t),
    "Worker.claim": lambda lw, t: lw.worker("a").claim(bound=t if not isinstance(t, list) else 1.5),  # type: ignore[arg-type]
    "Worker.claim of ranges": lambda lw, t: lw.worker("a").claim(bounds=[b"", b"m", b""], bound=[0, t]),
}
"""Every public function that takes an event time and needs no claim; tests/process/test_bad_messages.py has the others."""


@pytest.mark.parametrize("name", TAKES_ONE)
def test_what_is_no_event_time_is_refused_everywhere(name: str) -> None:
    with lowwater.connect("127.0.0.1:1", timeout=0.01) as lw:
        for time in NO_TIMES:
            with pytest.raises((TypeError, ValueError)) as error:
                TAKES_ONE[name](lw, time)
            assert FIX.search(str(error.value))


@given(micros=st.integers(MIN, MAX))
def test_integers_of_other_kinds_become_plain(micros: int) -> None:
    mark = Watermark(np.int64(micros))  # type: ignore[arg-type]  # an integer, in all but the type
    assert type(mark.micros) is int
    column = np.array([micros, 0])
    assert list(Watermarks(column)) == list(Watermarks([micros, 0])) == list(Watermarks(Watermarks(column).micros))


@given(micros=st.integers(MIN, MAX))
def test_a_wild_clock_breaks_nobody_who_looks_at_it(micros: int) -> None:
    view = lowwater.WatermarkView("a", oldest_operation_micros=micros, since_micros=micros)
    assert view.since == view.oldest_operation
    assert (view.since is None) == (micros <= 0)
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    time = lowwater.Completion(1, Watermark(0), Watermark(0), micros).time
    assert time == (view.since or epoch)
    exact = 0 <= micros <= (dt.datetime.max.replace(tzinfo=UTC) - epoch) // dt.timedelta(microseconds=1)
    assert not exact or (time - epoch) // dt.timedelta(microseconds=1) == micros
