"""The client of a shard to other shards and to itself.

It asks for the watermarks of computations that they serve, and reports the slices of this shard to
their roots.
"""

from __future__ import annotations

from contextlib import contextmanager
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
    from collections.abc import Callable, Iterator, Sequence

    from lowwater.aio import Client, Lease, Worker
    from lowwater_authority.core.groups import Mass
    from lowwater_authority.engine.placement import Lows
    from lowwater_authority.engine.roots import SliceClaim, SliceReport
    from lowwater_server.tls import Certificates

SAY_SECONDS: Final = 5.0
"""Longest wait for an answer to a slice's message, in seconds.

A report without an answer stays staged: it leaves later, or the next report replaces it."""


@dataclass(frozen=True, slots=True)
class PeerSettings(lowwater.Settings):
    """How this process reaches other shards, and itself. Not for other processes.

    With certificates it shows its own pair, which mutual TLS asks of every client, and trusts the
    authorities of ``--peer-ca``; each new channel takes the pair in force. Other shards are checked
    by the names that they advertise, as by any client.
    """

    certificates: Certificates | None = None
    own: str = ""
    """Socket by which only this process reaches itself, if there is one; without TLS. It lies in a
    folder that no other user can enter: a user who could listen there could read the key as well.
    TLS would not work here: the certificate does not name 127.0.0.1, and public authorities no
    longer sign certificates for clients."""

    @property
    def encrypted(self) -> bool:
        """True if channels use TLS."""
        return self.certificates is not None

    @property
    def edition(self) -> object:
        """Pair in force."""
        return None if self.certificates is None else self.certificates.current()

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """Return the credentials of a channel to an address; None without TLS."""
        if self.certificates is None or (self.own and address == self.own):
            return None
        pair = self.certificates.current()
        return grpc.ssl_channel_credentials(pair.peer_ca, pair.key, pair.chain)


class Peers:
    """Asks other shards by the client library, which finds them.

    ``connect`` makes the client at the first question.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    async def lows(self, names: Sequence[str]) -> Lows:
        """See Placement."""
        if not names:
            return {}
        try:
            with _reaching(*names):
                views = await self._connected().get(*names)
        except (errors.Unauthenticated, errors.PermissionDenied) as error:
            msg = f"the shards of {', '.join(names)} refuse this one: LOWWATER_PEER_TOKEN must name the same token at all of them: {error}"
            raise errors.Unavailable(msg) from error
        return {name: (view.incarnation, view.low.micros) for name, view in views.items()}

    async def claim(self, claim: SliceClaim) -> RangeThere:
        """See Above."""
        worker = self._connected().worker(
            claim.root, name=claim.name, identity=claim.identity, generation=claim.generation, ordinal=claim.ordinal
        )
        # The address where this process is reached, not the name of the machine.
        worker._claimant = replace(worker._claimant, host=claim.host)
        try:
            with _reaching(claim.root):
                lease = await worker.claim(*claim.span, bound=Watermark(claim.bound), timeout=SAY_SECONDS)
        except BaseException:
            worker.closed = True
            raise
        return RangeThere(worker, lease, claim.span)

    async def epoch(self, root: str) -> int:
        """See Above."""
        with _reaching(root):
            return (await self._connected().get(root))[root].epoch

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.close()


@contextmanager
def _reaching(*names: str) -> Iterator[None]:
    """Raise Unavailable when the shards of computations do not answer."""
    try:
        yield
    except (errors.Timeout, errors.StaleEpoch) as error:
        msg = f"no shard answers for {', '.join(names)}: {error}"
        raise errors.Unavailable(msg) from error


class RangeThere:
    """The range of a slice at a root that another process serves.

    It is a lease whose reports are made from the log of the slice, not from calls of a worker.
    """

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

    async def report(self, report: SliceReport, mass: Mass | None) -> None:
        """See Range."""
        state, reporter = self._lease._state, self._lease._runtime.reporter
        with reporter.guard:
            if report.budgets:
                state.whole_lateness = lateness_of(report.budgets)
            if mass is not None:
                state.whole_mass = _mass_of(mass)
            state.advance(
                Fold(MAX, (), *report.fold),
                report.low,
                oldest_operation=report.oldest_operation,
                waiting_for=report.waiting_for,
                now=0.0,
            )
            reporter.staged(state)
        try:
            await self._lease.flush(SAY_SECONDS)
        except errors.Timeout as error:
            raise errors.Unavailable(error.message, metadata=error.metadata) from error

    async def vouch(self, report: SliceReport) -> None:
        """See Range."""
        lease, runtime = self._lease, self._lease._runtime
        call = runtime.calls.vouch(lease.computation, lease.sequencer, Watermark(report.vouched), None)
        call.request.input_version = report.fold.input_version  # from the log of the slice: no Inputs were read
        call.request.input_incarnations.extend(report.fold.input_incarnations)
        await runtime.call(call, SAY_SECONDS)

    async def retire(self) -> None:
        """See Range."""
        lease = self._lease
        calls = lease._runtime.calls
        await lease._runtime.call(calls.retire(lease.computation, *lease.bounds, force=True, sequencer=lease.sequencer))

    def close(self) -> None:
        """See Range."""
        self._worker.closed = True  # does not wait for reports under way
        state, reporter = self._lease._state, self._lease._runtime.reporter
        with reporter.changed:
            state.lose(None, "its slice reports no more by it")
            reporter.changed.notify_all()  # a caller of flush would wait in vain
        reporter.remove(state)


def _mass_of(mass: Mass) -> lease.Mass:
    others = tuple((other.recent, tuple(other.frontiers.items())) for other in mass.others)
    starts, counts = tuple(mass.starts.tolist()), tuple(mass.counts.tolist())
    return lease.Mass(starts, counts, mass.recent, tuple(mass.frontiers.items()), others, unknown=mass.unknown)


def lateness_of(budgets: tuple[tuple[int, int, int, int], ...]) -> Lateness:
    """Return the lateness budgets of a slice in the form of a lease."""
    records = max(records for _, _, records, _ in budgets)
    late = tuple((ppm, behind, micros) for ppm, micros, _, behind in budgets)
    return Lateness(((0, records),) if records else (), MIN, MIN, late)
