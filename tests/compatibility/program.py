"""A pipeline's whole life through the public client, in one file, so that any release of the client can run it.

    python program.py sync|aio ADDRESS NAMESPACE

Half way it prints a JSON object and waits for a line, so that the server may be replaced meanwhile; at the end it prints
another. Both hold every low watermark that it saw, by computation, in order: within one life they never go back.
It uses only what release 0.1.0 has, and of the asyncio client what has the same name.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import lowwater
from lowwater import TaskAttempt, Watermark

BOUNDS = [b"", b"\x40", b"\x80", b""]
SECONDS = 30.0


def at(hour: int) -> datetime:
    return datetime(2013, 1, 9, hour, tzinfo=UTC)


async def done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def stream_of(stream: Any) -> AsyncGenerator[Any, None]:
    """The items of a stream of either client, whose iterator is closed at the end."""
    if hasattr(stream, "__aiter__"):
        try:
            async for item in stream:
                yield item
        finally:
            await stream.aclose()
    else:
        try:
            for item in stream:
                yield item
        finally:
            stream.close()


class Program:
    """flights -> enriched -> hourly: an injector, a worker with three key ranges, and a stage with micro-batches."""

    def __init__(self, lw: Any) -> None:
        self.lw = lw
        self.saw: dict[str, list[int]] = {"flights": [], "enriched": [], "hourly": []}

    async def look(self) -> dict[str, list[int]]:
        for name, view in (await done(self.lw.get(*self.saw))).items():
            self.saw[name].append(view.low.micros)
        return self.saw

    async def until(self, name: str, arrived: Callable[[Watermark], bool]) -> None:
        stream = stream_of(self.lw.watch(name))
        async for view in stream:
            self.saw[name].append(view.low.micros)
            if arrived(view.low):
                break
        await stream.aclose()

    async def batch(self, number: int, oldest: datetime | None) -> None:
        inputs = await done(self.hourly_worker.inputs())
        sequencer, task = self.hourly.sequencer, TaskAttempt(1, 0, number)
        await done(self.lw.stage_task("hourly", sequencer, number, task, handles=[0], oldest=[oldest], finished=5))
        missing = await done(
            self.lw.prepare_batch(
                "hourly",
                sequencer,
                number,
                digest=b"plan %d" % number,
                tasks=[task],
                bound=inputs.low,
                seen=inputs,
                covers_all=True,
            )
        )
        assert missing == (), missing
        for _ in range(2):
            assert await done(self.lw.commit_batch("hourly", sequencer, number)) == ()

    async def begin(self) -> None:
        lw = self.lw
        await done(lw.register("flights"))
        await done(lw.register("enriched", inputs=["flights"], heuristics=[0.5, 0.99]))
        await done(lw.register("hourly", inputs=["enriched"]))
        assert set((await done(lw.topology())).computations) >= {f"{lw.settings.namespace}/{name}" for name in self.saw}
        self.injector, self.worker = lw.worker("flights", name="injector"), lw.worker("enriched", name="exec-7")
        self.hourly_worker = lw.worker("hourly", identity="query", generation=3)
        self.flights = await done(self.injector.claim())
        self.enriched = await done(self.worker.claim(bounds=BOUNDS))
        self.hourly = await done(self.hourly_worker.claim())
        await self.look()

        self.flights.advance(None, oldest=None, frontier=at(14))
        assert (await done(lw.wait("flights", at(14), timeout=SECONDS))).low == Watermark.of(at(14))
        inputs = await done(self.worker.inputs())
        self.enriched.advance(inputs, oldest=[None, at(13), None], pending=[at(13)], finished=99)
        await done(self.enriched.flush())
        await self.until("enriched", lambda low: low == Watermark.of(at(13)))
        assert (await done(lw.get("enriched")))["enriched"].heuristic[0.5] == Watermark.of(at(14))
        completeness = await done(lw.complete("enriched", at(14)))
        assert (completeness.complete, completeness.holding, completeness.holders[0].start) == (False, 1, b"\x40")
        assert (await done(lw.complete("enriched", at(13)))).complete
        assert "owned by exec-7" in str(await done(lw.why("enriched")))
        assert len(await done(lw.ranges("enriched"))) == 3
        await self.batch(0, at(12))
        await done(lw.wait("hourly", at(12), timeout=SECONDS))
        await self.look()

    async def end(self) -> None:
        lw = self.lw
        await self.look()
        self.flights.advance(None, oldest=None, frontier=at(16))
        await done(self.flights.flush(SECONDS))
        await done(lw.wait("flights", at(16), timeout=SECONDS))
        self.enriched.advance(await done(self.worker.inputs()), oldest=None)
        await done(lw.wait("enriched", at(16), timeout=SECONDS))
        await self.batch(1, None)
        await done(lw.wait("hourly", at(16), timeout=SECONDS))
        await self.look()

        try:
            await done(lw.wait("flights", at(17), timeout=0.01))
        except lowwater.Timeout:
            pass
        else:
            raise AssertionError("nobody said that 17:00 is complete")
        second = await done(lw.worker("flights", name="second").claim())
        try:
            self.flights.advance(None, oldest=None, frontier=at(17))
            await done(self.flights.flush(SECONDS))
        except lowwater.StaleSequencer:
            pass
        else:
            raise AssertionError("a claim that was taken over still counts")
        await done(second.finish())
        await self.until("flights", lambda low: low.finished)
        self.enriched.advance(await done(self.worker.inputs()), oldest=None)
        await done(self.enriched.flush(SECONDS))
        await done(lw.wait("enriched", Watermark.FINISHED, timeout=SECONDS))
        await done(self.hourly.finish())
        await self.look()
        assert [lows[-1] for lows in self.saw.values()] == [Watermark.FINISHED.micros] * 3


async def main(kind: str, address: str, namespace: str) -> None:
    # It lets a claim be taken over, which the client rightly logs as a warning.
    logging.getLogger("lowwater").setLevel(logging.ERROR)
    module = lowwater if kind == "sync" else importlib.import_module("lowwater.aio")
    lw = module.connect(address, namespace=namespace, timeout=SECONDS)
    program = Program(lw)
    try:
        await program.begin()
        print(json.dumps(program.saw), flush=True)
        sys.stdin.readline()
        await program.end()
        print(json.dumps(program.saw), flush=True)
    finally:
        await done(lw.close())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
