"""A computation that is cut into slices while workers of the library report to all of them, and what is true of it, told by those who report."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Final

import lowwater
from lowwater import errors
from lowwater._pb.lowwater.v1 import types_pb2
from tests.kit.eventually import eventually
from tests.kit.times import MAX, MIN, SECOND, at
from tests.process.observing import LIBRARY, RAW, Board, Floor, LibraryWatcher, RawWatcher, Stopping

ROOT: Final = "hourly"
KEYS: Final = (b"\x40", b"\x80", b"\xc0")
SLICES: Final = len(KEYS) + 1
INPUTS: Final = ("flights", "weather")
"""Of which the first is read from the beginning; both are far ahead."""

PATIENCE: Final = 60.0


class Held:
    """The most that the whole may say, by incarnation: workers say of each slice what it is about to stand at, and what it was acknowledged to stand at.

    The least of the slices is taken at every word, so a value is right when all slices stood at it, or above, at one time. ``parts``: how many intervals
    workers claim, where these are others than slices.
    """

    def __init__(self, parts: int = SLICES) -> None:
        self._lock = threading.Lock()
        self._stands: defaultdict[int, list[int]] = defaultdict(lambda: [MIN] * parts)
        self._most: defaultdict[int, int] = defaultdict(lambda: MIN)

    def say(self, incarnation: int, number: int, value: int, *, acknowledged: bool = False) -> None:
        """A slice may stand at a value from now on; once that is ``acknowledged``, it does."""
        with self._lock:
            stands = self._stands[incarnation]
            stands[number] = value if acknowledged else max(stands[number], value)
            self._most[incarnation] = max(self._most[incarnation], min(stands))

    def most(self, incarnation: int) -> int:
        """The most that may have been published."""
        with self._lock:
            return self._most[incarnation]

    def least(self, incarnation: int) -> int:
        """Where the slowest slice stands, when nothing is under way."""
        with self._lock:
            return min(self._stands[incarnation])


class Watched(Board):
    """What subscribers of the root were shown, against what its workers hold."""

    def __init__(self, held: Held) -> None:
        super().__init__({ROOT: ()}, {})
        self.dropped = False
        """Whether it was dropped at some time, so that subscribers may be told that it is not registered."""
        self._held = held

    def most(self, name: str) -> int:
        """See Board. What is held is asked by incarnation instead."""
        del name
        return MAX

    def take(self, by: str, floor: Floor, message: types_pb2.Watermark) -> Floor:
        """See Board."""
        return floor if self.dropped and not message.registered else super().take(by, floor, message)

    def see(self, by: str, name: str, floor: Floor, seen: Floor) -> Floor:
        """See Board."""
        most = self._held.most(seen.incarnation)
        if seen.low > most:
            self.wrong.append(f"{by}: {name} at {seen}, but its slices stood no higher than {most}")
        return super().see(by, name, floor, seen)


class Working(Stopping):
    """A worker of some slices, claimed by the name of the root: one report after the other, each acknowledged, now and then a step back."""

    def __init__(
        self, client: lowwater.Client, held: Held, spans: dict[int, tuple[bytes, bytes]], rng: random.Random
    ) -> None:
        super().__init__()
        self.worker = client.worker(ROOT, name=f"worker {min(spans)}")
        self.spans = spans
        self.leases: dict[int, lowwater.Lease] = {}
        self.values: dict[int, int] = {}
        self.stepping = threading.Lock()
        """Held while it reports."""
        self._held = held
        self._rng = rng

    def run(self) -> None:
        while not self.stopping.wait(0.005):
            try:
                with self.stepping:
                    self.step(self._rng.choice(list(self.spans)))
            except errors.LowwaterError:
                continue  # what is lost is claimed again, and what must come is waited for

    def step(self, number: int) -> None:
        """Report once of a slice, and wait until that is acknowledged."""
        lease = self.leases.get(number)
        if lease is None or lease.lost or not lease.live:
            lease = self._claim(number)
        seen = self.worker.inputs()
        value = max(self.values[number] + self._rng.choice([1, 2, 5, 10, -3]) * SECOND, START)
        assert seen.low.micros > value, "the inputs are far ahead"
        self._held.say(lease.incarnation, number, value)
        lease.advance(seen, oldest=value)
        lease.flush(PATIENCE)
        if not lease.lost:
            self.values[number] = value
            self._held.say(lease.incarnation, number, value, acknowledged=True)

    def _claim(self, number: int) -> lowwater.Lease:
        lease = self.leases[number] = self.worker.claim(*self.spans[number])
        stands = lease.watermarks[0].micros
        self._held.say(lease.incarnation, number, stands, acknowledged=True)
        self.values[number] = max(stands, START)
        return lease


START: Final = lowwater.Watermark.of(at(1)).micros


class Cut:
    """The computation, its inputs, its workers and its subscribers. Use it as a context manager; :meth:`check` in the end."""

    def __init__(
        self, addresses: Sequence[str], connect: Callable[[], lowwater.Client], keys: Sequence[bytes] = KEYS
    ) -> None:
        """``keys``: where the intervals begin that workers claim, but the first."""
        self._addresses = addresses
        self._connect = connect
        self._stack = ExitStack()
        self._spans = list(pairwise((b"", *keys, b"")))
        self.held = Held(len(self._spans))
        self.board = Watched(self.held)
        self.lw = self._stack.enter_context(connect())
        self.working: list[Working] = []
        self._running: list[Stopping] = []

    def __enter__(self) -> Cut:
        for name in INPUTS:
            self.lw.register(name)
            self.lw.worker(name).claim().advance(None, oldest=None, frontier=at(23))
            self.lw.wait(name, until=at(23), timeout=PATIENCE)
        self.register()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def register(self) -> None:
        """Register the computation as it is cut."""
        self.lw.register(ROOT, inputs=INPUTS[:1], slices=KEYS)

    def begin(self, workers: int = 2) -> None:
        """Let workers and subscribers begin, and wait until all are heard of."""
        for number in range(workers):
            client = self._stack.enter_context(self._connect())
            spans = dict(list(enumerate(self._spans))[number::workers])
            self.working.append(Working(client, self.held, spans, random.Random(number)))
        watchers = [RawWatcher(self.board, ROOT, self._addresses), LibraryWatcher(self.board, [ROOT], self._connect())]
        self._running = [*watchers, *self.working]
        for each in self._running:
            each.start()
            self._stack.callback(each.stop)
        self.goes_on()

    def goes_on(self) -> None:
        """Wait until each subscriber holds a value that is above all that was seen so far; of a newer incarnation, any."""
        floors = self.board.clear()
        before = floors[ROOT]
        assert self.board.wait_for(
            lambda sights: all(
                any(each.by == by and each.low > before.low for each in sights) for by in (RAW, LIBRARY)
            ),
            3 * PATIENCE,
        ), f"nothing above {before}; the slices: {self.lows()}"

    def lives_on(self, incarnation: int) -> None:
        """Wait until subscribers see something that is known, of an incarnation."""
        eventually(lambda: (known := self.board.floor(ROOT)).incarnation == incarnation and known.low > MIN)

    def lows(self) -> dict[str, int]:
        """How far the slices are, each by itself."""
        names = [each.name for each in self.lw.slices(ROOT)]
        return {name: view.low.micros for name, view in self.lw.get(*names).items()}

    def check(self) -> None:
        """Stop the workers, and see that the whole comes to the least of its slices, and that nothing was wrong before."""
        for each in self.working:
            each.stop()
        incarnation = self.lw.get(ROOT)[ROOT].incarnation
        # What a slice has published does not go back when its ranges do, and it may have been all that held the whole up since.
        eventually(lambda: self.held.least(incarnation) <= self.lw.get(ROOT)[ROOT].low.micros, seen=self.lows)
        assert not (failed := [each.failure for each in self._running if each.failure is not None]), failed
        assert not self.board.wrong, self.board.wrong[:10]
