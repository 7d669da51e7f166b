"""Views of the shards, and what a shard proposes."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import sqrt
from random import Random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.cluster.lifelines import Lifelines
from lowwater_authority.cluster.membership import Beats, Member, View, proposal
from lowwater_authority.cluster.pace import Pace
from tests.kit.eventually import eventually_async as eventually

DEAD_AFTER = 10
A, B, C = (Member(f"{letter}1", f"{letter}:1") for letter in "abc")
NAMES = [f"ns/computation-{number}" for number in range(1000)]


def view_of(*members: Member) -> View:
    view = View()
    for member in members:
        view = view.joined(member)
    return view


def beats(now: int, since: int = 0, **last: int) -> Beats:
    return Beats(now, last, since)


def propose(view: View, heard: Beats, known: int | None = None, gone: frozenset[str] = frozenset()) -> View | None:
    return proposal(
        view, heard, A, pace=Pace(DEAD_AFTER / 1e6), newest_version=view.version if known is None else known, gone=gone
    )


def shares(view: View) -> Counter[str]:
    return Counter(shard.address if (shard := view.shard_of(name)) else "" for name in NAMES)


def test_the_weights_are_the_same_for_ever() -> None:
    view = view_of(*(Member(str(n), f"lowwater-{n}.lowwater:50051") for n in range(5)))
    served = [view.shard_of(f"computation-{n}") for n in range(12)]
    assert "".join(shard.id for shard in served if shard) == "141110144010"


def test_balance() -> None:
    counts = shares(view_of(*(Member(str(n), f"10.0.0.{n}:50051") for n in range(5))))
    assert sum(counts.values()) == len(NAMES)
    # The standard deviation is 12.6.
    assert all(150 < counts[address] < 250 for address in counts)
    assert len(counts) == 5


def test_a_pin_counts_while_its_shard_lives_and_is_not_draining() -> None:
    view = view_of(A, B, C)
    (name, *_) = [name for name in NAMES if view.shard_of(name) == A]
    pinned = view.pinned(name, B.address)
    assert pinned.shard_of(name) == B
    assert pinned.draining(B.address, on=True).shard_of(name) == pinned.without([B.id]).shard_of(name) == A
    assert pinned.without([B.id]).joined(Member("b2", B.address)).shard_of(name) == Member("b2", B.address)
    assert view.joined(Member("b2", B.address)).members == (A, Member("b2", B.address), C), "one at an address"
    assert pinned.pinned(name, "").shard_of(name) == A
    assert pinned.pinned(name, "").pins == {}
    assert view.pins == {}


def test_a_draining_shard_serves_only_when_all_are() -> None:
    view = view_of(A, B).draining(A.address, on=True)
    assert shares(view) == {B.address: len(NAMES)}
    all_draining = view.draining(B.address, on=True)
    assert shares(all_draining) == shares(view_of(A, B))
    # Nobody is better than another then, also not by a pin.
    assert shares(all_draining.pinned(NAMES[0], A.address)) == shares(view_of(A, B))
    assert shares(all_draining.pinned(NAMES[0], B.address)) == shares(view_of(A, B))
    assert view.draining(A.address, on=False).members == (A, B)


def test_encode_and_decode() -> None:
    view = view_of(A, B).draining(B.address, on=True).pinned("ns/z", "a:1").pinned("ns/b", "gone:1")
    view = view.dated(1_800_000_000_000_000)
    assert View.decode(view.encode()) == view
    assert View.decode(b"") == View()
    with pytest.raises(DecodeError):
        View.decode(b"\xff\xff")


@pytest.mark.parametrize(("now", "dead"), [(110, False), (111, True)])
def test_the_silent_are_left_out(now: int, dead: bool) -> None:
    proposed = propose(view_of(A, B, C), beats(now, a1=now, b1=100, c1=now - 1))
    assert proposed == (View(now, (A, C)) if dead else None)


@pytest.mark.parametrize(("now", "dead"), [(60, False), (61, True)])
def test_nobody_is_dead_while_the_store_was_away(now: int, dead: bool) -> None:
    assert propose(view_of(A, B), beats(now, since=50, a1=now, b1=7)) == (View(now, (A,)) if dead else None)
    assert propose(view_of(A), beats(now, a1=1), gone=frozenset({A.id})) is None, "nobody leaves itself out"


def test_a_store_that_lost_views_gets_a_newer_one() -> None:
    lost = view_of(A, B)
    heard_beats = beats(100, a1=100, b1=100)
    assert propose(lost, heard_beats, known=2) is None
    assert propose(lost, heard_beats, known=3) == View(100, (A, B))
    assert propose(lost, heard_beats, known=500) == View(501, (A, B))
    assert propose(View(), heard_beats, known=500) == View(501, (A,))


@pytest.mark.parametrize(("now", "dead"), [(103, False), (104, True)])
def test_one_that_seems_dead_is_left_out_sooner_and_nobody_else(now: int, dead: bool) -> None:
    heard_beats = beats(now, a1=now, b1=100, c1=100)
    assert propose(view_of(A, B, C), heard_beats, gone=frozenset({B.id})) == (View(now, (A, C)) if dead else None)


PAUSE = 0.02
ME = Member("me", "127.0.0.1:1")


class Process:
    """A process of another shard, as a connection sees it: it accepts, and dies."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._open: list[asyncio.StreamWriter] = []
        self.accepted = 0

    async def start(self) -> Process:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"a greeting that nobody reads")
        self.accepted += 1
        self._open.append(writer)

    @property
    def member(self) -> Member:
        return Member(f"on {self._port}", f"127.0.0.1:{self._port}")

    def hang_up(self) -> None:
        """Close connections, as a server does on which nobody begins."""
        while self._open:
            self._open.pop().transport.abort()

    def stop_accepting(self) -> None:
        self._server.close()

    def die(self) -> None:
        self.stop_accepting()
        self.hang_up()

    async def again(self) -> Process:
        return await Process(self._port).start()


def accepted(other: Process, count: int) -> bool:
    return other.accepted >= count


class Tries:
    """A count of the connections that were tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = 0
        self._open: Any = asyncio.open_connection
        monkeypatch.setattr(asyncio, "open_connection", self._count)

    async def _count(self, *place: Any) -> Any:
        try:
            return await self._open(*place)
        finally:
            self.done += 1

    async def more(self, count: int = 3) -> None:
        goal = self.done + count
        await eventually(lambda: self.done >= goal)


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    return Tries(monkeypatch)


@asynccontextmanager
async def lifelines() -> AsyncIterator[Lifelines]:
    lines = Lifelines(ME, PAUSE)
    yield lines
    await lines.close()


async def test_who_closes_and_refuses_is_gone_and_that_is_told_once() -> None:
    other = await Process().start()
    async with lifelines() as lines:
        deaths = asyncio.Queue[Member]()
        lines.on_gone = deaths.put_nowait
        lines.follow([ME, other.member])
        await eventually(lambda: other.accepted)
        assert not lines.gone
        other.die()
        assert await deaths.get() == other.member
        assert lines.gone == {other.member.id}
        again = await other.again()
        await eventually(lambda: not lines.gone)
        assert deaths.empty()
        again.die()
        assert await deaths.get() == other.member


async def test_one_that_never_accepted_is_not_gone(tries: Tries) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen: it refuses
        async with lifelines() as lines:
            lines.follow([Member("new", f"127.0.0.1:{unused.getsockname()[1]}")])
            await tries.more()
            assert not lines.gone


async def test_one_that_only_hangs_up_is_not_gone() -> None:
    other = await Process().start()
    async with lifelines() as lines:
        lines.follow([other.member])
        for count in range(1, 5):
            await eventually(partial(accepted, other, count))
            other.hang_up()
            assert not lines.gone
    other.die()


async def test_a_process_at_the_same_address_is_another_member(tries: Tries) -> None:
    """An answer about the process before does not hold for it, also where it has not accepted anybody yet."""
    other = await Process().start()
    async with lifelines() as lines:
        lines.follow([other.member])
        await eventually(lambda: other.accepted)
        other.die()
        await eventually(lambda: lines.gone)
        lines.follow([Member("the next one", other.member.address)])
        assert not lines.gone
        await tries.more()
        assert not lines.gone


addresses = st.lists(
    st.builds("{}:{}".format, st.text("abcz.-09", min_size=1, max_size=12), st.integers(1, 65535)),
    min_size=2,
    max_size=9,
    unique=True,
)


def view_at(*addresses: str) -> View:
    return view_of(*(Member(f"id of {address}", address) for address in addresses))


def served(view: View) -> dict[str, str]:
    return {name: shard.address for name in NAMES[:300] if (shard := view.shard_of(name)) is not None}


@given(members=addresses)
@settings(max_examples=60, database=None)
def test_only_what_the_newcomer_gets_moves(members: list[str]) -> None:
    *old, new = members
    before, after = served(view_at(*old)), served(view_at(*members))
    moved = {name for name in NAMES[:300] if before[name] != after[name]}
    assert moved == {name for name in NAMES[:300] if after[name] == new}
    share = 1 / len(members)
    assert abs(len(moved) - share * 300) < 6 * sqrt(share * (1 - share) * 300)
    # And back: a member that goes, or drains, moves nothing but its own.
    joined = view_at(*members)
    assert served(joined.without([f"id of {new}"])) == before
    assert served(joined.draining(new, on=True)) == before


@given(members=addresses, order=st.randoms(use_true_random=False))
@settings(max_examples=60, database=None)
def test_the_way_to_a_view_does_not_matter(members: list[str], order: Random) -> None:
    shuffled = order.sample(members, len(members))
    view = view_at(*shuffled)
    assert view == view_at(*members)
    assert View.decode(view.encode()) == view
    assert served(replace(view, members=tuple(reversed(view.members)))) == served(view)
