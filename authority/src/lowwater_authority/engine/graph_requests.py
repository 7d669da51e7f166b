"""Requests about the graph: register, change inputs, reset, drop, cut in two."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.engine.placement import moved
from lowwater_authority.engine.requests import allow
from lowwater_authority.engine.round import DROPPED, GivenUp
from lowwater_authority.engine.waiting import within
from lowwater_authority.journal import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from lowwater_authority.core.topology import Spec
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.requests import Permit, Requests, Room
    from lowwater_authority.engine.round import Round

TAKEN_AFTER_REGISTERING: Final = 32
"""Most computations that are taken over side by side because they were just registered.

Other users of the store queue behind these only."""

log = logging.getLogger(__name__)


class GraphRequests:
    """Changes the graph.

    Every method returns when its effect is durable; a refused request has changed nothing.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._served = requests.served
        self._holdings = requests.held
        self._takeover = requests.takeover
        self._registered = asyncio.Semaphore(TAKEN_AFTER_REGISTERING)

    async def register(self, spec: Spec, *, room: Room = allow, principal: str = "") -> Spec:
        """Register a computation for a ``principal``; empty: unknown.

        Raises InvalidArgument, RegistrationConflict, Cycle, EstimatedInput, and errors of ``room``.
        """

        def stage(round_: Round) -> Spec:
            if spec.name in self._holdings.endings:
                # The computation was dropped since this request began. Its log must be shortened
                # first, because the old records may be damaged.
                raise GivenUp
            # With the changes that are staged in front of this one.
            graph = round_.topology or self._requests.topology
            computation = self._holdings.computation(spec.name)
            unused = (
                computation is not None
                and not computation.last_sequencer
                and not any(group.every for group in computation.tasks)
            )
            changed = graph.register(spec, unused=unused)
            if changed is not graph:
                room(graph.computations)
                if computation is not None:
                    # If another shard has taken it over meanwhile, and perhaps granted ranges, the
                    # journal refuses the round.
                    self._requests.touch(round_, spec.name)
                round_.topology = changed
            return changed.get(spec.name)

        before = self._requests.topology.computations.get(spec.name)
        registered = await self._requests.write(
            stage, alone=True, together=True, first=partial(self._until_ended, spec.name)
        )
        if before is not None and registered.max_skew > before.max_skew:
            log.warning(
                "%s may now be %d s ahead of the clock, and not %d s as before: %s has registered it so",
                spec.name,
                registered.max_skew // 1_000_000,
                before.max_skew // 1_000_000,
                principal or "a caller",
                extra=event(
                    "max_skew_raised",
                    computation=spec.name,
                    max_skew_micros=registered.max_skew,
                    before_micros=before.max_skew,
                    principal=principal,
                ),
            )
        if before is None:
            inputs = list(registered.inputs)
            reads = f"reads {', '.join(inputs)}" if inputs else "is an injector"
            facts = event("registered", computation=spec.name, inputs=inputs, principal=principal)
            log.info("%s is registered: it %s", spec.name, reads, extra=facts)
        if spec.name not in self._served:
            try:
                async with self._registered:
                    await self._takeover.serve(spec.name)
                    await self._takeover.serve_those(registered.slice_specs())
            except errors.Unavailable as error:
                msg = (
                    f"{spec.name} is registered, but it is not known yet whether this shard serves it: {error.message}"
                )
                raise errors.Unavailable(msg, metadata=error.metadata) from error
        return registered

    async def set_inputs(
        self,
        name: str,
        inputs: Sequence[str],
        *,
        incarnation: int = 0,
        input_version: int = 0,
        permit: Permit = allow,
    ) -> Spec:
        """Change the inputs of a computation.

        ``incarnation`` and ``input_version`` are those that the caller has seen, so that a late
        message changes nothing; incarnation 0: any.

        Its claims are revoked, so that the published value is frozen when it is compared with the
        new inputs. Ranges that lead the low watermark of a new input go back to it, because records
        may come from that input. A computation that was estimated only by its old inputs begins a
        new incarnation instead; see Topology.set_inputs.

        Raises as register does, WouldRegress, IncarnationChanged and InputVersion.
        """
        away: Lows = {}

        def stage(round_: Round) -> Spec:
            changed = self._requests.topology.set_inputs(name, inputs)
            self._requests.topology.check_incarnation(name, incarnation)
            version = self._requests.topology.required(
                name
            ).input_version  # as callers see it: 0 of one that reads nothing
            if incarnation and input_version != version:
                msg = f"version {version} of the inputs of {name} is in force, not {input_version}; nothing was changed, look at them again"
                raise errors.InputVersion(msg, metadata={"computation": name, "input_version": str(version)})
            computation = self._requests.by_its_inputs(round_, name)
            if changed.get(name).incarnation > self._requests.topology.get(name).incarnation:
                permit(changed.downstream(name))
                round_.change_graph(changed, self._served)
                return changed.get(name)
            lows = [self._requests.low(new, away) for new in added()]
            for new, low in zip(added(), lows, strict=True):
                if low < max(computation.low, computation.vouched):
                    complete = "has published" if low < computation.low else "has let its output say"
                    msg = (
                        f"{new} is behind what {name} {complete}: {name} would have to go back. Reset {name} first, or wait "
                        f"until {new} has caught up."
                    )
                    raise errors.WouldRegress(msg, metadata={"computation": name, "input": new})
            round_.touch(name, computation)
            bound = min(lows, default=None)
            round_.fenced += computation.revoke(changed.get(name).input_version, round_.now, bound=bound)
            round_.topology = changed
            return changed.get(name)

        def added() -> list[str]:
            return [new for new in inputs if new not in self._requests.topology.get(name).inputs]

        before = self._requests.topology.get(name).inputs
        changed = await self._requests.write(stage, alone=True, lows_of=added, away=away)
        if changed.inputs != before:
            facts = event("inputs_changed", computation=name, inputs=list(changed.inputs), before=list(before))
            log.info("%s reads %s now", name, ", ".join(changed.inputs) or "nothing", extra=facts)
        return changed

    async def reset(self, name: str, *, incarnation: int = 0, permit: Permit = allow) -> list[Spec]:
        """Start a new incarnation of a computation and of all its consumers.

        ``incarnation`` is the one that ends; 0: any. Any shard may do this. The shards that serve
        these computations begin the new incarnations when they read the graph, at the latest before
        their next answer. Raises UnknownComputation, IncarnationChanged, and errors of ``permit``.
        """

        def stage(round_: Round) -> list[Spec]:
            changed, names = self._requests.topology.reset(name)
            self._requests.topology.check_incarnation(name, incarnation)
            permit(names)
            round_.change_graph(changed, self._served)
            return [changed.get(n) for n in names]

        fresh = await self._requests.write(stage, alone=True)
        for spec in fresh:
            facts = event("reset", computation=spec.name, incarnation=spec.incarnation, asked=name)
            log.warning("%s was reset: its incarnation %d begins", spec.name, spec.incarnation, extra=facts)
        return fresh

    async def split(self, name: str, part: str, at: bytes, *, incarnation: int = 0, room: Room = allow) -> Spec:
        """Cut a slice of a computation in two; returns the new slice, with the keys from ``at`` on.

        The new slice receives its keys afterwards, see core/cut.py. Any shard may do this.
        ``incarnation`` is that of the root; 0: any. Raises as Topology.split, IncarnationChanged,
        and errors of ``room``.
        """

        def stage(round_: Round) -> Spec:
            changed, new_name = self._requests.topology.split(name, part, at)
            self._requests.topology.check_incarnation(name, incarnation)
            room(self._requests.topology.computations)
            round_.topology = changed
            return changed.get(new_name)

        new = await self._requests.write(stage, alone=True)
        facts = event("slice_split", computation=name, slice=part, new=new.name, at=at.hex())
        log.warning("%s was cut at %s: its keys from there on are those of %s", part, at.hex(), new.name, extra=facts)
        with suppress(errors.LowwaterError):
            await self._takeover.serve_those([new.name])
        return new

    async def drop(self, name: str, *, force: bool, incarnation: int = 0) -> Spec:
        """Take a computation out of the graph; returns its tombstone.

        ``incarnation`` is the one that ends; 0: any. A record in the computation's own log revokes
        its claims in the same append, so a shard that was replaced cannot drop it.

        A computation whose log is damaged may have owners that this shard does not know. It is
        dropped only with ``force``, and without that record. If no process has it in memory either,
        its log is taken before this returns, so that its last owner cannot go on. The log is taken
        only after the graph is appended, because until then that owner may come back with the only
        good copy.

        Raises UnknownComputation, StillRead, IncarnationChanged, and OwnedRanges unless forced.
        Raises Unavailable when the computation is dropped, but its log could not be taken within
        ``wait_seconds``; this shard goes on trying.
        """
        self._requests.topology.check_incarnation(name, incarnation)
        unread = self._is_unread(name)
        orphaned = unread and name not in self._served
        if unread:
            self._requests.topology.drop(name)
            await self._refuse_unread(name, force=force)

        def stage(round_: Round) -> Spec:
            changed = self._requests.topology.drop(name)
            self._requests.topology.check_incarnation(name, incarnation)
            if unread and self._is_unread(name):
                round_.change_graph(changed, self._served)
                return changed.dropped[name]
            computation = self._served.computation(name)
            if not force:
                computation.refuse_owners(round_.now)
            round_.touch(name, computation)
            version = self._requests.topology.get(name).input_version
            round_.fenced += computation.revoke(version, round_.now, reason=DROPPED)
            round_.topology = changed
            return changed.dropped[name]

        dropped = await self._requests.write(stage, alone=True)
        facts = event("dropped", computation=name, incarnation=dropped.incarnation, force=force)
        log.warning("%s was dropped, in incarnation %d", name, dropped.incarnation, extra=facts)
        if orphaned:
            await self._take_dropped(name)
        return dropped

    def _is_unread(self, name: str) -> bool:
        return self._takeover.is_damaged(name) or self._holdings.unwritten(name) is not None

    async def _refuse_unread(self, name: str, *, force: bool) -> None:
        """Refuse to drop a computation whose log is damaged, unless it is forced and not in use.

        Raises Moved while another shard serves it, OwnedRanges unless forced, and Unavailable.
        """
        served = name in self._served
        if not served and await self._served.placement.lives_elsewhere(name):
            raise moved(name)
        if not force:
            state = "and what is in memory is not written yet" if served else "and no process has it in memory"
            msg = (
                f"the log of {name} is damaged, {state}: it is not known whether workers own key ranges of it. "
                "Restore a copy, or stop its workers and drop it by force, which does not read it."
            )
            raise errors.OwnedRanges(msg, metadata={"computation": name, "workers": ""})
        if not served:
            return
        try:
            with self._served.losing() as lost:
                await self._holdings.of(name).refuse_usurped()
        except JournalError as error:
            msg = f"the store does not tell who owns the log of {name}, nothing was changed: {error}"
            raise errors.Unavailable(msg, metadata={"computation": name}) from error
        if lost:
            raise moved(name)

    async def _take_dropped(self, name: str) -> None:
        msg = (
            f"{name} was dropped, but its log cannot be taken from its last owner yet: if that process comes back, it serves {name} "
            "until it reads the graph. This shard goes on trying"
        )
        async with self._in_time(name, msg):
            await self._holdings.endings.taken(name)

    async def _until_ended(self, name: str) -> None:
        """Wait until the log of a dropped computation is short, for its next incarnation.

        Raises Unavailable.
        """
        if name not in self._requests.topology.dropped and name not in self._holdings.endings:
            return
        msg = f"the log of {name}, which was dropped, is not shortened yet; try again"
        async with self._in_time(name, msg):
            await self._holdings.endings.ended(name)

    def _in_time(self, name: str, msg: str) -> AbstractAsyncContextManager[None]:
        """Bound a wait by ``wait_seconds``, then raise Unavailable."""
        seconds = self._served.settings.wait_seconds
        return within(seconds, lambda: errors.Unavailable(msg, metadata={"computation": name}))
