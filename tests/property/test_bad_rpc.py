"""Whatever a client sends: a precise refusal with the field and the fix, and nothing changed; and never an internal error."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import grpc
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import lowwater_authority
import lowwater_regions
from lowwater.v1 import watermarks_pb2, workers_pb2
from tests.kit.times import HOUR
from tests.property.bad_rpc_cases import BESIDE, CASES, IN_PART, STREAMS
from tests.property.rpc_messages import call
from tests.property.rpc_server import METHODS, Pipeline, Refusal, opening, refusal_of, report, running

SOURCES = Path(lowwater_authority.__file__).parent
TESTS = Path(__file__).parents[1]
CRASHES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}


PARTS = [*((*case, 0) for case in IN_PART), *((*case, 1) for case in BESIDE)]


def numbered(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{number}-{case[0]}" for number, case in enumerate(cases)]


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    with running() as started:
        yield started


@pytest.mark.parametrize("method", METHODS)
def test_the_valid_requests_are_valid(method: str) -> None:
    with running() as fresh:
        fresh.server.call(method, fresh.valid(method))
        fresh.server.check()


def set_fields(request: Any, fields: dict[str, Any], pipeline: Pipeline) -> None:
    for name, build in fields.items():
        value = build(pipeline) if callable(build) else build
        if isinstance(value, dict):
            for inner, content in value.items():
                lease = getattr(request, name)
                setattr(lease if hasattr(lease, inner) else lease.key, inner, content)
            continue
        request.ClearField(name)
        if isinstance(value, list):
            getattr(request, name).extend(value)
        elif hasattr(value, "SerializeToString"):
            getattr(request, name).CopyFrom(value)
        elif value is not None:
            setattr(request, name, value)


def is_precise(refusal: Refusal) -> None:
    assert refusal.code not in CRASHES
    assert refusal.message
    assert refusal.metadata, "what varies in the message is there for programs too"
    if refusal.reason == "INVALID_ARGUMENT":
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refusal.metadata["fix"]


@pytest.mark.parametrize(("case", "fields"), CASES, ids=numbered(CASES))
def test_a_bad_request_is_refused_and_changes_nothing(pipeline: Pipeline, case: str, fields: dict[str, Any]) -> None:
    method, *why = case.split()
    reason = why.pop(0) if why[0].isupper() else "INVALID_ARGUMENT"
    request = pipeline.valid(method)
    set_fields(request, fields, pipeline)
    before = pipeline.server.dump()
    refusal = pipeline.server.refused(method, request)
    assert (refusal.reason, refusal.metadata.get("field", "")) == (reason, "".join(why).replace("+", " "))
    is_precise(refusal)
    assert pipeline.server.dump() == before


@pytest.mark.parametrize(("why", "messages"), STREAMS, ids=numbered(STREAMS))
def test_a_bad_report_stream_is_refused_and_changes_nothing(pipeline: Pipeline, why: str, messages: Any) -> None:
    before = pipeline.server.dump()
    refusal = pipeline.server.refused("Report", messages(pipeline))
    assert why in {refusal.reason, refusal.metadata.get("field", "")}
    is_precise(refusal)
    assert pipeline.server.dump() == before


@pytest.mark.parametrize(("reason", "handles", "build", "beside"), PARTS, ids=numbered(PARTS))
def test_a_bad_part_of_a_report_is_refused_in_its_acknowledgement(
    pipeline: Pipeline, reason: str, handles: list[int], build: Any, beside: int
) -> None:
    before = pipeline.server.durable()
    (refusal,) = pipeline.send_report(build(pipeline))
    assert (refusal.reason, list(refusal.handles)) == (reason or "INVALID_ARGUMENT", handles)
    assert refusal.message
    last, *rest = before["journal"]["a"]
    before["journal"]["a"] = (last + beside, *rest)
    assert pipeline.server.durable() == before


def test_a_long_name_does_not_hide_the_refusal() -> None:
    with running() as fresh:
        request = fresh.valid("Register")
        request.inputs[:] = [f"{'x' * 120}{n}" for n in range(1000)]
        fresh.server.call("Register", request)
        request.inputs.append("one-more/than-is-registered")
        request.inputs.pop(0)
        refusal = fresh.server.refused("Register", request)
    assert refusal.reason == "REGISTRATION_CONFLICT"
    assert len(refusal.message.encode()) <= 1024


def test_rule8_nothing_of_a_report_behind_a_gap_is_applied() -> None:
    with running() as fresh:
        first, third = (report(n, fresh.group("a", hour)) for n, hour in ((1, 17), (3, 18)))
        refusal = fresh.server.refused("Report", [opening(50), first, third])
        assert refusal.metadata == {"field": "report.number", "fix": "open a new stream and send the full state"}
        assert fresh.low("a") == 17 * HOUR
        fresh.server.check()


def test_whatever_lateness_one_computation_tells_its_neighbours_go_on() -> None:
    """Its counts are in answers to readers of all names, in snapshots, and in the acknowledgements of streams that others share."""
    with running() as fresh:
        watching = watermarks_pb2.GetWatermarksRequest()
        for attempt, records in enumerate((2**64 - 1, 2**63, 2**62, 2**62, 2**62, 2**62, 2**48, 2**40, 2**40)):
            fresh.claim("a", b"", b"g", b"p", b"")
            lateness = workers_pb2.Lateness(buckets=[0, 9], counts=[1, records], frontier_micros=14 * HOUR)
            hostile = fresh.group("a", 14, 15, 16, lateness=lateness)
            refused = fresh.send_report(
                hostile, fresh.group("b", 13 + attempt % 2, 14, input_version=1, input_incarnations=[1])
            )
            assert {entry.computation for entry in refused} <= {"a"}
            marks = {mark.computation: mark for mark in fresh.server.call("GetWatermarks", watching).watermarks}
            assert (marks["b"].low_micros, marks["b"].registered) == (14 * HOUR if attempt else 13 * HOUR, True)
            fresh.server.call("Watch", watermarks_pb2.WatchRequest())
            fresh.server.check()
        assert fresh.server.authority.streams.room.bytes == 0


def test_an_answer_that_cannot_be_made_keeps_no_room() -> None:
    with running() as fresh:

        def fails(*_: object) -> None:
            msg = "planted"
            raise ValueError(msg)

        fresh.server.loop.set_exception_handler(lambda *_: None)
        fresh.server.observer.reported = fails  # type: ignore[method-assign, assignment]
        with pytest.raises(grpc.RpcError):
            fresh.server.call("Report", [opening(next(fresh.streams)), report(1, fresh.group("a", 15, 16, 17))])
        assert fresh.server.authority.streams.room.bytes == 0


def send(pipeline: Pipeline, method: str, request: Any) -> None:
    for message in request if method == "Report" else ():
        if message.HasField("open") and not message.open.stream:
            message.open.stream = next(pipeline.streams)
    try:
        pipeline.server.call(method, request)
    except grpc.RpcError as error:
        is_precise(refusal_of(error))


def works(pipeline: Pipeline) -> None:
    pipeline.register("z/source")
    pipeline.register("z/reader", ["z/source"])
    pipeline.claim("z/source", b"", b"")
    pipeline.claim("z/reader", b"", b"m", b"")
    assert pipeline.send_report(pipeline.group("z/source", 20)) == []
    assert pipeline.send_report(pipeline.group("z/reader", 19, 20, input_version=1, input_incarnations=[1])) == []
    assert (pipeline.low("z/source"), pipeline.low("z/reader")) == (20 * HOUR, 19 * HOUR)


@given(seed=st.integers(0, 2**32), length=st.integers(1, 40))
@settings(max_examples=20)
def test_no_sequence_of_well_formed_messages_does_harm(seed: int, length: int) -> None:
    random = Random(seed)
    with running() as pipeline:
        for number in range(length):
            method, request = call(random, pipeline)
            note(f"{method} {request}"[:2000])
            pipeline.server.now += HOUR // 60
            send(pipeline, method, request)
            if number % 4 == 0:
                pipeline.server.check()
        works(pipeline)
        pipeline.server.check()


def refusals(source: str) -> dict[tuple[int, int], str]:
    places: dict[tuple[int, int], str] = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                call = node.exc if isinstance(node, ast.Raise) else node.value if isinstance(node, ast.Expr) else None
                if not isinstance(call, ast.Call):
                    continue
                name = ast.unparse(call.func)
                if name in {"bad_field", "_bad", "_refuse"}:
                    name = f"{name} {ast.unparse(call.args[0])}"
                elif not name.startswith("errors.") or isinstance(node, ast.Expr):
                    continue
                places.setdefault((call.lineno, call.end_lineno or 0), f"{name} in {function.name}")
    return places


@pytest.fixture
def raised() -> Iterator[set[tuple[str, int]]]:
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "exception":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
        frame.f_trace_lines = False
        return trace if frame.f_code.co_filename.startswith(str(SOURCES)) else None

    before = sys.gettrace()
    sys.settrace(trace)
    yield lines
    sys.settrace(before)


def test_every_refusal_in_the_sources_has_a_case(pipeline: Pipeline, raised: set[tuple[str, int]]) -> None:
    for case, fields in CASES:
        method = case.split()[0]
        request = pipeline.valid(method)
        set_fields(request, fields, pipeline)
        pipeline.server.refused(method, request)
    for _, messages in STREAMS:
        pipeline.server.refused("Report", messages(pipeline))
    for _, _, build, _ in PARTS:
        pipeline.send_report(build(pipeline))
    missing = [
        f"{path.parent.name}/{path.name}: {site}"
        for path in [
            *(path for folder in ("rpc", "core", "engine") for path in (SOURCES / folder).glob("*.py")),
            Path(lowwater_regions.__file__).with_name("servicer.py"),
        ]
        for (first, last), site in refusals(path.read_text()).items()
        if not any((str(path), line) in raised for line in range(first, last + 1))
    ]
    modules = [line for line in TOLD_ELSEWHERE.splitlines() if line.endswith(".py")]
    places = [line.strip().split(": ", 1) for line in TOLD_ELSEWHERE.splitlines() if line.startswith(" ")]
    refused = [(file, *kind.split(" in ")) for file, kinds in places for kind in kinds.split("; ")]
    elsewhere = [f"{file}: {kind} in {name}" for file, kind, names in refused for name in names.split(", ")]
    assert not [module for module in modules if not (TESTS / module).is_file()]
    new, old = Counter(missing) - Counter(elsewhere), Counter(elsewhere) - Counter(missing)
    assert not new | old, f"without a case: {[*new]}; has one by now, or is no more: {[*old]}"


TOLD_ELSEWHERE = """
contract/test_damaged_logs.py
    engine/graph_requests.py: errors.OwnedRanges in _refuse_unread
contract/test_layouts.py
    core/computation.py: errors.StaleSequencer in _check_place
process/test_access_changes.py
    rpc/workers.py: errors.ShuttingDown in _check_rights
process/test_bad_messages.py
    rpc/interceptors.py: errors.InvalidArgument in __call__
process/test_command_outcomes.py
    rpc/cluster.py: errors.InvalidArgument in _cluster
process/test_regions.py
    lowwater_regions/servicer.py: bad_field 'caller.agent' in _caller; bad_field 'caller.region' in _caller
    lowwater_regions/servicer.py: bad_field 'decision' in Decide; bad_field 'records' in Enrol
    lowwater_regions/servicer.py: bad_field 'who' in Decide, Decide; errors.ServerTokenMismatch in Decide
process/test_shards_cut.py
    rpc/services.py: errors.Unavailable in check
process/test_shards_operations.py
    rpc/cluster.py: bad_field 'address' in _change; bad_field 'epochs' in Locate, Locate
property/test_core_move.py
    core/slicing.py: errors.IncarnationChanged in receive
property/test_core_recut.py
    core/topology.py: _refuse 'slice' in split
unit/test_access_guard.py
    rpc/guard.py: errors.InvalidArgument in _first; errors.PermissionDenied in _enter; errors.Unavailable in _first
unit/test_core_rules.py
    core/computation.py: errors.IncarnationChanged in commit; errors.InputVersion in commit
unit/test_damaged_graph.py
    engine/confirmation.py: errors.Unavailable in _refuse_unhealed
unit/test_drop.py
    core/topology.py: errors.LimitReached in _refuse_tombstones
    engine/graph_requests.py: errors.Unavailable in _refuse_unread
unit/test_half_changes.py
    engine/confirmation.py: errors.Unavailable in _read_stored
unit/test_late_messages.py
    core/computation.py: errors.StaleSequencer in retire
    rpc/cluster.py: bad_field 'version' in _change
unit/test_request_bounds.py
    rpc/request_bounds.py: errors.InvalidArgument in check, check
unit/test_room.py
    rpc/acknowledgement.py: errors.Overloaded in messages
    rpc/streams.py: errors.Overloaded in deny
unit/test_shard.py
    core/computation.py: errors.Overloaded in stage_task
    engine/owner_requests.py: errors.OldStream in report
unit/test_slices.py
    core/computation.py: errors.StaleSequencer in _granted_before
    core/slicing.py: bad_field field_name in _check_slice_order; errors.Unavailable in _check_own
    core/topology.py: errors.Unavailable in split
    engine/cuts.py: errors.Unavailable in _handed_over, _receive
    engine/owner_requests.py: errors.Unavailable in claim
    engine/root_here.py: errors.BY_REASON[refused.reason] in report; errors.Unavailable in report
    engine/slice.py: errors.Unavailable in _check_listed, _claim, vouched
unit/test_task_master.py
    core/tasks.py: errors.BelowMark in _leased, _new; errors.Overloaded in create_group
no test provokes these: each takes a store, or a root, that knows less than this process
    engine/cuts.py: errors.Unavailable in _hand_over
    engine/graph_requests.py: errors.Unavailable in register
    engine/holdings.py: errors.Unavailable in refuse_doubted
    engine/requests.py: errors.Unavailable in by_its_inputs
"""
"""Refusals that take more than one bad request, with the functions that raise them: behind the module of tests that provokes them."""
