# Made by scripts/generate_sync.py from _async/lease.py: change that one.
"""One claim in its worker: the states that the worker stages, and the authority's answers."""

from __future__ import annotations

import datetime as dt
import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, SupportsIndex, cast

from lowwater import errors
from lowwater._sync.runtime import Runtime
from lowwater.core import checks
from lowwater.core.attempts import AWAY
from lowwater.core.claims import CLOSE_TIMEOUT, GOODBYE_TIMEOUT, Grant, failure_of
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
"""Reasons why a lease has ended."""

Oldest = EventTime | None | Mapping[int, EventTime | None] | Sequence[EventTime | None]
"""Oldest unfinished event time: one for all ranges, some handles', or every range's (numpy arrays
too). None: no unfinished work."""


class Lease:
    """One claim: its ranges, and the states that their worker stages.

    A range is named by its handle, its index in ``bounds``. :meth:`advance` stages states, which a
    background thread reports; only :meth:`flush`, :meth:`finish` and :meth:`release` wait for it. A
    lease that lost ranges to a newer claim, a reset or a retirement raises StaleSequencer: always
    once all are lost, else once for each loss. Safe for threads. After a fork it
    stays with the parent: in the child every call raises Closed.
    """

    def __init__(self, runtime: Runtime, grant: Grant) -> None:
        self.computation: str = grant.state.computation
        """Computation that was claimed: that of the worker or, when it is cut, the slice of the
        keys."""
        self.sequencer: int = grant.state.sequencer
        """Number of the claim; it grows from claim to claim of a computation."""
        self.incarnation: int = grant.state.incarnation
        """Incarnation of the computation at the claim."""
        self.epoch: int = grant.state.epoch
        """Ownership number of the computation among shards at the claim."""
        self.bounds: tuple[bytes, ...] = grant.bounds
        """Keys, n + 1 of them; range i is ``[bounds[i], bounds[i + 1])``. An empty last key means
        no upper bound."""
        self.watermarks: Watermarks = grant.watermarks
        """Watermark of each range at the claim."""
        self._runtime = runtime
        self._state = grant.state
        self._reading = grant.reading
        self._monotonic = runtime.connection.surroundings.monotonic
        self._pid = os.getpid()
        self._announced_losses: set[int] = set()
        self._closed = ""
        self._releasing = False

    def __len__(self) -> int:
        """Return the number of ranges."""
        return self._state.count

    @property
    def live(self) -> Sequence[int]:
        """Handles that are neither lost nor finished."""
        self._check_process()
        state = self._state
        with self._runtime.reporter.guard:
            if state.lost_all or state.finished_all:
                return ()
            ended = state.lost.keys() | state.finished
        return [handle for handle in range(state.count) if handle not in ended] if ended else range(state.count)

    @property
    def lost(self) -> frozenset[int]:
        """Handles that another owner has taken."""
        self._check_process()
        with self._runtime.reporter.guard:
            return frozenset(range(self._state.count) if self._state.lost_all else self._state.lost)

    @property
    def refused(self) -> Refusal | None:
        """Refusal of the last state of owned ranges, for a time too far ahead; else None."""
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
        """Stage the ranges' state: each is at the lesser of its oldest work and ``seen``.

        It is a promise, so it must be durable: stage only what a restart from this worker's own
        state would also claim.

        Args:
            seen: What ``Worker.inputs()`` returned *before* all data that had arrived was read.
                None for an injector.
            oldest: Oldest unfinished event time: in flight, stored, or not delivered yet. None: no
                unfinished work. One value counts for all ranges; a mapping changes the handles that
                it names and leaves the others; a sequence or array of 64-bit integers has every
                range's (None or MAX: no unfinished work).
            frontier: For an injector, instead of ``seen``: it will inject no record that is older.
            pending: Event times of unfinished records, for the heuristic watermarks; an iterable or
                a Histogram. None: as in the last call, or none when no range has unfinished work.
            finished: Number of records finished since the last call, or their event times, which
                lateness budgets need. With budgets give the times of all records, above all of late
                ones.
            arrived: For lateness budgets, when the event times of the records are elsewhere: the
                lateness of the records since the last call, counted where the times are.
            oldest_operation: Start, by the wall clock, of the oldest operation that still runs.
            waiting_for: What keeps the ranges from moving, shown by ``why``: "/in/daily.json, which
                is locked". At most 200 bytes of UTF-8 without control characters. It belongs to
                this state: the next call without it removes it.
            remarks: Further remarks of the worker for people. They belong to this state as well.

        Costs no network; conflated: a state that was not sent yet is replaced. Raises
        StaleSequencer when ranges were lost, InvalidArgument, and TypeError or ValueError for a
        value that is no event time.
        """
        self._check_open()
        with self._runtime.reporter.guard:
            self._check_stands()
        fold = self._fold(seen, frontier)
        oldest_micros = self._oldest_micros(oldest)
        state = self._state
        histogram = None if pending is None else _histogram(pending, _reference(state.reference, fold))
        operation = checks.operation(oldest_operation)
        waiting_text, checked_remarks = checks.words("waiting_for", waiting_for), checks.remarks(remarks)
        times = None
        if isinstance(finished, Iterable) and not isinstance(finished, str | bytes):
            times = all_to_micros(finished)
        count = checks.records(finished if times is None else len(times), histogram)
        with self._runtime.reporter.guard:
            state.advance(
                fold,
                oldest_micros,
                pending=histogram,
                finished=count,
                times=times or (),
                arrived=checks.arrived(arrived),
                oldest_operation=operation,
                waiting_for=waiting_text,
                remarks=checked_remarks,
                now=self._monotonic(),
            )
            self._runtime.reporter.staged(state)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the newest state is durable, at most ``timeout`` seconds (None: the client's).

        Raises Timeout, StaleSequencer, and TooFarAhead or another error that the state was refused
        with.
        """
        self._check_open()
        seconds = self._runtime.connection.settings.timeout if timeout is None else checks.seconds("timeout", timeout)
        self._runtime.here().reporter.flush(self._state, seconds)

    def finish(self, handles: Iterable[int] | None = None) -> None:
        """Declare that no more data will come in some ranges, or in all; durable when it returns.

        Only this lets readers past the ranges for good, and only a reset undoes it. Raises
        StaleSequencer, and Timeout when it was not acknowledged within the client's timeout: it
        stays staged then.
        """
        self._stage_end(handles)
        self.flush()

    def release(self) -> None:
        """Release the ranges: they hold their last value until another claim.

        Durable when it returns.

        Raises StaleSequencer when they were lost before. After Timeout or Unavailable the release
        may have happened or not: the lease stays as it is, and may be released again. That returns
        once the claim has ended, whether this lease or a later claim ended it.
        """
        self._check_open()
        runtime = self._runtime.here()
        self._drain(self._monotonic() + CLOSE_TIMEOUT)
        repeated, self._releasing = self._releasing, True
        try:
            runtime.call(runtime.calls.release(self.computation, self.sequencer))
        except errors.StaleSequencer:
            # The answer to an earlier release may have been lost. In any case the ranges are no
            # longer this claim's.
            if not repeated:
                self._releasing = False
                raise
        self._closed = _RELEASED
        runtime.reporter.remove(self._state)

    # -- for its worker ----------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True when it reports nothing more: it was released, or lost as a whole."""
        return bool(self._closed) or bool(self._state.lost_all)

    def yield_to(self, newer: Lease) -> None:
        """Give up the ranges that a newer claim of this worker took, if no state was staged yet.

        O(log ranges), and O(ranges taken) for a part. An older claim, or this one itself, takes
        none. The authority reports a loss to the stream that carried a claim. Without a state no
        stream carries it, so a worker that claims again and again would keep all its old leases.
        """
        state = self._state
        if self._ended_here or newer.computation != self.computation or newer.sequencer <= self.sequencer:
            return
        lost_handles = self._overlapping(newer.bounds[0], newer.bounds[-1])
        with self._runtime.reporter.guard:
            if not state.version:
                state.lose(None if len(lost_handles) == state.count else lost_handles, "a newer claim took it over")
                if state.lost_all:
                    self._runtime.reporter.reporting.remove(state)

    def retire(self, deadline: float) -> str:
        """Stop reporting; waits until a monotonic time for the last state to become durable.

        Returns why the authority has refused that state; empty when it has not.
        """
        if self._ended_here:
            return ""
        refused = self._drain(deadline)
        self._closed = _WORKER_CLOSED
        self._runtime.reporter.remove(self._state)
        return refused

    def give_back(self, deadline: float, failure: str) -> None:
        """Release the ranges of a retired lease, as far as it still has them.

        ``failure``: first line of the error that ended its worker; empty: it ended in good order.
        After a monotonic time, or when the authority does not answer, the ranges hold, and stay the
        worker's.
        """
        left = deadline - self._monotonic()
        if self._closed != _WORKER_CLOSED or self._pid != os.getpid() or self._state.finished_all or left <= 0:
            return
        runtime = self._runtime
        try:
            call = runtime.calls.release(self.computation, self.sequencer, failure)
            runtime.call(call, min(GOODBYE_TIMEOUT, left))
        except errors.StaleSequencer:
            pass  # a newer claim has the ranges
        except errors.LowwaterError as error:
            logger.info("%s is left without a release of its ranges, which hold: %s", self.computation, error)

    # -- what needs no network ---------------------------------------------------------------------

    def _stage_end(self, handles: Iterable[int] | None) -> None:
        """Stage that no more data will come in some ranges, or in all."""
        self._check_open()
        chosen = None if handles is None else [self._handle(handle) for handle in checks.listed("handles", handles)]
        with self._runtime.reporter.guard:
            self._check_stands(finishing=True)
            self._state.finish(chosen)
            self._runtime.reporter.staged(self._state)

    @property
    def _ended_here(self) -> bool:
        """True when there is nothing to end: it has ended, or belongs to the parent process."""
        return bool(self._closed) or self._pid != os.getpid()

    @property
    def _settled(self) -> bool:
        """True when there is nothing to wait for: all is durable, or lost."""
        return self._state.durable == self._state.version or bool(self._state.lost_all)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            msg = f"this lease belongs to process {self._pid}, which forked this one and reports for it; claim in this process"
            raise errors.Closed(msg)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.Closed(f"this lease {self._closed}; claim again")
        self._check_process()

    def _check_stands(self, *, finishing: bool = False) -> None:
        state = self._state
        self._runtime.reporter.reporting.check()
        if state.lost_all:
            raise stale(state)
        # Announced losses are a part of all losses.
        if len(state.lost) > len(self._announced_losses):
            new = tuple(sorted(state.lost.keys() - self._announced_losses))
            self._announced_losses.update(new)
            raise stale(state, new)
        if state.finished_all and not finishing:
            msg = f"this lease on {self.computation} is finished: it declared that no more data will come"
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
        snapshot: object = seen
        # The worker may have claimed another slice since, which has newer inputs. The authority
        # refuses a fold of these until this slice has them too, and then revokes the ranges, as it
        # does for a worker with one lease.
        newer = isinstance(snapshot, Inputs) and snapshot.input_version > reading.input_version
        if (
            not isinstance(snapshot, Inputs)
            or snapshot.computation != reading.computation
            or not (newer or tuple(snapshot.each) == reading.inputs)
        ):
            msg = f"pass the snapshot that worker.inputs() of {reading.computation} returned before its data was read"
            raise errors.InvalidArgument(msg, metadata={"field": "seen", "fix": "seen = worker.inputs()"})
        return fold_of(snapshot)

    def _oldest_micros(self, oldest: Oldest) -> int | dict[int, int] | Column:
        if oldest is None:
            return MAX
        if isinstance(oldest, Mapping):
            return {self._handle(handle): MAX if time is None else to_micros(time) for handle, time in oldest.items()}
        if is_one(oldest):
            return to_micros(oldest)
        column = Column.of(cast(Sequence[EventTime | None], oldest))
        if column.count != len(self):
            msg = f"oldest has {column.count} values, but the lease has {len(self)} ranges; pass one per range, or a mapping"
            raise errors.InvalidArgument(msg, metadata={"field": "oldest", "fix": f"{len(self)} values"})
        return column

    def _handle(self, handle: SupportsIndex) -> int:
        return checks.whole("handle", handle, 0, len(self) - 1)

    def _overlapping(self, start: bytes, end: bytes) -> range:
        """Return the handles that overlap ``[start, end)``; an empty end means no upper bound."""
        count, last = len(self), self.bounds[-1]
        if last and last <= start:
            return range(0)
        first = max(0, bisect_right(self.bounds, start, 0, count) - 1)
        return range(first, bisect_left(self.bounds, end, 0, count) if end else count)

    def _drain(self, deadline: float) -> str:
        """Wait for the last state until a monotonic time; returns its refusal, or nothing."""
        if self._settled:
            return ""
        try:
            self._runtime.reporter.flush(self._state, max(0.0, deadline - self._monotonic()))
        except errors.LowwaterError as error:
            logger.warning("leaving %s with its last state not durable: %s", self.computation, error)
            return "" if isinstance(error, AWAY) else failure_of(error)
        return ""


def _reference(newest: int, fold: Fold) -> int:
    """Return the time from which ages count: at least the frontiers of this claim."""
    return max([newest, *(micros for _, micros in fold.frontiers if micros != MAX)])


def _histogram(pending: Histogram | Iterable[EventTime], reference: int) -> Histogram:
    if isinstance(pending, Histogram):
        result = pending.copy()
        result.age(reference)
        return result
    result = Histogram(reference)
    result.add_many(pending)
    return result
