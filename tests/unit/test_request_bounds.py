"""Large requests have bounds: what is allowed fits, what takes memory is counted whatever way it is encoded, and what is refused is freed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.v1 import cluster_pb2, topology_pb2, watermarks_pb2, workers_pb2
from lowwater.v1 import workers_pb2 as pb
from lowwater_authority.access.policy import Access, Action, Allowance, Principal
from lowwater_authority.core.cut import MAX_SLICE_KEY, MAX_SLICES
from lowwater_authority.core.requests import DIGESTED_TOGETHER, PIECE, ClaimRequest, finished
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import MAX_INPUTS
from lowwater_authority.engine.observer import Observer
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.guard import Guard
from lowwater_authority.rpc.interceptors import Decoding, Reading
from lowwater_authority.rpc.refusals import refuse
from lowwater_authority.rpc.request_bounds import MAX_NAMES, SMALL
from lowwater_authority.rpc.workers import WorkerServicer, in_turns
from lowwater_server.audit import Audit
from lowwater_server.tokens import digest

LONGEST = "n" * 128 + "/" + "a" * 128
WATERMARKS = "/lowwater.v1.WatermarkService/GetWatermarks"
REPORT = "/lowwater.v1.WorkerService/Report"
CLAIM = "/lowwater.v1.WorkerService/Claim"

NAMES = [LONGEST[:-5] + f"{number:05}" for number in range(MAX_NAMES)]


LARGEST: dict[str, tuple[str, Any]] = {
    "names": (WATERMARKS, watermarks_pb2.GetWatermarksRequest(computations=NAMES)),
    "inputs and slices": (
        "/lowwater.v1.TopologyService/Register",
        topology_pb2.RegisterRequest(inputs=NAMES[:MAX_INPUTS], slices=[bytes(MAX_SLICE_KEY)] * (MAX_SLICES - 1)),
    ),
    "short keys": (CLAIM, workers_pb2.ClaimRequest(bounds=[number.to_bytes(8, "big") for number in range(200_000)])),
    "keys like tags": (CLAIM, workers_pb2.ClaimRequest(bounds=[b"\x1a" * 30] * 200_000)),
    "event times like tags": (
        REPORT,
        workers_pb2.ReportRequest(
            report=workers_pb2.Report(
                groups=[workers_pb2.GroupReport(handles=range(400_000), watermarks_micros=[0x12 << 8] * 400_000)]
            )
        ),
    ),
}


@pytest.mark.parametrize("what", LARGEST)
def test_what_a_method_takes_at_most_fits(what: str) -> None:
    method, largest = LARGEST[what]
    data = largest.SerializeToString()
    assert len(data) > SMALL
    assert Reading(type(largest).FromString, method)(data) == largest


def test_a_shard_is_asked_for_the_places_of_a_bounded_number_of_names() -> None:
    data = cluster_pb2.LocateRequest(computations=["a"] * (MAX_NAMES + 1)).SerializeToString()
    with pytest.raises(errors.InvalidArgument, match="computations"):
        Reading(cluster_pb2.LocateRequest.FromString, "/lowwater.v1.ClusterService/Locate")(data)


def empty(tag: bytes, times: int) -> bytes:
    return (tag + b"\x00") * times


def within(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


UNKNOWN_GROUP = b"\xfb\x01", b"\xfc\x01"
"""Where a group of a field begins and ends that no message has, number 31."""

BOMBS: dict[str, tuple[type[Any], str, bytes]] = {
    "names without a character": (watermarks_pb2.GetWatermarksRequest, WATERMARKS, empty(b"\x12", 500_000)),
    "behind a group that nobody knows": (
        watermarks_pb2.GetWatermarksRequest,
        WATERMARKS,
        b"".join(UNKNOWN_GROUP) + empty(b"\x12", 500_000),
    ),
    "many numbers among names": (
        watermarks_pb2.GetWatermarksRequest,
        WATERMARKS,
        empty(b"\x12", 19_000) + b"\x18\x12" * 500_000,
    ),
    "more bytes than the method takes": (
        watermarks_pb2.GetWatermarksRequest,
        WATERMARKS,
        b"\x0a" + varint(5 << 20) + bytes(5 << 20),
    ),
    "groups of a report": (workers_pb2.ReportRequest, REPORT, within(b"\x12", empty(b"\x12", 300_000))),
    "masses within one group of a report": (
        workers_pb2.ReportRequest,
        REPORT,
        within(b"\x12", within(b"\x12", within(b"\x4a", within(b"\x22", empty(b"\x12", 300_000))))),
    ),
    "bounds of a claim": (workers_pb2.ClaimRequest, CLAIM, empty(b"\x1a", 4_000_001)),
}


@pytest.mark.parametrize("what", BOMBS)
def test_rule7_what_would_take_many_times_its_bytes_is_not_parsed(what: str) -> None:
    kind, method, data = BOMBS[what]

    class Parsed:
        """Stands in front of the parser."""

        DESCRIPTOR = kind.DESCRIPTOR

        @classmethod
        def parse(cls, data: bytes) -> Any:
            raise AssertionError(len(data))

    with pytest.raises(errors.InvalidArgument):
        Reading(Parsed.parse, method)(data)


class Request:
    """A request that can be watched."""

    computations = ()
    open = SimpleNamespace(server_token="", sender=bytes(16), stream=1)

    def __init__(self, data: bytes) -> None:
        self.data = data
        requests.append(weakref.ref(self))

    def WhichOneof(self, _: str) -> str:
        return "open" if self.data.startswith(b"open") else "report"


requests: list[weakref.ref[Any]] = []


async def refused(request: Request, context: Any) -> bytes:
    try:
        raise errors.UnknownComputation(f"no {len(request.data)}")
    except errors.UnknownComputation as error:
        await refuse(context, error)


async def refused_stream(request: Request, context: Any) -> Any:
    yield await refused(request, context)


@pytest.mark.parametrize("access", [False, True], ids=["open", "with access rules"])
async def test_what_is_refused_is_freed_at_once(access: bool) -> None:
    reader = Principal("reader", (Allowance("*", dict.fromkeys(Action, ("*",))),), digests=(digest("right"),))
    guard = Guard(Access([reader]), observer=Observer(), audit=Audit(lambda: 0.0), insiders=[], monotonic=lambda: 0.0)
    server = grpc.aio.server(interceptors=[Decoding(Observer()), *([guard] if access else [])])
    shard = SimpleNamespace(rounds=SimpleNamespace(), served=SimpleNamespace())
    services: Any = SimpleNamespace(shard=shard, observer=Observer(), check=lambda: None)
    services.token, services.leaving = "", asyncio.Event()
    report: Any = grpc.stream_stream_rpc_method_handler(
        WorkerServicer(services).Report, Request, workers_pb2.ReportResponse.SerializeToString
    )
    handlers: tuple[tuple[str, str, Any], ...] = (
        ("lowwater.v1.WorkerService", "Report", report),
        ("lowwater.v1.ClusterService", "ListShards", grpc.unary_unary_rpc_method_handler(refused, Request)),
        ("lowwater.v1.WatermarkService", "Watch", grpc.unary_stream_rpc_method_handler(refused_stream, Request)),
    )
    for service, method, handler in handlers:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    requests.clear()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            unary: Any = channel.unary_unary("/lowwater.v1.ClusterService/ListShards")
            stream: Any = channel.unary_stream("/lowwater.v1.WatermarkService/Watch")
            unopened: Any = channel.stream_stream(REPORT)
            right = (("authorization", "Bearer right"),)
            calls: list[Awaitable[Any]] = [
                unary(b"1", metadata=right),
                stream(b"2", metadata=right).read(),
                unopened(iter([b"3"]), metadata=right).read(),
                unary(b"4", metadata=right),
            ]
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await call
                error = error_of_call(failure.value, "here")
                assert isinstance(error, errors.UnknownComputation | errors.InvalidArgument)
            later = unopened(iter([b"open", b"open again, which is refused"]), metadata=right)
            assert await later.read(), "it is opened"
            with pytest.raises(grpc.aio.AioRpcError, match="open a stream once"):
                await later.read()
        assert len(requests) == len(calls) + 2
        await server.stop(None)
        assert [alive() for alive in requests] == [None] * (len(calls) + 2)
    finally:
        gc.enable()
        await server.stop(0)


NEAR = (0, 1, DIGESTED_TOGETHER, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE - 1, 2 * PIECE)


def keys(count: int) -> list[bytes]:
    return [index.to_bytes(4, "big") for index in range(1, count + 1)]


def message(bounds: list[bytes]) -> pb.ClaimRequest:
    return pb.ClaimRequest(computation="c", worker="w", bounds=bounds, request_id=b"r" * 16, bound_micros=[7])


@pytest.mark.parametrize("count", [at for at in NEAR if at > 1])
@pytest.mark.parametrize("end", [b"", b"\xff"])
def test_what_is_decoded_in_pieces_is_what_was_asked(count: int, end: bytes) -> None:
    bounds = [*keys(count - 1), end]
    decoded = finished(codec.claim(message(bounds)))
    whole = ClaimRequest(bounds, "w", request_id=b"r" * 16, bound_micros=np.array([7], dtype=np.int64))
    assert decoded.bounds == bounds
    assert decoded.digest == whole.digest, "the journal has it: it must not depend on the pieces"


@pytest.mark.parametrize("wrong", NEAR[1:])
@pytest.mark.parametrize("end", [b"", b"\xff"])
def test_bounds_that_do_not_rise_are_refused_wherever_pieces_meet(wrong: int, end: bytes) -> None:
    bounds = [*keys(2 * PIECE + 9), end]
    for bad in (bounds[wrong - 1], b""):
        request = message([*bounds[:wrong], bad, *bounds[wrong + 1 :]])
        with pytest.raises(errors.InvalidArgument, match=rf"bounds\[{wrong}\] .* does not come after"):
            finished(codec.claim(request))


@pytest.mark.parametrize("place", NEAR)
def test_a_key_that_is_too_long_is_refused_wherever_it_stands(place: int) -> None:
    bounds = keys(2 * PIECE + 9)
    bounds[place] += b"x" * codec.MAX_KEY
    with pytest.raises(errors.InvalidArgument, match="too long"):
        finished(codec.claim(message(bounds)))


async def test_others_have_their_turn_while_a_claim_is_decoded() -> None:
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(neighbour())
    decoded = await in_turns(codec.claim(message(keys(10 * PIECE))))
    task.cancel()
    assert len(decoded.bounds) == 10 * PIECE
    assert turns >= 2 * 10 - 2, "one for each piece that is checked, and that is digested"


def test_where_the_ranges_of_a_claim_stand_is_said_as_protobuf_says_it() -> None:
    for values in ([], [MIN], [MIN, -1, 0, 1, MAX] * 50):
        response = pb.ClaimResponse(sequencer=3, epoch=4)
        codec.claim_watermarks(response, np.array(values, dtype=np.int64))
        plain = pb.ClaimResponse(sequencer=3, epoch=4, watermarks_micros=values)
        assert response.SerializeToString() == plain.SerializeToString()
