"""Cuts, deaths and silence: when each side of a connection learns what."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tests.simulation.kernel.echo import Echo, run


def test_a_cut_ends_calls_and_streams_on_both_sides_until_it_is_healed() -> None:
    async def world(echo: Echo) -> None:
        network = echo.sim.network
        waiting = echo.client.start(echo.ask, "Wait")
        await asyncio.sleep(1)
        network.cut(echo.client)
        assert await waiting == "UNAVAILABLE"
        await asyncio.sleep(0.1)
        assert (echo.running, echo.sim.now < 1.2) == (0, True)
        assert await echo.client.start(echo.ask, "Say") == "UNAVAILABLE"
        patient = echo.client.start(lambda: echo.ask("Say", waits=True))
        await asyncio.sleep(5)
        assert not patient.done()
        network.heal(echo.client)
        assert await patient == "OK"
        network.cut(echo.server)
        assert await echo.client.start(echo.ask, "Say") == "UNAVAILABLE"

    run(world)


@pytest.mark.parametrize("dies", ["server", "client"])
def test_the_peers_of_a_killed_process_learn_it_soon(dies: str) -> None:
    async def world(echo: Echo) -> None:
        waiting = echo.client.start(echo.ask, "Wait")
        await asyncio.sleep(1)
        echo.sim.process(dies).crash()
        if dies == "server":
            assert await waiting == "UNAVAILABLE"
        await asyncio.sleep(0.1)
        # A killed server's handler stays where it was.
        assert echo.running == (1 if dies == "server" else 0)

    run(world)


def test_a_call_to_a_frozen_server_ends_by_its_deadline_or_by_keepalive() -> None:
    async def world(echo: Echo) -> None:
        channel = echo.sim.network.channel(echo.client, "echo:1")
        say = channel.unary_unary("/sim.Echo/Say", request_serializer=bytes, response_deserializer=bytes)

        async def ask(seconds: float | None) -> grpc.StatusCode:
            call: Any = say(b"x", timeout=seconds)
            code: grpc.StatusCode = await call.code()
            return code

        assert await echo.client.start(ask, 1.0) is grpc.StatusCode.OK
        paused = echo.sim.now
        echo.server.pause()
        soon, never = echo.client.start(ask, 2.0), echo.client.start(ask, None)
        assert await soon is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await never is grpc.StatusCode.UNAVAILABLE
        assert 11 <= echo.sim.now - paused < 11.01
        # A new connection is not even answered.
        assert await echo.client.start(ask, None) is grpc.StatusCode.UNAVAILABLE
        assert 31 <= echo.sim.now - paused < 31.01
        patient = echo.client.start(lambda: echo.ask("Say", waits=True))
        await asyncio.sleep(1)
        echo.server.resume()
        assert await patient == "OK"

    assert run(world).sim.points["network: keepalive"] == 1


def test_a_frozen_server_that_comes_back_in_time_answers() -> None:
    async def world(echo: Echo) -> None:
        waiting = echo.client.start(echo.ask, "Wait")
        await asyncio.sleep(0.1)
        for _ in range(2):
            echo.server.pause()
            await asyncio.sleep(10)
            echo.server.resume()
            await asyncio.sleep(0.5)
        echo.release.set()
        assert await waiting == "OK"

    assert not run(world).sim.points["network: keepalive"]


def test_a_frozen_client_learns_what_happened_when_it_goes_on() -> None:
    async def world(echo: Echo) -> None:
        waiting = echo.client.start(echo.ask, "Wait")
        await asyncio.sleep(0.1)
        echo.client.pause()
        await asyncio.sleep(31)
        assert (echo.running, waiting.done()) == (0, False)
        echo.client.resume()
        assert await waiting == "UNAVAILABLE"

    run(world)


def test_a_closed_channel_cancels_its_calls() -> None:
    async def world(echo: Echo) -> None:
        async def program() -> None:
            channel = echo.sim.network.channel(echo.client, "echo:1")
            wait: Any = channel.unary_unary("/sim.Echo/Wait", request_serializer=bytes, response_deserializer=bytes)
            call = asyncio.ensure_future(wait(b"x"))
            await asyncio.sleep(1)
            await channel.close()
            with pytest.raises(asyncio.CancelledError):
                await call
            with pytest.raises(grpc.aio.UsageError, match="closed"):
                wait(b"x")

        await echo.client.start(program)
        await asyncio.sleep(0.1)
        assert echo.running == 0

    run(world)
