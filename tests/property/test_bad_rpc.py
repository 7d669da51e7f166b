"""Whatever a client sends: a precise refusal with the field and the fix, and nothing changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater._pb.lowwater.v1 import watermarks_pb2, workers_pb2
from tests.kit.times import HOUR
from tests.property.bad_rpc_cases import CASES, IN_PART, TOO_LARGE, Case
from tests.property.rpc_server import SOURCES, STUBS, Pipeline, Refusal, opening, report, running


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    """One for all cases: none of them may change it."""
    with running() as one:
        yield one


def refused(pipeline: Pipeline, case: Case, random: Random) -> Refusal:
    """Send the spoilt request."""
    request = pipeline.valid(case.method)
    case.change(request, random, pipeline)
    return pipeline.server.refused(case.method, request)


@pytest.mark.parametrize("method", STUBS)
def test_the_valid_requests_are_valid(method: str) -> None:
    with running() as one:
        one.server.call(method, one.valid(method))
        one.server.check()


@pytest.mark.parametrize("name", CASES)
@given(random=st.randoms())
@settings(max_examples=4)
def test_a_bad_request_is_refused_and_changes_nothing(pipeline: Pipeline, name: str, random: Random) -> None:
    case = CASES[name]
    before = pipeline.server.dump()
    found = refused(pipeline, case, random)
    assert (found.reason, found.metadata.get("field", "")) == (case.reason, case.field)
    assert found.code not in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
    assert found.message
    assert found.metadata, "what varies in the message is there for programs too"
    if case.reason == "INVALID_ARGUMENT":
        assert found.code is grpc.StatusCode.INVALID_ARGUMENT
        assert found.metadata["fix"]
    assert pipeline.server.dump() == before


TAKEN_IN_PART = {
    "a time beyond max skew",
    "MAX without finish",
    "MAX less one",
    "a mass whose starts do not ascend",
    "a mass with unequal columns",
    "a mass with a count beyond 63 bits",
    "a mass of too many records",
    "a mass of too many recent records",
    "a mass of a claim with others, as slices have them",
    "a mass of a claim that does not know all, as slices may",
    "a frontier beyond max skew",
    "lateness of too many records",
    "more records behind than came",
    "lateness from beyond max skew",
    "lateness behind what is beyond max skew",
}
"""What stands beside the bad part is taken over. It changes nothing, but no older report may count any more: its number is durable."""


@pytest.mark.parametrize("name", IN_PART)
def test_a_bad_part_of_a_report_is_refused_in_its_acknowledgement(pipeline: Pipeline, name: str) -> None:
    made, reason, handles = IN_PART[name]
    before = pipeline.server.durable()
    (found,) = pipeline.say(made(pipeline))
    assert (found.reason, list(found.handles)) == (reason, handles)
    assert found.message
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
    "raise errors.Overloaded in stage_task",  # 100,000 parts: tests/unit/test_core_batches.py
    "raise errors.OwnedRanges in _refuse_unread",  # a damaged log: tests/contract/test_damaged_logs.py
    "raise errors.Unavailable in _refuse_unread",  # and the store does not tell its owner: tests/unit/test_drop.py
    "raise errors.Unavailable in _what_is_read",  # a store that does not answer: tests/unit/test_cluster.py
    "raise errors.Unavailable in _refresh",  # a graph that is damaged and cannot be written again: tests/unit/test_damaged_graph.py
    "raise errors.Unavailable in register",  # the same
    "raise errors.Unavailable in _heal",  # the same
    "raise errors.Unavailable in _refuse_unhealed",  # the same
    "raise errors.LimitReached in _refuse_tombstones",  # 8 MiB of tombstones: tests/unit/test_drop.py
    "raise errors.Overloaded in messages",  # 64 MiB of refusals: tests/unit/test_acknowledgement.py
    "raise errors.InputVersion in commit",  # the inputs change meanwhile: the same file
    "raise errors.IncarnationChanged in commit",
    "raise bad_field 'address' in _change",  # many shards: tests/process/test_shards.py
    "raise bad_field 'version' in _change",  # a late pin or drain: tests/unit/test_late_messages.py
    "raise errors.InvalidArgument in _cluster",  # one alone: the same
    "raise errors.LowwaterError in Locate",
    "raise bad_field 'epochs' in Locate",  # tests/process/test_shards_operations.py
    "raise errors.Unavailable in check",  # a shard that lost its store: the same
    "raise errors.StaleSequencer in _granted_before",  # a repeat of an older claim: tests/unit/test_core_requests.py
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
    "raise errors.Overloaded in deny",  # rights that are missing: tests/unit/test_access_calls.py
    "raise errors.ShuttingDown in _check_rights",  # rights that come back: tests/process/test_access_changes.py
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


def test_a_long_name_does_not_hide_the_refusal(pipeline: Pipeline) -> None:
    """A status of more than 8 KB is replaced by gRPC's own, which says nothing of what to do."""
    request = pipeline.valid("Register")
    request.inputs[:] = [f"{'x' * 120}{n}" for n in range(1000)]
    pipeline.server.call("Register", request)
    request.inputs.append("one-more/than-is-registered")
    request.inputs.pop(0)
    found = pipeline.server.refused("Register", request)
    assert found.reason == "REGISTRATION_CONFLICT"
    assert found.message.startswith("new is registered with inputs")
    assert found.message.endswith("change the inputs with set_inputs.")
    assert len(found.message.encode()) <= 1024


def test_bytes_that_are_no_utf8_are_refused_by_protobuf(pipeline: Pipeline) -> None:
    before = pipeline.server.dump()
    raw: Any = pipeline.server.channel.unary_unary("/lowwater.v1.TopologyService/Reset")

    async def send(data: bytes) -> None:
        await raw(data, timeout=30)

    for data in (b"\x0a\x02\xff\xfe", b"\x0a\x05\x80", b"\xff" * 100):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            pipeline.server.run(send(data))
        assert "Error parsing message" in (error.value.details() or "")
    assert pipeline.server.dump() == before


def test_nothing_of_a_report_behind_a_gap_is_applied() -> None:
    with running() as one:
        first, lost, third = (report(n, one.group("a", hour)) for n, hour in ((1, 17), (2, 16), (3, 18)))
        del lost
        found = one.server.refused("Report", [opening(50), first, third])
        assert found.metadata == {"field": "report.number", "fix": "open a new stream and send the full state"}
        assert one.low("a") == 17 * 3_600_000_000
        one.server.check()


def test_rule8_a_repeated_report_is_harmless() -> None:
    with running() as one:
        reports = [report(n, one.group("a", hour)) for n, hour in ((1, 17), (2, 16), (1, 17), (2, 16), (3, 18))]
        answers = one.server.call("Report", [opening(50), *reports])
        assert answers[-1].ack.number == 3
        assert one.low("a") == 18 * 3_600_000_000


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
    """The rooms of reports are everybody's: one that fails behind its round leaves them all the same."""
    with running() as one:
        streams = one.server.authority.streams

        def fails(*_: object) -> None:
            msg = "planted"
            raise ValueError(msg)

        one.server.loop.set_exception_handler(lambda *_: None)
        one.server.sites.reported = fails  # type: ignore[method-assign, assignment]
        with pytest.raises(grpc.RpcError):
            one.server.call("Report", [opening(next(one.streams)), report(1, one.group("a", 15, 16, 17))])
        assert streams.room.bytes == 0
