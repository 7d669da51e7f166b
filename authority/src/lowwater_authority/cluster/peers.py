"""What a shard asks of the others and of itself, and how: how far computations are that they serve.

And what its slices say to those that they are slices of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import grpc

import lowwater
from lowwater import errors
from lowwater.core import lease
from lowwater.core.fold import Fold
from lowwater.core.lateness import Lateness
from lowwater.watermark import MAX, MIN, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater.aio import Client, Lease, Worker
    from lowwater_authority.core.groups import Mass
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.roots import Asked, Told
    from lowwater_server.tls import Certificates

SAY_SECONDS: Final = 5.0
"""How long a report of a slice is waited for at most. It stays staged, and goes out all the same;
what the slice says next takes its place."""


@dataclass(frozen=True, slots=True)
class PeerSettings(lowwater.Settings):
    """How this process reaches other shards, and itself. Not for other processes.

    With certificates it shows its own pair, which mutual TLS wants of whoever connects, and trusts
    what ``--peer-ca`` names; each new channel takes those in force. Other shards are checked by the
    names that they advertise, as by any client.
    """

    certificates: Certificates | None = None
    own: str = ""
    """The socket by which only this process reaches itself, if there is one. It never leaves the
    machine, and lies in a folder that nobody else can enter: who could listen there could read the
    key as well. TLS would have to be told not to mind the name on a certificate that is not for
    127.0.0.1, and that certificate to be one for clients too, which public authorities no longer
    sign."""

    @property
    def encrypted(self) -> bool:
        """Whether channels use TLS."""
        return self.certificates is not None

    @property
    def edition(self) -> object:
        """The pair in force."""
        return None if self.certificates is None else self.certificates.current()

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """What the channel to an address encrypts with; None without TLS."""
        if self.certificates is None or (self.own and address == self.own):
            return None
        pair = self.certificates.current()
        return grpc.ssl_channel_credentials(pair.peer_ca, pair.key, pair.chain)


class Peers:
    """Asks by the client library, which finds the shards.

    ``connect`` makes its client at the first question.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    async def lows(self, names: Sequence[str]) -> Lows:
        """See Placement."""
        if not names:
            return {}
        try:
            views = await self._connected().get(*names)
        except (errors.Timeout, errors.StaleEpoch) as error:
            msg = f"the shards of {', '.join(names)} cannot be asked how far these are: {error}"
            raise errors.Unavailable(msg) from error
        except (errors.Unauthenticated, errors.PermissionDenied) as error:
            msg = f"the shards of {', '.join(names)} do not know this one: LOWWATER_PEER_TOKEN must name the same token at all of them: {error}"
            raise errors.Unavailable(msg) from error
        return {name: (view.incarnation, view.low.micros) for name, view in views.items()}

    async def claim(self, asked: Asked) -> RangeThere:
        """See Above."""
        worker = self._connected().worker(
            asked.root, name=asked.name, identity=asked.identity, generation=asked.generation, ordinal=asked.ordinal
        )
        worker._claimant = replace(
            worker._claimant, host=asked.host
        )  # where it is reached, and not this machine's name
        try:
            lease = await worker.claim(*asked.span, bound=Watermark(asked.bound), timeout=SAY_SECONDS)
        except BaseException as error:
            worker.closed = True
            if isinstance(error, errors.Timeout | errors.StaleEpoch):
                msg = f"the shard of {asked.root} cannot be reached: {error}"
                raise errors.Unavailable(msg) from error
            raise
        return RangeThere(worker, lease, asked.span)

    async def epoch(self, root: str) -> int:
        """See Above."""
        try:
            views = await self._connected().get(root)
        except (errors.Timeout, errors.StaleEpoch) as error:
            msg = f"the shard of {root} cannot be reached: {error}"
            raise errors.Unavailable(msg) from error
        return views[root].epoch

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    async def close(self) -> None:
        """Let go of the client."""
        if self._client is not None:
            await self._client.close()


class RangeThere:
    """The range of a slice at a root that another process serves: a lease, whose states say what the slice's log knows and not what the lease was told."""

    def __init__(self, worker: Worker, lease: Lease, span: tuple[bytes, bytes]) -> None:
        self._worker = worker
        self._lease = lease
        self.span = span
        self.incarnation = lease.incarnation
        self.low = lease.watermarks[0].micros
        reading = lease._reading
        self.input_version = reading.input_version if reading.inputs else 0

    @property
    def lost(self) -> bool:
        """See Range."""
        return bool(self._lease.lost)

    async def say(self, told: Told, mass: Mass | None) -> None:
        """See Range."""
        state, reporter = self._lease._state, self._lease._runtime.reporter
        with reporter.guard:
            if told.kept:
                state.whole_lateness = _told_lateness(told.kept)
            if mass is not None:
                state.whole_mass = _told_mass(mass)
            state.advance(
                Fold(MAX, (), *told.fold),
                told.low,
                oldest_operation=told.oldest_operation,
                waiting_for=told.waiting_for,
                now=0.0,
            )
            reporter.staged(state)
        try:
            await self._lease.flush(SAY_SECONDS)
        except errors.Timeout as error:
            raise errors.Unavailable(error.message, metadata=error.metadata) from error

    async def vouch(self, told: Told) -> None:
        """See Range."""
        lease, runtime = self._lease, self._lease._runtime
        call = runtime.calls.vouch(lease.computation, lease.sequencer, Watermark(told.vouched), None)
        call.request.input_version = told.fold.input_version  # those of the slice's log, which no Inputs were read for
        call.request.input_incarnations.extend(told.fold.input_incarnations)
        await runtime.call(call, SAY_SECONDS)

    async def retire(self) -> None:
        """See Range."""
        lease = self._lease
        calls = lease._runtime.calls
        await lease._runtime.call(calls.retire(lease.computation, *lease.bounds, force=True, sequencer=lease.sequencer))

    def close(self) -> None:
        """See Range."""
        self._worker.closed = True  # without waiting for what it has said
        state, reporter = self._lease._state, self._lease._runtime.reporter
        with reporter.changed:
            state.lose(None, "its slice says no more by it")
            reporter.changed.notify_all()  # whoever waits for an answer to what it said would wait in vain
        reporter.remove(state)


def _told_mass(mass: Mass) -> lease.Mass:
    others = tuple((each.recent, tuple(each.frontiers.items())) for each in mass.others)
    starts, counts = tuple(mass.starts.tolist()), tuple(mass.counts.tolist())
    return lease.Mass(starts, counts, mass.recent, tuple(mass.frontiers.items()), others, unknown=mass.unknown)


def _told_lateness(kept: tuple[tuple[int, int, int, int], ...]) -> Lateness:
    """Return how a slice keeps its lateness budgets, as a lease tells it."""
    records = max(records for _, _, records, _ in kept)
    late = tuple((ppm, behind, micros) for ppm, micros, _, behind in kept)
    return Lateness(((0, records),) if records else (), MIN, MIN, late)
