# Made by scripts/generate_sync.py from _async/worker.py: change that one.
"""The worker of a computation, and its claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.inputs import InputReader
from lowwater._sync.lease import Lease
from lowwater._sync.runtime import Runtime
from lowwater.core import checks
from lowwater.core.calls import based_on
from lowwater.core.claims import CLOSE_TIMEOUT, Claimant, closed_worker, failure_of, no_inputs
from lowwater.core.cover import Cover
from lowwater.core.fold import Reading
from lowwater.core.surroundings import Surroundings
from lowwater.views import Inputs
from lowwater.watermark import EventTime

__all__ = ["Worker"]


class Worker:
    """A process that owns key ranges of one computation. Use it as a context manager.

    Leaving it releases its ranges, which hold where they are, and says that the worker has stopped,
    or failed by the error that leaves it. Only ``Lease.finish()`` lets readers past them for good.
    Without a generation, claims count in the order in which they
    arrive. Then the delayed claim of a process that died can take ranges from a living one, which
    has to claim again. A generation that grows with each run rules that out.
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
        # (slice, sequencer) of the claim whose answer brought the reading
        self._read_for = self.computation, 0
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
        """Claim ``[start, end)``, or n ranges between n + 1 ascending ``bounds``.

        Durable on return.

        Read your own state only after the claim: until then its old owner may still write it.

        Args:
            start: First key.
            end: First key after the range; empty means no upper bound.
            bounds: Keys between which each range lies, instead of ``start`` and ``end``; only the
                last may be empty.
            bound: Event time from which the new owner starts, one for all or one per range. A range
                is set to the lesser of its last value and that.
            batch_digest: Digest of the first batch that the owner will run, when it was planned
                before: the same batch with the same digest is a replay and no rewind.
            adopt: Take the computation over from another identity, in a new incarnation.
            instead_of: Sequencer of a claim of the same owner. This claim is refused unless that
                one still has all its ranges.
            generation: Generation of this claim, for a run that has gone on; None: the worker's.
            timeout: Seconds to wait, if they are fewer than the client's.

        All keys have to lie in one slice of a computation that is cut. The lease is then one on the
        slice, and its ``computation`` is the slice's name. Claim a wider interval slice by slice;
        ``Client.slices`` returns them.

        Raises OtherSlice for keys of several slices; InvalidArgument, UnknownComputation,
        StaleSequencer, OlderClaim, IdentityMismatch, Rewound, Unavailable; Closed when the worker
        was closed meanwhile: granted ranges then hold until they are claimed again.
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
        self._adopt_reading(runtime, grant.reading, grant.state.computation, grant.state.sequencer)
        lease = Lease(runtime, grant)
        with runtime.reporter.guard:
            if self._owner is not runtime:  # leases of the parent process stay with it
                self._owner, self._leases = runtime, _leases()
            overlapping = self._leases.add(lease, lease.bounds[0], lease.bounds[-1])
        # Answers may come in another order than the grants: the older lease yields, whichever it
        # is. Of two that arrive at the same moment, the one that is added later meets the other.
        for other in overlapping:
            other.yield_to(lease)
            lease.yield_to(other)
        with runtime.reporter.guard:
            for ended in [other for other in (*overlapping, lease) if other.over]:
                self._leases.remove(ended)
        runtime.reporter.add(grant.state)
        # Checked last: a caller that claims or closes the worker meanwhile either finds the lease,
        # or is noticed here.
        if self.closed or lease.over:
            runtime.reporter.remove(grant.state)
        if self.closed:
            raise closed_worker()
        return lease

    def inputs(self) -> Inputs:
        """Return a snapshot of the computation's inputs, for a later ``Lease.advance``.

        Take it *before* reading the data: an advance with it may count only on data that had
        arrived by then. An input that is not registered, or in another incarnation than the claim
        reads, counts as unknown. Waits for the network only the first time, at most the client's
        timeout. Raises InvalidArgument for an injector, which has no inputs.
        """
        runtime = self._open()
        if self._reading is None:
            self._adopt_reading(runtime, runtime.call(runtime.calls.reading(self.computation)), self.computation)
        if self._reader is None:
            raise no_inputs(self.computation)
        return self._reader.read()

    def _adopt_reading(self, runtime: Runtime, reading: Reading, computation: str, sequencer: int = 0) -> None:
        """Use a reading of the inputs, from the answer to a claim or from the graph.

        Answers may come in any order: that of the newest claim counts. Sequencers of different
        slices cannot be compared; of their answers, the one with the newest inputs counts.
        """
        names = {name: name for name in reading.inputs}
        with runtime.reporter.guard:
            read_computation, newest = self._read_for
            if sequencer < newest if computation == read_computation else reading.is_before(self._reading):
                return
            self._read_for = computation, sequencer
            if reading == self._reading:
                return
            previous, self._reading = self._reader, reading
            self._reader = InputReader(self._runtimes, names, reading) if names else None
        if previous is not None:
            previous.close()

    def _open(self) -> Runtime:
        if self.closed:
            raise closed_worker()
        return self._runtimes.get()

    def close(self) -> None:
        """Stop reporting, after the last states are durable or five seconds.

        The ranges hold, and stay the worker's: the authority calls it silent after a while.
        """
        self.retire(self._surroundings.monotonic() + CLOSE_TIMEOUT)

    def retire(self, deadline: float, failure: str | None = None) -> None:
        """Close the worker for its client, waiting until a monotonic time at most.

        ``failure``: release the ranges too, as Lease.give_back does. None: they stay the worker's.
        """
        self.closed = True
        leases = tuple(self._leases)
        refusals = [lease.retire(deadline) for lease in leases]  # an interrupted call can be repeated
        if failure is not None:
            for lease, refused in zip(leases, refusals, strict=True):
                lease.give_back(deadline, failure or refused)
        self._leases = _leases()
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.retire(self._surroundings.monotonic() + CLOSE_TIMEOUT, failure_of(error))


def _leases() -> Cover[Lease]:
    return Cover(lambda lease: lease.over)
