"""Thousands of workers that look for the shard of their computation, as the client library does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc

from benchmarks.herd_workers import Call, Herd, wait_asked
from benchmarks.owner import COMPUTATION, check
from lowwater import errors
from lowwater.v1 import cluster_pb2, cluster_pb2_grpc, types_pb2
from lowwater.v1 import workers_pb2 as pb

PATIENCE: Final = 1.0
"""Seconds to which the upper bound of the delay between two questions grows."""

ANSWERED_WITHIN: Final = 5.0
"""Seconds after which a shard that was asked is taken to be away."""

MOST_HOPS: Final = 2
"""Redirects, one after the other, that are followed at once."""


@dataclass(slots=True)
class Wandering(Herd):
    """A herd before several shards.

    A worker whose stream has ended asks a shard where the computation is served, each time after a
    delay with full jitter that grows, and goes there; the next shard is asked when one does not
    answer. A redirect to a lower ownership number than one that was seen is not followed.
    """

    addresses: Sequence[str] = ()
    """Addresses of all shards."""
    places: dict[int, str] = field(default_factory=dict)
    """Where each worker reports now; ``address`` when it is not here."""
    _epochs: Counter[int] = field(default_factory=Counter)
    """The greatest ownership number that each has seen."""
    _homes: Counter[int] = field(default_factory=Counter)
    """Which of the addresses each asks, counted on by those that did not answer."""
    _attempts: Counter[int] = field(default_factory=Counter)
    """Questions of each since it was served."""
    _hops: Counter[int] = field(default_factory=Counter)
    """Redirects of each since it was served."""
    _sent_on: set[int] = field(default_factory=set)
    """Workers that were just redirected; they connect there at once."""

    def call(self, worker: int) -> Call:
        """See Herd. A shard that is away fails it at once, so that another can be asked."""
        return self._call(worker, self.places.get(worker, self.address), wait_for_ready=False)

    def is_accepted(self, worker: int, ack: pb.ReportAck) -> bool:
        """See Herd. Not taken over where the computation is not served any more, or not yet."""
        moved = next((refusal for refusal in ack.refused if refusal.reason == errors.Moved.reason), None)
        if moved is None:
            check(ack)
            self._attempts[worker] = self._hops[worker] = 0
            return True
        self._hops[worker] += 1
        if self._follow(worker, moved.redirect) and self._hops[worker] <= MOST_HOPS:
            self._sent_on.add(worker)
        return False

    async def again(self, worker: int, delay: float, failures: int) -> None:
        """See Herd."""
        if worker in self._sent_on:
            self._sent_on.remove(worker)
            return
        located = False
        while not located:
            await asyncio.sleep(self.pause(delay, self._attempts[worker], PATIENCE))
            self._attempts[worker] += 1
            located, delay = await self._locate(worker)

    async def _locate(self, worker: int) -> tuple[bool, float]:
        """Ask a shard; return whether to go where it said, and the asked wait in seconds."""
        address = self.addresses[self._homes[worker] % len(self.addresses)]
        request = cluster_pb2.LocateRequest(computations=[COMPUTATION], epochs=[self._epochs[worker]])
        try:
            stub = cluster_pb2_grpc.ClusterServiceStub(self.channel(worker, address))
            [redirect] = (await stub.Locate(request, timeout=ANSWERED_WITHIN)).redirects
        except grpc.aio.AioRpcError as error:
            self._homes[worker] += 1
            return False, wait_asked(error)
        except (asyncio.CancelledError, asyncio.InvalidStateError):
            if self.stopping:
                raise
            return False, 0.0
        return self._follow(worker, redirect), 0.0

    def _follow(self, worker: int, redirect: types_pb2.Redirect) -> bool:
        """Take a redirect; returns whether to go there."""
        if not redirect.address or redirect.epoch < self._epochs[worker]:
            return False
        self._epochs[worker] = redirect.epoch
        self.places[worker] = redirect.address
        return True
