"""The subscribers of the benchmark ``fanout``: raw gRPC streams, with a command in each input line.

``python -m benchmarks.fanout_child ADDRESS METHOD REQUEST SUBSCRIBERS``; the request in hexadecimal
digits. ``begin`` forgets what came; ``until LOW`` waits until each subscriber holds a low watermark
and writes what came since to a file, whose path is the answer; ``count`` answers with how many
messages came.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from typing import Any, Final

import grpc
import numpy as np

from benchmarks.owner import OPTIONS
from lowwater.v1 import watermarks_pb2 as pb

PER_CONNECTION: Final = 100
"""Streams of one connection."""

OPENING: Final = 100
"""Streams that are opened at once; the authority lets in as many."""

LOOK: Final = 0.05
"""Seconds from one look at what all hold to the next, so that it is not in the figures."""


class Subscribers:
    """Subscribers of one process: the low watermarks that each stream got, and their times."""

    def __init__(self, channels: list[grpc.aio.Channel], method: str, request: bytes) -> None:
        self._channels = channels
        self._method = method
        self._request = request
        self._opening = asyncio.Semaphore(OPENING)
        self._opened = 0
        self._all_opened = asyncio.Event()
        self._got = asyncio.Event()
        """Something has come."""
        self.messages = 0
        self.came: list[list[tuple[int, float]]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, count: int) -> None:
        """Return when each stream has had its first message."""
        self._tasks = [asyncio.create_task(self._follow(i)) for i in range(count)]
        self.came = [[] for _ in range(count)]
        opened = asyncio.create_task(self._all_opened.wait())
        if count:
            await asyncio.wait([opened, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()
        opened.cancel()

    async def _follow(self, number: int) -> None:
        channel = self._channels[number % len(self._channels)]
        follow: Any = channel.unary_stream(self._method, response_deserializer=pb.WatchResponse.FromString)
        async with self._opening:
            call = follow(self._request)
            await call.read()
        self._opened += 1
        if self._opened == len(self._tasks):
            self._all_opened.set()
        while True:
            response = await call.read()
            now = time.perf_counter()
            self.messages += 1
            if response.watermarks:
                self.came[number].append((response.watermarks[0].low_micros, now))
                self._got.set()

    async def hold(self, low: int) -> None:
        """Return when each subscriber holds a low watermark."""
        while not all(messages and messages[-1][0] >= low for messages in self.came):
            self._got.clear()
            await self._got.wait()
            await asyncio.sleep(LOOK)

    def begin(self) -> None:
        """Forget what came."""
        for messages in self.came:
            messages.clear()
        self.messages = 0


def save(came: list[list[tuple[int, float]]]) -> str:
    """Write the received messages into a file, and return its name.

    Each row has the number of the subscriber, the low watermark and the nanosecond.
    """
    rows = [(number, low, round(1e9 * at)) for number, messages in enumerate(came) for low, at in messages]
    with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
        np.save(file, np.array(rows, dtype=np.int64).reshape(-1, 3))
    return file.name


async def main(address: str, method: str, request: bytes, count: int) -> None:
    """Obey."""
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(-(-count // PER_CONNECTION))]
    subscribers = Subscribers(channels, method, request)
    await subscribers.open(count)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, _, low = line.strip().partition(" ")
        answer = "begun"
        if word == "begin":
            subscribers.begin()
        elif word == "until":
            await subscribers.hold(int(low))
            answer = save(subscribers.came)
        else:
            answer = str(subscribers.messages)
        print(answer, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), int(sys.argv[4])))
