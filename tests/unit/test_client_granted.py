"""What a claim takes from the older ones of the same worker, before they have said anything."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import lowwater
from lowwater import aio
from lowwater._async.runtime import Runtime as AioRuntime
from lowwater._async.worker import Worker as AioWorker
from lowwater._drive.tasks.runtimes import Runtimes as AioRuntimes
from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.lease import Lease
from lowwater._sync.reporter import Reporter
from lowwater._sync.runtime import Runtime
from lowwater._sync.worker import Worker as SyncWorker
from lowwater.core.claims import Claimant, Grant
from lowwater.core.columns import Column
from lowwater.core.cover import Cover
from lowwater.core.fold import Reading
from lowwater.core.lease import LeaseState
from lowwater.core.surroundings import REAL

KEYS = [bytes([number]) for number in range(12)]

BOUNDS = st.sets(st.sampled_from(KEYS), min_size=2, max_size=6).map(sorted) | st.sets(
    st.sampled_from(KEYS), min_size=1, max_size=6
).map(lambda chosen: [*sorted(chosen), b""])
"""Of claims; an empty last one means no upper bound."""


def grant(bounds: list[bytes], sequencer: int) -> Grant:
    count = len(bounds) - 1
    state = LeaseState("c", sequencer, Column(count, 0), reference=0)
    return Grant(state, tuple(bounds), lowwater.Watermarks([0] * count), Reading("c", (), 0, (), ()))


class Worker:
    """Leases over one reporter, which reports nothing."""

    def __init__(self) -> None:
        self.runtime = Runtime(lowwater.Settings("localhost:1"))
        self.leases: list[Lease] = []

    @property
    def reporter(self) -> Reporter:
        return self.runtime.reporter

    def claim(self, bounds: list[bytes], sequencer: int | None = None) -> Lease:
        granted = grant(bounds, sequencer or len(self.leases) + 1)
        lease = Lease(self.runtime, granted)
        self.reporter.reporting.add(granted.state)
        for older in self.leases:
            older.yield_to(lease)
        self.leases.append(lease)
        return lease

    @property
    def reported(self) -> int:
        return self.reporter.statistics().leases


def covered(bounds: tuple[bytes, ...], handle: int) -> set[bytes]:
    """The keys of a range, and one behind all."""
    start, end = bounds[handle], bounds[handle + 1]
    return {key for key in [*KEYS, b"\xff"] if start <= key and (not end or key < end)}


@given(claims=st.lists(BOUNDS, min_size=1, max_size=6))
def test_a_claim_takes_every_range_it_has_a_part_of(claims: list[list[bytes]]) -> None:
    worker = Worker()
    for bounds in claims:
        worker.claim(bounds)
    for number, lease in enumerate(worker.leases):
        later = worker.leases[number + 1 :]
        taken = set().union(*(covered(each.bounds, handle) for each in later for handle in range(len(each))))
        assert lease.lost == {handle for handle in range(len(lease)) if covered(lease.bounds, handle) & taken}
        assert lease.over == (len(lease.lost) == len(lease))
    assert worker.reported == sum(not lease.over for lease in worker.leases)


# -- claims at one moment -----------------------------------------------------------------------------------------

SETTINGS = lowwater.Settings("localhost:1")
CLAIMANT = Claimant.here(REAL, "c", None, "", 0, 0)


class Granting(Runtime):
    """A runtime whose claims are answered by what is put in."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        super().__init__(SETTINGS)
        self.grants = deque(grants)

    def call(self, call: Any, within: float = math.inf) -> Any:
        return self.grants.popleft()


class GrantingTasks(AioRuntime):
    """The same on asyncio."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        super().__init__(SETTINGS)
        self.grants = deque(grants)

    async def call(self, call: Any, within: float = math.inf) -> Any:
        return self.grants.popleft()


async def left(grants: list[Grant]) -> tuple[list[int], int]:
    """What each claim lost, in the order of their answers, and how many are reported."""
    runtime = GrantingTasks(grants)
    async with AioWorker(AioRuntimes(lambda: runtime), CLAIMANT, REAL) as worker:
        leases: list[aio.Lease] = [await worker.claim() for _ in grants]
        found = [len(lease.lost) for lease in leases], runtime.reporter.statistics().leases
    await runtime.close()
    return found


async def test_a_claim_that_was_answered_late_yields_to_a_newer_one() -> None:
    """What was answered in another order than it was granted in ends the same: the worker reports what it owns, once."""
    assert await left([grant([b"", b""], 11), grant([b"", b""], 10)]) == ([0, 1], 1)
    in_part = grant([b"", b"k", b"m", b""], 12)
    assert await left([grant([b"b", b"m"], 13), in_part, grant([b"", b""], 11)]) == ([0, 2, 1], 2)


NEWER, OLDER = Reading("c", ("a", "b"), 2, (0, 0), ()), Reading("c", ("a",), 1, (0,), ())


def test_a_claim_that_was_answered_late_leaves_the_inputs_of_a_newer_one() -> None:
    """The inputs were set in between: a fold of those before is refused, until somebody claims again."""
    newer, older = ((12, NEWER), (11, OLDER))
    runtime = Granting(
        dataclasses.replace(grant([b"", b""], sequencer), reading=reading) for sequencer, reading in (newer, older)
    )
    runtime.connection.settings = dataclasses.replace(SETTINGS, timeout=0.01)
    with SyncWorker(Runtimes(lambda: runtime), CLAIMANT, REAL) as worker:
        worker.claim()
        worker.claim()
        assert worker.inputs().input_version == NEWER.input_version
    runtime.close()


# -- many claims ---------------------------------------------------------------------------------------------------


@given(
    spans=st.lists(
        st.tuples(st.sampled_from([b"", *KEYS[1:]]), st.sampled_from([*KEYS[1:], b""]), st.booleans()), max_size=40
    )
)
def test_a_cover_meets_whatever_has_keys_in_common(spans: list[tuple[bytes, bytes, bool]]) -> None:
    over, there = set[int](), dict[int, tuple[bytes, bytes]]()
    cover = Cover[int](over.__contains__)
    for number, (start, end, ends) in enumerate(spans):
        if end and start >= end:
            continue
        met = cover.add(number, start, end)
        common = {each for each, (low, high) in there.items() if (not end or low < end) and (not high or start < high)}
        assert set(met) - over == common
        assert len(set(met)) == len(met)
        there[number] = start, end
        if ends:  # of itself, of which the cover hears nothing
            over.add(number)
            del there[number]
        elif met and number % 2:
            cover.remove(met[0])
            there.pop(met[0], None)
    assert set(cover) - over == set(there)
    for each in list(cover):
        cover.remove(each)
    assert (len(cover), cover._starts, cover._pieces) == (0, [b""], [()])
