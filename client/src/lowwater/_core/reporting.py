"""What one process reports, over the streams to all shards that it needs, and what leases hear of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from lowwater import errors
from lowwater._core import wire
from lowwater._core.attempts import words_of
from lowwater._core.lease import LeaseState
from lowwater._core.locating import Locating
from lowwater._core.report_stream import Due, ReportStream
from lowwater._core.reports import ReporterStatistics
from lowwater._core.routes import HOME, MOST_HOPS, Routes
from lowwater._core.settings import Settings
from lowwater._core.streams import Streamed
from lowwater._core.surroundings import Surroundings
from lowwater._pb.lowwater.v1 import cluster_pb2, types_pb2, workers_pb2
from lowwater.views import Refusal

__all__ = ["Due", "Reporting", "stale", "token_of"]

logger = logging.getLogger("lowwater")

Key = tuple[str, int]


class Reporting:
    """All leases of a process, each reported over the stream of its computation's shard.

    A lease whose shard is not known is reported at home, whose answer tells. When a shard redirects it or fails it moves on, with
    its full state; until it is known where to, its newest state waits here. Nothing here waits or locks.
    """

    def __init__(self, settings: Settings, surroundings: Surroundings, routes: Routes) -> None:
        self.failure: errors.LowwaterError | None = None
        """Why nothing will ever be reported again."""
        self.interval: float = settings.report_interval
        """Seconds between reports at least."""
        self.routes: Routes = routes
        self.surroundings: Surroundings = surroundings
        self.locating: Locating = Locating(routes, surroundings, self._found)
        self._streams: dict[str, ReportStream] = {HOME: ReportStream(self, HOME)}
        self._untended: dict[Streamed, None] = {}
        self._carriers: dict[Key, ReportStream] = {}
        self._homeless: dict[Key, LeaseState] = {}
        self._hops: dict[str, int] = {}
        self._past = ReporterStatistics()
        self._logged: dict[Key, set[str]] = {}

    # -- for leases ---------------------------------------------------------------------------------------------------

    def add(self, lease: LeaseState) -> None:
        """Report a lease from now on. Ask :meth:`tend` afterwards."""
        self._put(lease, self.routes.place(lease.computation))

    def remove(self, lease: LeaseState) -> None:
        """Report a lease no longer; its ranges hold what was reported last."""
        key = _key(lease)
        carrier = self._carriers.pop(key, None)
        if carrier is not None:
            carrier.state.remove(lease)
            if carrier.leave_idle():
                self._untended[carrier] = None
        if self._homeless.pop(key, None) is not None and not self._lost(lease.computation):
            self.locating.forget(lease.computation)
        self._logged.pop(key, None)

    def staged(self, lease: LeaseState) -> bool:
        """Note that a lease has a new state; returns whether the sender has to be woken for it."""
        carrier = self._carriers.get(_key(lease))
        return carrier is not None and carrier.state.staged(lease)

    def hurry(self, lease: LeaseState) -> None:
        """Let the next tick of a lease's stream come at once: somebody waits for it."""
        carrier = self._carriers.get(_key(lease))
        if carrier is not None:
            carrier.state.hurry()

    def check(self) -> None:
        """Raise what ended the reporting, if something did."""
        if self.failure is not None:
            raise self.failure

    def answered(self, lease: LeaseState, version: int) -> bool:
        """Whether a state of a lease was answered. Raises StaleSequencer when the claim is lost, and what the state was refused for."""
        self.check()
        if lease.lost_all:
            raise stale(lease)
        if lease.answered < version:
            return False
        if lease.refusal is not None:
            metadata = {"computation": lease.computation, "sequencer": str(lease.sequencer)}
            raise wire.error_of(lease.refusal.reason, lease.refusal.message, metadata)
        return True

    def too_late(self, lease: LeaseState, timeout: float) -> errors.Timeout:
        """Return the error of a state that was not answered in time."""
        carrier = self._carriers.get(_key(lease))
        why = f": {words_of(carrier.last_error)}" if carrier is not None and carrier.last_error is not None else ""
        if _key(lease) in self._homeless:
            why = ": it is not known which shard serves it now"
        msg = (
            f"the newest state of {lease.computation} was not acknowledged as durable within {timeout:g} s{why}. "
            "It stays staged and goes out as soon as the authority answers."
        )
        return errors.Timeout(msg, metadata={"computation": lease.computation, "timeout": f"{timeout:g}"})

    def statistics(self) -> ReporterStatistics:
        """Return what was done so far, on all streams together."""
        waiting = sum(lease.version > lease.durable for lease in self._homeless.values())
        homeless = ReporterStatistics(leases=len(self._homeless), waiting=waiting)
        streams = [stream.state.statistics() for stream in self._streams.values()]
        return ReporterStatistics.total([self._past, homeless, *streams])

    # -- for the shells -----------------------------------------------------------------------------------------------

    def tend(self) -> Iterable[Streamed]:
        """Return what has to be driven, or looked at, since this was asked last."""
        untended, self._untended = self._untended, {}
        return untended

    def stream(self, key: str = HOME) -> ReportStream:
        """Return the stream to an address, or to home."""
        if key not in self._streams:
            self._streams[key] = ReportStream(self, key)
        return self._streams[key]

    # -- for the streams ----------------------------------------------------------------------------------------------

    def log(self, refused: Sequence[tuple[str, int, Refusal]]) -> None:
        """Say each reason once a claim: a range that is too far ahead is refused with every report until it no longer is."""
        for computation, sequencer, refusal in refused:
            if (computation, sequencer) not in self._carriers:
                continue
            logged = self._logged.setdefault((computation, sequencer), set())
            if refusal.reason not in logged:
                logged.add(refusal.reason)
                logger.warning("a report of %s was refused: %s (%s)", computation, refusal.message, refusal.reason)

    def heard(self, computation: str) -> None:
        """A shard has answered for a computation."""
        self._hops.pop(computation, None)
        self.locating.heard(computation)

    def redirected(self, stream: ReportStream, redirect: types_pb2.Redirect, leases: Sequence[LeaseState]) -> bool:
        """Take leases that a stream no longer carries where they are redirected to; returns whether that is the same shard."""
        computation = leases[0].computation
        followed = self.routes.redirected(computation, redirect.address, redirect.epoch)
        self._hops[computation] = self._hops.get(computation, 0) + 1
        logger.info("%s is served at %s", computation, redirect.address or "no shard just now")
        place = self.routes.place(computation)
        following = followed and self._hops[computation] <= MOST_HOPS
        at_least = 0.0 if following else self.locating.refused(computation)
        for lease in leases:
            if following:
                self._put(lease, place)
            else:
                self._lose(lease, at_least)
        return any(self._carriers.get(_key(lease)) is stream for lease in leases)

    def lose(self, stream: ReportStream, at_least: float) -> None:
        """Look for what a stream carried, in so many seconds at the earliest."""
        for lease in stream.state.leases:
            stream.state.remove(lease)
            self._lose(lease, at_least)

    def retired(self, stream: ReportStream) -> None:
        """Nobody drives a stream any more."""
        if stream.key != HOME and self._streams.get(stream.key) is stream:
            del self._streams[stream.key]
            self._past = ReporterStatistics.total([self._past, stream.state.statistics()])

    def _put(self, lease: LeaseState, place: str) -> None:
        stream = self.stream(place)
        self._carriers[_key(lease)] = stream
        stream.state.add(lease)
        self._untended[stream] = None

    def _lose(self, lease: LeaseState, at_least: float = 0.0) -> None:
        self._carriers.pop(_key(lease), None)
        self._homeless[_key(lease)] = lease
        self.locating.lose(lease.computation, at_least)
        self._untended[self.locating] = None

    def _lost(self, computation: str) -> list[LeaseState]:
        return [lease for lease in self._homeless.values() if lease.computation == computation]

    def _found(self, computation: str) -> None:
        self._hops.pop(computation, None)
        for lease in self._lost(computation):
            del self._homeless[_key(lease)]
            self._put(lease, self.routes.place(computation))


def _key(lease: LeaseState) -> Key:
    return lease.computation, lease.sequencer


def token_of(response: workers_pb2.ReportResponse | cluster_pb2.LocateResponse) -> str:
    """Return the deployment that an answer names; empty when it names none."""
    if isinstance(response, cluster_pb2.LocateResponse):
        return response.server_token
    return response.opened.server_token if response.HasField("opened") else ""


def stale(lease: LeaseState, handles: tuple[int, ...] = ()) -> errors.StaleSequencer:
    """Return the error of a claim that lost all its ranges, or some."""
    reason = lease.lost_all or ", ".join(sorted({lease.lost[handle] for handle in handles}))
    which = "all its ranges" if lease.lost_all else f"{len(handles)} of its {lease.count} ranges"
    msg = (
        f"this claim on {lease.computation} lost {which}: {reason}. Stop writing for them; "
        "lease.lost names the handles. Claim again only if this worker is meant to be the owner."
    )
    metadata = {"computation": lease.computation, "sequencer": str(lease.sequencer), "reason": reason}
    return errors.StaleSequencer(msg, metadata=metadata)
