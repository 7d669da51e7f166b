"""Calls, as ``grpc.aio`` shows them to a client, and what becomes of their messages on the way."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import grpc
from grpc.aio import AioRpcError, Metadata

from tests.simulation.kernel.pipe import KERNEL, Pipe
from tests.simulation.kernel.status import CANCELLED, STOPPING, TOO_LATE, Status

if TYPE_CHECKING:
    from tests.simulation.kernel.channel import SimChannel
    from tests.simulation.kernel.connection import Connection
    from tests.simulation.kernel.process import Process
    from tests.simulation.kernel.server import Handling, SimServer

SWAP_SECONDS: Final = 0.2

LOST_SECONDS: Final = 5.0
"""The time that a stream lives on when it has lost a message: no transport may lose any and go on for ever."""


@dataclass(frozen=True, slots=True)
class Method:
    path: str
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
    request_streaming: bool
    response_streaming: bool

    @property
    def hostile(self) -> bool:
        return self.path.endswith("/Report")


class Call(ABC):
    """One call: the client's object, and the only place that knows both ends."""

    def __init__(
        self,
        channel: SimChannel,
        method: Method,
        timeout: float | None,
        metadata: tuple[tuple[str, str | bytes], ...],
        *,
        waits: bool,
    ) -> None:
        self.channel = channel
        self.client = channel.process
        self.network = channel.network
        self.sim = channel.network.sim
        self.method = method
        self.metadata = metadata
        self.waits = waits
        self.number = self.network.number_call()
        self.status: Status | None = None
        self.severed = False
        self.connection: Connection | None = None
        self.handlings: dict[Handling, None] = {}
        self.lingers = 0.0
        """Seconds that a server goes on with a late request, or a late stream, before it learns that the client is gone."""
        self.deadline = None if timeout is None else self.sim.now + timeout
        self._ended = asyncio.Event()
        self._locally_cancelled = False
        self._timer = None if timeout is None else self.sim.loop.call_later(timeout, self._end_locally, TOO_LATE)

    # -- what clients use ------------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self.status is not None

    def cancelled(self) -> bool:
        return self.status is not None and self.status.code is grpc.StatusCode.CANCELLED

    def cancel(self) -> bool:
        if self.status is not None:
            return False
        self._locally_cancelled = True
        self._end_locally(CANCELLED)
        return True

    def time_remaining(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - self.sim.now)

    async def code(self) -> grpc.StatusCode:
        return (await self._final()).code

    async def details(self) -> str:
        return (await self._final()).details

    async def trailing_metadata(self) -> Metadata:
        return Metadata(*(await self._final()).trailers)

    async def initial_metadata(self) -> Metadata:
        return Metadata()

    async def _final(self) -> Status:
        await self._ended.wait()
        assert self.status is not None
        return self.status

    async def _raise_unless_ok(self) -> None:
        if self._locally_cancelled:
            raise asyncio.CancelledError
        status = await self._final()
        if status.code is not grpc.StatusCode.OK:
            raise AioRpcError(status.code, Metadata(), Metadata(*status.trailers), status.details, status.details)

    # -- its life --------------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        if self.done() or not self.client.alive:
            return
        self.connection = connection
        connection.calls[self] = None
        if not connection.open:
            self.sever()
        self._begin(connection.server)

    def refuse(self, why: str) -> None:
        self._finish(Status(grpc.StatusCode.UNAVAILABLE, why))

    def broken(self, why: str) -> None:
        self._finish(Status(grpc.StatusCode.UNAVAILABLE, why))

    def sever(self) -> None:
        self.severed = True

    def abandon(self) -> None:
        for handling in list(self.handlings):
            handling.cancel()

    @property
    @abstractmethod
    def response_due(self) -> float:
        """When the last of what the server has sent arrives."""

    @abstractmethod
    def _begin(self, server: SimServer) -> None:
        """Send the request, or the head of a stream."""

    def _end_locally(self, status: Status) -> None:
        if self.status is None:
            self._finish(status)
            if self.connection is not None:
                self.sim.loop.call_later(self.network.latency(), self.abandon, context=KERNEL)

    def _finish(self, status: Status) -> None:
        if self.status is not None:
            return
        self.status = status
        self.sim.trace("ended", call=self.number, code=status.code.name)
        if self._timer is not None:
            self._timer.cancel()
        if self.connection is not None:
            self.connection.calls.pop(self, None)
        self._ended.set()

    def _tap_request(self, server: SimServer, message: Any, payload: bytes) -> None:
        path, peer = self.method.path, server.process
        self.sim.trace(
            "request", call=self.number, path=path, client=str(self.client), server=str(peer), sum=crc32(payload)
        )
        self.network.tap(self.client, peer, path, "request", self.number, message)

    def tap_response(self, server: Process, message: Any, payload: bytes) -> None:
        self.sim.trace("response", call=self.number, server=str(server), sum=crc32(payload))
        self.network.tap(server, self.client, self.method.path, "response", self.number, message)


class UnaryCall(Call):
    """One request, one response. The request may arrive when the client does not wait any more, and twice."""

    def __init__(
        self, channel: SimChannel, method: Method, request: Any, timeout: float | None, metadata: Any, waits: bool
    ) -> None:
        super().__init__(channel, method, timeout, metadata, waits=waits)
        self._request = request
        self._payload = method.serialize(request)
        self._response: bytes | None = None
        self._due = 0.0

    @property
    def response_due(self) -> float:
        return self._due

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_unless_ok()
        assert self._response is not None
        return self.method.deserialize(self._response)

    def _begin(self, server: SimServer) -> None:
        self._tap_request(server, self._request, self._payload)
        network, loop = self.network, self.sim.loop
        if self.severed or network.fate("lost request", network.weather.p_lose_request):
            return
        if self.connection is not None and network.fate("late request", network.p_late(self.client)):
            self.lingers = network.lateness() if network.chance(0.5) else 0.0
            late = network.lateness()
            loop.call_later(late, self._arrive_late, context=KERNEL)
            network.break_link(self.client, self.channel.address, late)
            self.connection.close("it broke behind a request that is still on its way")
            return
        loop.call_later(network.latency(), self._arrive, server, context=KERNEL)
        if network.fate("repeated request", network.weather.p_repeat_request):
            loop.call_later(network.detour(), self._arrive, None, context=KERNEL)

    def _arrive_late(self) -> None:
        if self.network.listener(self.client, self.channel.address, sent=True) is not None:
            self.network.arrived_late(self._request)
        self._arrive(None)

    def _arrive(self, target: SimServer | None) -> None:
        server = self.network.listener(self.client, self.channel.address, sent=target is None)
        if server is not None and target in (None, server):
            server.accept(self, self._payload)
        elif target is not None and target.process.alive and not self.severed:
            self.reply(target.process, STOPPING)

    def reply(self, server: Process, status: Status, message: Any = None, payload: bytes | None = None) -> None:
        if payload is not None:
            self.tap_response(server, message, payload)
        network = self.network
        if self.severed or network.fate("lost response", network.weather.p_lose_response):
            return
        self._due = self.sim.now + network.latency()
        self.sim.loop.call_at(self._due, self._answered, payload, status, context=KERNEL)

    def _answered(self, payload: bytes | None, status: Status) -> None:
        if self.status is None:
            self._response = payload
            self._finish(status)


class StreamCall(Call):
    def __init__(
        self, channel: SimChannel, method: Method, request: Any, timeout: float | None, metadata: Any, waits: bool
    ) -> None:
        super().__init__(channel, method, timeout, metadata, waits=waits)
        self.requests = Pipe(self.network, f"{self.number} up", lambda _: None)
        self.responses = Pipe(self.network, f"{self.number} down", self._finish)
        self._request = request
        self._connected = asyncio.Event()
        self._iterator: AsyncIterator[Any] | None = None
        self._sent = 0
        self._sending = asyncio.create_task(self._send_all(request)) if method.request_streaming else None

    @property
    def response_due(self) -> float:
        return self.responses.due

    # -- receiving -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._iterator is None:
            self._iterator = self._responses()
        return self._iterator

    async def _responses(self) -> AsyncIterator[Any]:
        while (payload := await self._read()) is not None:
            yield self.method.deserialize(payload)
        await self._raise_unless_ok()

    async def read(self) -> Any:
        payload = await self._read()
        if payload is not None:
            return self.method.deserialize(payload)
        await self._raise_unless_ok()
        return grpc.aio.EOF

    async def _read(self) -> bytes | None:
        try:
            return await self.responses.read()
        except asyncio.CancelledError:
            self.cancel()
            raise

    # -- sending ---------------------------------------------------------------------------------------------------

    def _begin(self, server: SimServer) -> None:
        if self.method.request_streaming:
            self.requests.open(lambda: self._arrive(server, b""))
            self._connected.set()
            return
        payload = self.method.serialize(self._request)
        self._tap_request(server, self._request, payload)
        if not self.lost_with_stream():
            self.requests.open(lambda: self._arrive(server, payload))

    def _arrive(self, server: SimServer, payload: bytes) -> None:
        over = self.severed or self.status is not None
        if (over and not self.lingers) or not server.process.alive:
            return
        if self.network.listener(self.client, self.channel.address) is server:
            server.accept(self, payload)
        else:
            self.responses.finish(STOPPING)

    async def _send_all(self, requests: Any) -> None:
        try:
            async for request in requests:
                await self._send(request)
            await self._connected.wait()
            self.requests.finish(None)
        except BaseException:  # noqa: BLE001 - so does gRPC: a request iterator that fails cancels its call, no more
            self.cancel()

    async def _send(self, request: Any) -> None:
        await self._connected.wait()
        payload = self.method.serialize(request)
        await self.requests.room()
        if self.done():
            raise asyncio.InvalidStateError("the call is over")
        if self.connection is None or not self.client.alive:
            return
        self._tap_request(self.connection.server, request, payload)
        self._sent += 1
        if not self.lost_with_stream():
            self._push(payload)
        # As a real write, it lets others run.
        await asyncio.sleep(0)

    def _push(self, payload: bytes) -> None:
        network, weather = self.network, self.network.weather
        if (
            self.connection is not None
            and not self.severed
            and network.fate("late message of a stream", network.p_late(self.client))
        ):
            seconds = network.lateness()
            self.requests.push_late(payload, seconds)
            self.lingers = self.requests.due - self.sim.now + network.latency()
            self.connection.close("it broke behind a message that is still on its way", server=self.requests.due)
            self.sim.loop.call_later(self.lingers, self.abandon, context=KERNEL)
            return
        hostile = self.method.hostile and self._sent > 1
        if hostile and network.fate("lost report", weather.p_report_lost):
            self.sim.loop.call_later(LOST_SECONDS, self._reset, context=KERNEL)
            return
        if hostile and network.fate("swapped report", weather.p_report_swapped):
            self.requests.hold(payload, SWAP_SECONDS)
            return
        self.requests.push(payload)
        if hostile and network.fate("doubled report", weather.p_report_doubled):
            self.requests.push(payload)

    # -- its life --------------------------------------------------------------------------------------------------

    def lost_with_stream(self) -> bool:
        if not self.severed and self.network.fate("broken stream", self.network.weather.p_break):
            self._reset()
        return self.severed

    def _reset(self) -> None:
        self.sever()
        for learn in (lambda: self.broken("the stream was reset"), self.abandon):
            self.sim.loop.call_later(self.network.latency(), learn, context=KERNEL)

    def sever(self) -> None:
        super().sever()
        self.requests.sever()
        self.responses.sever()

    def abandon(self) -> None:
        # A server that reads sees the end of the requests, as if the client had said all: gRPC does not tell these apart.
        self.requests.end(keep=False)
        super().abandon()

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        if self._sending is not None:
            self._sending.cancel()
        return True

    def broken(self, why: str) -> None:
        super().broken(why)
        self.responses.end(keep=True)

    def _end_locally(self, status: Status) -> None:
        super()._end_locally(status)
        self.responses.end(keep=False)

    def _finish(self, status: Status) -> None:
        super()._finish(status)
        self.requests.sever()
        # Whoever waits to read or to send must look around.
        self.responses.end(keep=True)
        self._connected.set()
