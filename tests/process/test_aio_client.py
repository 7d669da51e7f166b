"""What the client on asyncio does by itself; the client on threads, which is generated from it, is in test_client_end_to_end.py."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta

import pytest

import lowwater
import lowwater.aio
from lowwater import RangeState, Watermark
from tests.kit.eventually import eventually_async
from tests.kit.times import at, mark
from tests.process.peer import Peer
from tests.process.scripted_shards import Deployment, Shard
from tests.process.serving import Serving

BOUNDS = [b"", b"\x40", b"\x80", b""]


async def inputs_at(worker: lowwater.aio.Worker, low: Watermark) -> lowwater.Inputs:
    """Wait until a worker's inputs have come to a time."""
    seen = await worker.inputs()

    async def come() -> bool:
        nonlocal seen
        seen = await worker.inputs()
        return seen.low >= low

    await eventually_async(come, f"inputs at {low}", seen=lambda: seen)
    return seen


@pytest.fixture
async def lw(server: Serving) -> AsyncIterator[lowwater.aio.Client]:
    async with lowwater.aio.connect(server.address) as client:
        yield client


async def pipeline(lw: lowwater.aio.Client) -> tuple[lowwater.aio.Lease, lowwater.aio.Worker, lowwater.aio.Lease]:
    """Register flights -> enriched, each with one worker."""
    await lw.register("flights")
    await lw.register("enriched", inputs=["flights"], heuristics=[0.5, 0.99])
    flights = await lw.worker("flights", name="injector").claim()
    worker = lw.worker("enriched", name="exec-7")
    return flights, worker, await worker.claim(bounds=BOUNDS)


async def test_a_pipeline_from_registration_to_its_end(lw: lowwater.aio.Client) -> None:
    flights, worker, enriched = await pipeline(lw)
    assert (await lw.register("flights")).incarnation == 1
    assert (await lw.topology()).computations["enriched"].input_incarnations == (1,)
    assert list(enriched.watermarks) == [Watermark.UNKNOWN] * 3
    assert (await worker.inputs()).low.unknown

    flights.advance(None, oldest=None, frontier=at(14))
    assert (await lw.wait("flights", at(14), timeout=30)).low == mark(14)
    seen = await inputs_at(worker, mark(14))
    assert seen.held_by == f"flights all keys, owned by injector on {worker.host}"
    enriched.advance(seen, oldest=[None, at(13), None], pending=[at(13)], finished=99)
    await enriched.flush()

    view = (await lw.get("enriched"))["enriched"]
    assert (view.low, view.heuristic[0.5]) == (mark(13), mark(14))
    found = await lw.complete("enriched", at(14))
    assert (bool(found), found.holding, found.holders[0].start) == (False, 1, b"\x40")
    why = await lw.why("enriched")
    assert [hop.computation for hop in why] == ["enriched"]
    assert "held by [0x40, 0x80) at 2013-01-09T13:00:00Z, owned by exec-7" in str(why)
    assert [each.watermark for each in await lw.ranges("enriched")] == [mark(13), mark(14), mark(14)]
    assert (await lw.ranges("enriched", below=at(14))).total == 1
    assert (await lw.history("flights")).completions[-1].through == mark(14)
    with pytest.raises(lowwater.UnknownComputation, match="spelling"):
        await lw.why("enrched")

    enriched.advance(seen, oldest={1: None})
    assert (await lw.wait("enriched", at(14), timeout=30)).low == mark(14)
    with pytest.raises(lowwater.Timeout, match="did not reach finished"):
        await lw.wait("enriched", Watermark.FINISHED, timeout=0.05)
    await flights.finish()
    enriched.advance(await inputs_at(worker, Watermark.FINISHED), oldest=None)
    assert (await lw.wait("enriched", Watermark.FINISHED, timeout=30)).low.finished
    assert str(await lw.why("enriched")) == "enriched is finished: nothing will ever come."
    with pytest.raises(lowwater.Closed, match="finished"):
        flights.advance(None, oldest=None, frontier=at(15))
    assert lw.statistics().reporter.refused == 0


async def test_intervals_come_as_they_close(lw: lowwater.aio.Client) -> None:
    flights, _, _ = await pipeline(lw)
    missing = await lw.interval("enriched", at(10), at(11))
    assert [gap.computation for gap in missing.gaps] == ["enriched", "flights"]
    async with aclosing(lw.intervals("flights", timedelta(hours=1), at(10))) as intervals, asyncio.timeout(60):
        for hour in (11, 12):
            flights.advance(None, oldest=None, frontier=at(hour))
            assert (await anext(intervals)).end == mark(hour)
        assert await lw.interval("flights", at(10), at(12))
        waiting = asyncio.ensure_future(anext(intervals))
        await lw.reset("flights")
        with pytest.raises(lowwater.IncarnationChanged, match="incarnation 2 began"):
            await waiting


async def test_a_watch_ends_when_its_reader_or_client_is_closed(server: Serving) -> None:
    lw = lowwater.aio.connect(server.address)
    await lw.register("flights")
    reader = lw.inputs("flights")
    seen: asyncio.Queue[object] = asyncio.Queue()

    async def follow(iterator: AsyncIterator[object]) -> None:
        async for each in iterator:
            seen.put_nowait(each)

    of_reader = asyncio.create_task(follow(reader.watch()))
    of_client = asyncio.create_task(follow(lw.watch("flights")))
    for _ in range(2):
        await seen.get()
    reader.close()
    await of_reader
    await lw.close()
    await of_client
    assert seen.empty()


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
        assert {each.state for each in await lw.ranges("flights")} == {RangeState.UNOWNED}
        stale = await lw.worker("flights").claim()
        await lw.worker("flights").claim()
        for _ in range(2):
            with pytest.raises(lowwater.StaleSequencer):
                await stale.release()


async def test_a_claim_whose_worker_is_closed_meanwhile_is_not_reported(
    server: Serving, lw: lowwater.aio.Client
) -> None:
    await lw.register("flights")
    worker = lw.worker("flights")
    server.signal(signal.SIGSTOP)
    claiming = asyncio.create_task(worker.claim())
    await asyncio.sleep(0)
    await worker.close()
    server.signal(signal.SIGCONT)
    with pytest.raises(lowwater.Closed, match="the worker is closed"):
        await claiming
    assert lw.statistics().reporter.leases == 0


async def test_leaving_waits_for_all_workers_together(server: Serving, lw: lowwater.aio.Client) -> None:
    async with lowwater.aio.connect(server.address) as leaving:
        leases = []
        for name in ("a", "b", "c"):
            await lw.register(name)
            leases.append(await leaving.worker(name).claim())
        server.kill()
        for lease in leases:
            lease.advance(None, oldest=None, frontier=at(14))
        async with asyncio.timeout(12.0):  # one after the other, they would take 15 s
            await leaving.close()


async def test_what_is_cancelled_leaves_the_client_usable(server: Serving, lw: lowwater.aio.Client) -> None:
    flights, worker, enriched = await pipeline(lw)
    seen = await worker.inputs()
    changes = lw.watch("flights")
    await anext(changes)
    server.kill()
    # A reset that is sent before gRPC notices fails at once: it may have happened, so it is not repeated.
    await eventually_async(lambda: lw.statistics().watcher.stale_for > 1)
    flights.advance(None, oldest=None, frontier=at(14))
    enriched.advance(seen, oldest=None)
    waits = [
        asyncio.ensure_future(each)
        for each in (
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
    assert [each.cancelled() for each in waits] == [True] * len(waits)

    await asyncio.to_thread(server.start)
    await flights.flush(timeout=30)
    assert (await lw.wait("flights", at(14), timeout=30)).low == mark(14)
    assert (await anext(changes)).low == mark(14)
    await changes.aclose()
    await enriched.flush(timeout=30)
    assert [each.state for each in await lw.ranges("enriched")].count(RangeState.FINISHED) == 1


async def test_many_tasks_share_one_client(lw: lowwater.aio.Client) -> None:
    await lw.register("sum", inputs=[f"part-{i}" for i in range(8)])

    async def part(i: int) -> None:
        await lw.register(f"part-{i}")
        async with lw.worker(f"part-{i}") as worker:
            lease = await worker.claim()
            for minute in range(30):
                lease.advance(None, oldest=None, frontier=at(12, minute))
                await lease.flush()
            await lease.finish()

    async def follow() -> list[Watermark]:
        async with lw.worker("sum") as worker:
            lease = await worker.claim()
            lows = []
            async with lw.inputs(*(f"part-{i}" for i in range(8))) as parts, aclosing(parts.watch()) as folds:
                async for fold in folds:
                    lows.append(fold.low)
                    if fold.finished:
                        break
            lease.advance(await inputs_at(worker, Watermark.FINISHED), oldest=None)
            await lease.flush()
            return lows

    following = asyncio.create_task(follow())
    async with asyncio.timeout(120):
        await asyncio.gather(*(part(i) for i in range(8)))
        lows = await following
    assert lows == sorted(lows)
    assert (await lw.get("sum"))["sum"].low.finished
    statistics = lw.statistics()
    assert (statistics.reporter.leases, statistics.reporter.streams) == (0, 1)


async def test_it_finds_and_follows_computations_over_shards() -> None:
    deployment = Deployment("a", "b")
    shards = Shard.start(deployment), Shard.start(deployment)
    for name, shard in zip("ab", shards, strict=True):
        deployment.give(name, shard)
        deployment.publish(name, 1)
    try:
        async with lowwater.aio.connect(shards[0].address, timeout=20.0) as lw, asyncio.timeout(60):
            assert {name: view.low.micros for name, view in (await lw.get()).items()} == {"a": 1, "b": 1}
            lease = await lw.worker("b").claim()
            async with lw.inputs("a", "b") as both:
                assert (await both.read()).low.micros == 1
                shards[1].kill()
                deployment.give("b", shards[0])
                for name in "ab":
                    deployment.publish(name, 5)
                assert (await lw.wait("b", 5, timeout=20)).epoch == 3
                assert (await both.read()).low.micros == 5
            lease.advance(None, oldest=None, frontier=7)
            await lease.flush()
            assert deployment.taken["b"][-1] == (shards[0].address, 7)
    finally:
        for shard in shards:
            shard.kill()
