"""Shards, alive, paused or dead, over a store that is away at times and loses views: stepped by hand, without a loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from random import Random

from lowwater.aio import Client
from lowwater_authority.cluster.cluster import Cluster, Replaced
from lowwater_authority.cluster.membership import Beats, Member, View
from lowwater_authority.cluster.peers import Peers
from lowwater_authority.engine.observer import Observer
from lowwater_authority.engine.shard import Shard as Serving
from lowwater_authority.journal.contract import JournalError
from tests.kit.lines import Lines
from tests.kit.memory_directory import MemoryDirectory, MemoryMembers
from tests.kit.memory_journal import MemoryDisk, MemoryJournal

DEAD_AFTER = 1000
INTERVAL = DEAD_AFTER // 5
GONE_AFTER = INTERVAL * 3 // 2
NAMES = [f"ns/{number}" for number in range(8)]
ADDRESSES = [f"{letter}:1" for letter in "abcde"]


def nobody() -> Client:
    raise AssertionError


class Store(MemoryMembers):
    def __init__(self, model: MembershipModel) -> None:
        super().__init__(lambda: model.now, dead_after=DEAD_AFTER)
        self.model = model
        self.heard: list[tuple[int, str]] = []
        self.outages: list[tuple[int, int]] = []
        self.away_since = 0

    def beat(self, member_id: str) -> tuple[View, Beats]:
        self.heard.append((self.model.now, member_id))
        return super().beat(member_id)

    def lose(self, views: int = 1) -> None:
        super().lose(views)
        # Nobody can know of beats that were lost.
        self.heard = [(time, who) for who, time in self.last.items()]

    def go(self, *, away: bool) -> None:
        if self.away and not away:
            self.outages.append((self.away_since, self.model.now))
        self.away, self.away_since = away, self.model.now


class Directory(MemoryDirectory):
    def __init__(self, model: MembershipModel) -> None:
        super().__init__(model.store)
        self.model = model
        self.cluster: Cluster
        self._heard = View(), Beats(0, {}, 0)

    async def beat(self, member_id: str) -> tuple[View, Beats]:
        if not self._opened:
            await self.open()
        self._heard = view, _ = await super().beat(member_id)
        self.model.reached["older"] += view.version < self.cluster.view.version
        return self._heard

    async def propose(self, view: View, *, over: int) -> bool:
        heard, beats = self._heard
        # Of a store that has lost views it is no news who is not in what it has left.
        self.model.check_proposal(self.cluster._newest(heard), beats, view)
        proposed = await super().propose(view, over=over)
        self.model.reached["outrun"] += not proposed
        return proposed


class Shard:
    """A process: beats, takes over newer views, proposes; ends when it hears of one at its address that joined later."""

    def __init__(self, model: MembershipModel, me: Member, rivals: list[Shard]) -> None:
        self.model = model
        self.me = me
        self.directory = Directory(model)
        self.cluster = Cluster(
            self.directory,
            me,
            peers=Peers(nobody),
            lifelines=Lines(model.looks_gone),
            monotonic=lambda: model.now / 1e6,
            dead_after=DEAD_AFTER / 1e6,
        )
        self.directory.cluster = self.cluster
        journal = MemoryJournal(model.disk, shared=True)
        self.cluster._shard = Serving(journal, clock=lambda: model.now, observer=Observer(), placement=self.cluster)
        self.paused = self.ended = False
        self.unheard = [older for older in rivals if not older.cluster.me.joined]
        """Who was here first at its address, and had not joined when this one started: nobody can tell who is the older one."""
        self._doing: Coroutine[object, None, None] | None = None

    @property
    def view(self) -> View:
        return self.cluster.view

    def believes(self, name: str) -> bool:
        return self.view.shard_of(name) == self.view.member(self.me.id) is not None

    def step(self, doing: Coroutine[object, None, None] | None = None) -> bool:
        if self._doing is None:
            self._doing = doing or self.turn()
        elif doing is not None:
            doing.close()
        before = self.view
        try:
            self._doing.send(None)
        except StopIteration:
            self._doing = None
        except Replaced:
            self.model.check_replaced(self)
            self.ended, self._doing = True, None
        if self.view is not before:
            self.model.check_view(self.view)
        return self._doing is None

    def end(self) -> None:
        self.ended = True
        if self._doing is not None:
            self._doing.close()

    async def turn(self) -> None:
        with self.refused():
            await self.cluster._beat_once()

    async def operate(self, name: str, address: str, *, on: bool) -> None:
        with self.refused():
            await self.cluster.change(
                lambda view: view.pinned(name, address if on else "") if name else view.draining(address, on=on)
            )

    @contextmanager
    def refused(self) -> Iterator[None]:
        try:
            yield
        except JournalError as error:
            self.model.reached[type(error).__name__] += 1


class MembershipModel:
    def __init__(self, reached: Counter[str]) -> None:
        self.reached = reached
        self.now = 1_000_000
        self.store = Store(self)
        self.disk = MemoryDisk()
        self.shards: list[Shard] = []
        self.accused: set[str] = set()
        """The ids of those of which a network says that they died."""
        self._started = 0
        self._views: dict[int, View] = {}

    @property
    def living(self) -> list[Shard]:
        return [shard for shard in self.shards if not shard.ended]

    def looks_gone(self, member: Member) -> bool:
        """Whether a process looks dead: also one that lives, and no one that is only paused."""
        return member.id in self.accused or all(shard.me.id != member.id for shard in self.living)

    def start(self, address: str) -> None:
        self._started += 1
        rivals = [shard for shard in self.living if shard.me.address == address]
        self.shards.append(Shard(self, Member(f"{address[0]}{self._started}", address), rivals))

    def step(self, shard: Shard, doing: Coroutine[object, None, None] | None = None) -> bool:
        self.now += 1
        before = self.store.view.version
        done = shard.step(doing)
        assert self.store.view.version >= before
        return done

    def round(self, random: Random) -> None:
        start = self.now
        waiting = [shard for shard in self.living if not shard.paused]
        while waiting:
            shard = random.choice(waiting)
            if self.step(shard) or shard.ended:
                waiting.remove(shard)
        self.now = max(self.now, start + INTERVAL)

    def heal(self, random: Random) -> View:
        self.store.go(away=False)
        self.accused.clear()
        for shard in self.living:
            shard.paused = shard.directory.cut_off = False
        # What was under way; one after the other wins; the store was there for long enough, and the dead are left out.
        for _ in range(1 + len(self.living) + DEAD_AFTER // INTERVAL + 2):
            self.round(random)
        if not self.living:
            # The last one has seen that it was replaced, by one that is dead too.
            self.start(ADDRESSES[0])
            return self.heal(random)
        agreed = self.store.view
        self.round(random)
        assert self.store.view == agreed
        assert all(shard.view == agreed for shard in self.living)
        assert {member.id for member in agreed.members} == {shard.me.id for shard in self.living}
        assert all(sum(shard.believes(name) for shard in self.living) == 1 for name in NAMES)
        return agreed

    def check_view(self, view: View) -> None:
        """A shard has another view now. One version, one view; under one version a computation has one server."""
        assert self._views.setdefault(view.version, view) == view
        for name in NAMES:
            versions = [shard.view.version for shard in self.living if shard.believes(name)]
            assert len(set(versions)) == len(versions)

    def check_replaced(self, shard: Shard) -> None:
        """A shard ends: for one that was started later at its address, or for one of which nobody could tell that it was started first."""
        self.reached["replaced"] += 1
        later = self.shards[self.shards.index(shard) + 1 :]
        assert shard.unheard or any(other.me.address == shard.me.address for other in later)

    def check_proposal(self, view: View, beats: Beats, wanted: View) -> None:
        """Who is left out was really silent, while the store was there."""
        for member in view.members:
            if wanted.at(member.address) is not None:
                continue
            gone = self.looks_gone(member)
            patience = GONE_AFTER if gone else DEAD_AFTER
            self.reached["left out"] += 1
            heard = max((time for time, who in self.store.heard if who == member.id and time <= beats.now), default=0)
            self.reached["left out early"] += beats.now - heard <= DEAD_AFTER
            assert beats.now - heard > patience
            for begin, end in self.store.outages:
                if begin <= beats.now and end - begin > DEAD_AFTER // 2:
                    assert beats.now - end > patience
