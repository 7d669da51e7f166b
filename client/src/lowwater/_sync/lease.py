"""One claim: what its worker says about it, and what it hears."""

from __future__ import annotations

import datetime as dt
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, SupportsIndex, TypeGuard, cast

from lowwater import errors
from lowwater._core.columns import Column
from lowwater._core.fold import Fold, Reading, fold_of, injector_fold
from lowwater._core.lease import LeaseState
from lowwater._pb.lowwater.v1 import workers_pb2
from lowwater._sync.reporter import stale
from lowwater._sync.runtime import Runtime
from lowwater.histogram import Histogram
from lowwater.views import Inputs, Refusal
from lowwater.watermark import MAX, EventTime, Watermark, Watermarks, to_micros

__all__ = ["CLOSE_TIMEOUT", "Lease", "Oldest", "is_one"]

logger = logging.getLogger("lowwater")

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that leaving a worker waits at most for its last states to be durable."""

Oldest = EventTime | None | Mapping[int, EventTime | None] | Sequence[EventTime | None]
"""The oldest event time not finished: of all ranges, of some handles, or of every range (numpy arrays too). None: nothing."""


class Lease:
    """One claim: the ranges it got, and what their worker says about them.

    A range is called by its handle, its index in ``bounds``. The calls stage states, which a background thread reports; only
    :meth:`flush`, :meth:`finish` and :meth:`release` wait for it. A lease that lost ranges to a newer claim, a reset
    or a retirement raises StaleSequencer: always once all are lost, else once for each loss. Safe for threads. After a fork it
    stays with the parent: in the child every call raises Closed.
    """

    def __init__(
        self, runtime: Runtime, state: LeaseState, bounds: Sequence[bytes], watermarks: Watermarks, reading: Reading
    ) -> None:
        self.computation = state.computation
        self.sequencer = state.sequencer
        """Names the claim. Grows from claim to claim of a computation."""
        self.bounds = tuple(bounds)
        """n + 1 keys; range i is ``[bounds[i], bounds[i + 1])``, and the last may be empty: no upper bound."""
        self.watermarks = watermarks
        """Where each range stood when it was claimed."""
        self._runtime = runtime
        self._state = state
        self._reading = reading
        self._told: set[int] = set()
        self._closed = ""

    def __len__(self) -> int:
        """How many ranges it has."""
        return self._state.count

    @property
    def live(self) -> Sequence[int]:
        """The handles that are neither lost nor finished."""
        state = self._state
        with self._here().reporter.changed:
            if state.lost_all or state.finished_all:
                return ()
            gone = state.lost.keys() | state.finished
        return [handle for handle in range(state.count) if handle not in gone] if gone else range(state.count)

    @property
    def lost(self) -> frozenset[int]:
        """The handles that somebody else owns by now."""
        with self._here().reporter.changed:
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
        finished: int = 0,
        oldest_operation: dt.datetime | int | None = None,
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
            finished: How many records were finished since the last call.
            oldest_operation: The start, by the wall clock, of the oldest operation still running.

        Costs nothing on the network; conflated: what was not sent yet is replaced. Raises StaleSequencer when ranges were lost,
        InvalidArgument, and TypeError or ValueError for what is no event time.
        """
        reporter = self._open().reporter
        with reporter.changed:
            self._check(reporter.failure)
        fold = self._fold(seen, frontier)
        held = self._held(oldest)
        state = self._state
        histogram = None if pending is None else _histogram(pending, _reference(state.reference, fold))
        operation = 0 if oldest_operation is None else to_micros(oldest_operation)
        if finished < 0:
            msg = f"finished={finished}: a number of records cannot be negative"
            raise errors.InvalidArgument(msg, metadata={"field": "finished", "fix": "finished >= 0"})
        with reporter.changed:
            state.advance(
                fold, held, pending=histogram, finished=finished, oldest_operation=operation, now=time.monotonic()
            )
            reporter.staged(state)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the newest state is durable, at most ``timeout`` seconds (None: the client's).

        Raises Timeout, StaleSequencer, and TooFarAhead or whatever else the state was refused for.
        """
        runtime = self._open()
        runtime.reporter.flush(self._state, runtime.connection.settings.timeout if timeout is None else timeout)

    def finish(self, handles: Iterable[int] | None = None) -> None:
        """Say that nothing will ever come in some ranges, or in all of them; durable when it returns.

        It is the only way past them for good, and cannot be taken back but by a reset. Raises Timeout when it is not acknowledged
        within the client's timeout (it stays staged), StaleSequencer.
        """
        reporter = self._open().reporter
        chosen = None if handles is None else [self._handle(handle) for handle in handles]
        with reporter.changed:
            self._check(reporter.failure, finishing=True)
            self._state.finish(chosen)
            reporter.staged(self._state)
        self.flush()

    def release(self) -> None:
        """Give the ranges back; they hold their last value until somebody claims them. Durable when it returns.

        Raises StaleSequencer when they were lost before, Unavailable.
        """
        runtime = self._open()
        self._drain(time.monotonic() + CLOSE_TIMEOUT)
        request = workers_pb2.ReleaseRequest(
            server_token=runtime.watcher.server_token, computation=self.computation, sequencer=self.sequencer
        )
        self._closed = "was released"
        runtime.reporter.remove(self._state)
        runtime.connection.call(runtime.connection.workers.Release, request, repeatable=False)

    def retire(self, deadline: float) -> None:
        """Stop reporting, holding; its worker is closed."""
        if self._runtime.pid == os.getpid() and not self._closed:
            self._drain(deadline)
            self._closed = "belongs to a worker that was closed"
            self._runtime.reporter.remove(self._state)

    def _drain(self, deadline: float) -> None:
        if self._state.durable == self._state.version or self._state.lost_all:
            return
        try:
            self._runtime.reporter.flush(self._state, max(0.0, deadline - time.monotonic()))
        except errors.LowwaterError as error:
            logger.warning("leaving %s with its last state not durable: %s", self.computation, error)

    def _here(self) -> Runtime:
        if self._runtime.pid != os.getpid():
            msg = f"this lease belongs to process {self._runtime.pid}, which forked this one and reports for it; claim here"
            raise errors.Closed(msg)
        return self._runtime

    def _open(self) -> Runtime:
        if self._closed:
            msg = f"this lease {self._closed}; claim again"
            raise errors.Closed(msg)
        return self._here()

    def _check(self, failure: errors.LowwaterError | None, *, finishing: bool = False) -> None:
        state = self._state
        if failure is not None:
            raise failure
        if state.lost_all:
            raise stale(state)
        if state.lost.keys() - self._told:
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
        if seen is None or seen.computation != self.computation or tuple(seen.each) != reading.inputs:
            msg = f"pass the snapshot that worker.inputs() of {self.computation} returned before its data was read"
            raise errors.InvalidArgument(msg, metadata={"field": "seen", "fix": "seen = worker.inputs()"})
        return fold_of(seen)

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
        index = handle.__index__()
        if not 0 <= index < len(self):
            msg = f"there is no handle {index}: the lease has the handles 0 to {len(self) - 1}"
            raise errors.InvalidArgument(msg, metadata={"field": "handle", "fix": f"0 <= handle < {len(self)}"})
        return index


def is_one(value: object) -> TypeGuard[EventTime]:
    """Whether a value is one event time; numpy's integers are, its arrays are not."""
    return isinstance(value, int | dt.datetime | Watermark) or not hasattr(value, "__len__")


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
