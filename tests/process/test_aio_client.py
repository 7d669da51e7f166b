"""The client on asyncio has behaviour of its own; the client on threads, which is generated from it, is in test_client_end_to_end.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import lowwater
import lowwater.aio
from lowwater import RangeState
from tests.kit.eventually import eventually_async
from tests.kit.times import at, mark
from tests.process.peer import Peer
from tests.process.serving import Serving


@pytest.fixture
async def lw(server: Serving) -> AsyncIterator[lowwater.aio.Client]:
    async with lowwater.aio.connect(server.address) as client:
        yield client


async def test_a_release_that_failed_or_was_cancelled_may_be_repeated(server: Serving) -> None:
    # Long enough for a channel to connect again, which it tries every second.
    async with lowwater.aio.connect(server.address, timeout=4.0) as lw:
        await lw.register("flights")
        lost, answered = [await lw.worker("flights").claim(start, end) for start, end in ((b"", b"m"), (b"m", b""))]
        server.kill()
        failed = await asyncio.gather(lost.release(), answered.release(), return_exceptions=True)
        # The second if it is sent before gRPC notices: it may have happened, so it is not repeated.
        assert all(isinstance(error, (lowwater.Timeout, lowwater.Unavailable)) for error in failed), failed
        for lease in (lost, answered):
            releasing = asyncio.create_task(lease.release())
            await asyncio.sleep(0)
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
        server.start()
        # As if the release had come through, and only its answer had not.
        Peer(server).release("flights", answered.sequencer)
        for lease in (lost, answered):
            await lease.release()
            with pytest.raises(lowwater.Closed, match="released"):
                await lease.release()
        assert {entry.state for entry in await lw.ranges("flights")} == {RangeState.UNOWNED}
        stale = await lw.worker("flights").claim()
        await lw.worker("flights").claim()
        for _ in range(2):
            with pytest.raises(lowwater.StaleSequencer):
                await stale.release()


async def test_what_is_cancelled_leaves_the_client_usable(server: Serving, lw: lowwater.aio.Client) -> None:
    await lw.register("flights")
    await lw.register("enriched", inputs=["flights"])
    flights, worker = await lw.worker("flights").claim(), lw.worker("enriched")
    enriched = await worker.claim(bounds=[b"", b"\x40", b"\x80", b""])
    inputs = await worker.inputs()
    changes = lw.watch("flights")
    await anext(changes)
    server.kill()
    # A reset that is sent before gRPC notices fails at once: it may have happened, so it is not repeated.
    await eventually_async(lambda: lw.statistics().watcher.stale_for > 1)
    flights.advance(None, oldest=None, frontier=at(14))
    enriched.advance(inputs, oldest=None)
    waits = [
        asyncio.ensure_future(call)
        for call in (
            flights.flush(),
            enriched.finish([0]),
            lw.wait("flights", at(14)),
            lw.get(),
            lw.reset("flights"),
            worker.claim(),
            lw.inputs("enriched").read(),  # not followed before, so nothing is known yet
        )
    ]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.gather(*waits)
    assert [wait.cancelled() for wait in waits] == [True] * len(waits)

    await asyncio.to_thread(server.start)
    await flights.flush(timeout=30)
    assert (await lw.wait("flights", at(14), timeout=30)).low == mark(14)
    assert (await anext(changes)).low == mark(14)
    await changes.aclose()
    await enriched.flush(timeout=30)
    assert [entry.state for entry in await lw.ranges("enriched")].count(RangeState.FINISHED) == 1
