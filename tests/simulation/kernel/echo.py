"""A service of plain bytes for the kernel's own tests: what the network does to single messages shows at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc

from tests.simulation.kernel import Process, Simulation

ADDRESS = "echo:1"


def identity(payload: bytes) -> bytes:
    return payload


class Echo:
    """Server and client in two processes of a simulation."""

    def __init__(self) -> None:
        self.sim = Simulation(1)
        self.server, self.client = self.sim.process("server"), self.sim.process("client")
        self.got: list[bytes] = []
        """What the handlers got."""
        self.said: list[bytes] = []
        """What the client got."""
        self.counted = 0
        """How many responses Count was asked for."""
        self.running = 0
        """Handlers at work."""
        self.release = asyncio.Event()
        """Lets Wait answer."""

    async def serve(self, process: Process) -> None:
        server = self.sim.network.server(process, ADDRESS)
        handlers: dict[str, Any] = {
            name: make(function, request_deserializer=identity, response_serializer=identity)
            for name, function, make in (
                ("Say", self._say, grpc.unary_unary_rpc_method_handler),
                ("Wait", self._wait, grpc.unary_unary_rpc_method_handler),
                ("Fail", self._fail, grpc.unary_unary_rpc_method_handler),
                ("Count", self._count, grpc.unary_stream_rpc_method_handler),
                ("Report", self._report, grpc.stream_stream_rpc_method_handler),
            )
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("sim.Echo", handlers),))
        await server.start()
        await asyncio.Event().wait()

    async def _say(self, request: bytes, _: Any) -> bytes:
        self.got.append(request)
        return request

    async def _wait(self, request: bytes, _: Any) -> bytes:
        self.running += 1
        try:
            await self.release.wait()
            return request
        finally:
            self.running -= 1

    async def _fail(self, request: bytes, _: Any) -> bytes:
        raise KeyError(request)

    async def _count(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        self.running += 1
        try:
            for number in range(int(request)):
                self.counted += 1
                yield b"%d" % number
        finally:
            self.running -= 1

    async def _report(self, requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            self.got.append(request)
            yield request

    # -- the client ------------------------------------------------------------------------------------------------

    def stub(self, name: str) -> Callable[..., Any]:
        """A method on a channel of its own. Call it in the client's process."""
        channel = self.sim.network.channel(self.client, ADDRESS)
        kind: Any = {"Count": channel.unary_stream, "Report": channel.stream_stream}.get(name, channel.unary_unary)
        method: Callable[..., Any] = kind(
            f"/sim.Echo/{name}", request_serializer=identity, response_deserializer=identity
        )
        return method

    async def ask(self, name: str, request: bytes = b"", seconds: float | None = None, *, waits: bool = False) -> str:
        """Make a unary call, and return how it ended."""
        try:
            self.said.append(await self.stub(name)(request, timeout=seconds, wait_for_ready=waits))
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    async def listen(self, number: int) -> str:
        """Take so many numbers of a Count, and return how it ended."""
        return await self.take(self.stub("Count")(b"%d" % number))

    async def talk(self, *messages: bytes) -> str:
        """Send messages on a Report stream, and return how it ended."""

        async def requests() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        return await self.take(self.stub("Report")(requests()))

    async def take(self, call: Any) -> str:
        """Take all responses of a call."""
        try:
            async for response in call:
                self.said.append(response)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    def start(self) -> None:
        """Start the server, and a client that only lives."""
        self.server.start(self.serve, self.server)
        self.client.start(asyncio.Event().wait)


def run(world: Callable[[Echo], Coroutine[Any, Any, None]], *, started: bool = True) -> Echo:
    """Run a world over an echo."""
    echo = Echo()

    async def main() -> None:
        if started:
            echo.start()
            await asyncio.sleep(0)
        else:
            echo.client.start(asyncio.Event().wait)
        await world(echo)

    echo.sim.run(main(), 1_000)
    return echo
