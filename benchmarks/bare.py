"""The gRPC baselines in a server process: ``python -m benchmarks.bare RANGES`` prints its port.

*ingest* takes the very messages that the authority takes and keeps the same minimum, but journals
nothing, checks nothing and forgets everything when it ends. *relay* hands the bytes of a report to
the subscribers: two hops of gRPC in Python, and nothing else. *echo* gives the bytes back to
whoever sent them. *beats* repeats a message each second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import numpy as np

from lowwater.v1 import workers_pb2 as pb
from lowwater_authority.serve import OPTIONS

SERVICE: Final = "benchmarks.Bare"
BLOCK: Final = 4096
ACKNOWLEDGED: Final = 16
"""Every so many reports are acknowledged by one message, about what a round of the authority takes.
"""

Context = Any


class Bare:
    """Numpy column with the minimum of each block; a group's sequencer is its first slot."""

    def __init__(self, ranges: int) -> None:
        blocks = -(-ranges // BLOCK)
        self.values = np.full(blocks * BLOCK, np.iinfo(np.int64).max)
        self.values[:ranges] = np.iinfo(np.int64).min
        self.minima = self.values.reshape(-1, BLOCK).min(axis=1)
        self.subscribers: set[asyncio.Queue[bytes]] = set()

    def take(self, report: pb.Report) -> int:
        """Store a report and return the least value of all."""
        for group in report.groups:
            base, values = group.sequencer, np.asarray(group.watermarks_micros)
            if group.handles:
                handles = np.asarray(group.handles)
                self.values[base + handles] = values
                first, last = base + int(handles[0]), base + int(handles[-1])
            else:
                self.values[base : base + len(values)] = values
                first, last = base, base + len(values) - 1
            touched = slice(first // BLOCK, last // BLOCK + 1)
            self.minima[touched] = self.values.reshape(-1, BLOCK)[touched].min(axis=1)
        return int(self.minima.min())

    async def ingest(self, requests: AsyncIterator[pb.ReportRequest], _: Context) -> AsyncIterator[pb.ReportResponse]:
        """Take reports; the reference time of an acknowledgement is the minimum."""
        number, least = 0, 0
        async for request in requests:
            number, least = request.report.number, self.take(request.report)
            if number % ACKNOWLEDGED == 0:
                yield _acknowledgement(number, least)
        yield _acknowledgement(number, least)

    async def report(self, requests: AsyncIterator[bytes], _: Context) -> AsyncIterator[bytes]:
        """Relay, first hop."""
        async for request in requests:
            for subscriber in self.subscribers:
                subscriber.put_nowait(request)
        yield b""

    async def echo(self, requests: AsyncIterator[bytes], _: Context) -> AsyncIterator[bytes]:
        """Give each message back on its stream."""
        async for request in requests:
            yield request

    async def beats(self, request: bytes, _: Context) -> AsyncIterator[bytes]:
        """Give a message back, and again each second."""
        while True:
            yield request
            await asyncio.sleep(1)

    async def watch(self, _: bytes, __: Context) -> AsyncIterator[bytes]:
        """Relay, second hop. The first message says that it is set up."""
        mailbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.subscribers.add(mailbox)
        try:
            yield b""
            while True:
                yield await mailbox.get()
        finally:
            self.subscribers.discard(mailbox)


def _acknowledgement(number: int, least: int) -> pb.ReportResponse:
    return pb.ReportResponse(ack=pb.ReportAck(number=number, references=[pb.ReferenceTime(micros=least)]))


async def serve(ranges: int) -> None:
    """Serve until killed."""
    server, state = grpc.aio.server(options=OPTIONS), Bare(ranges)
    handlers = {
        "Ingest": grpc.stream_stream_rpc_method_handler(
            state.ingest, pb.ReportRequest.FromString, pb.ReportResponse.SerializeToString
        ),
        "Report": grpc.stream_stream_rpc_method_handler(state.report),
        "Watch": grpc.unary_stream_rpc_method_handler(state.watch),
        "Echo": grpc.stream_stream_rpc_method_handler(state.echo),
        "Beats": grpc.unary_stream_rpc_method_handler(state.beats),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
