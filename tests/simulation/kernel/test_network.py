"""What the simulated network does to messages, streams and connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.simulation.kernel import Tap
from tests.simulation.kernel.calls import LOST_SECONDS, SWAP_SECONDS
from tests.simulation.kernel.echo import Echo, run
from tests.simulation.kernel.pipe import WINDOW

# -- unary -----------------------------------------------------------------------------------------------------------


def test_a_call_is_answered_and_both_messages_are_tapped_when_they_are_sent() -> None:
    taps: list[Tap] = []

    async def world(echo: Echo) -> None:
        echo.sim.network.taps.append(taps.append)
        assert await echo.client.start(echo.ask, "Say", b"x") == "OK"
        assert echo.said == echo.got == [b"x"]
        assert echo.sim.now < 0.01

    echo = run(world)
    assert [(tap.process, tap.peer, tap.method, tap.direction, tap.message) for tap in taps] == [
        (echo.client, echo.server, "/sim.Echo/Say", "request", b"x"),
        (echo.server, echo.client, "/sim.Echo/Say", "response", b"x"),
    ]
    assert 0 < taps[0].at < taps[1].at < echo.sim.now
    assert not echo.sim.errors


def test_what_a_tap_raises_ends_the_simulation() -> None:
    def look(tap: Tap) -> None:
        raise AssertionError(tap.method)

    async def world(echo: Echo) -> None:
        echo.sim.network.taps.append(look)
        await echo.client.start(echo.ask, "Say")

    with pytest.raises(AssertionError, match="Echo"):
        run(world)


def test_a_handler_that_fails_is_an_error_of_the_simulation() -> None:
    async def world(echo: Echo) -> None:
        assert await echo.client.start(echo.ask, "Fail", b"x") == "UNKNOWN"

    [(_, where, error)] = run(world).sim.errors
    assert where == "/sim.Echo/Fail in server#1"
    assert isinstance(error, KeyError)


def test_an_unknown_method_is_not_implemented() -> None:
    async def world(echo: Echo) -> None:
        assert await echo.client.start(echo.ask, "Nothing") == "UNIMPLEMENTED"

    assert not run(world).sim.errors


def test_nobody_listens() -> None:
    async def world(echo: Echo) -> None:
        assert await echo.client.start(echo.ask, "Say") == "UNAVAILABLE"
        assert echo.sim.now < 0.01
        assert await echo.client.start(echo.ask, "Say", b"", 5.0) == "UNAVAILABLE"
        late = echo.client.start(lambda: echo.ask("Say", b"late", 5.0, waits=True))
        patient = echo.client.start(lambda: echo.ask("Say", b"patient", waits=True))
        assert await late == "DEADLINE_EXCEEDED"
        assert 5 <= echo.sim.now < 5.02
        echo.server.start(echo.serve, echo.server)
        assert await patient == "OK"
        assert echo.got == [b"patient"]

    run(world, started=False)


def test_a_deadline_ends_the_handler_as_well() -> None:
    async def world(echo: Echo) -> None:
        assert await echo.client.start(echo.ask, "Wait", b"x", 3.0) == "DEADLINE_EXCEEDED"
        assert (echo.sim.now, echo.running) == (3.0, 1)
        await asyncio.sleep(0.1)
        assert echo.running == 0

    run(world)


def test_cancelling_who_waits_cancels_the_handler() -> None:
    async def world(echo: Echo) -> None:
        waiting = echo.client.start(echo.ask, "Wait")
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0.1)
        assert echo.running == 0

    run(world)


def test_a_lost_request_and_a_lost_response_look_the_same() -> None:
    async def world(echo: Echo) -> None:
        weather = echo.sim.network.weather
        for point, got in (("p_lose_request", []), ("p_lose_response", [b"x"])):
            setattr(weather, point, 1.0)
            assert await echo.client.start(echo.ask, "Say", b"x", 2.0) == "DEADLINE_EXCEEDED"
            assert echo.got == got
            setattr(weather, point, 0.0)

    assert run(world).sim.points == {"network: lost request": 1, "network: lost response": 1}


def test_a_repeated_request_arrives_again_later() -> None:
    async def world(echo: Echo) -> None:
        echo.sim.network.weather.p_repeat_request = 1.0
        echo.sim.network.weather.slow = (2.0, 2.0)
        assert await echo.client.start(echo.ask, "Say", b"x") == "OK"
        assert echo.got == [b"x"]
        await asyncio.sleep(3)
        assert echo.got == [b"x", b"x"]
        assert echo.said == [b"x"]

    run(world)


def test_a_late_request_arrives_long_after_its_connection_broke() -> None:
    arrived: list[bytes] = []

    async def world(echo: Echo) -> None:
        echo.sim.network.weather.p_late = 1.0
        echo.sim.network.weather.late = (20.0, 20.0)
        echo.sim.network.late_taps.append(arrived.append)
        assert await echo.client.start(echo.ask, "Say", b"old") == "UNAVAILABLE"
        echo.sim.network.weather.p_late = 0.0
        assert echo.sim.now < 1
        assert await echo.client.start(echo.ask, "Say", b"new") == "OK"
        await asyncio.sleep(25)
        assert (echo.got, echo.said, arrived) == ([b"new", b"old"], [b"new"], [b"old"])

    run(world)


def test_a_link_may_be_down_behind_a_late_request_and_recovers() -> None:
    async def world(echo: Echo) -> None:
        echo.sim.network.weather.late = (20.0, 20.0)
        answers = set[str]()
        for _ in range(8):
            echo.sim.network.weather.p_late = 1.0
            await echo.client.start(echo.ask, "Say", b"late")
            echo.sim.network.weather.p_late = 0.0
            answers.add(await echo.client.start(echo.ask, "Say", b"next"))
            await asyncio.sleep(5)
            assert await echo.client.start(echo.ask, "Say", b"behind it") == "OK"
        assert answers == {"OK", "UNAVAILABLE"}

    run(world)


def test_a_late_request_arrives_over_a_link_that_went_down_again() -> None:
    async def world(echo: Echo) -> None:
        echo.sim.network.weather.late = (20.0, 20.0)
        echo.sim.network.weather.p_late = 1.0
        for _ in range(8):
            await echo.client.start(echo.ask, "Say", b"late")
            await asyncio.sleep(19.9)
            await echo.client.start(echo.ask, "Say", b"breaks the link")
            await asyncio.sleep(25)
        assert echo.got == [b"late", b"breaks the link"] * 8

    run(world)


def test_a_late_message_of_a_stream_arrives_while_its_client_talks_on_another() -> None:
    async def world(echo: Echo) -> None:
        echo.sim.network.weather.late = (20.0, 20.0)
        echo.sim.network.weather.p_late = 1.0
        assert await echo.client.start(echo.talk, b"old") == "UNAVAILABLE"
        echo.sim.network.weather.p_late = 0.0
        assert await echo.client.start(echo.talk, b"new") == "OK"
        await asyncio.sleep(25)
        assert echo.got == [b"new", b"old"]

    run(world)


def test_a_delayed_request_arrives_although_its_client_died() -> None:
    async def world(echo: Echo) -> None:
        echo.sim.network.weather.delay = (1.0, 1.0)
        echo.client.start(echo.ask, "Say", b"zombie")
        await asyncio.sleep(1.5)
        echo.client.crash()
        await asyncio.sleep(1)
        assert echo.got == [b"zombie"]

    run(world)


# -- streams ---------------------------------------------------------------------------------------------------------


def test_streams_are_ordered_whatever_the_delays() -> None:
    messages = [b"%d" % number for number in range(100)]

    async def world(echo: Echo) -> None:
        echo.sim.network.weather.p_slow = 0.5
        assert await echo.client.start(echo.talk, *messages) == "OK"
        assert echo.got == echo.said == messages
        echo.said.clear()
        assert await echo.client.start(echo.listen, 100) == "OK"
        assert echo.said == messages

    run(world)


def test_a_frozen_reader_backs_the_server_up() -> None:
    async def world(echo: Echo) -> None:
        listening = echo.client.start(echo.listen, 1000)
        await asyncio.sleep(0.004)
        echo.client.pause()
        await asyncio.sleep(5)
        assert len(echo.said) < 100
        assert echo.counted <= len(echo.said) + WINDOW + 1
        echo.client.resume()
        assert await listening == "OK"
        assert len(echo.said) == 1000

    assert run(world).sim.points["network: a full stream"]


def test_a_frozen_server_backs_the_client_up() -> None:
    asked = 0

    async def requests() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(1000):
            asked += 1
            yield b"x"

    async def world(echo: Echo) -> None:
        talking = echo.client.start(lambda: echo.take(echo.stub("Report")(requests())))
        await asyncio.sleep(0.005)
        echo.server.pause()
        await asyncio.sleep(5)
        assert asked <= len(echo.got) + WINDOW + 1
        echo.server.resume()
        assert await talking == "OK"
        assert len(echo.got) == len(echo.said) == 1000

    run(world)


def test_a_broken_stream_ends_on_both_sides() -> None:
    async def world(echo: Echo) -> None:
        echo.sim.network.weather.p_break = 0.01
        assert await echo.client.start(echo.listen, 1000) == "UNAVAILABLE"
        await asyncio.sleep(0.1)
        assert echo.running == 0
        assert echo.said == [b"%d" % number for number in range(len(echo.said))]

    run(world)


@pytest.mark.parametrize(
    ("point", "got"),
    [("p_report_lost", [b"open"]), ("p_report_doubled", [b"open", b"1", b"1", b"2", b"2", b"3", b"3"])],
)
def test_reports_are_lost_and_doubled_but_not_the_first_message(point: str, got: list[bytes]) -> None:
    async def world(echo: Echo) -> None:
        setattr(echo.sim.network.weather, point, 1.0)
        assert await echo.client.start(echo.talk, b"open", b"1", b"2", b"3") == "OK"
        assert echo.got == got

    run(world)


def test_a_stream_that_lost_a_report_breaks_in_the_end() -> None:
    async def world(echo: Echo) -> None:
        async def requests() -> AsyncIterator[bytes]:
            for message in (b"open", b"lost", b"found"):
                echo.sim.network.weather.p_report_lost = float(message == b"lost")
                yield message
            await asyncio.Event().wait()

        assert await echo.client.start(lambda: echo.take(echo.stub("Report")(requests()))) == "UNAVAILABLE"
        assert echo.got == echo.said == [b"open", b"found"]
        assert LOST_SECONDS < echo.sim.now < LOST_SECONDS + 0.1

    run(world)


def test_a_swapped_report_arrives_behind_the_next_or_late() -> None:
    async def world(echo: Echo) -> None:
        weather = echo.sim.network.weather
        queue: asyncio.Queue[bytes] = asyncio.Queue()

        async def requests() -> AsyncIterator[bytes]:
            while True:
                yield await queue.get()

        echo.client.start(lambda: echo.take(echo.stub("Report")(requests())))
        for message, swapped in ((b"open", 0), (b"1", 1), (b"2", 0), (b"3", 1)):
            weather.p_report_swapped = swapped
            queue.put_nowait(message)
            await asyncio.sleep(0.05)
        assert echo.got == [b"open", b"2", b"1"]
        await asyncio.sleep(SWAP_SECONDS)
        assert echo.got == [b"open", b"2", b"1", b"3"]

    run(world)


def test_a_cancelled_stream_ends_its_handler_and_its_requests() -> None:
    ended = []

    async def requests() -> AsyncIterator[bytes]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def world(echo: Echo) -> None:
        async def call() -> None:
            stream = echo.stub("Report")(requests())
            assert await stream.read() == b"x"
            assert stream.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stream.read()
            assert (await stream.code(), await stream.trailing_metadata()) == (grpc.StatusCode.CANCELLED, ())

        await echo.client.start(call)
        await asyncio.sleep(0.1)
        assert ended == [True]

    run(world)
