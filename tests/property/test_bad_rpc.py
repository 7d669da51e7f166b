"""Whatever a client sends: a precise refusal with the field and the fix, and nothing changed; and never an internal error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from lowwater._pb.lowwater.v1 import watermarks_pb2, workers_pb2
from tests.kit.times import HOUR
from tests.property.bad_rpc_cases import BESIDE, CASES, IN_PART, STREAMS
from tests.property.rpc_messages import call
from tests.property.rpc_server import METHODS, Pipeline, Refusal, opening, refusal_of, report, running

CRASHES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}


PARTS = [*((*case, 0) for case in IN_PART), *((*case, 1) for case in BESIDE)]


def numbered(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{number}-{case[0]}" for number, case in enumerate(cases)]


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    with running() as one:
        yield one


@pytest.mark.parametrize("method", METHODS)
def test_the_valid_requests_are_valid(method: str) -> None:
    with running() as one:
        one.server.call(method, one.valid(method))
        one.server.check()


def put(request: Any, fields: dict[str, Any], pipeline: Pipeline) -> None:
    for name, made in fields.items():
        value = made(pipeline) if callable(made) else made
        if isinstance(value, dict):
            for inner, each in value.items():
                lease = getattr(request, name)
                setattr(lease if hasattr(lease, inner) else lease.key, inner, each)
            continue
        request.ClearField(name)
        if isinstance(value, list):
            getattr(request, name).extend(value)
        elif hasattr(value, "SerializeToString"):
            getattr(request, name).CopyFrom(value)
        elif value is not None:
            setattr(request, name, value)


def is_precise(found: Refusal) -> None:
    assert found.code not in CRASHES
    assert found.message
    assert found.metadata, "what varies in the message is there for programs too"
    if found.reason == "INVALID_ARGUMENT":
        assert found.code is grpc.StatusCode.INVALID_ARGUMENT
        assert found.metadata["fix"]


@pytest.mark.parametrize(("said", "fields"), CASES, ids=numbered(CASES))
def test_a_bad_request_is_refused_and_changes_nothing(pipeline: Pipeline, said: str, fields: dict[str, Any]) -> None:
    method, *why = said.split()
    reason = why.pop(0) if why[0].isupper() else "INVALID_ARGUMENT"
    request = pipeline.valid(method)
    put(request, fields, pipeline)
    before = pipeline.server.dump()
    found = pipeline.server.refused(method, request)
    assert (found.reason, found.metadata.get("field", "")) == (reason, "".join(why).replace("+", " "))
    is_precise(found)
    assert pipeline.server.dump() == before


@pytest.mark.parametrize(("why", "messages"), STREAMS, ids=numbered(STREAMS))
def test_a_bad_report_stream_is_refused_and_changes_nothing(pipeline: Pipeline, why: str, messages: Any) -> None:
    before = pipeline.server.dump()
    found = pipeline.server.refused("Report", messages(pipeline))
    assert why in {found.reason, found.metadata.get("field", "")}
    is_precise(found)
    assert pipeline.server.dump() == before


def test_a_stream_that_is_not_new_is_refused(pipeline: Pipeline) -> None:
    newest = next(pipeline.streams)
    pipeline.server.call("Report", [opening(newest)])
    again = [opening(newest), report(1, pipeline.group("a", 20))]
    assert pipeline.server.refused("Report", again).reason == "OLD_STREAM"


@pytest.mark.parametrize(("reason", "handles", "made", "beside"), PARTS, ids=numbered(PARTS))
def test_a_bad_part_of_a_report_is_refused_in_its_acknowledgement(
    pipeline: Pipeline, reason: str, handles: list[int], made: Any, beside: int
) -> None:
    before = pipeline.server.durable()
    (found,) = pipeline.say(made(pipeline))
    assert (found.reason, list(found.handles)) == (reason or "INVALID_ARGUMENT", handles)
    assert found.message
<<<<<<< HEAD
    after = pipeline.server.durable()
    if name in TAKEN_IN_PART:
        last, *rest = before["journal"]["a"]
        before["journal"]["a"] = (last + 1, *rest)
    assert after == before


def test_every_refusal_in_the_sources_is_reached_by_a_case() -> None:
    with running() as one:
        for case in (*CASES.values(), TOO_LARGE):
            found = refused(one, case, Random(0))
            assert (found.reason, found.metadata.get("field", "")) == (case.reason, case.field)
        for made, _, _ in IN_PART.values():
            one.say(made(one))
        reached = one.server.sites.reached
    missing = []
    for path in (*(SOURCES / "rpc").glob("*.py"), *(SOURCES / "core").glob("*.py"), SOURCES / "engine/shard.py"):
        place = str(path.relative_to(SOURCES))
        if place == "rpc/regions.py":  # of another server: tests/process/test_regions.py
            continue
        for site, lines in refusals(path.read_text()):
            if site not in OTHERWISE and not any((place, line) in reached for line in lines):
                missing.append(f"{place}: {site}")
    assert not missing, "\n".join(missing)


OTHERWISE = {
    "raise errors.StaleSequencer in _check_place",  # a part of it was lost: tests/contract/test_layouts.py
    "raise errors.OldStream in report",  # an earlier report of the stream failed: tests/unit/test_shard.py
    "raise errors.InvalidArgument in vouch",  # an input that nobody has registered: tests/unit/test_shard.py
    "raise errors.Overloaded in create_group",  # 16 groups: tests/unit/test_task_master.py
    "raise errors.BelowMark in _new",  # 256 commits: tests/property/test_core_tasks.py
    "raise errors.BelowMark in _held",  # the same
    "raise errors.Overloaded in stage_task",  # too many bytes of parts: tests/unit/test_core_rules.py
    "raise errors.OwnedRanges in _refuse_unread",  # a damaged log: tests/contract/test_damaged_logs.py
    "raise errors.Unavailable in _refuse_unread",  # and the store does not tell its owner: tests/unit/test_drop.py
    "raise errors.Unavailable in _what_is_read",  # a store that does not answer: tests/unit/test_cluster.py
    "raise errors.Unavailable in _refresh",  # a graph that is damaged and cannot be written again: tests/unit/test_damaged_graph.py
    "raise errors.Unavailable in register",  # the same
    "raise errors.Unavailable in _heal",  # the same
    "raise errors.Unavailable in _refuse_unhealed",  # the same
    "raise errors.LimitReached in _refuse_tombstones",  # 8 MiB of tombstones: tests/unit/test_drop.py
    "raise errors.Overloaded in messages",  # 64 MiB of refusals: tests/unit/test_room.py
    "raise errors.InputVersion in commit",  # the inputs change meanwhile: tests/unit/test_core_rules.py
    "raise errors.IncarnationChanged in commit",
    "raise bad_field 'address' in _change",  # many shards: tests/process/test_shards.py
    "raise bad_field 'version' in _change",  # a late pin or drain: tests/unit/test_late_messages.py
    "raise errors.InvalidArgument in _cluster",  # one alone: the same
    "raise errors.LowwaterError in Locate",
    "raise bad_field 'epochs' in Locate",  # tests/process/test_shards_operations.py
    "raise errors.Unavailable in check",  # a shard that lost its store: the same
    "raise errors.StaleSequencer in _granted_before",  # a repeat of an older claim: tests/unit/test_core_numbers.py
    "raise errors.Unavailable in claim",  # a reset before the answer: tests/unit/test_slices.py
    "raise errors.InvalidArgument in _granted_before",  # the id of another claim: tests/unit/test_core_numbers.py
    "raise errors.InvalidArgument in prepare",  # an input that is not registered: the same
    "raise errors.InvalidArgument in reading",  # bytes that are no message: tests/process/test_bad_messages.py
    "raise bad_field 'groups.computation' in group",  # of one claim in a report: IN_PART
    "raise bad_field field in _words",  # the same
    "raise bad_field 'mass.others' in mass",  # the same
    "raise bad_field 'lateness.counts' in lateness",  # the same
    "raise bad_field 'lateness.buckets' in lateness",  # the same
    "raise bad_field 'lateness.behind' in lateness",  # the same
    "raise errors.Unavailable in _check_taken_in",  # keys that are still another slice's: tests/unit/test_slice_cuts.py
    "raise errors.Unavailable in _refuse_moving",  # a cut while another one is under way: the same
    "raise errors.Unavailable in _take_in",  # the other slice has not handed them over: the same
    "raise errors.Unavailable in _handed_over",  # its log cannot be read: the same
    "raise errors.Unavailable in _move_out",  # a store that has lost a cut of the graph: no request makes that
    "_refuse 'slice' in split",  # 1,000 numbers of slices: tests/property/test_core_recut.py
    "raise errors.IncarnationChanged in take_in",  # a life that is over: tests/property/test_core_move.py
    "raise errors.Overloaded in deny",  # rights that are missing, and that come back: tests/process/test_access_attacks.py
    "raise errors.ShuttingDown in _check_rights",  # the same
    "raise errors.InvalidArgument in check",  # more bytes or elements than a method takes: tests/unit/test_request_bounds.py
    "raise errors.InvalidArgument in __call__",  # bytes that are no message, or compressed: the same
    "raise errors.InvalidArgument in _check_slice_order",  # a made-up order at a root: tests/unit/test_slices.py
    "raise errors.InvalidArgument in refuse_slice",  # a slice's name where completeness is asked: the same
    "raise errors.StaleSequencer in retire",  # a late retirement: tests/unit/test_late_messages.py
    "raise errors.IncarnationChanged in check_incarnation",  # a late change: the same
    "raise errors.InputVersion in set_inputs",  # the same
    "raise errors.Unavailable in _by_its_inputs",  # half a change of inputs: tests/unit/test_half_changes.py
}  # fmt: skip
"""Refusals that take more than one bad request, and where they are tested."""


def refusals(source: str) -> Iterator[tuple[str, range]]:
    """What a file refuses with, in which function, and on which lines."""
    seen: set[ast.AST] = set()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            # A nested function comes with the one around it.
            if not isinstance(node, ast.Raise | ast.Expr) or node in seen:
                continue
            seen.add(node)
            call = node.exc if isinstance(node, ast.Raise) else node.value
            if not isinstance(call, ast.Call):
                continue
            called = ast.unparse(call.func)
            if isinstance(node, ast.Raise) and (called == "bad_field" or called.startswith("errors.")):
                what = f" {ast.unparse(call.args[0])}" if called == "bad_field" else ""
                yield f"raise {called}{what} in {function.name}", range(node.lineno, (node.end_lineno or 0) + 1)
            elif called == "_refuse":
                what = ast.unparse(call.args[0])
                yield f"{called} {what} in {function.name}", range(node.lineno, (node.end_lineno or 0) + 1)
=======
    last, *rest = before["journal"]["a"]
    before["journal"]["a"] = (last + beside, *rest)
    assert pipeline.server.durable() == before
>>>>>>> y-sim


def test_a_long_name_does_not_hide_the_refusal(pipeline: Pipeline) -> None:
    request = pipeline.valid("Register")
    request.inputs[:] = [f"{'x' * 120}{n}" for n in range(1000)]
    pipeline.server.call("Register", request)
    request.inputs.append("one-more/than-is-registered")
    request.inputs.pop(0)
    found = pipeline.server.refused("Register", request)
    assert found.reason == "REGISTRATION_CONFLICT"
    assert len(found.message.encode()) <= 1024


def test_rule8_nothing_of_a_report_behind_a_gap_is_applied() -> None:
    with running() as one:
        first, third = (report(n, one.group("a", hour)) for n, hour in ((1, 17), (3, 18)))
        found = one.server.refused("Report", [opening(50), first, third])
        assert found.metadata == {"field": "report.number", "fix": "open a new stream and send the full state"}
        assert one.low("a") == 17 * HOUR
        one.server.check()


def test_whatever_lateness_one_computation_tells_its_neighbours_go_on() -> None:
    """Its counts are in answers to readers of all names, in snapshots, and in the acknowledgements of streams that others share."""
    with running() as one:
        watching = watermarks_pb2.GetWatermarksRequest()
        for attempt, records in enumerate((2**64 - 1, 2**63, 2**62, 2**62, 2**62, 2**62, 2**48, 2**40, 2**40)):
            one.claim("a", b"", b"g", b"p", b"")
            lateness = workers_pb2.Lateness(buckets=[0, 9], counts=[1, records], frontier_micros=14 * HOUR)
            hostile = one.group("a", 14, 15, 16, lateness=lateness)
            refused = one.say(hostile, one.group("b", 13 + attempt % 2, 14, input_version=1, input_incarnations=[1]))
            assert {each.computation for each in refused} <= {"a"}
            seen = {each.computation: each for each in one.server.call("GetWatermarks", watching).watermarks}
            assert (seen["b"].low_micros, seen["b"].registered) == (14 * HOUR if attempt else 13 * HOUR, True)
            one.server.call("Watch", watermarks_pb2.WatchRequest())
            one.server.check()
        assert one.server.authority.streams.room.bytes == 0


def test_an_answer_that_cannot_be_made_keeps_no_room() -> None:
    with running() as one:

        def fails(*_: object) -> None:
            msg = "planted"
            raise ValueError(msg)

        one.server.loop.set_exception_handler(lambda *_: None)
        one.server.observer.reported = fails  # type: ignore[method-assign, assignment]
        with pytest.raises(grpc.RpcError):
            one.server.call("Report", [opening(next(one.streams)), report(1, one.group("a", 15, 16, 17))])
        assert one.server.authority.streams.room.bytes == 0


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
    assert pipeline.say(pipeline.group("z/source", 20)) == []
    assert pipeline.say(pipeline.group("z/reader", 19, 20, input_version=1, input_incarnations=[1])) == []
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
