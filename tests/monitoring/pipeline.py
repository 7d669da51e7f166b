"""A pipeline of plain Python workers, with everything in it that a panel or an alert wants to show."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Final, Self

import lowwater
from lowwater import errors
from tests.kit.times import HOUR

BEAT: Final = 0.2
"""Seconds between two steps of a worker."""

MIDDLE: Final = b"\x80"
"""Where the key space of enriched is cut: exec-1 has what is below, exec-7 what is above."""


def now() -> int:
    return time.time_ns() // 1000


def follow(worker: lowwater.Worker, lease: lowwater.Lease, oldest_of: Callable[[int], int | None]) -> None:
    """One step of a stage: what it holds follows from the low watermark of its inputs."""
    inputs = worker.inputs()
    low = inputs.low
    oldest = None if low.unknown or low.finished else oldest_of(low.micros)
    lease.advance(inputs, oldest=oldest, pending=[now() - 10**6] * 10, finished=10, oldest_operation=now() - 10**6)


class Pipeline:
    """flights -> enriched -> hourly on an authority, and beside them: an estimate, and some that are finished, idle or left without an owner.

    Each worker is a thread, but exec-7 is a process. What the authority must refuse is asked for again and again.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open = ExitStack()
        self.failures: list[BaseException] = []
        self.client = lowwater.connect(address)

    def __enter__(self) -> Self:
        lw = self._open.enter_context(self.client)
        lw.register("flights", lateness_budget=0.01)
        lw.register("enriched", inputs=["flights"])
        lw.register("hourly", inputs=["enriched"])
        lw.register("guess", estimated=True)
        for name in ("finished", "left", "idle", "crooked"):
            lw.register(name)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "tests.monitoring.pipeline", self._address], stdin=subprocess.PIPE, text=True
        )
        self._open.callback(self._end_child)
        finished = lw.worker("finished", name="exec-1").claim()
        finished.finish()
        idle = lw.worker("idle", name="exec-1").claim()
        idle.advance(None, oldest=now(), frontier=now())  # once: from then on the client alone repeats it
        abandoned = lw.worker("left", name="exec-1").claim()
        abandoned.advance(None, oldest=now(), frontier=now())
        abandoned.flush(30)
        abandoned.release()
        # Each second of flights is a task, and nobody takes one.
        lw.tasks("flights").create_group("close", every=timedelta(seconds=1), start=(now() // 10**6 - 10) * 10**6)
        source, guess = lw.worker("flights", name="source").claim(), lw.worker("guess", name="guess").claim()
        self._run(lambda: self._inject(source))
        self._run(lambda: guess.advance(None, oldest=None, frontier=now() - 10**7))
        enriched, hourly = lw.worker("enriched", name="exec-1"), lw.worker("hourly", name="exec-2")
        below, hours = enriched.claim(end=MIDDLE), hourly.claim()
        self._run(lambda: follow(enriched, below, lambda low: low - 10**6))
        self._run(lambda: follow(hourly, hours, lambda low: low // HOUR * HOUR))
        self._run(self._ask_for_refusals, 5 * BEAT)
        self._threads.append(threading.Thread(target=self._watch))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopping.set()
        self._open.close()  # the client, and with it who watches
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(30)

    def _end_child(self) -> None:
        self.child.kill()
        self.child.wait(30)
        assert self.child.stdin is not None
        self.child.stdin.close()

    def _run(self, step: Callable[[], None], beat: float = BEAT) -> None:
        def loop() -> None:
            try:
                while not self._stopping.wait(beat):
                    step()
            except errors.Closed:
                pass
            except Exception as error:  # noqa: BLE001 - the end of the test shows it
                self.failures.append(error)

        self._threads.append(threading.Thread(target=loop))

    def _inject(self, lease: lowwater.Lease) -> None:
        lease.advance(
            None,
            oldest=now() - 2 * 10**6,
            frontier=now() - 10**6,
            pending=[now() - 2 * 10**6] + [now() - 10**6] * 500,
            finished=[now() - 10**6] * 100,
            oldest_operation=now() - 2 * 10**6,
        )

    def _watch(self) -> None:
        with suppress(errors.Closed):
            for _ in self.client.watch():
                pass

    def _ask_for_refusals(self) -> None:
        """A claim of what is not registered, and reports from the year after next."""
        with suppress(errors.UnknownComputation):
            self.client.worker("nobody").claim()
        lease = self.client.worker("crooked", name="exec-3").claim()
        with suppress(errors.TooFarAhead):
            lease.advance(None, oldest=now() + 2 * 365 * 24 * HOUR, frontier=now() + 2 * 365 * 24 * HOUR)
            lease.flush(30)


def main(address: str) -> None:
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with lowwater.connect(address) as lw, lw.worker("enriched", name="exec-7") as worker:
        lease = worker.claim(start=MIDDLE)
        while not ended.wait(BEAT):
            follow(worker, lease, lambda low: low - 10**6)


if __name__ == "__main__":
    main(*sys.argv[1:])
