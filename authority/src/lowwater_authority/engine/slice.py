"""One slice of a cut computation: what is durable of it, and how much of that its root has confirmed. See engine/slices.py."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.slicing import CLAIMS_OF_ONE, as_slice
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import slicing
from lowwater_authority.engine.cuts import inputs_of
from lowwater_authority.engine.root_here import Here
from lowwater_authority.engine.roots import Asked, Told
from lowwater_authority.engine.waiting import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec, Topology
    from lowwater_authority.engine.confirmation import Confirmation
    from lowwater_authority.engine.cuts import Cuts
    from lowwater_authority.engine.owner_requests import OwnerRequests
    from lowwater_authority.engine.reads import Reads
    from lowwater_authority.engine.roots import Above, Range
    from lowwater_authority.engine.served import Served

MASS_SECONDS: Final = 1.0
"""How often a slice tells of the mass of its records at most: it takes all of its claims to make, and heuristic watermarks are about records of ten minutes."""

log = logging.getLogger(__name__)


def told_of(computation: Computation, topology: Topology) -> Told:
    """Return what a slice says of itself. All that was staged of it must be durable. O(1), but O(runs) when nothing is unfinished."""
    spec, view, low = computation.spec, computation.published, computation.map.minimum()
    required = topology.required(spec.name)
    version = computation.input_version or spec.input_version  # nobody has claimed it yet: nothing was folded
    return Told(
        computation.incarnation,
        Fold(version, required.input_incarnations) if spec.inputs else required,
        current=version == spec.input_version,
        vouched=computation.vouched,
        low=low,
        retired=low == MAX and computation.map.all_retired,
        kept=tuple((kept.ppm, kept.micros, kept.records, kept.behind) for kept in view.budgets),
        oldest_operation=view.oldest_operation,
        waiting_for=view.holder.owner.waiting_for if view.holder is not None else "",
        identity=computation.identity,
        span=computation.map.span,
        cut_version=as_slice(computation).cut_version,
        has_keys=computation.map.span == spec.span and not spec.source,
    )


class Context(NamedTuple):
    """The rooms of the shard that serves a slice."""

    served: Served
    confirmation: Confirmation
    owners: OwnerRequests
    reads: Reads
    cuts: Cuts


class Slice:
    """One slice that this process serves: what is durable of it, and how much of that counts at the root.

    ``follow`` begins the task that tells the root. All methods are called on the event loop.
    """

    def __init__(self, context: Context, computation: Computation, above: Above | None, asked: int = 0) -> None:
        """``asked``: claims made so far by this process, whose ids and numbers are not to be used again."""
        spec = computation.spec
        self.name = spec.name
        self.root = spec.slice_of
        self._context = context
        self._served = context.served
        self._settings = context.served.settings
        self._spec = spec
        self._of = computation
        """What is served of it: another object after it was read back, or when it begins a new incarnation."""
        self._told = told_of(computation, context.served.topology)
        self._inputs = inputs_of(context.served.topology, spec.name) if self._told.current else None
        """Those that all of its workers have gone by since its log followed any; None: this process has not known them."""
        self.turn = 0
        """Grows when it hands keys over: answers that wait from before may be of these."""
        self._above = above
        self._range: Range | None = None
        self._counts = MAX
        """The greatest value of it that may count at the root; MAX: nobody knows."""
        self._said: Told | None = None
        """What the root has taken over last, from this ownership."""
        self._vouched = MIN
        """How far the root knows that outputs say that they are complete, from this ownership."""
        self._heard = asyncio.Event()
        """Set, and replaced, when the root has heard that."""
        self._bound: str | None = None
        """To which worker's identity this ownership has bound the root; None: to none."""
        self._binding = asyncio.Lock()
        """One is bound at a time."""
        self._binds: tuple[str, asyncio.Future[None]] | None = None
        """Which identity is to be, and who waits for it."""
        self._root_epoch = 0
        """Before the range was retired: the ownership number of the root."""
        self._weighs = bool(spec.heuristics)
        self._mass_turns, self._mass_said, self._mass_due = computation.mass_turns, -1, 0.0
        """How often its mass has changed, how often it had when the root was told of it last, and from when on it may be again."""
        self.reached = False
        """Whether the root has taken over what was said last, or is about to; False after a failure, until it has again."""
        self.withheld = 0
        """Answers that had to be refused, because the root had not heard of what they answer."""
        self._slow = False
        """Whether an answer has waited in vain: the next ones do not, until the root answers."""
        self.asked = asked
        """Claims made so far."""
        self._news = asyncio.Event()
        self._settled: asyncio.Future[None] | None = None
        """Ends when answers may leave; None: nobody waits."""
        self._task: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Begin to tell the root."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Tell it no more: another process serves the slice, or nobody is to."""
        if self._task is not None:
            self._task.cancel()
        self._give_up()
        self._settle(ended=True)
        if self._binds is not None and not self._binds[1].done():
            self._binds[1].set_exception(self._not_bound())

    def is_of(self, spec: Spec) -> bool:
        """Whether this is that slice as it is registered now, if perhaps in another incarnation: by its keys, what is told of it, and its registration."""
        mine = self._spec
        return (mine.span, mine.heuristics, mine.first) == (spec.span, spec.heuristics, spec.first)

    def is_settled(self) -> bool:
        """Whether answers may leave: what is durable stands no lower than what may count at the root."""
        return self._told.low >= self._counts

    def durable(self, computation: Computation) -> None:
        """Something of it became durable, or the graph has changed. All that was staged of it is durable."""
        told = told_of(computation, self._served.topology)
        if computation is not self._of:
            # It was read back, or begins a new incarnation, and its masses are counted anew.
            self._of, self._mass_turns, self._mass_said = computation, computation.mass_turns, -1
            self._news.set()
        elif computation.mass_turns != self._mass_turns:
            self._mass_turns = computation.mass_turns
            self._news.set()
        self._spec = computation.spec
        if told.incarnation != self._told.incarnation or (self._told.current and not told.current):
            self._give_up()
        elif told.span != self._told.span or not told.has_keys:
            self._give_up()
            self.turn += told.span != self._told.span
        if told.cut_version != self._told.cut_version and told.span == self._told.span:
            self._inputs = None  # it has taken its keys in, with what workers of another slice said of them
        if not (told.current and self._told.current and told.fold == self._told.fold):
            self._follow_inputs(told)
        if told != self._told:
            self._told = told
            self._news.set()
        if told.identity is not None and self._binds is not None and not self._binds[1].done():
            self._binds[1].set_result(None)  # whose it is by now, the slice says itself
        self._settle()

    def _follow_inputs(self, told: Told) -> None:
        inputs = inputs_of(self._served.topology, self.name)
        if told.current:
            self._inputs = inputs
        elif self._inputs is not None:
            self._inputs &= inputs  # workers may go by these from here on, whatever its log has followed yet

    async def settle(self, turn: int) -> errors.Unavailable | None:
        """Wait until answers of a turn may leave, for ``slice_answer_seconds`` at most; returns the refusal when they may not yet, or never."""
        if not self._slow and not self.is_settled() and turn == self.turn:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.slice_answer_seconds):
                    await asyncio.shield(self._settled)
        if turn == self.turn:
            if self.is_settled():
                return None
            self._slow = True
        self.withheld += 1
        msg = (
            f"{self.root} has not heard of this change of {self.name}, a slice of it, and could lead it: what was asked for may be done, and is not "
            "acknowledged. It is repeated, or look again, when the shard of that one answers"
        )
        return errors.Unavailable(msg, metadata={"computation": self.name, "root": self.root})

    async def vouched(self, through: int, input_version: int) -> None:
        """Wait until the root adds no input below what an output says that goes by these inputs. Raises Unavailable after ``slice_answer_seconds``.

        That output says it of a part of the slice. So the slice has workers who are not concerned, and have their answers meanwhile.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.slice_answer_seconds):
                while self._vouched < through:
                    await self._heard.wait()
        if self._vouched < through or self._told.fold.input_version != input_version:
            msg = f"{self.root} does not know yet how far this output of {self.name}, a slice of it, is to say that it is complete; say nothing, and ask again"
            raise errors.Unavailable(msg, metadata={"computation": self.name, "root": self.root})

    def is_bound(self, identity: str) -> bool:
        """Whether the root is known to be bound to the identity of a worker, so that a range may be granted to it."""
        return self._bound == identity

    async def bind(self, identity: str) -> None:
        """Bind the root to the identity of the first worker of the slice, before it is granted any range: slices are claimed one by one, and have one owner.

        Raises IdentityMismatch when a worker of another identity has come first, in any slice, and Unavailable after ``slice_answer_seconds``.
        """
        try:
            async with asyncio.timeout(self._settings.slice_answer_seconds), self._binding:
                if self._told.identity is not None or self.is_bound(identity):
                    return  # whose it is by now, the slice says itself
                done = asyncio.get_running_loop().create_future()
                self._binds = identity, done
                try:
                    self._news.set()
                    await done
                finally:
                    self._binds = None
        except TimeoutError as error:
            raise self._not_bound() from error

    def _not_bound(self) -> errors.Unavailable:
        msg = f"{self.root} does not know yet whose worker claims {self.name}, a slice of it; nothing was granted, try again"
        return errors.Unavailable(msg, metadata={"computation": self.name, "root": self.root})

    def _settle(self, *, ended: bool = False) -> None:
        if ended or self.is_settled():
            self._slow = False
            if self._settled is not None:
                self._settled.set_result(None)
                self._settled = None

    def _give_up(self) -> None:
        """What the root knows is not known any more."""
        known = self._range
        self._range, self._said, self._counts, self._vouched, self._mass_said = None, None, MAX, MIN, -1
        self._bound = None
        self._news.set()
        if known is not None:
            known.close()

    # -- its task --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(*self._settings.slice_again_seconds)
        while True:
            try:
                try:
                    await self._tell()
                    backoff.restart()
                    continue
                except errors.LowwaterError as error:
                    self.reached = False
                    if self._served.held.logs.stopping:
                        return  # a later attempt would fail as well; Shard.close tells how many have ended so
                    log.log(
                        logging.WARNING if backoff.first else logging.DEBUG,
                        "%s does not hear of its slice %s yet, trying again in %.2f s: %s",
                        self.root,
                        self.name,
                        backoff.seconds,
                        error,
                        extra=event("slice_not_told", computation=self.name, root=self.root, reason=str(error)),
                    )
                    with suppress(errors.LowwaterError):
                        await self._look_again(error)
            except Exception:
                # Whatever it is: without this task the slice is silent for good, and its workers wait.
                self.reached = False
                log.exception(
                    "telling %s of its slice %s failed in a way it never should, trying again in %.2f s",
                    self.root,
                    self.name,
                    backoff.seconds,
                    extra=event("slice_failed", computation=self.name, root=self.root),
                )
                with suppress(Exception):  # what it lets go of may be what has failed
                    self._give_up()
            await backoff.wait()

    async def _look_again(self, error: errors.LowwaterError) -> None:
        """Find out why the root has refused something, where this process may know too little."""
        if isinstance(error, errors.OlderClaim):
            await self._rise(error)
        elif isinstance(error, errors.InvalidArgument) and self._served.shared:
            await self._context.confirmation.refresh()  # it is not cut, or cut elsewhere

    async def _rise(self, error: errors.OlderClaim) -> None:
        """Another process has claimed under a greater number, or under this one: it has replaced this one, unless the store has lost numbers."""
        self._give_up()
        claimed = error.metadata.get("claimed_ordinal", "")
        if not claimed.isdecimal():
            return  # nobody who knows slices says so
        epoch, claims = divmod(int(claimed), CLAIMS_OF_ONE)
        if epoch == self._served.epoch(self.name):
            self.asked = claims
            return
        await self._context.confirmation.confirm([self.name])
        await self._context.confirmation.rise(self.name, epoch)

    async def _tell(self) -> None:
        """Tell the root what it does not know yet, or wait until there is something."""
        if self._range is not None and self._range.lost:
            self._give_up()
        if not self._told.has_keys:
            self.reached = False
            self._give_up()
            await self._context.cuts.cut_anew(self.name)
        elif self._range is not None and self._goes_on(self._range):
            await self._tell_by(self._range)
        elif self._binds is None and self._told.retired and self._said is not None and self._said.retired:
            await self._wait()
        else:
            await self._claim()

    def _goes_on(self, known: Range) -> bool:
        """Whether the range is still the one to speak by: nobody has to be bound first, by a claim in place of it."""
        return self._range is known and self._wanted() in (None, self._bound)

    async def _tell_by(self, known: Range) -> None:
        mass, turns, of = None, self._mass_said, self._of
        if self._weighs and self._mass_turns != turns and asyncio.get_running_loop().time() >= self._mass_due:
            mass, turns, of = await self._context.reads.ask(
                self.name, lambda found, _: (as_slice(found).whole_mass(), found.mass_turns, found)
            )
            if not self._goes_on(known):
                return
        if self._told.vouched > self._vouched and self._fits(self._told, known):
            await self._vouch(self._told, known)
            if not self._goes_on(known):
                return
        told = self._told  # of now: no less may have been acknowledged since
        if not self._fits(told, known):
            self._give_up()
        elif told == self._said and mass is None:
            await self._wait()
        elif told.retired:
            # From here on the slice may count as MAX at the root, and what it said before does not count for sure.
            self._counts, self._said = MAX, None
            self._root_epoch = await self._epoch()
            if self._range is not known or self._told != told:
                return
            await self._retire(known)
            self.reached = True
            if self._range is known:
                self._range, self._said = None, told
                known.close()
        else:
            # Until the root has answered, nobody knows which report counts: the next one is sent even if it repeats the last.
            self._counts, self._said = max(self._counts, told.low), None
            await self._by(known, known.say(told, mass))
            self.reached = True
            if self._range is known:
                self._counts, self._said = told.low, told
                if mass is not None:
                    self._mass_due = asyncio.get_running_loop().time() + MASS_SECONDS
                    self._mass_said = turns if of is self._of else -1  # else they are counted anew, and told again
                self._settle()

    async def _vouch(self, told: Told, known: Range) -> None:
        with suppress(errors.TooFarAhead):  # its clock is behind: the rest is to be said all the same
            await self._by(known, known.vouch(told))
            if self._range is known:
                self._vouched = told.vouched
                heard, self._heard = self._heard, asyncio.Event()
                heard.set()

    async def _wait(self) -> None:
        """Wait for news, or for the range to be lost; without any, say the same again now and then."""
        self._news.clear()
        time = asyncio.get_running_loop().time
        waits = self._range is not None and self._weighs and self._mass_turns != self._mass_said
        # Until a time: what is left of one may be too little to move a clock.
        until = self._mass_due if waits else time() + self._settings.slice_beat_seconds
        while True:
            look = min(until, time() + self._settings.slice_look_seconds)
            try:
                async with asyncio.timeout_at(look):
                    await self._news.wait()
            except TimeoutError:
                if look < until and (self._range is None or not self._range.lost):
                    continue
                if not waits and (self._range is not None or await self._epoch() != self._root_epoch):
                    self._said = None
                elif self._range is None:
                    self.reached = True
            return

    async def _epoch(self) -> int:
        """Return the ownership number of the root. Whoever takes it over reads its log, of which a store may have lost the retirement of a range."""
        if self._above is None or self.root in self._served:
            return self._served.epoch(self.root)
        return await self._above.epoch(self.root)

    async def _by(self, known: Range, saying: Awaitable[None]) -> None:
        """Wait for an answer by which the range may turn out to be lost."""
        try:
            await saying
        except (errors.StaleSequencer, errors.InputVersion, errors.IncarnationChanged):
            if self._range is known:
                self._give_up()
            raise

    async def _retire(self, known: Range) -> None:
        """Take the range out of the root. The claim ends in any case.

        A retirement without an answer may still arrive, at any time. Under the same claim it would take out what a worker has revived meanwhile,
        and the root would lead that worker. Under a newer claim the root refuses it.
        """
        try:
            await known.retire()
        except errors.LowwaterError:
            if self._range is known:
                self._give_up()
            raise

    async def _claim(self) -> None:
        """Become the owner of the range, and make sure that what is said from now on is of the root's incarnation and inputs."""
        await self._check_listed()
        context, told, binds = self._context, self._told, self._binds
        self._news.clear()
        identity = self._wanted()
        self.asked += 1
        asked = Asked(
            self.root,
            self.name,
            told.span,
            context.served.held.address,
            context.served.epoch(self.name),
            self.asked,
            told.low,
            self._request_id(context.served.held.of(self.name).ownership.nonce),
            slicing(self.root, told.incarnation, identity),
            told.incarnation,
            told.cut_version,
        )
        above: Above = (
            Here(context.served, context.owners) if self._above is None or self.root in context.served else self._above
        )
        try:
            found = await above.claim(asked)
        except errors.IdentityMismatch as error:
            if binds is None or told.identity is not None:
                raise
            if not binds[1].done():
                binds[1].set_exception(error)
            if self._binds is binds:
                self._binds = None
            return  # a refused claim has changed nothing: what it has, it still has
        if self._range is not None:
            self._give_up()  # this one has taken its place
        if asked.epoch != context.served.epoch(self.name):
            found.close()
            return
        if not self._fits(self._told, found):
            # The graph has changed: what this process reads of it ends the life, or the claims, that went by the old one, before anything is said.
            found.close()
            if context.served.shared:  # who is alone has all of it in memory
                await context.confirmation.refresh()
            await context.cuts.follow_inputs(self.name, found.input_version, found.low, self._inputs)
            if not self._fits(self._told, found):
                msg = f"the shards of {self.root} and {self.name} do not know the same graph yet"
                raise errors.Unavailable(msg)
            return
        self._range, self._said, self._counts, self._mass_said = found, None, found.low, -1
        self._mass_due = 0.0
        # The root reads no identity of another incarnation than its own: after a reset meanwhile the next claim binds it.
        self._bound = identity if told.incarnation == self._told.incarnation else None
        if binds is not None and self._bound == binds[0] and not binds[1].done():
            binds[1].set_result(None)
        self._settle()

    def _wanted(self) -> str | None:
        """Return the identity that the root is to be bound to; None: no worker has come yet."""
        if self._told.identity is not None or self._binds is None:
            return self._told.identity
        return self._binds[0]

    async def _check_listed(self) -> None:
        """Nothing is said of a slice that its root does not have: a graph that was written without slices has none. Raises Unavailable."""
        for again in (self._served.shared, False):
            root = self._served.topology.computations.get(self.root)
            if root is not None and root.span_of(self.name) == self._told.span:
                return
            if again:
                await self._context.confirmation.refresh()
        msg = f"{self.root} has no slice {self.name} of these keys, as far as this shard has read the graph"
        raise errors.Unavailable(msg)

    @staticmethod
    def _fits(told: Told, known: Range) -> bool:
        same = (told.incarnation, told.fold.input_version, told.span) == (
            known.incarnation,
            known.input_version,
            known.span,
        )
        return told.current and told.has_keys and same

    def _request_id(self, nonce: int) -> bytes:
        """A new one for each claim, and the same in each replay of a simulation."""
        return blake2b(
            f"{self.name} {self._served.epoch(self.name)} {nonce} {self.asked}".encode(), digest_size=16
        ).digest()
