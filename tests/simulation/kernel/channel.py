"""The client's side of the network: what generated stubs need of ``grpc.aio.Channel``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc

from tests.simulation.kernel.calls import Call, Method, StreamCall, UnaryCall
from tests.simulation.kernel.connection import Connection

if TYPE_CHECKING:
    from tests.simulation.kernel.network import Network
    from tests.simulation.kernel.process import Process

CONNECT_SECONDS: Final = 20.0
"""The time that a call which does not wait for the server stands a connection that is not accepted."""


class MultiCallable:
    def __init__(self, channel: SimChannel, method: Method) -> None:
        self._channel = channel
        self._method = method

    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Sequence[tuple[str, str | bytes]] | None = None,
        wait_for_ready: bool | None = None,
    ) -> Call:
        kind = StreamCall if self._method.response_streaming else UnaryCall
        return self._channel.begin(
            kind(self._channel, self._method, request, timeout, tuple(metadata or ()), waits=bool(wait_for_ready))
        )


class SimChannel:
    """Keeps one connection, made when it is needed; without backoff, so a call sees a returned server at once."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.network = network
        self.process = process
        self.address = address
        self._connection: Connection | None = None
        self._waiting: dict[Call, None] = {}
        self._connecting = False
        self._closed = False

    def unary_unary(self, path: str, **options: Any) -> MultiCallable:
        return self._method(path, options, request_streaming=False, response_streaming=False)

    def unary_stream(self, path: str, **options: Any) -> MultiCallable:
        return self._method(path, options, request_streaming=False, response_streaming=True)

    def stream_stream(self, path: str, **options: Any) -> MultiCallable:
        return self._method(path, options, request_streaming=True, response_streaming=True)

    def _method(self, path: str, options: dict[str, Any], **streaming: bool) -> MultiCallable:
        serialize: Callable[[Any], bytes] = options["request_serializer"]
        return MultiCallable(self, Method(path, serialize, options["response_deserializer"], **streaming))

    async def close(self, grace: float | None = None) -> None:
        del grace
        self._closed = True
        connection = self._connection
        for call in [*self._waiting, *(connection.calls if connection else ())]:
            call.cancel()
        self._waiting.clear()
        if connection is not None:
            connection.close("the client closed its channel")

    def begin(self, call: Call) -> Call:
        if self._closed:
            call.cancel()
            raise grpc.aio.UsageError("Channel is closed.")
        if self._connection is not None:
            call.connected(self._connection)
        else:
            self._waiting[call] = None
            self.connect()
        return call

    def connect(self) -> None:
        if self._connecting or not any(not call.done() for call in self._waiting) or not self.process.alive:
            return
        self._connecting = True
        self.network.sim.loop.call_later(self.network.latency(), self._try, context=self.process.context)

    def _try(self) -> None:
        self._connecting = False
        waiting = [call for call in self._waiting if not call.done()]
        self._waiting = dict.fromkeys(waiting)
        server = self.network.listener(self.process, self.address)
        if not waiting or self._closed:
            return
        if server is None:
            for call in waiting:
                if not call.waits:
                    del self._waiting[call]
                    call.refuse(f"failed to connect to {self.address}: connection refused")
            self.network.hope(self)
        elif server.process.paused:
            # The system accepts for a frozen process, which never says a word.
            for call in waiting:
                if not call.waits:
                    self.network.sim.loop.call_later(
                        CONNECT_SECONDS, self._too_long, call, context=self.process.context
                    )
            self.network.hope(self)
        else:
            self._connection = Connection(self.network, self, server)
            self._waiting.clear()
            for call in waiting:
                call.connected(self._connection)

    def _too_long(self, call: Call) -> None:
        if call in self._waiting:
            del self._waiting[call]
            call.refuse(f"failed to connect to {self.address}: timeout")

    def disconnected(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
