# Made by scripts/generate_sync.py from _async/worker.py: change that one.
"""The process that works on key ranges, and its claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.inputs import InputReader
from lowwater._sync.lease import Lease
from lowwater._sync.runtime import Runtime
from lowwater.core import checks
from lowwater.core.calls import based_on
from lowwater.core.claims import CLOSE_TIMEOUT, Claimant, closed_worker, no_inputs
from lowwater.core.cover import Cover
from lowwater.core.fold import Reading
from lowwater.core.surroundings import Surroundings
from lowwater.views import Inputs
from lowwater.watermark import EventTime

__all__ = ["Worker"]


class Worker:
    """A process that owns key ranges of one computation. Use it as a context manager.

    Leaving it ends its reports, and its ranges hold where they stand; only ``Lease.finish()`` lets
    anybody past them for good. Without a generation, claims count in the order in which they
    arrive: the delayed claim of a process that died can take ranges from a living one, which then
    has to claim again. Give runs a growing generation to rule that out.
    """

    def __init__(self, runtimes: Runtimes[Runtime], claimant: Claimant, surroundings: Surroundings) -> None:
        self.computation: str = claimant.computation
        self.host: str = claimant.host
        self.name: str = claimant.name
        self._runtimes = runtimes
        self._claimant = claimant
        self._surroundings = surroundings
        self._owner: Runtime | None = None
        self._leases = _leases()
        self._reading: Reading | None = None
        self._read_for = self.computation, 0  # the claim whose answer said so: the slice it is of, and its sequencer
        self._reader: InputReader | None = None
        self.closed: bool = False

    def claim(
        self,
        start: bytes = b"",
        end: bytes = b"",
        *,
        bounds: Sequence[bytes] | None = None,
        bound: EventTime | Sequence[EventTime] | None = None,
        batch_digest: bytes = b"",
        adopt: bool = False,
        instead_of: int = 0,
        generation: int | None = None,
        timeout: float | None = None,
    ) -> Lease:
        """Take ownership of ``[start, end)``, or of the n ranges between n + 1 ascending ``bounds``. Durable when it returns.

        An empty ``end`` means no upper bound. ``bound`` is what the new owner starts from, one for all or one a range: a range
        becomes the lesser of its last value and that. ``adopt`` takes the computation over from another identity by
        starting a new incarnation of it. ``instead_of`` is the sequencer of a claim of the same owner: unless that one has all its ranges still, this one is
        refused. ``generation`` is another one than the worker was made with, of a run that has gone on since. ``timeout`` is in seconds, if they are fewer
        than the client's. Read your own state only after the claim: until then its old owner may still write it.

        Of a computation that is cut into slices, all keys must lie in one slice: the lease is one on that, and its ``computation`` is the slice's name.
        Claim a wider interval slice by slice; ``Client.slices`` has them.

        Raises OtherSlice for keys of several slices; InvalidArgument, UnknownComputation, StaleSequencer, OlderClaim, IdentityMismatch, Rewound, Unavailable; Closed when
        the worker was closed meanwhile: the ranges, if they were granted, hold until they are claimed again.
        """
        runtime = self._open()
        call = self._claimant.claim(
            runtime.calls,
            self._surroundings.randbytes(16),
            start,
            end,
            bounds,
            bound,
            batch_digest,
            adopt=adopt,
            instead_of=instead_of,
            generation=generation,
        )
        if adopt:
            call = based_on(call, runtime.call(runtime.calls.registration(self.computation)))
        grant = runtime.call(call, math.inf if timeout is None else checks.seconds("timeout", timeout))
        self._read_as(runtime, grant.reading, grant.state.computation, grant.state.sequencer)
        lease = Lease(runtime, grant)
        with runtime.reporter.guard:
            if self._owner is not runtime:  # those of the process that forked this one are its business
                self._owner, self._leases = runtime, _leases()
            met = self._leases.add(lease, lease.bounds[0], lease.bounds[-1])
        # Answers may come in another order than claims were granted in: the older yields, whichever
        # it is. Of two that are answered at one moment, the one that is added later meets the
        # other.
        for other in met:
            other.yield_to(lease)
            lease.yield_to(other)
        with runtime.reporter.guard:
            for ended in [each for each in (*met, lease) if each.over]:
                self._leases.remove(ended)
        runtime.reporter.add(grant.state)
        # Looked at last: whoever claims or closes the worker meanwhile either sees the lease, or is
        # seen here.
        if self.closed or lease.over:
            runtime.reporter.remove(grant.state)
        if self.closed:
            raise closed_worker()
        return lease

    def inputs(self) -> Inputs:
        """Return a snapshot of the computation's inputs, to be passed to ``Lease.advance`` later.

        Take it *before* reading the data: what was there when it was taken is what an advance with
        it may count on. An input that is not registered, or in another incarnation than the claim
        reads, counts as unknown. Waits for the network only the first time, at most the client's
        timeout. Raises InvalidArgument for an injector, which has no inputs.
        """
        runtime = self._open()
        if self._reading is None:
            self._read_as(runtime, runtime.call(runtime.calls.reading(self.computation)), self.computation)
        if self._reader is None:
            raise no_inputs(self.computation)
        return self._reader.read()

    def _read_as(self, runtime: Runtime, reading: Reading, computation: str, sequencer: int = 0) -> None:
        """Read the inputs as a claim was told to, or as anybody is.

        Of several answers, in whatever order they come, the newest claim's counts.

        Sequencers of several slices say nothing of each other. Of their answers the one counts that
        knows the newest inputs.
        """
        names = {name: name for name in reading.inputs}
        with runtime.reporter.guard:
            of, newest = self._read_for
            if sequencer < newest if computation == of else reading.is_before(self._reading):
                return
            self._read_for = computation, sequencer
            if reading == self._reading:
                return
            before, self._reading = self._reader, reading
            self._reader = InputReader(self._runtimes, names, reading) if names else None
        if before is not None:
            before.close()

    def _open(self) -> Runtime:
        if self.closed:
            raise closed_worker()
        return self._runtimes.get()

    def close(self) -> None:
        """Stop reporting, after the last states are durable or five seconds.

        The ranges hold where they stand.
        """
        self.retire(self._surroundings.monotonic() + CLOSE_TIMEOUT)

    def retire(self, deadline: float) -> None:
        """Close it, waiting until a monotonic time at most; it is the client's when that is closed."""
        self.closed = True
        for lease in tuple(self._leases):  # interrupted, it can be called again
            lease.retire(deadline)
        self._leases = _leases()
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _leases() -> Cover[Lease]:
    return Cover(lambda lease: lease.over)
