"""One shard among others.

It beats, reads the view, takes over what the view gives it, and knows where the rest is.

    beat -> view -> confirm what is held (let go of what others took, read the graph)
         -> take over what is missing

A shard takes a computation over as soon as a newer view says so. The former owner lets go of it
only when the journal says that another shard took it. So fail-over, scale-out, scale-in and the
return of a frozen process are one mechanism, and every computation is served in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import Limited, event
from lowwater_authority.cluster.contact import Contact
from lowwater_authority.cluster.membership import Member, View, proposal
from lowwater_authority.cluster.pace import DEAD_AFTER, Pace
from lowwater_authority.cluster.suspects import Suspects
from lowwater_authority.cluster.unserved import Unserved
from lowwater_authority.cluster.untaken import Untaken
from lowwater_authority.engine.placement import Placement
from lowwater_authority.journal import JournalCorrupt, JournalError, JournalFailed, JournalUnknown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from lowwater_authority.cluster.directory import Directory
    from lowwater_authority.cluster.lifelines import Lifelines
    from lowwater_authority.cluster.membership import Beats
    from lowwater_authority.cluster.peers import Peers
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.roots import Above
    from lowwater_authority.engine.shard import Shard
    from lowwater_authority.journal import Ownership

HAND_OVER_SECONDS: Final = 5.0
"""Seconds that a shard which leaves waits until the others have taken over what it serves."""

GIVE_BACK_AFTER: Final = 3
"""Time until a log that is not served is given back, in units of ``dead_after``.

Its next owner may have taken it, and the store may have lost that. That shard puts its memory back
``dead_after`` after the store is back; a log that was given back before would fence it."""

log = logging.getLogger(__name__)


class Replaced(Exception):
    """Another process advertises the address of this one, and joined later."""


class Place(NamedTuple):
    """Where a computation is served."""

    address: str
    """Address of the shard; empty while no shard serves the computation."""
    epoch: int
    """Epoch of its owner, as the store has it."""


class Cluster(Placement):
    """The place of one process among the shards of a deployment; the Placement of its shard.

    ``monotonic`` and ``dead_after`` are in seconds. It has more than 15 fields because it is the
    loop that brings its parts together; each part with a state of its own is an object.
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
        self.contact = Contact(pace := Pace(dead_after), monotonic)
        self.unserved = Unserved(self.mine)
        self.next_beat = pace.beat
        """Seconds from the last beat to the next one."""
        self._directory = directory
        self._opened = False
        """True once the directory is open."""
        self._peers = peers
        self._monotonic = monotonic
        self._pace = pace
        self._lifelines = lifelines
        self._lifelines.on_gone = self._seems_dead
        self._suspects = Suspects(lifelines)
        self._shard: Shard
        self._untaken: Untaken
        self._newest_version = 0
        """Newest version of the view that this process has read or written."""
        self._joined = False
        """True once this process was a member."""
        self._rival = "", 0
        """Id of another process that has this address in a newer view, and store's time of its last
        beat when it was first seen there."""
        self._confirming: asyncio.Task[bool] | None = None
        self._giving_back: asyncio.Task[None] | None = None
        """Task that gives back logs which are not served. No beat waits for it."""
        self._unserved_at: dict[str, float] = {}
        """Time when each such log was first seen, by name."""
        self._unread_id = f"{me.id} reads no graph"
        """Id under which this process beats, beside its own, while it cannot read the graph. The
        other shards hear a stranger, and look at the graph themselves."""
        self._graph_at = float("-inf")
        """Time when a graph in doubt is read again."""
        self._leaving = False
        self._woken = asyncio.Event()
        """Set when the next beat must not wait."""
        self._beaten = asyncio.Event()
        """Set, and replaced, after each beat."""
        self._quiet = Limited()

    # -- life --------------------------------------------------------------------------------------

    async def join(self, shard: Shard) -> None:
        """Become a member; the shard runs its rounds already.

        Returns also when :meth:`leave` is called before. Raises as :meth:`run`.
        """
        self._shard = shard
        self._untaken = Untaken(shard.held, self.mine, self._monotonic)
        shard.held.logs.address = self.me.address
        while not self._leaving and self.view.member(self.me.id) is None:
            next_at = self._monotonic() + self._pace.beat
            if not await self._answered(self._open()) or not await self._answered(self.beat()):
                await self._pause(next_at)

    async def run(self) -> None:
        """Beat until :meth:`leave`.

        Raises Replaced, JournalReplaced and other errors after which this process must not go on.
        """
        while not self._leaving:
            began = self._monotonic()
            await self._answered(self.beat())
            next_at = began + self.next_beat  # however long the store takes to answer
            await self.look_after()
            self.contact.judge()
            await self._pause(next_at)

    async def _open(self) -> None:
        if not self._opened:
            await self._directory.open()
            self._opened = True

    async def _answered(self, question: Awaitable[None]) -> bool:
        """Return whether the store has answered; silence is logged."""
        try:
            await question
        except TimeoutError:
            self._unreadable(f"no answer within {self._pace.dead_after:g} s")
        except (JournalFailed, JournalUnknown, JournalCorrupt) as error:
            self._unreadable(str(error))
        else:
            return True
        return False

    async def _pause(self, until: float) -> None:
        """Wait until a time of the clock, or until :meth:`hurry` is called."""
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
        """Hand over all that is served here before the process stops.

        It gives up after ``HAND_OVER_SECONDS``.
        """
        self.stop()
        deadline = self._monotonic() + HAND_OVER_SECONDS
        try:
            await self.change(lambda view: view.without([self.me.id]))
            while self.view.members and self._shard.served.names() and self._monotonic() < deadline:
                await self._shard.confirmation.confirm()
                await asyncio.sleep(self._pace.beat / 4)
        except (JournalError, errors.LowwaterError) as error:
            log.warning("not all was handed over: %s", error, extra=event("hand_over_failed", reason=str(error)))
        for task in (self._confirming, self._giving_back, *self.unserved.tasks):
            if task is not None:
                task.cancel()

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._leaving = True
        self.hurry()

    async def close(self) -> None:
        """Close the directory and the connections to the other shards."""
        await self._lifelines.close()
        await self._directory.close()
        await self._peers.close()

    async def change(self, change: Callable[[View], View]) -> View:
        """Change the view, as often as it takes when other shards change it too.

        Return the new one. Raises JournalFailed and JournalUnknown.
        """
        while True:
            view, beats = await self._directory.beat(self.me.id)
            changed = change(self._newest(view))
            changed = replace(changed, version=max(changed.version, self._newest_version + 1)).dated(beats.now)
            if await self._directory.propose(changed, over=view.version):
                self._look(changed)
                return changed

    async def unpin_dropped(self) -> None:
        """End the pins of dropped computations.

        Raises JournalFailed, JournalUnknown, JournalCorrupt, and Unavailable. The graph is read
        after the view, and the view is replaced only if no shard has changed it. Otherwise this
        could end a pin that was set since, for a new registration of the same name.
        """
        view, beats = await self._directory.beat(self.me.id)
        await self._shard.confirmation.confirm(())
        pins = {name: address for name, address in view.pins.items() if name not in self._shard.topology.dropped}
        if len(pins) == len(view.pins) or view.version < self._newest_version:
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
        async with asyncio.timeout(self._pace.dead_after):
            await self._beat_once()

    async def _beat_once(self) -> None:
        dead_ids = set(self._lifelines.gone)
        view, beats = await self._directory.beat(self.me.id)
        self._suspects.take_in(beats, dead_ids)
        self.contact.answered()
        if self._shard.held.graph.unread:
            # A shard that read the graph before it was damaged looks at it again only when it hears
            # a stranger.
            await self._directory.beat(self._unread_id)
        if self._hears_stranger(view, beats):
            self._shard.confirmation.doubt_graph()
        # A process that leaves may have been taken out of the view already, and must not come back.
        if not self._has_rival(view, beats) and not self._leaving:
            me = self.view.member(self.me.id) or self.me
            newest = self._newest(view)
            suspects = {member.id for member in self._suspects.among(self.view.members)}
            proposed = proposal(newest, beats, me, pace=self._pace, newest_version=self._newest_version, gone=suspects)
            if proposed is not None:
                if await self._directory.propose(proposed, over=view.version):
                    view = proposed
                else:
                    self.hurry()  # to read what another shard has proposed
        self._look(view)
        self.next_beat = self._until_next(beats)
        self._beaten.set()
        self._beaten = asyncio.Event()

    def _until_next(self, beats: Beats) -> float:
        """Return the seconds until the next beat.

        There are fewer when a suspect is to be left out before the usual beat.
        """
        silences = (beats.silence(member.id) / 1e6 for member in self._suspects.among(self.view.members))
        # A beat at the very moment would find the silence not over yet: a millisecond more.
        waits = (self._pace.gone_after - silence + 0.001 for silence in silences if silence <= self._pace.gone_after)
        return min((self._pace.beat, *waits))

    def _hears_stranger(self, view: View, beats: Beats) -> bool:
        """Return whether a process beats that is no member.

        Perhaps it cannot start, or go on, because the graph is damaged in the store.
        """
        members = {self.me.id, self._unread_id, *(member.id for member in view.members)}
        strangers = (at for member_id, at in beats.last.items() if member_id not in members)
        return any(beats.now - at <= self._pace.dead_after * 1e6 for at in strangers)

    def _has_rival(self, view: View, beats: Beats) -> bool:
        """Return whether another process has the address of this one, and is not known to be dead.

        Raises Replaced when it beats. A process that joined earlier, was frozen and woke up may
        have taken the address back while the store did not hear of this one: it gives way. A store
        that has lost views may name a process that is dead: it stays silent.
        """
        member = view.at(self.me.address)
        if not self._joined or member is None or member.id == self.me.id or 0 < member.joined < self.me.joined:
            self._rival = "", 0
            return False
        last_beat = beats.last.get(member.id, 0)
        if self._rival[0] != member.id:
            if view.version < self._newest_version:
                return False
            self._rival = member.id, last_beat
        if last_beat > self._rival[1]:
            msg = (
                f"another process advertises {self.me.address} and has joined later: stop this one, or give one of them "
                "another --advertise"
            )
            raise Replaced(msg)
        return beats.silence(member.id) <= self._pace.dead_after * 1e6

    def _newest(self, view: View) -> View:
        """Return the view to go on from.

        It is the store's view, or that of this process with the store's version if the store has
        lost views.
        """
        return view if view.version >= self._newest_version else replace(self.view, version=view.version)

    def _look(self, view: View) -> None:
        if view.version < self._newest_version:
            return  # the store has lost views: the next beat proposes a newer one
        entry = view.member(self.me.id)
        if view.version != self.view.version:
            members = [member.address for member in view.members]
            draining = [member.address for member in view.members if member.draining]
            facts = event("members", version=view.version, members=members, draining=draining)
            log.info("view %d: %s", view.version, ", ".join(members) or "nobody", extra=facts)
            old_entry = self.view.member(self.me.id)
            if entry is not None and entry.draining != (old_entry is not None and old_entry.draining):
                change = "drains: it hands over what it serves" if entry.draining else "does not drain any more"
                log.info("this shard %s", change, extra=event("drain_begun" if entry.draining else "drain_ended"))
        self.view, self._newest_version = view, view.version
        if entry is not None and not self.me.joined:
            self.me = replace(self.me, joined=entry.joined)  # kept if the process is left out for a while
        self._joined = self._joined or entry is not None
        self._shard.held.logs.view = view.version
        self._lifelines.follow(view.members)

    async def look_after(self) -> None:
        """Confirm what is held and take over what is missing.

        Both go on in the background when they take longer than a beat.
        """
        if self._confirming is None:
            self._confirming = asyncio.create_task(self.confirm())
        # A process that was stopped for a while asks its store before it may be judged cut off.
        await asyncio.wait([self._confirming], timeout=self._pace.beat)
        if self._leaving:
            return  # leave() gives up what is under way
        if self._confirming.done():
            confirmed, self._confirming = self._confirming.result(), None
            if confirmed:
                self.unserved.take_over(self._shard)

    def _unreadable(self, reason: str) -> None:
        if count := self._quiet.count("membership", self._monotonic()):
            facts = event("membership_unreadable", reason=reason, count=count)
            log.warning("the membership cannot be read: %s", reason, extra=facts)

    async def confirm(self) -> bool:
        """Return whether the store has confirmed what is held here; a refusal is logged."""
        try:
            await self._shard.confirmation.confirm()
        except errors.LowwaterError as error:
            if count := self._quiet.count("confirm", self._monotonic()):
                facts = event("unconfirmed", reason=str(error), count=count)
                log.warning("what is held cannot be confirmed: %s", error, extra=facts)
            return False
        self.contact.confirmed()
        members, dropped = self.view.members, self._shard.topology.dropped
        if members and members[0].id == self.me.id and not dropped.keys().isdisjoint(self.view.pins):
            # The shard that dropped them has died before it could unpin them.
            with contextlib.suppress(JournalError, errors.LowwaterError):
                await self.unpin_dropped()
        self._give_back()
        if late := self._untaken.look():
            self._shard.rounds.snapshot(late)
        if self._shard.held.graph.doubted and self._monotonic() >= self._graph_at:
            self._graph_at = self._monotonic() + self._pace.dead_after
            with contextlib.suppress(errors.LowwaterError):
                await self._shard.confirmation.refresh()
        return True

    def _give_back(self) -> None:
        """Begin to give back the logs that are not served, unless this is under way."""
        task, held = self._giving_back, self._shard.held
        if task is not None and task.done():
            task.result()
            task = None
        if task is None and held.unserved_logs:
            now, before, wait = self._monotonic(), self._unserved_at, GIVE_BACK_AFTER * self._pace.dead_after
            self._unserved_at = {name: before.get(name, now) for name in held.unserved_logs if not self.mine(name)}
            settled = self.contact.unbroken >= wait
            due = {name: settled and now - seen >= wait for name, seen in self._unserved_at.items()}
            self._giving_back = asyncio.create_task(held.give_back(due))

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
        """See Placement."""
        return self.contact.may_heal()

    async def wait_for_graph(self) -> bool:
        """See Placement. The beat of a process that is no member tells all living shards.

        Raises JournalFailed, JournalUnknown and JournalCorrupt.
        """
        next_at = self._monotonic() + self._pace.beat
        await self._open()
        view, beats = await self._directory.beat(self.me.id)
        if all(beats.silence(member.id) > self._pace.dead_after * 1e6 for member in view.members):
            return False
        await self._pause(next_at)
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
        """Return whether the owner of a log is another process and still a member.

        A process that was started at its address since is another member.
        """
        member = self.view.at(owner.address)
        return member is not None and member.address != self.me.address and member.took(owner.view)

    async def settle(self, names: Iterable[str], within: float) -> None:
        """Wait while registered computations are at suspects.

        It waits until the suspects are left out, or beat again. ``within``: seconds to wait at
        most. Raises Unavailable. Cost: nothing while there is no suspect, else one question to the
        store, however long the wait.
        """
        if not any(self._suspects.among(self.view.members)):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):  # also for a store that hangs
                addresses = {place.address for place in (await self.locate(names)).values()}
                while any(member.address in addresses for member in self._suspects.among(self.view.members)):
                    await self._beaten.wait()

    async def locate(self, names: Iterable[str]) -> dict[str, Place]:
        """Return where registered computations are served, or are about to be. Raises Unavailable.

        The place is the owner of the log if that process lives, else the shard that the view names.
        Two shards may have different views for a moment, but the store has one owner: so redirects
        of all shards lead to one place, and their epochs only grow.
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
