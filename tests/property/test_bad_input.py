"""Everything that is asked of a client, on threads and on asyncio: bad input is refused with the field and the fix."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
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
from lowwater import MAX, MIN, Histogram, Remarks, TaskAttempt, Watermarks
from lowwater._async.lease import Lease as AioLease
from lowwater._async.runtime import Runtime as AioRuntime
from lowwater._core import wire
from lowwater._core.claims import Grant
from lowwater._core.columns import Column
from lowwater._core.fold import Reading
from lowwater._core.lease import LeaseState, Report
from lowwater._core.watches import MOST_NAMES
from lowwater._sync.runtime import Runtime
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

    def use(self, function: Callable[[Any], Any], of: Any = None) -> Any:
        """Call a function with the client, or something else, and wait for what it gives."""
        if self._runner is None:
            return _first(function(of or self.lw))

        async def run() -> Any:
            given = function(of or self.lw)
            if inspect.isasyncgen(given):
                return await anext(given)
            return await given if inspect.isawaitable(given) else given

        return self._runner.run(run())

    def lease(self) -> Any:
        """A granted claim of an injector's two ranges; nothing is reported."""
        reading = Reading("c", (), 0, (), (990_000,))
        state = LeaseState("c", 7, Column(2, 0), reference=0)
        grant = Grant(state, (b"", b"m", b""), Watermarks([0, 0]), reading)
        settings = self.lw.settings
        if self._runner is None:
            return lowwater.Lease(Runtime(settings), grant)
        return self.use(lambda _: AioLease(AioRuntime(settings), grant))

    def close(self) -> None:
        """Close the client."""
        self.use(lambda lw: lw.close())
        if self._runner is not None:
            self._runner.close()


def _first(given: Any) -> Any:
    return next(given) if inspect.isgenerator(given) else given


@pytest.fixture(scope="module", params=[False, True], ids=["threads", "asyncio"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    one = Shell(on_asyncio=request.param)
    yield one
    one.close()


def no_number(bits: int, least: int = 0) -> st.SearchStrategy[Any]:
    """What does not fit into so many bits, and what is no whole number."""
    return st.one_of(
        st.integers(max_value=least - 1),
        st.integers(min_value=2**bits),
        st.floats(),
        st.text(),
        st.sampled_from([None, b"1", [1], np.float64(1), np.int64(-1), Decimal(1)]),
    )


NO_TEXT: st.SearchStrategy[Any] = st.one_of(
    st.binary(), st.integers(), st.none(), st.lists(st.text()), st.sampled_from(["\ud800", object()])
)
NO_KEY: st.SearchStrategy[Any] = st.one_of(
    st.text(), st.integers(), st.none(), st.sampled_from([bytearray(b"a"), [b"a"]])
)
NO_LIST: st.SearchStrategy[Any] = st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.none())
NO_FLAG: st.SearchStrategy[Any] = st.one_of(st.text(), st.integers(), st.none())
NO_TIMEOUT: st.SearchStrategy[Any] = st.one_of(
    st.floats(max_value=0, exclude_max=True),
    st.floats(min_value=1e9, exclude_min=True),
    st.sampled_from([float("nan"), float("inf"), 10**400, "1", True, dt.timedelta(1)]),
)
NO_LENGTH: st.SearchStrategy[Any] = st.one_of(
    st.timedeltas(max_value=dt.timedelta(0)),
    st.timedeltas(min_value=dt.timedelta(microseconds=2**62)),
    st.integers(),
    st.floats(),
    st.text(),
)
NO_STEP: st.SearchStrategy[Any] = st.one_of(
    NO_LENGTH,
    st.timedeltas(max_value=dt.timedelta(seconds=1, microseconds=-1)),
    st.timedeltas(min_value=dt.timedelta(days=366, microseconds=1)),
)
NO_SHARE: st.SearchStrategy[Any] = st.one_of(
    st.floats(max_value=0),
    st.floats(min_value=1),
    st.text(),
    st.sampled_from([float("nan"), float("inf"), 1e-9, None, b"1", True, [0.5], 1j, 10**400]),
)
NO_TASK: st.SearchStrategy[Any] = st.one_of(
    st.tuples(no_number(32), st.just(0), st.just(0)).map(lambda parts: TaskAttempt(*parts)),
    st.tuples(st.just(0), no_number(32), st.just(0)).map(lambda parts: TaskAttempt(*parts)),
    st.tuples(st.just(0), st.just(0), no_number(64)).map(lambda parts: TaskAttempt(*parts)),
    st.sampled_from([None, (1, 2, 3), "1"]),
)
NO_NAME: st.SearchStrategy[Any] = st.one_of(
    NO_TEXT, st.sampled_from(["", "a/b/c", "/", "a b", "\n", "a\n", "x" * 129, "ä"])
)


def stage(lw: Any, *, sequencer: Any = 1, batch: Any = 1, task: Any = ONE, **fields: Any) -> Any:
    """Stage a task."""
    return lw.batches.stage_task("a", sequencer, batch, task, **{"handles": [0], "oldest": [0], **fields})


def prepared(lw: Any, *, sequencer: Any = 1, batch: Any = 1, **fields: Any) -> Any:
    """Prepare a batch."""
    return lw.batches.prepare("a", sequencer, batch, **{"digest": b"", "tasks": [], "bound": 0, "seen": None, **fields})


Bad = tuple[Callable[[Any, Any], Any], str, st.SearchStrategy[Any]]

BAD: dict[str, Bad] = {
    "register name": (lambda lw, v: lw.register(v), "name", NO_TEXT),
    "register inputs": (lambda lw, v: lw.register("a", v), "inputs", NO_LIST),
    "register an input": (lambda lw, v: lw.register("a", ["b", v]), "inputs[1]", NO_TEXT),
    "register heuristics": (lambda lw, v: lw.register("a", heuristics=v), "heuristics", NO_LIST),
    "register a share": (lambda lw, v: lw.register("a", heuristics=[0.5, v]), "heuristics", NO_SHARE),
    "register key_hash": (lambda lw, v: lw.register("a", key_hash=v), "key_hash", NO_TEXT),
    "register max_skew": (lambda lw, v: lw.register("a", max_skew=v), "max_skew", NO_LENGTH),
    "register history_step": (lambda lw, v: lw.register("a", history_step=v), "history_step", NO_STEP),
    "register estimated": (lambda lw, v: lw.register("a", estimated=v), "estimated", NO_FLAG),
    "set_inputs name": (lambda lw, v: lw.set_inputs(v, []), "name", NO_TEXT),
    "set_inputs": (lambda lw, v: lw.set_inputs("a", v), "inputs", NO_LIST),
    "reset": (lambda lw, v: lw.reset(v), "name", NO_TEXT),
    "retire start": (lambda lw, v: lw.retire("a", v, b""), "start", NO_KEY),
    "retire end": (lambda lw, v: lw.retire("a", b"", v), "end", NO_KEY),
    "retire force": (lambda lw, v: lw.retire("a", b"", b"", v), "force", NO_FLAG),
    "get": (lambda lw, v: lw.get("a", v), "names", NO_TEXT),
    "inputs": (lambda lw, v: lw.inputs("a", v), "names", NO_TEXT),
    "inputs read": (lambda lw, v: lw.inputs("a", v).read(), "names", NO_NAME),
    "watch": (lambda lw, v: lw.watch("a", v), "names", NO_NAME),
    "wait name": (lambda lw, v: lw.wait(v, 0), "name", NO_TEXT),
    "wait timeout": (lambda lw, v: lw.wait("a", 0, v), "timeout", NO_TIMEOUT),
    "complete": (lambda lw, v: lw.complete(v, 0), "name", NO_TEXT),
    "why": (lambda lw, v: lw.why(v), "name", NO_TEXT),
    "ranges name": (lambda lw, v: lw.ranges(v), "name", NO_TEXT),
    "ranges limit": (lambda lw, v: lw.ranges("a", limit=v), "limit", no_number(32, 1)),
    "history limit": (lambda lw, v: lw.history("a", limit=v), "limit", no_number(32, 1)),
    "worker": (lambda lw, v: lw.worker(v), "computation", NO_TEXT),
    "worker name": (lambda lw, v: lw.worker("a", name=v), "name", NO_TEXT.filter(lambda v: v is not None)),
    "worker identity": (lambda lw, v: lw.worker("a", identity=v), "identity", NO_TEXT),
    "worker generation": (lambda lw, v: lw.worker("a", generation=v), "generation", no_number(64)),
    "worker ordinal": (lambda lw, v: lw.worker("a", ordinal=v), "ordinal", no_number(64)),
    "claim start": (lambda lw, v: lw.worker("a").claim(v), "start", NO_KEY),
    "claim end": (lambda lw, v: lw.worker("a").claim(b"", v), "end", NO_KEY),
    "claim bounds": (lambda lw, v: lw.worker("a").claim(bounds=[b"", v]), "bounds[1]", NO_KEY),
    "claim digest": (lambda lw, v: lw.worker("a").claim(batch_digest=v), "batch_digest", NO_KEY),
    "claim adopt": (lambda lw, v: lw.worker("a").claim(adopt=v), "adopt", NO_FLAG),
    "stage sequencer": (lambda lw, v: stage(lw, sequencer=v), "sequencer", no_number(64)),
    "stage batch": (lambda lw, v: stage(lw, batch=v), "batch", no_number(64)),
    "stage task": (lambda lw, v: stage(lw, task=v), "task", NO_TASK),
    "stage handles": (lambda lw, v: stage(lw, handles=v), "handles", NO_LIST),
    "stage a handle": (lambda lw, v: stage(lw, handles=[0, v]), "handles[1]", no_number(32)),
    "stage finished": (lambda lw, v: stage(lw, finished=v), "finished", no_number(41)),
    "stage pending": (lambda lw, v: stage(lw, pending=v), "pending", st.sampled_from([5, [1], "1", b""])),
    "prepare sequencer": (lambda lw, v: prepared(lw, sequencer=v), "sequencer", no_number(64)),
    "prepare batch": (lambda lw, v: prepared(lw, batch=v), "batch", no_number(64)),
    "prepare digest": (lambda lw, v: prepared(lw, digest=v), "digest", NO_KEY),
    "prepare tasks": (lambda lw, v: prepared(lw, tasks=v), "tasks", NO_LIST),
    "prepare a task": (lambda lw, v: prepared(lw, tasks=[ONE, v]), "task", NO_TASK),
    "prepare seen": (lambda lw, v: prepared(lw, seen=v), "seen", st.sampled_from([5, "seen", {}])),
    "prepare covers_all": (lambda lw, v: prepared(lw, covers_all=v), "covers_all", NO_FLAG),
    "prepare frontiers": (lambda lw, v: prepared(lw, frontiers=[v]), "frontiers", st.integers() | st.text(max_size=1)),
    "prepare a share": (lambda lw, v: prepared(lw, frontiers=[(v, 0)]), "heuristics", NO_SHARE),
    "prepare operation": (lambda lw, v: prepared(lw, oldest_operation=v), "oldest_operation", st.integers(MIN, -1)),
    "commit sequencer": (lambda lw, v: lw.batches.commit("a", v, 1), "sequencer", no_number(64)),
    "commit batch": (lambda lw, v: lw.batches.commit("a", 1, v), "batch", no_number(64)),
}
"""What is called, the field that the refusal names, and what is refused."""


def check_refusal(error: lowwater.InvalidArgument, field: str) -> None:
    """Whether a refusal names the field and the fix."""
    assert error.metadata["field"].startswith(field)
    assert error.metadata["fix"]
    assert error.metadata["field"] in str(error)
    assert error.metadata["fix"] in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize("name", BAD)
@given(data=st.data())
@settings(max_examples=20)
def test_bad_input_is_refused_with_the_field_and_the_fix(shell: Shell, name: str, data: st.DataObject) -> None:
    call, field, values = BAD[name]
    value = data.draw(values.filter(lambda v: not (v is None and "history_step" in name)))
    before = shell.use(lambda lw: lw.statistics())
    with pytest.raises(lowwater.InvalidArgument) as error:
        shell.use(lambda lw: call(lw, value))
    check_refusal(error.value, field)
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


# -- settings ------------------------------------------------------------------------------------------------------------

NO_PERIOD: st.SearchStrategy[Any] = NO_TIMEOUT | st.sampled_from([0, 0.0, None])
SETTINGS: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "address": ("address", st.just("") | NO_TEXT.filter(lambda v: v is not None)),
    "token": (
        "token",
        st.sampled_from(["a\nb", "\x00", "ä", "\x7f", b"t", 5]),
    ),
    "root_certificates": ("root_certificates", st.text() | st.integers() | st.just(b"")),
    "private_key": ("certificate_chain", st.binary(min_size=1)),
    "certificate_chain": ("private_key", st.binary(min_size=1)),
    "server_token": ("server_token", NO_TEXT),
    "namespace": ("namespace", NO_NAME.filter(lambda v: v != "") | st.just("a/b")),
    "timeout": ("timeout", NO_PERIOD),
    "report_interval": ("report_interval", NO_PERIOD),
    "watch_interval": (
        "watch_interval",
        NO_TIMEOUT.filter(lambda v: v is not None) | st.sampled_from([None, 1.001, 3600]),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@given(data=st.data())
@settings(max_examples=30)
def test_settings_that_reach_nothing_are_refused(name: str, data: st.DataObject) -> None:
    field, values = SETTINGS[name]
    value = data.draw(values)
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


# -- what a lease is told ------------------------------------------------------------------------------------------------


def full(extra: int) -> Histogram:
    """More records than anybody has, by so many."""
    made = Histogram(0)
    made.add(-(10**12), MOST_RECORDS)
    made.add(5, extra)
    return made


SAID: dict[str, Bad] = {
    "finished": (
        lambda lease, v: tell(lease, finished=v),
        "finished",
        no_number(41).filter(lambda v: not isinstance(v, list)),
    ),
    "finished, just": (lambda lease, v: tell(lease, finished=v), "finished", st.just(MOST_RECORDS + 1)),
    "pending": (lambda lease, v: tell(lease, pending=full(v)), "pending", st.integers(1, MOST_RECORDS)),
    "operation": (
        lambda lease, v: tell(lease, oldest_operation=v),
        "oldest_operation",
        st.integers(MIN, -1) | st.integers(253_402_300_800_000_000, MAX) | st.just(dt.datetime(1969, 1, 1, tzinfo=UTC)),
    ),
    "waiting for": (
        lambda lease, v: tell(lease, waiting_for=v),
        "waiting_for",
        st.sampled_from([None, 5, b"file", ["file"], "x" * 201, "\u00fc" * 101, "\x1b[2J", "a\nb", "\x85", "\ud800"]),
    ),
    "remarks": (
        lambda lease, v: tell(lease, remarks=v),
        "remarks",
        st.sampled_from([None, "ended", (0, True, "", 0)]),
    ),
    "a failure": (
        lambda lease, v: tell(lease, remarks=Remarks(failure=v)),
        "remarks.failure",
        st.sampled_from([None, "x" * 201, "a\nb"]),
    ),
    "untimed rows": (
        lambda lease, v: tell(lease, remarks=Remarks(untimed_rows=v)),
        "remarks.untimed_rows",
        st.sampled_from([None, -1, 2**63, "1"]),
    ),
    "a handle": (
        lambda lease, v: tell(lease, oldest={v: 5}),
        "handle",
        no_number(1).filter(lambda v: not isinstance(v, list)),
    ),
    "finish handles": (lambda lease, v: lease.finish(v), "handles", NO_LIST.filter(lambda v: v is not None)),
    "finish a handle": (lambda lease, v: lease.finish([0, v]), "handle", no_number(1)),
    "flush": (lambda lease, v: lease.flush(v), "timeout", NO_TIMEOUT),
}


def tell(lease: Any, **fields: Any) -> None:
    """Say something."""
    lease.advance(None, **{"oldest": None, "frontier": 10, **fields})


@pytest.mark.parametrize("name", SAID)
@given(data=st.data())
@settings(max_examples=30)
def test_what_a_lease_refuses_changes_nothing(shell: Shell, name: str, data: st.DataObject) -> None:
    call, field, values = SAID[name]
    lease = shell.lease()
    tell(lease, oldest=[5, 7], pending=[5], finished=3)
    value = data.draw(values)
    with pytest.raises(lowwater.InvalidArgument) as error:
        shell.use(lambda lease: call(lease, value), lease)
    check_refusal(error.value, field)
    assert lease._state.version == 1
    group = lease._state.take()
    assert list(group.values) == [5, 7]
    assert group.mass.recent == 3


@given(
    said=st.lists(st.tuples(st.integers(-1, 2**41), st.integers(0, 2**41), st.integers(MIN, MAX)), max_size=6),
)
@settings(max_examples=100)
def test_whatever_is_said_can_be_sent_and_the_authority_takes_it(
    shell: Shell, said: list[tuple[int, int, int]]
) -> None:
    assert MOST_RECORDS == groups.MOST_RECORDS
    lease = shell.lease()
    for finished, pending, time in said:
        histogram = Histogram(0)
        try:
            histogram.add(0, pending)
            tell(lease, finished=finished, pending=histogram, oldest=time, oldest_operation=time)
        except ValueError:
            continue
    group = lease._state.take()
    if group is not None:
        message = wire.report_request(Report(1, (group,))).report.groups[0]
        assert sum(message.mass.pending.counts) + message.mass.recent <= groups.MOST_RECORDS
