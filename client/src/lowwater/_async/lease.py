"""One claim: what its worker says about it, and what it hears."""

from __future__ import annotations

import datetime as dt
import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, SupportsIndex, cast

from lowwater import errors
from lowwater._async.runtime import Runtime
from lowwater.core import checks
from lowwater.core.claims import CLOSE_TIMEOUT, Grant
from lowwater.core.columns import Column, is_one
from lowwater.core.fold import Fold, fold_of, injector_fold
from lowwater.core.lateness import Arrived
from lowwater.core.reports import stale
from lowwater.histogram import Histogram
from lowwater.views import NO_REMARKS, Inputs, Refusal, Remarks
from lowwater.watermark import MAX, EventTime, Watermarks, all_to_micros, to_micros

__all__ = ["Lease", "Oldest"]

logger = logging.getLogger("lowwater")

_RELEASED: Final = "was released"
_WORKER_CLOSED: Final = "belongs to a worker that was closed"
"""Why a lease is at its end."""

Oldest = EventTime | None | Mapping[int, EventTime | None] | Sequence[EventTime | None]
"""The oldest event time not finished: of all ranges, of some handles, or of every range (numpy
arrays too). None: nothing."""


class Lease:
    """One claim: the ranges it got, and what their worker says about them.

    A range is called by its handle, its index in ``bounds``. :meth:`advance` stages states, which a
    background task reports; only :meth:`flush`, :meth:`finish` and :meth:`release` wait for it. A
    lease that lost ranges to a newer claim, a reset or a retirement raises StaleSequencer: always
    once all are lost, else once for each loss. Not for other threads.
    """

    def __init__(self, runtime: Runtime, grant: Grant) -> None:
        self.computation: str = grant.state.computation
        """What was claimed: the computation of the worker or, of one that is cut, the slice that
        the keys lie in."""
        self.sequencer: int = grant.state.sequencer
        """Names the claim. Grows from claim to claim of a computation."""
        self.incarnation: int = grant.state.incarnation
        """The computation's incarnation that was claimed."""
        self.epoch: int = grant.state.epoch
        """The computation's ownership number among shards when it was claimed."""
        self.bounds: tuple[bytes, ...] = grant.bounds
        """n + 1 keys; range i is ``[bounds[i], bounds[i + 1])``, and the last may be empty: no
        upper bound."""
        self.watermarks: Watermarks = grant.watermarks
        """Where each range stood when it was claimed."""
        self._runtime = runtime
        self._state = grant.state
        self._reading = grant.reading
        self._monotonic = runtime.connection.surroundings.monotonic
        self._pid = os.getpid()
        self._told: set[int] = set()
        self._closed = ""
        self._releasing = False

    def __len__(self) -> int:
        """How many ranges it has."""
        return self._state.count

    @property
    def live(self) -> Sequence[int]:
        """The handles that are neither lost nor finished."""
        self._check_process()
        state = self._state
        with self._runtime.reporter.guard:
            if state.lost_all or state.finished_all:
                return ()
            gone = state.lost.keys() | state.finished
        return [handle for handle in range(state.count) if handle not in gone] if gone else range(state.count)

    @property
    def lost(self) -> frozenset[int]:
        """The handles that somebody else owns by now."""
        self._check_process()
        with self._runtime.reporter.guard:
            return frozenset(range(self._state.count) if self._state.lost_all else self._state.lost)

    @property
    def refused(self) -> Refusal | None:
        """What the authority did not take over of the last state, though the ranges are owned: a time too far ahead."""
        return self._state.refusal

    def advance(
        self,
        seen: Inputs | None,
        *,
        oldest: Oldest,
        frontier: EventTime | None = None,
        pending: Histogram | Iterable[EventTime] | None = None,
        finished: int | Iterable[EventTime] = 0,
        arrived: Arrived | None = None,
        oldest_operation: dt.datetime | int | None = None,
        waiting_for: str = "",
        remarks: Remarks = NO_REMARKS,
    ) -> None:
        """Say what the ranges hold now: every range stands at the lesser of what it holds and what ``seen`` says.

        It is a promise, so it must be durable: say only what a restart from this worker's own state would also say.

        Args:
            seen: What ``Worker.inputs()`` returned *before* everything that was there was read. None for an injector.
            oldest: The oldest event time not finished: in flight, stored, or not delivered yet. None: nothing is held. One
                value counts for all ranges; a mapping changes the handles it names and leaves what the others hold; a
                sequence or array of 64-bit integers has every range's (None or MAX: nothing).
            frontier: For an injector, instead of ``seen``: nothing older will be injected.
            pending: Event times of the records not finished, for the heuristic watermarks; an iterable or a Histogram.
                None: as last told, or none when nothing is held.
            finished: How many records were finished since the last call: the number, or their event times, which the lateness budgets need.
                With budgets give the times of all records, late ones above all.
            arrived: For the lateness budgets, where the times of the records are not at hand: how late records were that came since the last
                call, counted where the times are.
            oldest_operation: The start, by the wall clock, of the oldest operation still running.
            waiting_for: What keeps the ranges from moving on, for whoever asks why: "/in/daily.json, which is locked". At most 200
                bytes of UTF-8 without control characters. It belongs to this state: the next call without one takes it back.
            remarks: What else is to be told of the worker, for people. It belongs to this state as well.

        Costs nothing on the network; conflated: what was not sent yet is replaced. Raises StaleSequencer when ranges were lost,
        InvalidArgument, and TypeError or ValueError for what is no event time.
        """
        self._check_open()
        with self._runtime.reporter.guard:
            self._check_stands()
        fold = self._fold(seen, frontier)
        held = self._held(oldest)
        state = self._state
        histogram = None if pending is None else _histogram(pending, _reference(state.reference, fold))
        operation = checks.operation(oldest_operation)
        waits, told = checks.words("waiting_for", waiting_for), checks.remarks(remarks)
        times = None
        if isinstance(finished, Iterable) and not isinstance(finished, str | bytes):
            times = all_to_micros(finished)
        count = checks.records(finished if times is None else len(times), histogram)
        with self._runtime.reporter.guard:
            state.advance(
                fold,
                held,
                pending=histogram,
                finished=count,
                times=times or (),
                arrived=checks.arrived(arrived),
                oldest_operation=operation,
                waiting_for=waits,
                remarks=told,
                now=self._monotonic(),
            )
            self._runtime.reporter.staged(state)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until the newest state is durable, at most ``timeout`` seconds (None: the client's).

        Raises Timeout, StaleSequencer, and TooFarAhead or whatever else the state was refused for.
        Cancelled, the state stays staged.
        """
        self._check_open()
        seconds = self._runtime.connection.settings.timeout if timeout is None else checks.seconds("timeout", timeout)
        await self._runtime.here().reporter.flush(self._state, seconds)

    async def finish(self, handles: Iterable[int] | None = None) -> None:
        """Say that nothing will ever come in some ranges, or in all of them; durable when it returns.

        Nothing else that a worker does lets readers past them for good, and only a reset takes it back. Raises StaleSequencer, and
        Timeout when it was not acknowledged within the client's timeout: it stays staged then.
        Cancelled, it stays staged too.
        """
        self._stage_end(handles)
        await self.flush()

    async def release(self) -> None:
        """Give the ranges back; they hold their last value until somebody claims them.

        Durable when it returns.

        Raises StaleSequencer when they were lost before. After Timeout or Unavailable nobody knows
        whether it has happened: the lease stays as it is, and may be released again. That returns
        once the claim has ended, whether this lease or a later claim ended it. Cancelled, it may
        have happened or not as well, and may be repeated.
        """
        self._check_open()
        runtime = self._runtime.here()
        await self._drain(self._monotonic() + CLOSE_TIMEOUT)
        repeated, self._releasing = self._releasing, True
        try:
            await runtime.call(runtime.calls.release(self.computation, self.sequencer))
        except errors.StaleSequencer:
            # The answer of the release before may have been lost; in any case the ranges are no
            # longer this claim's.
            if not repeated:
                self._releasing = False
                raise
        self._closed = _RELEASED
        runtime.reporter.remove(self._state)

    # -- for its worker ----------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it has nothing more to say: it was given back, or lost as a whole."""
        return bool(self._closed) or bool(self._state.lost_all)

    def yield_to(self, newer: Lease) -> None:
        """Give up what a newer claim of the same worker took, if nothing was said yet.

        O(log ranges), and O(ranges taken) of some.

        An older claim, or this one itself, takes nothing. The authority names what was taken to the
        stream that spoke for a claim, so nobody would hear of it, and who claims again and again
        would keep them all.
        """
        state = self._state
        if self._ended_here or newer.computation != self.computation or newer.sequencer <= self.sequencer:
            return
        taken = self._overlapping(newer.bounds[0], newer.bounds[-1])
        with self._runtime.reporter.guard:
            if not state.version:
                state.lose(None if len(taken) == state.count else taken, "a newer claim took it over")
                if state.lost_all:
                    self._runtime.reporter.reporting.remove(state)

    async def retire(self, deadline: float) -> None:
        """Stop reporting, holding; its worker is closed.

        Waits for the last state to be durable, until a monotonic time at most.
        """
        if not self._ended_here:
            await self._drain(deadline)
            self._closed = _WORKER_CLOSED
            self._runtime.reporter.remove(self._state)

    # -- what needs no network ---------------------------------------------------------------------

    def _stage_end(self, handles: Iterable[int] | None) -> None:
        """Stage that nothing will ever come in some ranges, or in all."""
        self._check_open()
        chosen = None if handles is None else [self._handle(handle) for handle in checks.listed("handles", handles)]
        with self._runtime.reporter.guard:
            self._check_stands(finishing=True)
            self._state.finish(chosen)
            self._runtime.reporter.staged(self._state)

    @property
    def _ended_here(self) -> bool:
        """Whether there is nothing to end: it was, or is the business of the process that forked this one."""
        return bool(self._closed) or self._pid != os.getpid()

    @property
    def _settled(self) -> bool:
        """Whether there is nothing to wait for: all is durable, or lost."""
        return self._state.durable == self._state.version or bool(self._state.lost_all)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            msg = f"this lease belongs to process {self._pid}, which forked this one and reports for it; claim here"
            raise errors.Closed(msg)

    def _check_open(self) -> None:
        if self._closed:
            msg = f"this lease {self._closed}; claim again"
            raise errors.Closed(msg)
        self._check_process()

    def _check_stands(self, *, finishing: bool = False) -> None:
        state = self._state
        self._runtime.reporter.reporting.check()
        if state.lost_all:
            raise stale(state)
        if len(state.lost) > len(self._told):  # what was told is a part of it
            new = tuple(sorted(state.lost.keys() - self._told))
            self._told.update(new)
            raise stale(state, new)
        if state.finished_all and not finishing:
            msg = f"this lease on {self.computation} is finished: it said that nothing will ever come"
            raise errors.Closed(msg)

    def _fold(self, seen: Inputs | None, frontier: EventTime | None) -> Fold:
        reading = self._reading
        if not reading.inputs:
            if frontier is None or seen is not None:
                msg = f"{self.computation} is an injector: call advance(None, frontier=...), with no snapshot of inputs"
                raise errors.InvalidArgument(msg, metadata={"field": "frontier", "fix": "advance(None, frontier=...)"})
            return injector_fold(to_micros(frontier), reading.shares)
        if frontier is not None:
            msg = f"{self.computation} has inputs ({', '.join(reading.inputs)}), so it has no frontier of its own; pass seen"
            raise errors.InvalidArgument(msg, metadata={"field": "frontier", "fix": "advance(seen, oldest=...)"})
        given: object = seen
        # The worker may have claimed another slice since, which knows newer inputs. The authority
        # refuses what is folded of them, until this slice knows them too and takes the ranges away,
        # as it does from a worker with one lease.
        newer = isinstance(given, Inputs) and given.input_version > reading.input_version
        if (
            not isinstance(given, Inputs)
            or given.computation != reading.computation
            or not (newer or tuple(given.each) == reading.inputs)
        ):
            msg = f"pass the snapshot that worker.inputs() of {reading.computation} returned before its data was read"
            raise errors.InvalidArgument(msg, metadata={"field": "seen", "fix": "seen = worker.inputs()"})
        return fold_of(given)

    def _held(self, oldest: Oldest) -> int | dict[int, int] | Column:
        if oldest is None:
            return MAX
        if isinstance(oldest, Mapping):
            return {self._handle(h): MAX if v is None else to_micros(v) for h, v in oldest.items()}
        if is_one(oldest):
            return to_micros(oldest)
        column = Column.of(cast(Sequence[EventTime | None], oldest))
        if column.count != len(self):
            msg = f"oldest has {column.count} values, but the lease has {len(self)} ranges; pass one a range, or a mapping"
            raise errors.InvalidArgument(msg, metadata={"field": "oldest", "fix": f"{len(self)} values"})
        return column

    def _handle(self, handle: SupportsIndex) -> int:
        return checks.whole("handle", handle, 0, len(self) - 1)

    def _overlapping(self, start: bytes, end: bytes) -> range:
        """Return the handles of the ranges that ``[start, end)`` has a part of; an empty end means no upper bound."""
        count, last = len(self), self.bounds[-1]
        if last and last <= start:
            return range(0)
        first = max(0, bisect_right(self.bounds, start, 0, count) - 1)
        return range(first, bisect_left(self.bounds, end, 0, count) if end else count)

    async def _drain(self, deadline: float) -> None:
        if self._settled:
            return
        try:
            await self._runtime.reporter.flush(self._state, max(0.0, deadline - self._monotonic()))
        except errors.LowwaterError as error:
            logger.warning("leaving %s with its last state not durable: %s", self.computation, error)


def _reference(told: int, fold: Fold) -> int:
    """Where ages count from: the authority's reference will be no less than this claim's own frontiers."""
    return max([told, *(micros for _, micros in fold.frontiers if micros != MAX)])


def _histogram(pending: Histogram | Iterable[EventTime], reference: int) -> Histogram:
    if isinstance(pending, Histogram):
        made = pending.copy()
        made.age(reference)
        return made
    made = Histogram(reference)
    made.add_many(pending)
    return made
