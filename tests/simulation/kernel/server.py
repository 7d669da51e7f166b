"""The server's side: what generated code and servicers need of ``grpc.aio``'s server and context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from tests.simulation.kernel.calls import Call, StreamCall, UnaryCall
from tests.simulation.kernel.pipe import KERNEL
from tests.simulation.kernel.status import OK, UNIMPLEMENTED, Status

if TYPE_CHECKING:
    from tests.simulation.kernel.network import Network
    from tests.simulation.kernel.process import Process


class SimServer:
    def __init__(self, network: Network, process: Process, address: str) -> None:
        self.network = network
        self.process = process
        self.address = address
        self.handlings: dict[Handling, None] = {}
        self._generic: list[Any] = []
        self._methods: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """The same handlers once more, by name."""

    async def start(self) -> None:
        self.network.listen(self)

    async def stop(self, grace: float | None) -> None:
        self.network.unlisten(self)
        if self.handlings and grace:
            await asyncio.wait([handling.task for handling in self.handlings], timeout=grace)
        running = list(self.handlings)
        for handling in running:
            handling.cancel()
        if running:
            await asyncio.wait([handling.task for handling in running])
        for connection in self.network.connections_of(self.process):
            if connection.server is self:
                connection.close("the server stopped", after=max((c.response_due for c in connection.calls), default=0))

    def accept(self, call: Call, payload: bytes) -> None:
        self.network.sim.trace("accept", call=call.number, server=str(self.process))
        handling = Handling(self, call, self._method(call.method.path), payload)
        if call.severed or call.done():
            self.network.sim.reach("network: a request of a client that is gone")
            self.network.sim.loop.call_later(call.lingers or self.network.latency(), handling.cancel, context=KERNEL)

    def _method(self, path: str) -> Any:
        if path not in self._methods:
            details = SimpleNamespace(method=path, invocation_metadata=())
            handlers = (generic.service(details) for generic in self._generic)
            self._methods[path] = next((handler for handler in handlers if handler is not None), None)
        return self._methods[path]


class Handling:
    def __init__(self, server: SimServer, call: Call, method: Any, payload: bytes) -> None:
        self._server = server
        self._sim = server.network.sim
        self._call = call
        self._method = method
        self._status: Status | None = None
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._client_gone = False
        server.handlings[self] = None
        call.handlings[self] = None
        self.task: asyncio.Task[None] = self._sim.loop.create_task(
            self._run(payload), context=server.process.context.copy()
        )

    def cancel(self) -> None:
        if not self.task.done():
            self._client_gone = True
            self.task.cancel()

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> NoReturn:
        self._end(Status(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError("Locally aborted.")

    def cancelled(self) -> bool:
        return self._client_gone

    def done(self) -> bool:
        return self._status is not None or self._client_gone

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._call.metadata

    def time_remaining(self) -> float | None:
        return self._call.time_remaining()

    def peer(self) -> str:
        return f"sim:{self._call.client}"

    async def _run(self, payload: bytes) -> None:
        try:
            await self._handle(payload)
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._end(Status(grpc.StatusCode.CANCELLED, "the handler was cancelled"))
        except Exception as error:  # noqa: BLE001 - as gRPC does
            if self._code is None:
                self._sim.error(f"{self._call.method.path} in {self._server.process}", error)
                self._end(Status(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"))
            else:
                self._end(Status(self._code, self._details))
        finally:
            del self._server.handlings[self]
            del self._call.handlings[self]

    async def _handle(self, payload: bytes) -> None:
        call, method = self._call, self._method
        if method is None:
            self._end(UNIMPLEMENTED)
        elif isinstance(call, StreamCall):
            if method.request_streaming:
                responses = method.stream_stream(self._requests(call), self)
            else:
                responses = method.unary_stream(method.request_deserializer(payload), self)
            async for response in responses:
                await self._send(call, response)
            self._end(OK)
        else:
            response = await method.unary_unary(method.request_deserializer(payload), self)
            self._end(OK, response)

    async def _requests(self, call: StreamCall) -> AsyncIterator[Any]:
        while (payload := await call.requests.read()) is not None:
            yield self._method.request_deserializer(payload)

    async def _send(self, call: StreamCall, response: Any) -> None:
        await call.responses.room()
        if self._status is None and self._server.process.alive:
            payload = self._method.response_serializer(response)
            call.tap_response(self._server.process, response, payload)
            if not call.lost_with_stream():
                call.responses.push(payload)
        # As a real write, it lets others run.
        await asyncio.sleep(0)

    def _end(self, status: Status, response: Any = None) -> None:
        if self._status is not None or not self._server.process.alive:
            return
        self._status = status
        if isinstance(self._call, UnaryCall):
            payload = None if response is None else self._method.response_serializer(response)
            self._call.reply(self._server.process, status, response, payload)
        elif isinstance(self._call, StreamCall):
            self._call.responses.finish(status)
