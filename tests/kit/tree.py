"""A computation that is cut into slices, its root and its slices in processes of their own over one store, and between them a way that a test bends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import numpy as np

from lowwater import errors
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.groups import GroupState, Mass
from lowwater_authority.core.requests import ClaimRequest, Grant, GroupReport, Refused
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.placement import Lows, Placement
from lowwater_authority.engine.root_here import Here, RangeHere
from lowwater_authority.engine.roots import Range, SliceClaim, SliceReport
from lowwater_authority.engine.settings import ShardSettings
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.slice import Slice
from tests.kit.memory_journal import MemoryDisk, MemoryJournal
from tests.kit.times import HOUR

ids = count(1)
numbers = count(1)
UNHURRIED = ShardSettings(slice_again_seconds=(0.0, 0.0), slice_answer_seconds=600.0)
"""No wait depends on the machine: a refused message is sent again at once, and an answer may take as long as it takes."""
TURNS = 5_000
"""Turns of the event loop after which something counts as never coming."""


class NeverCame(Exception):
    """The event that a test waits for did not come. This is no assertion, so that a test that is to fail does not pass by it."""


class Way:
    """The way of slices to their root, in another process: what goes there may be held, lost, or come once more."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.held: dict[str, asyncio.Event] = {}
        """An event for each kind of message that is held; messages go on when it is set."""
        self.lost: dict[str, str] = {}
        """The fate of each kind of message: lost on the way ``there`` or ``back``, or ``fails`` for an error that sending should never raise."""
        self.messages: list[tuple[str, Callable[[], Awaitable[object]]]] = []
        """All that was sent, oldest first, and how each may come once more."""
        self.closed = 0
        """Number of ranges that slices have closed."""

    def hold(self, kind: str) -> None:
        self.held[kind] = asyncio.Event()

    def let(self, kind: str) -> None:
        self.held.pop(kind).set()

    def sent(self, kind: str) -> list[Callable[[], Awaitable[object]]]:
        """Return how the messages of a kind may come once more, oldest first."""
        return [repeat for sent_kind, repeat in self.messages if sent_kind == kind]

    async def send(self, kind: str, message: Callable[[], Awaitable[object]]) -> object:
        self.messages.append((kind, message))
        if kind in self.held:
            await self.held[kind].wait()
        lost = self.lost.get(kind)
        if lost == "fails":
            raise ZeroDivisionError
        if lost == "there":
            msg = "it is lost on the way there"
            raise errors.Unavailable(msg)
        answer = await message()
        if lost == "back":
            msg = "the answer is lost"
            raise errors.Unavailable(msg)
        return answer

    async def claim(self, claim: SliceClaim) -> Range:

        async def claim_there() -> Range:
            shard = self.tree.owner(claim.root).shard
            return await Here(shard.served, shard.owners).claim(claim)

        range_ = await self.send("claim", claim_there)
        return Bent(self, range_)  # type: ignore[arg-type]

    async def epoch(self, root: str) -> int:
        return self.tree.owner(root).shard.served.epoch(root)


class Bent:
    """A range at the root, at the end of such a way."""

    def __init__(self, way: Way, actual: Range) -> None:
        self._way = way
        self._actual = actual
        self.incarnation, self.input_version, self.low = actual.incarnation, actual.input_version, actual.low
        self.span = actual.span
        self._reports = 0

    async def report(self, report: SliceReport, mass: Mass | None) -> None:
        self._reports += 1
        number = self._reports

        async def send() -> None:
            actual = self._routed()
            assert isinstance(actual, RangeHere)
            actual.number = number - 1  # also of one that comes once more
            await actual.report(report, mass)

        await self._way.send("say", send)

    def _routed(self) -> Range:
        """Return it as it is reached now: whoever serves the root knows of the claim."""
        actual = self._actual
        assert isinstance(actual, RangeHere)
        shard = self._way.tree.owner(actual.claim.root).shard
        actual.served, actual.owners = shard.served, shard.owners
        return actual

    async def vouch(self, report: SliceReport) -> None:
        await self._way.send("vouch", lambda: self._routed().vouch(report))

    async def retire(self) -> None:
        await self._way.send("retire", lambda: self._routed().retire())

    @property
    def lost(self) -> bool:
        """See Range: a lease learns it by what it is told, here at once."""
        try:
            return self._routed().lost
        except errors.Unavailable:
            return False

    def close(self) -> None:
        if self._way.lost.get("say") == "fails":
            raise ZeroDivisionError
        self._way.closed += 1
        self._actual.close()


class Some(Placement):
    """The placement of a process that serves some computations."""

    def __init__(self, tree: Tree, names: Callable[[str], bool]) -> None:
        self._tree = tree
        self.names = names

    def mine(self, name: str) -> bool:
        return self.names(name)

    async def lows(self, names: object) -> Lows:
        lows: Lows = {}
        for name in names:  # type: ignore[attr-defined]
            view = self._tree.owner(name).shard.served.view(name)
            assert view is not None
            lows[name] = view.incarnation, view.low
        return lows

    @property
    def above(self) -> Way:
        return self._tree.way


class One:
    def __init__(self, tree: Tree, address: str, names: Callable[[str], bool]) -> None:
        self.tree = tree
        self.placement = Some(tree, names)
        self.journal = MemoryJournal(tree.disk, shared=True)
        self.shard = Shard(
            self.journal, clock=lambda: tree.now, observer=Observer(), placement=self.placement, settings=tree.settings
        )
        self.shard.held.logs.address = address
        self.ended = False

    async def start(self) -> One:
        await self.shard.start()
        self.rounds = asyncio.create_task(self.shard.run())
        return self

    async def stop(self) -> None:
        """End at once: no task of the process goes on."""
        self.ended = True
        self.shard.slices.close()
        self.rounds.cancel()
        with contextlib.suppress(asyncio.CancelledError, errors.LowwaterError):
            await self.rounds

    async def claim(self, name: str, *keys: bytes, bound: int | None = None) -> Grant:
        bounds = list(keys) or list(self.shard.topology.get(name).keys.span)
        micros = [] if bound is None else [_micros(bound)]
        request = ClaimRequest(
            bounds, request_id=next(ids).to_bytes(16), bound_micros=np.array(micros, dtype=np.int64), worker="w"
        )
        return await self.shard.owners.claim(name, request)

    def report(
        self, name: str, grant: Grant, *hours: int, finish: bool = False
    ) -> asyncio.Future[list[tuple[str, Refused]]]:
        values = np.array([_micros(hour) for hour in hours], dtype=np.int64)
        report = GroupReport(grant.sequencer, values, finish=finish, fold=self.shard.topology.required(name))
        return self.shard.owners.report([(name, report)], sender=b"s" * 16, number=(1, next(numbers)))

    def slice(self, name: str) -> Slice:
        slice_ = self.shard.slices.of(name)
        assert slice_ is not None
        return slice_

    def look(self, *names: str) -> None:
        for name in names:
            self.slice(name)._news.set()


class Tree:
    """``a``, whose slices ``a~0`` and ``a~1`` lie below and from the key 0x80 on. The root has a process, the slices have one, and, with ``beside``, those that they are cut into later have one."""

    def __init__(self, disk: MemoryDisk, *, beside: bool = False) -> None:
        self.disk = disk
        self._beside = beside
        self.settings = UNHURRIED
        """The settings of processes that start from now on."""
        self.now = 1_000 * HOUR
        self.way = Way(self)
        self.all: list[One] = []

    async def start(self, **spec: object) -> Tree:
        self.top = await self.another("top:1", lambda name: "~" not in name)
        for name in spec.get("inputs", ()):  # type: ignore[attr-defined]
            await self.top.shard.graph.register(Spec(name))
        await self.top.shard.graph.register(Spec("a", **{"slicing": Cut((b"\x80",)), **spec}))  # type: ignore[arg-type]
        first = set(self.top.shard.topology.get("a").slice_specs())
        if not self._beside:
            self.below = self.beside = await self.another("below:1", lambda name: "~" in name)
            return self
        self.below = await self.another("below:1", lambda name: name in first)
        self.beside = await self.another("beside:1", lambda name: "~" in name and name not in first)
        return self

    async def another(self, address: str, names: Callable[[str], bool]) -> One:
        member = await One(self, address, names).start()
        self.all.append(member)
        return member

    async def fail_over(self, *, top: bool = False, which: str = "", **settings: object) -> One:
        """Let another process take over what the root's, or the slices', has served, with other settings; ``which``: top, below or beside."""
        self.settings = replace(self.settings, **settings)  # type: ignore[arg-type]
        which = which or ("top" if top else "below")
        old: One = getattr(self, which)
        await old.stop()
        new = await self.another(f"{which}:{len(self.all)}", old.placement.names)
        setattr(self, which, new)
        return new

    async def split(self, name: str, at: bytes) -> str:
        slice_ = await self.top.shard.graph.split("a", name, at)
        await self.hear()
        return slice_.name

    async def hear(self) -> None:
        """Let all processes read the graph and take what is theirs, as their beats do."""
        for member in (self.top, self.below, self.beside):
            if member.ended:
                continue
            await member.shard.confirmation.refresh()
            await member.shard.takeover.serve_those(member.shard.topology.computations)

    def owner(self, name: str) -> One:
        owners = [member for member in self.all if name in member.shard.served and not member.ended]
        if not owners:
            msg = f"nobody serves {name}"
            raise errors.Unavailable(msg)
        return owners[-1]

    @property
    def root(self) -> Computation:
        root = self.top.shard.held.computation("a")
        assert root is not None
        return root

    def stands(self, number: int) -> int:
        [[group, low, _]] = list(self.root.map.overlapping(*self._span(number)))
        return _hours(int(self.root.map.columns.values[group.base + low]))

    def state(self, number: int) -> GroupState:
        [[group, _, _]] = self.root.map.overlapping(*self._span(number))
        return group.state

    def _span(self, number: int) -> tuple[bytes, bytes]:
        return self.top.shard.topology.get(f"a~{number}").keys.span

    def low(self, name: str = "a") -> int:
        view = self.owner(name).shard.served.view(name)
        assert view is not None
        return _hours(view.low)

    async def both(self, *hours: int) -> tuple[Grant, Grant]:
        """Claim both slices as a whole, report, and wait until the root has heard of it."""
        grants = await self.below.claim("a~0"), await self.below.claim("a~1")
        for number, hour in enumerate(hours):
            assert await self.below.report(f"a~{number}", grants[number], hour) == []
        await until(lambda: [self.stands(number) for number in range(len(hours))] == list(hours))
        await rest()  # that is durable, too
        return grants

    async def stop(self) -> None:
        for kind in list(self.way.held):
            self.way.let(kind)
        for member in self.all:
            if not member.ended:
                await member.stop()


async def until(condition: Callable[[], object]) -> None:
    for _ in range(TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    msg = "what a test waits for has not come"
    raise NeverCame(msg)


async def rest() -> None:
    for _ in range(TURNS // 10):
        await asyncio.sleep(0)


def _micros(hour: int) -> int:
    return hour if hour in (MIN, MAX) else hour * HOUR


def _hours(micros: int) -> int:
    return micros if micros in (MIN, MAX) else micros // HOUR
