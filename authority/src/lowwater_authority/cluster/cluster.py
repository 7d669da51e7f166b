"""A shard among others: it beats, learns the view, takes over what the view gives it, and knows where the rest is.

    beat -> view -> confirm what is held (let go what others took, read the graph) -> take what is ours and nobody's yet

A computation is taken as soon as a newer view says so, and let go only when the journal says that another shard took it: so
fail-over, scale-out, scale-in and the return of a frozen process are one mechanism, and nothing goes unserved in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import Limited, event
from lowwater_authority.cluster.membership import Member, Patience, View, proposal
from lowwater_authority.cluster.untaken import LOOK_SECONDS, Untaken
from lowwater_authority.engine.placement import Placement
from lowwater_authority.journal import JournalCorrupt, JournalError, JournalFailed, JournalUnknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from lowwater_authority.cluster.directory import Directory
    from lowwater_authority.cluster.lifelines import Lifelines
    from lowwater_authority.cluster.membership import Beats
    from lowwater_authority.cluster.peers import Peers
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.roots import Above
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.journal import Ownership

DEAD_AFTER: Final = 1.5
"""Seconds after which a shard that is not heard of loses what it serves to the others."""

BEATS: Final = 5
"""Beats in that time."""

GONE_BEATS: Final = 1.5
"""Beats of silence after which that happens to a shard whose process seems to have died."""

HAND_OVER_SECONDS: Final = 5.0
"""How long a shard that leaves waits for the others to take over what it serves."""

log = logging.getLogger(__name__)


class Replaced(Exception):
    """Another process advertises this one's address, and joined later."""


class Place(NamedTuple):
    """Where a computation is served."""

    address: str
    """Empty: nowhere just now."""
    epoch: int
    """Its ownership number, as the store has it."""


@dataclass(slots=True)
class Missing:
    """One computation that a shard is to serve, and does not yet."""

    task: asyncio.Task[None] | None = None
    """What takes it; None when that has ended, and it has not been looked at since."""
    said: str = ""
    """Why it could not be taken, as it was logged."""


class Cluster(Placement):
    """The place of one process among the shards of a deployment; the Placement of its shard.

    ``monotonic`` and ``dead_after`` are in seconds.
    """

    def __init__(
        self,
        directory: Directory,
        me: Member,
        *,
        peers: Peers,
        lifelines: Lifelines,
        monotonic: Callable[[], float],
        dead_after: float = DEAD_AFTER,
    ) -> None:
        self.me = me
        self.view = View()
        self.on_cut_off: Callable[[bool], None] = lambda _: None
        """Told when this process loses its store, and when it has it again."""
        self.cut_off = False
        """Whether the store has been away for so long that others must be thought to serve what is
        held here."""
        self._directory = directory
        self._peers = peers
        self._monotonic = monotonic
        self._dead_after = dead_after
        self._gone_after = GONE_BEATS * dead_after / BEATS
        self._patience = Patience(int(dead_after * 1e6), int(self._gone_after * 1e6))
        self._lifelines = lifelines
        self._lifelines.on_gone = self._seems_dead
        self._shard: Shard
        self._known = 0
        self._joined = False
        """Whether it has been a member."""
        self._rival = "", 0
        """Another process that has this one's address in a newer view, and when it had been heard
        of by then."""
        self.next_beat = dead_after / BEATS
        """Seconds from the last beat to the next one."""
        self._in_touch = monotonic()
        self._heard, self._resumed = monotonic(), float("-inf")
        """When the store answered the last beat, and the first one after a gap in which others
        could have taken over."""
        self._confirming: asyncio.Task[bool] | None = None
        self._missing: dict[str, Missing] = {}
        """What this shard is to serve, and does not yet."""
        self._settled: tuple[int, int, int] = (0, 0, 0)
        self._ended = 0
        """The version of the view by which the logs of dropped computations were looked at."""
        self._untaken: Untaken
        self._untaken_at = float("-inf")
        """When it is time to look again at what others are to serve."""
        self._opened = False
        """Whether the directory is open."""
        self._unread_id = f"{me.id} reads no graph"
        """By what the others hear, in the place of a member, that this process cannot read the
        graph."""
        self._look_at_graph = float("-inf")
        """When to read the graph again that is in doubt."""
        self._leaving = False
        self._woken = asyncio.Event()
        """Set when there is no time to wait for the next beat."""
        self._heard_of: Mapping[str, int] = {}
        """When the store last heard of each shard, as of the last beat."""
        self._accused: dict[str, int] = {}
        """The same of those that seem dead, as of the first beat since: who is heard of later
        lives, whatever its address says."""
        self._beaten = asyncio.Event()
        """Set, and replaced, after each beat."""
        self._quiet = Limited()

    # -- life --------------------------------------------------------------------------------------

    async def join(self, shard: Shard) -> None:
        """Become a member; the shard is to run its rounds already.

        Returns also when told to leave before that. Raises as :meth:`run`.
        """
        self._shard = shard
        self._untaken = Untaken(shard.held, self.mine)
        shard.held.logs.address = self.me.address
        while not self._leaving and self.view.member(self.me.id) is None:
            again = self._monotonic() + self._dead_after / BEATS
            if not await self._answered(self._open()) or not await self._answered(self.beat()):
                await self._pause(again)

    async def run(self) -> None:
        """Beat until :meth:`leave`.

        Raises Replaced, and JournalReplaced and its like: this process must not go on.
        """
        while not self._leaving:
            began = self._monotonic()
            await self._answered(self.beat())
            again = began + self.next_beat  # however long the store takes to answer
            await self.look_after()
            self.judge()
            await self._pause(again)

    async def _open(self) -> None:
        if not self._opened:
            await self._directory.open()
            self._opened = True

    async def _answered(self, asking: Awaitable[None]) -> bool:
        """Return whether the store has answered; that it has not is told."""
        try:
            await asking
        except TimeoutError:
            self._unreadable(f"no answer within {self._dead_after:g} s")
        except (JournalFailed, JournalUnknown, JournalCorrupt) as error:
            self._unreadable(str(error))
        else:
            return True
        return False

    async def _pause(self, until: float) -> None:
        """Wait until then, or until there is no time for it."""
        if self._leaving:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - self._monotonic())):
                await self._woken.wait()
        self._woken.clear()

    def _seems_dead(self, member: Member) -> None:
        log.info(
            "the shard at %s seems to have died: its process has closed its connection, and accepts none",
            member.address,
            extra=event("member_gone", address=member.address),
        )
        self.hurry()

    def hurry(self) -> None:
        """End the pause before the next beat."""
        self._woken.set()

    async def leave(self) -> None:
        """Hand over all that is served here, or give up after a while; the process is about to stop."""
        self.stop()
        deadline = self._monotonic() + HAND_OVER_SECONDS
        try:
            await self.change(lambda view: view.without([self.me.id]))
            while self.view.members and self._shard.served.names() and self._monotonic() < deadline:
                await self._shard.confirmation.confirm()
                await asyncio.sleep(self._dead_after / BEATS / 4)
        except (JournalError, errors.LowwaterError) as error:
            log.warning("not all was handed over: %s", error, extra=event("hand_over_failed", reason=str(error)))
        for task in (self._confirming, *self.taking):
            if task is not None:
                task.cancel()

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._leaving = True
        self.hurry()

    async def close(self) -> None:
        """Let go of the directory, and of the other shards."""
        await self._lifelines.close()
        await self._directory.close()
        await self._peers.close()

    async def change(self, change: Callable[[View], View]) -> View:
        """Change the view, whatever others change meanwhile; returns the new one.

        Raises JournalFailed and JournalUnknown.
        """
        while True:
            view, beats = await self._directory.beat(self.me.id)
            changed = change(self._newest(view))
            changed = replace(changed, version=max(changed.version, self._known + 1)).dated(beats.now)
            if await self._directory.propose(changed, over=view.version):
                self._look(changed)
                return changed

    async def unpin_dropped(self) -> None:
        """End the pins of what was dropped.

        Raises JournalFailed, JournalUnknown, JournalCorrupt, and Unavailable.

        The graph is read behind the view, and the view is replaced only if nobody has changed it:
        so no pin ends that was set since, for a registration of the same name.
        """
        view, beats = await self._directory.beat(self.me.id)
        await self._shard.confirmation.confirm(())
        pins = {name: address for name, address in view.pins.items() if name not in self._shard.topology.dropped}
        if len(pins) == len(view.pins) or view.version < self._known:
            return
        changed = replace(view, pins=pins, version=view.version + 1).dated(beats.now)
        if await self._directory.propose(changed, over=view.version):
            self._look(changed)

    async def look(self) -> tuple[View, Beats]:
        """Return the newest view and the beats, as the store has them.

        Raises JournalFailed and JournalUnknown.
        """
        view, beats = await self._directory.beat(self.me.id)
        self._look(view)
        return self.view, beats

    async def beat(self) -> None:
        """Beat once, and take over what the store answers.

        Raises TimeoutError, and what the directory raises.
        """
        async with asyncio.timeout(self._dead_after):
            await self._beat_once()

    async def _beat_once(self) -> None:
        # What it had beaten before it seemed dead may be heard of only by the next beat.
        accused = set(self._lifelines.gone)
        view, beats = await self._directory.beat(self.me.id)
        self._heard_of = beats.last
        self._accused = {each: self._accused.get(each, beats.last.get(each, 0)) for each in accused}
        now = self._monotonic()
        if self._shard.held.graph.unread:
            # Who has read what is damaged has no reason to look at it again, but that it hears a
            # stranger.
            await self._directory.beat(self._unread_id)
        if self._hears_stranger(view, beats):
            self._shard.confirmation.doubt_graph()
        if now - self._heard > self._gone_after:
            self._resumed = now
        self._heard = now
        # Whoever leaves may have been taken out of the view meanwhile, and must not come back.
        if not self._has_rival(view, beats) and not self._leaving:
            me = self.view.member(self.me.id) or self.me
            newest = self._newest(view)
            gone = {member.id for member in self._doubtful()}
            proposed = proposal(newest, beats, me, patience=self._patience, known=self._known, gone=gone)
            if proposed is not None:
                if await self._directory.propose(proposed, over=view.version):
                    view = proposed
                else:
                    self.hurry()  # to hear what another one has proposed
        self._look(view)
        self.next_beat = self._until_next(beats)
        self._beaten.set()
        self._beaten = asyncio.Event()

    def _until_next(self, beats: Beats) -> float:
        """Return the seconds until the next beat: sooner than ever where a member that seems dead is to be left out by then."""
        silences = (beats.silence(member.id) / 1e6 for member in self._doubtful())
        # Just not long enough is not long enough: a millisecond more.
        left = (self._gone_after - silence + 0.001 for silence in silences if silence <= self._gone_after)
        return min((self._dead_after / BEATS, *left))

    def _hears_stranger(self, view: View, beats: Beats) -> bool:
        """Whether somebody beats who is no member: perhaps it cannot start, or go on, because what the store has of the graph is damaged."""
        members = {self.me.id, self._unread_id, *(member.id for member in view.members)}
        heard = (at for member_id, at in beats.last.items() if member_id not in members)
        return any(beats.now - at <= self._dead_after * 1e6 for at in heard)

    def _has_rival(self, view: View, beats: Beats) -> bool:
        """Whether another process may have this one's place.

        Raises Replaced when that one is heard of.

        A process that was here before this one and woke up may have taken the place back while this
        one was not heard of: it joined earlier, and gives way. A store that has lost views may name
        one that is dead, and stays silent.
        """
        there = view.at(self.me.address)
        if not self._joined or there is None or there.id == self.me.id or 0 < there.joined < self.me.joined:
            self._rival = "", 0
            return False
        heard = beats.last.get(there.id, 0)
        if self._rival[0] != there.id:
            if view.version < self._known:
                return False
            self._rival = there.id, heard
        if heard > self._rival[1]:
            msg = (
                f"another process advertises {self.me.address} and has joined later: stop this one, or give one of them "
                "another --advertise"
            )
            raise Replaced(msg)
        return beats.silence(there.id) <= self._dead_after * 1e6

    def _newest(self, view: View) -> View:
        """Return what is to follow the store's view: that one, or if it has lost views, the members and pins that are known here."""
        return view if view.version >= self._known else replace(self.view, version=view.version)

    def _look(self, view: View) -> None:
        if view.version < self._known:
            return  # the store has lost views: the next beat proposes a newer one
        there = view.member(self.me.id)
        if view.version != self.view.version:
            members = [member.address for member in view.members]
            draining = [member.address for member in view.members if member.draining]
            log.info(
                "view %d: %s",
                view.version,
                ", ".join(members) or "nobody",
                extra=event("members", version=view.version, members=members, draining=draining),
            )
            was = self.view.member(self.me.id)
            if there is not None and there.draining != (was is not None and was.draining):
                told = "drains: it hands over what it serves" if there.draining else "does not drain any more"
                log.info("this shard %s", told, extra=event("drain_begun" if there.draining else "drain_ended"))
        self.view, self._known = view, view.version
        if there is not None and not self.me.joined:
            self.me = replace(self.me, joined=there.joined)  # it stays the same process if it is left out for a while
        self._joined = self._joined or view.member(self.me.id) is not None
        self._shard.held.logs.view = view.version
        self._lifelines.follow(view.members)

    async def look_after(self) -> None:
        """Confirm, for as long as a beat lasts, and go on taking in the background: a large computation takes longer than a beat."""
        if self._confirming is None:
            self._confirming = asyncio.create_task(self.confirm())
        # A process that was stopped for a while has to hear of its store before it can be judged.
        await asyncio.wait([self._confirming], timeout=self._dead_after / BEATS)
        if self._leaving:
            return  # what is under way is given up
        if self._confirming.done():
            confirmed, self._confirming = self._confirming.result(), None
            if confirmed:
                self.take()

    def _unreadable(self, reason: str) -> None:
        if count := self._quiet.count("membership", self._monotonic()):
            log.warning(
                "the membership cannot be read: %s",
                reason,
                extra=event("membership_unreadable", reason=reason, count=count),
            )

    async def confirm(self) -> bool:
        """Return whether the store has confirmed what is held here; that it has not is logged."""
        try:
            await self._shard.confirmation.confirm()
        except errors.LowwaterError as error:
            if count := self._quiet.count("confirm", self._monotonic()):
                log.warning(
                    "what is held cannot be confirmed: %s",
                    error,
                    extra=event("unconfirmed", reason=str(error), count=count),
                )
            return False
        self._in_touch = self._monotonic()
        members, dropped = self.view.members, self._shard.topology.dropped
        if members and members[0].id == self.me.id and not dropped.keys().isdisjoint(self.view.pins):
            # Whoever has dropped it did not come to this.
            with contextlib.suppress(JournalError, errors.LowwaterError):
                await self.unpin_dropped()
        self._leave_readable()
        if self._shard.held.graph.doubted and self._monotonic() >= self._look_at_graph:
            self._look_at_graph = self._monotonic() + self._dead_after
            with contextlib.suppress(errors.LowwaterError):
                await self._shard.confirmation.refresh()
        return True

    def _leave_readable(self) -> None:
        """Write the logs whole of what other shards were to take long ago, and did not."""
        if self._monotonic() < self._untaken_at:
            return
        self._untaken_at = self._monotonic() + LOOK_SECONDS
        if late := self._untaken.look():
            self._shard.rounds.snapshot(late)

    def take(self) -> None:
        """Begin to take what is missing, each by itself: one that takes long holds up no other."""
        for each in self._missing.values():
            if each.task is not None and each.task.done():
                each.task.result()
                each.task = None
        shard = self._shard
        if self._ended != self.view.version:
            self._ended = self.view.version
            shard.end_dropped()
        if self._settled != (state := (self.view.version, shard.topology.version, shard.held.losses)):
            names = [name for name in shard.topology.computations if name not in shard.served and self.mine(name)]
            for name in names:
                each = self._missing.setdefault(name, Missing())
                if each.task is None:
                    each.task = asyncio.create_task(self._take_over(name, each))
            if not names:
                self._settled = state
        # The others are served here by now, or another shard is to serve them.
        self._missing = {name: each for name, each in self._missing.items() if each.task is not None}

    @property
    def taking(self) -> list[asyncio.Task[None]]:
        """What is under way to take what is missing."""
        return [each.task for each in self._missing.values() if each.task is not None]

    async def _take_over(self, name: str, missing: Missing) -> None:
        try:
            await self._shard.takeover.serve_in_turn(name)
        except errors.LowwaterError as error:
            if missing.said != str(error):
                log.warning(
                    "%s is not served yet: %s",
                    name,
                    error,
                    extra=event("not_served", computation=name, reason=str(error)),
                )
                missing.said = str(error)

    def judge(self) -> None:
        """Others take over what is held here when the store has not heard of it for that long."""
        cut_off = self._monotonic() - self._in_touch > self._dead_after
        if cut_off != self.cut_off:
            log.warning(
                "cut off from the store: serving nothing" if cut_off else "the store is back",
                extra=event("cut_off" if cut_off else "store_back"),
            )
            self.cut_off = cut_off
            self.on_cut_off(cut_off)

    # -- where things are --------------------------------------------------------------------------

    def mine(self, name: str) -> bool:
        """See Placement."""
        shard = self.view.shard_of(name)
        return shard is not None and shard.id == self.me.id

    def home(self, name: str) -> str:
        """See Placement."""
        shard = self.view.shard_of(name)
        return "" if shard is None else shard.address

    def may_heal(self) -> bool:
        """See Placement: a process that was frozen may have been replaced, and a store that lost who did it cannot say so.

        So it waits for as long as the others, who were in touch, take at most to put back what they know.
        """
        now = self._monotonic()
        return now - self._heard <= self._dead_after <= now - self._resumed

    async def wait_for_graph(self) -> bool:
        """See Placement: all who live hear a beat of one that is no member.

        Raises JournalFailed, JournalUnknown and JournalCorrupt.
        """
        again = self._monotonic() + self._dead_after / BEATS
        await self._open()
        view, beats = await self._directory.beat(self.me.id)
        if all(beats.silence(member.id) > self._dead_after * 1e6 for member in view.members):
            return False
        await self._pause(again)
        return True

    async def outvoted(self) -> None:
        """See Placement."""
        try:
            await self.look()
        except JournalError as error:
            self._unreadable(str(error))

    async def lives_elsewhere(self, name: str) -> bool:
        """See Placement."""
        return bool((await self.locate([name]))[name].address)

    async def lows(self, names: Sequence[str]) -> Lows:
        """See Placement."""
        return await self._peers.lows(names)

    @property
    def above(self) -> Above:
        """See Placement."""
        return self._peers

    def _lives(self, owner: Ownership) -> bool:
        """Whether the process that has taken a log is another one, and a member: not one that was started at its address since."""
        member = self.view.at(owner.address)
        return member is not None and member.address != self.me.address and member.took(owner.view)

    async def settle(self, names: Iterable[str], within: float) -> None:
        """Wait while registered computations are at shards that seem dead, so many seconds at most: until these are left out, or heard of.

        Raises Unavailable. It costs nothing while nobody seems dead, else one question to the store, however long it waits.
        """
        if not any(self._doubtful()):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):  # also for a store that hangs
                asked = {place.address for place in (await self.locate(names)).values()}
                while any(member.address in asked for member in self._doubtful()):
                    await self._beaten.wait()

    def _doubtful(self) -> Iterator[Member]:
        """Members that seem dead, and have not been heard of since."""
        for member in self.view.members:
            heard = self._heard_of.get(member.id, 0)
            if member.id in self._lifelines.gone and heard <= self._accused.get(member.id, heard):
                yield member

    async def locate(self, names: Iterable[str]) -> dict[str, Place]:
        """Return where registered computations are served, or are about to be. Raises Unavailable.

        It is who owns the log, if that process lives; else whom the view names. Two views may
        differ for a moment, the store never does: so redirects meet, and carry numbers that only
        grow.
        """
        names = list(names)
        try:
            owners = await self._shard.journal.owners(names)
        except JournalError as error:
            msg = f"this shard cannot read from the store where computations are: {error}"
            raise errors.Unavailable(msg) from error
        places = {}
        for name in names:
            owner, target = owners[name], self.view.shard_of(name)
            if name in self._shard.served and owner.epoch <= self._shard.served.epoch(name):
                places[name] = Place(self.me.address, self._shard.served.epoch(name))
            elif self._lives(owner):
                places[name] = Place(owner.address, owner.epoch)
            else:
                elsewhere = target is not None and target.id != self.me.id
                places[name] = Place(target.address if target and elsewhere else "", owner.epoch)
        return places
