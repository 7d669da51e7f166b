"""One slice of a cut computation: what is durable of it, and what of that its root has confirmed.

The rules that it follows: engine/slices.py.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core.names import slicing
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.slicing import CLAIMS_OF_ONE, as_slice
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.engine.cuts import inputs_of
from lowwater_authority.engine.root_here import Here
from lowwater_authority.engine.roots import SliceClaim, SliceReport
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
"""Shortest time between two reports of a slice's mass, in seconds.

A mass costs a pass over all claims, and heuristic watermarks are about records of ten minutes."""

log = logging.getLogger(__name__)


def slice_report(computation: Computation, topology: Topology) -> SliceReport:
    """Return what a slice reports of itself. All that is staged of the slice must be durable.

    O(1), but O(runs) when all of it is finished.
    """
    spec, view, low = computation.spec, computation.published, computation.map.minimum()
    required = topology.required(spec.name)
    version = computation.input_version or spec.input_version  # an unclaimed slice folded nothing
    return SliceReport(
        computation.incarnation,
        Fold(version, required.input_incarnations) if spec.inputs else required,
        current=version == spec.input_version,
        vouched=computation.vouched,
        low=low,
        retired=low == MAX and computation.map.all_retired,
        budgets=tuple((budget.ppm, budget.micros, budget.records, budget.behind) for budget in view.budgets),
        oldest_operation=view.oldest_operation,
        waiting_for=view.holder.owner.waiting_for if view.holder is not None else "",
        identity=computation.identity,
        span=computation.map.span,
        cut_version=as_slice(computation).cut_version,
        has_keys=computation.map.span == spec.keys.span and not spec.keys.source,
    )


class Context(NamedTuple):
    """The rooms of the shard that serves a slice."""

    served: Served
    confirmation: Confirmation
    owners: OwnerRequests
    reads: Reads
    cuts: Cuts


class Slice:
    """One slice that this process serves.

    ``follow`` begins the task that reports to the root. All methods are called on the event loop.
    The fields are many, but one state: an answer of the root changes several of them in one step.
    """

    def __init__(self, context: Context, computation: Computation, above: Above | None, claims: int = 0) -> None:
        """``claims``: number of claims so far by this process, whose ids must not be used again."""
        spec = computation.spec
        self.name = spec.name
        self.root = spec.slice_of
        self._context = context
        self._served = context.served
        self._settings = context.served.settings
        self._spec = spec
        self._computation = computation
        """The served computation. Another object takes its place when its log is read back, or when
        a new incarnation begins."""
        self._report = slice_report(computation, context.served.topology)
        self._inputs = inputs_of(context.served.topology, spec.name) if self._report.current else None
        """Inputs that all values of this slice take into account; None: unknown here."""
        self.turn = 0
        """Number of times that it handed keys over. Answers of an earlier turn are refused, because
        they may concern these keys."""
        self._above = above
        self._range: Range | None = None
        self._counts = MAX
        """Greatest value of the slice that may count at the root; MAX: unknown."""
        self._confirmed: SliceReport | None = None
        """Newest report that the root has confirmed under the current ownership; None: unknown."""
        self._vouched = MIN
        """Completeness of its outputs that the root has confirmed under the current ownership."""
        self._vouched_more = asyncio.Event()
        """Event that is set, and replaced, when the root has confirmed a greater completeness."""
        self._bound: str | None = None
        """Worker's identity to which the current ownership has bound the root; None: to none."""
        self._binding = asyncio.Lock()
        """Lock of ``bind``: one identity at a time."""
        self._binds: tuple[str, asyncio.Future[None]] | None = None
        """Identity that is being bound, and the future of its caller."""
        self._root_epoch = 0
        """Ownership number of the root before this slice retired its range."""
        self._weighs = bool(spec.heuristics)
        self._mass_turns, self._mass_confirmed, self._mass_due = computation.mass_turns, -1, 0.0
        """Three numbers: changes of the mass; those when the root confirmed it last (-1: never);
        and the event loop's time from which the mass may be reported again."""
        self.reached = False
        """True if the last attempt to report was confirmed. False after a failure, until the next
        confirmation."""
        self.withheld = 0
        """Number of answers refused because the root had not confirmed in time."""
        self._slow = False
        """True if an answer has waited in vain. Later ones do not wait, until the root confirms."""
        self.claims = claims
        """Number of claims by this process so far."""
        self._news = asyncio.Event()
        self._settled: asyncio.Future[None] | None = None
        """Future that ends when answers may leave; None: no answer waits."""
        self._task: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Begin to report to the root."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Report no more: this process does not serve the slice any more, or stops."""
        if self._task is not None:
            self._task.cancel()
        self._give_up()
        self._settle(ended=True)
        if self._binds is not None and not self._binds[1].done():
            self._binds[1].set_exception(self._not_bound())

    def matches(self, spec: Spec) -> bool:
        """Return whether a registration has this slice's keys, heuristics and first incarnation.

        A reset keeps these. A drop and a new registration does not.
        """
        mine = self._spec
        return (mine.keys.span, mine.heuristics, mine.first) == (spec.keys.span, spec.heuristics, spec.first)

    def is_settled(self) -> bool:
        """Return whether answers may leave: the root counts no greater value than is durable."""
        return self._report.low >= self._counts

    def durable(self, computation: Computation) -> None:
        """Note that a change of slice or graph is durable. Nothing else may be staged."""
        report = slice_report(computation, self._served.topology)
        if computation is not self._computation:
            # The log was read back, or a new incarnation begins: changes of the mass count anew.
            self._computation, self._mass_turns, self._mass_confirmed = computation, computation.mass_turns, -1
            self._news.set()
        elif computation.mass_turns != self._mass_turns:
            self._mass_turns = computation.mass_turns
            self._news.set()
        self._spec = computation.spec
        if report.incarnation != self._report.incarnation or (self._report.current and not report.current):
            self._give_up()
        elif report.span != self._report.span or not report.has_keys:
            self._give_up()
            self.turn += report.span != self._report.span
        if report.cut_version != self._report.cut_version and report.span == self._report.span:
            self._inputs = None  # it received keys that workers of another slice reported on
        if not (report.current and self._report.current and report.fold == self._report.fold):
            self._follow_inputs(report)
        if report != self._report:
            self._report = report
            self._news.set()
        if report.identity is not None and self._binds is not None and not self._binds[1].done():
            self._binds[1].set_result(None)  # from here on the slice reports this identity
        self._settle()

    def _follow_inputs(self, report: SliceReport) -> None:
        inputs = inputs_of(self._served.topology, self.name)
        if report.current:
            self._inputs = inputs
        elif self._inputs is not None:
            self._inputs &= inputs  # workers may report by these before the log follows

    async def settle(self, turn: int) -> errors.Unavailable | None:
        """Wait until answers of a turn may leave, for ``slice_answer_seconds`` at most.

        Returns None, or the refusal when they may not leave yet, or never.
        """
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
            f"{self.root} has not confirmed this change of its slice {self.name}: the change may be done, and is not acknowledged yet. "
            "Repeat it, or look again"
        )
        return errors.Unavailable(msg, metadata={"computation": self.name, "root": self.root})

    async def vouched(self, through: int, input_version: int) -> None:
        """Wait until the root has confirmed how far an output, under these inputs, may be complete.

        Only the output's own worker waits, because the other workers of the slice are not
        concerned. Raises Unavailable after ``slice_answer_seconds``.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.slice_answer_seconds):
                while self._vouched < through:
                    await self._vouched_more.wait()
        if self._vouched < through or self._report.fold.input_version != input_version:
            msg = f"{self.root} has not confirmed yet how far this output of its slice {self.name} is complete; state nothing, and ask again"
            raise errors.Unavailable(msg, metadata={"computation": self.name, "root": self.root})

    def is_bound(self, identity: str) -> bool:
        """Return whether the root is known to be bound to a worker's identity."""
        return self._bound == identity

    async def bind(self, identity: str) -> None:
        """Bind the root to the identity of the slice's first worker, before that gets a range.

        Workers claim slices one by one, and all slices must have workers of one identity. Raises
        IdentityMismatch when a worker of another identity came first, in any slice, and Unavailable
        after ``slice_answer_seconds``.
        """
        try:
            async with asyncio.timeout(self._settings.slice_answer_seconds), self._binding:
                if self._report.identity is not None or self.is_bound(identity):
                    return  # the slice reports its identity already
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
        msg = f"{self.root} has not confirmed yet whose worker claims its slice {self.name}; nothing was granted, try again"
        return errors.Unavailable(msg, metadata={"computation": self.name, "root": self.root})

    def _settle(self, *, ended: bool = False) -> None:
        if ended or self.is_settled():
            self._slow = False
            if self._settled is not None:
                self._settled.set_result(None)
                self._settled = None

    def _give_up(self) -> None:
        """Forget the range, and with it all that the root has confirmed."""
        range_ = self._range
        self._range, self._confirmed, self._counts, self._vouched, self._mass_confirmed = None, None, MAX, MIN, -1
        self._bound = None
        self._news.set()
        if range_ is not None:
            range_.close()

    # -- its task ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(*self._settings.slice_again_seconds)
        while True:
            try:
                try:
                    await self._report_or_wait()
                    backoff.restart()
                    continue
                except errors.LowwaterError as error:
                    self.reached = False
                    if self._served.held.logs.stopping:
                        return  # a later attempt would fail as well; Shard.close logs how many did
                    log.log(
                        logging.WARNING if backoff.first else logging.DEBUG,
                        "%s has not confirmed its slice %s yet, trying again in %.2f s: %s",
                        self.root,
                        self.name,
                        backoff.seconds,
                        error,
                        extra=event("slice_not_told", computation=self.name, root=self.root, reason=str(error)),
                    )
                    with suppress(errors.LowwaterError):
                        await self._look_again(error)
            except Exception:
                # Without this task the slice would be silent for good, and its workers would wait.
                self.reached = False
                log.exception(
                    "a report to %s about its slice %s failed in a way it never should, trying again in %.2f s",
                    self.root,
                    self.name,
                    backoff.seconds,
                    extra=event("slice_failed", computation=self.name, root=self.root),
                )
                with suppress(Exception):  # closing the range may be what failed
                    self._give_up()
            await backoff.wait()

    async def _look_again(self, error: errors.LowwaterError) -> None:
        """Learn what this process does not know yet, if that is why the root refused it."""
        if isinstance(error, errors.OlderClaim):
            await self._rise(error)
        elif isinstance(error, errors.InvalidArgument) and self._served.shared:
            await self._context.confirmation.refresh()  # the root is cut elsewhere, or not cut

    async def _rise(self, error: errors.OlderClaim) -> None:
        """Learn of another process's claim under a greater or the same epoch.

        That process has replaced this one, unless the store has lost epochs.
        """
        self._give_up()
        claimed = error.metadata.get("claimed_ordinal", "")
        if not claimed.isdecimal():
            return  # this refusal is not one of a root
        epoch, claims = divmod(int(claimed), CLAIMS_OF_ONE)
        if epoch == self._served.epoch(self.name):
            self.claims = claims
            return
        await self._context.confirmation.confirm([self.name])
        await self._context.confirmation.rise(self.name, epoch)

    async def _report_or_wait(self) -> None:
        """Report what the root has not confirmed yet, or wait until there is something."""
        if self._range is not None and self._range.lost:
            self._give_up()
        if not self._report.has_keys:
            self.reached = False
            self._give_up()
            await self._context.cuts.cut_anew(self.name)
        elif self._range is not None and self._goes_on(self._range):
            await self._report_by(self._range)
        elif self._binds is None and self._report.retired and self._confirmed is not None and self._confirmed.retired:
            await self._wait()
        else:
            await self._claim()

    def _goes_on(self, range_: Range) -> bool:
        """Return whether the slice reports by this range, and needs no further claim."""
        return self._range is range_ and self._identity_to_bind() in (None, self._bound)

    async def _report_by(self, range_: Range) -> None:
        mass, turns, weighed = None, self._mass_confirmed, self._computation
        if self._weighs and self._mass_turns != turns and asyncio.get_running_loop().time() >= self._mass_due:
            mass, turns, weighed = await self._context.reads.ask(
                self.name, lambda slice_, _: (as_slice(slice_).whole_mass(), slice_.mass_turns, slice_)
            )
            if not self._goes_on(range_):
                return
        if self._report.vouched > self._vouched and self._fits(self._report, range_):
            await self._vouch(self._report, range_)
            if not self._goes_on(range_):
                return
        report = self._report  # read after the waits above, because a lower value may be durable since
        if not self._fits(report, range_):
            self._give_up()
        elif report == self._confirmed and mass is None:
            await self._wait()
        elif report.retired:
            # From here on the slice may count as MAX at the root, or still as reported before.
            self._counts, self._confirmed = MAX, None
            self._root_epoch = await self._epoch()
            if self._range is not range_ or self._report != report:
                return
            await self._retire(range_)
            self.reached = True
            if self._range is range_:
                self._range, self._confirmed = None, report
                range_.close()
        else:
            # Until the root has answered, either report may count. If this one fails, the next is
            # sent even if it repeats the last confirmed one.
            self._counts, self._confirmed = max(self._counts, report.low), None
            await self._answered(range_, range_.report(report, mass))
            self.reached = True
            if self._range is range_:
                self._counts, self._confirmed = report.low, report
                if mass is not None:
                    self._mass_due = asyncio.get_running_loop().time() + MASS_SECONDS
                    self._mass_confirmed = turns if weighed is self._computation else -1  # else report again
                self._settle()

    async def _vouch(self, report: SliceReport, range_: Range) -> None:
        with suppress(errors.TooFarAhead):  # the root's clock is behind; the report itself follows
            await self._answered(range_, range_.vouch(report))
            if self._range is range_:
                self._vouched = report.vouched
                before, self._vouched_more = self._vouched_more, asyncio.Event()
                before.set()

    async def _wait(self) -> None:
        """Wait for news or the loss of the range. Without either, repeat the report in time."""
        self._news.clear()
        time = asyncio.get_running_loop().time
        waits = self._range is not None and self._weighs and self._mass_turns != self._mass_confirmed
        # A point in time and not a duration: the rest of a duration may be too short for the clock.
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
                    self._confirmed = None
                elif self._range is None:
                    self.reached = True
            return

    async def _epoch(self) -> int:
        """Return the epoch of the root.

        A new owner of the root reads the root's log, where a store may have lost the retirement of
        a range. So a greater number makes the slice claim and retire again.
        """
        if self._above is None or self.root in self._served:
            return self._served.epoch(self.root)
        return await self._above.epoch(self.root)

    async def _answered(self, range_: Range, call: Awaitable[None]) -> None:
        """Wait for an answer of the root, and give the range up if the answer says it is lost."""
        try:
            await call
        except (errors.StaleSequencer, errors.InputVersion, errors.IncarnationChanged):
            if self._range is range_:
                self._give_up()
            raise

    async def _retire(self, range_: Range) -> None:
        """Retire the range at the root. The claim ends in any case.

        A retirement without an answer may still arrive at any time. Under the same claim it would
        retire keys that a worker has revived meanwhile, and the root would lead that worker. After
        a newer claim the root refuses the late retirement.
        """
        try:
            await range_.retire()
        except errors.LowwaterError:
            if self._range is range_:
                self._give_up()
            raise

    async def _claim(self) -> None:
        """Claim the range, and make sure that reports go by the root's incarnation and inputs."""
        await self._check_listed()
        context, report, binds = self._context, self._report, self._binds
        self._news.clear()
        identity = self._identity_to_bind()
        self.claims += 1
        claim = SliceClaim(
            self.root,
            self.name,
            report.span,
            context.served.held.logs.address,
            context.served.epoch(self.name),
            self.claims,
            report.low,
            self._request_id(context.served.held.of(self.name).ownership.nonce),
            slicing(self.root, report.incarnation, identity),
            report.incarnation,
            report.cut_version,
        )
        above: Above = (
            Here(context.served, context.owners) if self._above is None or self.root in context.served else self._above
        )
        try:
            granted = await above.claim(claim)
        except errors.IdentityMismatch as error:
            if binds is None or report.identity is not None:
                raise
            if not binds[1].done():
                binds[1].set_exception(error)
            if self._binds is binds:
                self._binds = None
            return  # a refused claim has changed nothing, so an older range is still good
        if self._range is not None:
            self._give_up()  # the new claim has taken its place
        if claim.epoch != context.served.epoch(self.name):
            granted.close()
            return
        if not self._fits(self._report, granted):
            # The graph has changed. This process first reads it, which ends an old incarnation, and
            # revokes claims under old inputs. Only then may the slice report.
            granted.close()
            if context.served.shared:  # else memory has the newest graph
                await context.confirmation.refresh()
            await context.cuts.follow_inputs(self.name, granted.input_version, granted.low, self._inputs)
            if not self._fits(self._report, granted):
                msg = f"the shards of {self.root} and {self.name} do not know the same graph yet"
                raise errors.Unavailable(msg)
            return
        self._range, self._confirmed, self._counts, self._mass_confirmed = granted, None, granted.low, -1
        self._mass_due = 0.0
        # The root ignores an identity of another incarnation: after a reset, claim again.
        self._bound = identity if report.incarnation == self._report.incarnation else None
        if binds is not None and self._bound == binds[0] and not binds[1].done():
            binds[1].set_result(None)
        self._settle()

    def _identity_to_bind(self) -> str | None:
        """Return the identity to bind the root to; None: no worker has claimed yet."""
        if self._report.identity is not None or self._binds is None:
            return self._report.identity
        return self._binds[0]

    async def _check_listed(self) -> None:
        """Raise Unavailable unless the root has this slice, in the graph as it is now.

        A release that knows no slices may have written the graph without them.
        """
        for again in (self._served.shared, False):
            root = self._served.topology.computations.get(self.root)
            if root is not None and root.span_of(self.name) == self._report.span:
                return
            if again:
                await self._context.confirmation.refresh()
        msg = f"{self.root} has no slice {self.name} of these keys, as far as this shard has read the graph"
        raise errors.Unavailable(msg)

    @staticmethod
    def _fits(report: SliceReport, range_: Range) -> bool:
        same = (report.incarnation, report.fold.input_version, report.span) == (
            range_.incarnation,
            range_.input_version,
            range_.span,
        )
        return report.current and report.has_keys and same

    def _request_id(self, nonce: int) -> bytes:
        """Return a new id for each claim, which is the same in each replay of a simulation."""
        return blake2b(
            f"{self.name} {self._served.epoch(self.name)} {nonce} {self.claims}".encode(), digest_size=16
        ).digest()
