"""The process that works on key ranges, and its claims."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, cast

from lowwater import errors
from lowwater._core.columns import Column
from lowwater._core.fold import Reading
from lowwater._core.lease import LeaseState
from lowwater._pb.lowwater.v1 import topology_pb2, workers_pb2
from lowwater._sync.inputs import InputReader
from lowwater._sync.lease import CLOSE_TIMEOUT, Lease, is_one
from lowwater._sync.runtime import PerProcess, Runtime
from lowwater.views import Inputs
from lowwater.watermark import EventTime, Watermarks, to_micros

__all__ = ["Worker"]


class Worker:
    """A process that owns key ranges of one computation. Use it as a context manager.

    Leaving it ends its reports, and its ranges hold where they stand; only ``Lease.finish()`` lets anybody past them for good.
    Without a generation, claims count in the order in which they arrive: the delayed claim of a process that died can
    take ranges from a living one, which then has to claim again. Give runs a growing generation to rule that out.
    """

    def __init__(
        self,
        per_process: PerProcess,
        computation: str,
        *,
        name: str | None = None,
        identity: str = "",
        generation: int = 0,
        ordinal: int = 0,
    ) -> None:
        self.computation = computation
        self.host = socket.gethostname()
        self.name = name if name is not None else f"{self.host}-{os.getpid()}"
        self._per_process = per_process
        self._identity = identity
        self._order = (generation, ordinal)
        self._leases: list[Lease] = []
        self._reading: Reading | None = None
        self._reader: InputReader | None = None
        self.closed = False

    def claim(
        self,
        start: bytes = b"",
        end: bytes = b"",
        *,
        bounds: Sequence[bytes] | None = None,
        bound: EventTime | Sequence[EventTime] | None = None,
        batch_digest: bytes = b"",
        adopt: bool = False,
    ) -> Lease:
        """Take ownership of ``[start, end)``, or of the n ranges between n + 1 ascending ``bounds``. Durable when it returns.

        An empty ``end`` means no upper bound. ``bound`` is what the new owner starts from, one for all or one a range: a range
        becomes the lesser of its last value and that. ``adopt`` takes the computation over from another identity by
        starting a new life of it. Read your own state only after the claim: until then its old owner may still write it.

        Raises InvalidArgument, UnknownComputation, OlderClaim, IdentityMismatch, Rewound, Unavailable.
        """
        runtime = self._open()
        keys = _bounds(start, end, bounds)
        request = workers_pb2.ClaimRequest(
            server_token=runtime.watcher.server_token,
            computation=self.computation,
            bounds=keys,
            worker=self.name,
            host=self.host,
            identity=self._identity,
            generation=self._order[0],
            ordinal=self._order[1],
            request_id=os.urandom(16),
            bound_micros=_starting_bounds(bound, len(keys) - 1),
            batch_digest=batch_digest,
            adopt=adopt,
        )
        answer = runtime.connection.call(runtime.connection.workers.Claim, request, repeatable=True)
        runtime.watcher.admit(answer.server_token, ())
        reading = Reading(
            self.computation,
            tuple(answer.inputs),
            answer.input_version if answer.inputs else 0,
            tuple(answer.input_incarnations),
            tuple(answer.heuristics_ppm),
        )
        self._read_as(reading)
        watermarks = Watermarks(answer.watermarks_micros)
        state = LeaseState(
            self.computation,
            answer.sequencer,
            Column.of(watermarks.micros),
            input_version=reading.input_version,
            input_incarnations=reading.incarnations,
            reference=answer.reference_micros,
        )
        lease = Lease(runtime, state, keys, watermarks, reading)
        self._leases.append(lease)
        runtime.reporter.add(state)
        return lease

    def inputs(self) -> Inputs:
        """Return a snapshot of the computation's inputs, to be passed to ``Lease.advance`` later.

        Take it *before* reading the data: what was there when it was taken is what an advance with it may count on.
        An input that is not registered, or in another life than the claim reads, counts as unknown. Waits for the network only
        the first time, at most the client's timeout. Raises InvalidArgument for an injector, which has no inputs.
        """
        runtime = self._open()
        if self._reading is None:
            answer = runtime.connection.call(
                runtime.connection.graph.GetTopology,
                topology_pb2.GetTopologyRequest(server_token=runtime.watcher.server_token),
                repeatable=True,
            )
            runtime.watcher.admit(answer.server_token, ())
            found = [each for each in answer.computations if each.name == self.computation]
            if not found:
                msg = f"there is no computation {self.computation!r}; register it first"
                raise errors.UnknownComputation(msg, metadata={"computation": self.computation})
            registered = found[0]
            reading = Reading(
                self.computation,
                tuple(registered.inputs),
                registered.input_version,
                tuple(registered.input_incarnations),
                tuple(registered.heuristics_ppm),
            )
            self._read_as(reading)
        if self._reader is None:
            msg = (
                f"{self.computation} is an injector: it has no inputs. Call lease.advance(None, frontier=...) instead."
            )
            raise errors.InvalidArgument(msg, metadata={"computation": self.computation, "field": "inputs"})
        return self._reader.read()

    def _read_as(self, reading: Reading) -> None:
        if reading == self._reading:
            return
        if self._reader is not None:
            self._reader.close()
        self._reading = reading
        names = {name: name for name in reading.inputs}
        self._reader = InputReader(self._per_process, names, reading) if names else None

    def _open(self) -> Runtime:
        if self.closed:
            msg = "the worker is closed; lw.worker(...) makes a new one"
            raise errors.Closed(msg)
        return self._per_process.get()

    def close(self) -> None:
        """Stop reporting, after the last states are durable or five seconds. The ranges hold where they stand."""
        self.closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for lease in self._leases:
            lease.retire(deadline)
        self._leases.clear()
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bounds(start: bytes, end: bytes, bounds: Sequence[bytes] | None) -> list[bytes]:
    if bounds is not None and (start or end):
        msg = "pass either start and end, or bounds"
        raise errors.InvalidArgument(msg, metadata={"field": "bounds", "fix": "leave start and end out"})
    keys = [start, end] if bounds is None else list(bounds)
    inner = keys[:-1] if keys and not keys[-1] else keys
    if len(keys) < 2 or any(inner[i] >= inner[i + 1] for i in range(len(inner) - 1)):
        msg = "bounds are at least two keys, strictly ascending; only the last may be empty, for no upper bound"
        raise errors.InvalidArgument(msg, metadata={"field": "bounds", "fix": "sort them, without duplicates"})
    return keys


def _starting_bounds(bound: EventTime | Sequence[EventTime] | None, ranges: int) -> list[int]:
    if bound is None:
        return []
    if is_one(bound):
        return [to_micros(bound)]
    values = list(Column.of(cast(Sequence[EventTime], bound)).values())
    if len(values) != ranges:
        msg = f"bound has {len(values)} values for {ranges} ranges; pass one for all, or one a range"
        raise errors.InvalidArgument(msg, metadata={"field": "bound", "fix": f"{ranges} values"})
    return values
