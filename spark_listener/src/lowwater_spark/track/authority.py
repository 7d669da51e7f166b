"""The driver's calls on the authority: claim, prepare, commit, renew.

They degrade: a pipeline goes on without it.

Two kinds of refusal are kept apart. *Replaced*: this run, or what it has read, is not the stage's
any more; it must stop, and the error is raised. *Away*: everything else; the stage holds until the
authority answers again.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import lowwater
from lowwater import errors
from lowwater.core.calls import full_name
from lowwater.views import NO_REMARKS
from lowwater.watermark import MAX, MIN
from lowwater_spark.errors import AWAY
from lowwater_spark.track.cut import Cut
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.ranges import KEY_HASH
from lowwater_spark.track.receipt import Destination
from lowwater_spark.track.status import in_short

__all__ = ["REPLACED", "Authority", "Registration"]

logger = logging.getLogger("lowwater.spark")

REPLACED: Final = (
    errors.Cycle,
    errors.EstimatedInput,
    errors.IdentityMismatch,
    errors.IncarnationChanged,
    errors.InvalidArgument,
    errors.OlderClaim,
    errors.RegistrationConflict,
    errors.Rewound,
    errors.ServerTokenMismatch,
    errors.StaleSequencer,
)
"""After these the query stops, with the error: also when the authority was away at the start and
refuses it only later."""

DEFERRABLE: Final = AWAY
"""Refusals of a claim after which it is made again later; all others end the query."""

CALL_TIMEOUT: Final = 3.0
"""Seconds that a task or a batch waits for the authority at most; afterwards it goes on without."""

WIDEN_INTERVAL: Final = 10.0
"""Seconds between two registrations of a stage whose watermark is refused for being ahead of the
clock."""

PROBE_INTERVAL: Final = 1.0
"""Seconds between attempts to reach an authority that was away."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What the stage is registered as, and which run claims it."""

    name: str
    inputs: Sequence[str]
    heuristics: Sequence[float]
    ranges: int
    identity: str
    generation: int
    ordinal: int
    digest: bytes
    """Of the first batch of the run, when it was planned already."""
    adopt: bool
    estimated: bool = False
    """Whether what it publishes is not exact: an approximate drive()."""
    lateness_budgets: Sequence[float] = ()
    max_skew: timedelta | None = None
    """How far ahead of the clock it may be; None: as far as it was registered with, and as each of
    its inputs."""
    sidecar: bool = False
    """Whether it looks at a query of another process, which its worker's name says."""


@dataclass(slots=True)
class Authority:
    """One run's claim, and whether the authority can be reached.

    Used by the batch's thread and the driver's, one at a time.

    But for the claim, which may take long: the driver's thread makes it while a batch runs, and
    that one has no lease until the claim is made.
    """

    client: lowwater.Client
    registration: Registration
    clock: Callable[[], float] = time.monotonic
    as_of_now: Callable[[Registration], Registration] = lambda asked: asked
    """Brings what a claim says of the checkpoint up to date: of one that others write and report as
    well."""
    lease: lowwater.Lease | None = field(default=None, init=False)
    registered: lowwater.Computation | None = field(default=None, init=False)
    problem: str = field(default="", init=False)
    """Why it cannot be reached; empty while it can."""
    cut: Cut = field(init=False)
    """How the stage cuts its key space; the lease is of its ranges."""
    wanted: lowwater.Layout | None = field(default=None, init=False)
    """Another layout that is wanted, as the last commit has told; None: none is."""
    _quick: lowwater.Client = field(init=False)
    _worker: lowwater.Worker | None = field(default=None, init=False)
    _probed: float = field(default=0.0, init=False)
    _finished: set[int] = field(default_factory=set, init=False)
    _last_report: tuple[Reading, tuple[int, ...], float | None, tuple[str, ...], lowwater.Remarks] | None = field(
        default=None, init=False
    )
    """Arguments of the last renewal that the authority acknowledged: what was read of the inputs, a
    value for each range, when the oldest operation began, what the stage waits for, and remarks."""
    _unsaid: str = field(default="", init=False)
    """Why an output may not say how far it is complete, as it was logged last; empty: it may."""
    _unproposed: str = field(default="", init=False)
    """Why no layout could be asked for, as it was logged last."""
    _widened: float = field(default=-math.inf, init=False)
    """When it was registered once more, by the clock."""
    _told: tuple[int, int] | None = field(default=None, init=False)
    """The claim and the version of the layout that the authority says it has heard of."""
    _last: Reading | None = field(default=None, init=False)
    """What was read of the inputs last."""

    _heard: lowwater.InputReader | None = field(default=None, init=False)
    """Tells when the inputs move. What is claimed is read by the worker, as the claim says."""

    def __post_init__(self) -> None:
        self.cut = Cut(self.registration.ranges)
        settings = self.client.settings
        self._quick = lowwater.Client(dataclasses.replace(settings, timeout=min(settings.timeout, CALL_TIMEOUT)))

    @property
    def full_name(self) -> str:
        """The computation's name, with the namespace of the client."""
        return full_name(self.client.settings.namespace, self.registration.name)

    @property
    def complaint(self) -> str:
        """Why nothing new is reported, as far as the authority has a part in it: it is away, or has refused something. Else empty."""
        refused = None if self.lease is None else self.lease.refused
        return self.problem or ("" if refused is None else f"{refused.reason}: {refused.message}")

    # -- claiming ----------------------------------------------------------------------------------

    def register(self) -> lowwater.Computation:
        """Register the stage. Raises LowwaterError."""
        with self._noticing():
            try:
                self.registered = self._register()
            except errors.RegistrationConflict as refused:
                raise _uncut(self.registration.name, refused) from None
        return self.registered

    def _register(self) -> lowwater.Computation:
        asked = self.registration
        return self._quick.register(
            asked.name,
            inputs=asked.inputs,
            heuristics=asked.heuristics,
            key_hash=KEY_HASH,
            max_skew=asked.max_skew,
            estimated=asked.estimated,
            lateness_budget=asked.lateness_budgets,
        )

    def widen(self) -> None:
        """Register once more where a value was refused for being ahead of the clock: an input that was registered later may go further.

        One call on the network, at most once in :data:`WIDEN_INTERVAL`; the caller holds no lock. The lease repeats by itself what was refused.
        A failure of this call changes nothing: the reports say whether the run is replaced, and whether the authority is away.
        """
        asked, lease = self.registration, self.lease
        refused = None if lease is None or self.problem else lease.refused
        far = refused is not None and refused.reason == errors.TooFarAhead.reason
        inherits = asked.inputs and asked.max_skew is None
        if not far or not inherits or self.clock() < self._widened + WIDEN_INTERVAL:
            return
        self._widened = self.clock()
        try:
            self._register()
        except errors.LowwaterError as failure:
            logger.debug("%s cannot be registered once more: %s", self.full_name, failure)

    def enter(
        self,
        check: Callable[[lowwater.Computation], None],
        values: Callable[[], tuple[Cut, Sequence[int]]],
        lock: AbstractContextManager[object],
    ) -> bool:
        """Register, and claim the ranges of a cut from the values that are then said; False when the authority is away, which is remembered.

        False, too, when the stage has been cut otherwise meanwhile: the claim is not of its ranges. ``lock`` guards the cut, and is not held meanwhile.

        ``check`` compares the inputs, as they are registered now, with those that the checkpoint was made from. Raises what that does,
        before anything is claimed, and what the authority refuses.
        """
        try:
            check(self.register())
            self.registration = self.as_of_now(self.registration)
            cut, starting = values()
            lease = self._claim(cut, starting)
        except DEFERRABLE as failure:
            self.lost(failure)
            return False
        with lock:
            if cut == self.cut:
                self.lease = lease
            return self.lease is not None

    def claim(self, values: Sequence[int]) -> None:
        """Claim the whole key space, each range starting from at most its value.

        Raises LowwaterError.
        """
        self.lease = self._claim(self.cut, values)

    def claim_again(self, cut: Cut, values: Sequence[int], batch: int, digest: str) -> None:
        """Claim the ranges of another cut, in place of those that the stage has, before a batch begins. Raises LowwaterError.

        When it is not known whether that was granted, the lease is given up: it may be fenced by now. Then the stage is claimed anew, as at the start.
        """
        before, self.lease = self.lease, None
        self._last_report, self._finished = None, set()
        assert before is not None
        self.registration = dataclasses.replace(self.registration, generation=batch, digest=bytes.fromhex(digest))
        self.lease = self._claim(cut, values, before.sequencer)
        self.cut = cut

    def _claim(self, cut: Cut, values: Sequence[int], instead_of: int = 0) -> lowwater.Lease:
        """Claim. In place of another claim a batch waits for it, and so not longer than for any call."""
        asked = self.registration
        if self._worker is None:
            self._worker = self.client.worker(
                asked.name,
                name=f"{'sidecar ' if asked.sidecar else ''}{asked.name}-{asked.ordinal}",
                identity=asked.identity,
                generation=asked.generation,
                ordinal=asked.ordinal,
            )
        with self._noticing():
            lease = self._worker.claim(
                bounds=cut.bounds,
                bound=list(values),
                batch_digest=asked.digest,
                adopt=asked.adopt,
                instead_of=instead_of,
                generation=asked.generation,
                timeout=CALL_TIMEOUT if instead_of else None,
            )
        # Who takes the place of another one does so once: whoever took its own since is not
        # replaced in turn.
        self.registration = dataclasses.replace(self.registration, adopt=False)
        return lease

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> Reading | None:
        """Return what is known of the inputs now; None for an injector, before the claim, and when they cannot be read. Never waits long."""
        if self._worker is None or self.lease is None or not self.registration.inputs:
            return None
        try:
            with self._noticing():
                seen = self._worker.inputs()
        except AWAY:
            return None
        self._last = Reading(
            seen.low.micros,
            {round(share * 1_000_000): mark.micros for share, mark in seen.heuristic.items()},
            seen.input_version,
            tuple(seen.incarnations),
            {round(share * 1_000_000): mark.micros for share, mark in seen.budget.items()},
        )
        return self._last

    def news(self) -> bool:
        """Return whether :meth:`read` returns something else than it did last; never while the authority is away. Costs what that does."""
        last = self._last
        return not self.problem and self.read() not in (None, last)

    def hear(self) -> Iterator[object]:
        """Yield whenever the inputs show something else.

        Waits between, and ends when the run is closed.
        """
        if self._heard is None:
            self._heard = self.client.inputs(*self.registration.inputs)
        return self._heard.watch()

    def follow(self, names: Sequence[str]) -> lowwater.InputReader:
        """Return a reader of some computations, whose first read waits :data:`CALL_TIMEOUT` at most. The caller closes it."""
        return self._quick.inputs(*names)

    def _snapshot(self, reading: Reading) -> lowwater.Inputs | None:
        """Return a reading in the form in which the client wants it back."""
        if self.registered is None or not self.registered.inputs:
            return None
        # Nothing read is the same whatever the inputs are: it says no more than MIN.
        unread = reading.low == MIN
        return lowwater.Inputs(
            low=lowwater.Watermark(reading.low),
            heuristic={share / 1_000_000: lowwater.Watermark(t) for share, t in reading.heuristics.items()},
            stale_for=0.0,
            held_by=None,
            each={name: lowwater.WatermarkView(name) for name in self.registered.inputs},
            computation=self.registered.name,
            input_version=self.registered.input_version if unread else reading.input_version,
            incarnations=tuple(self.registered.input_incarnations) if unread else reading.input_incarnations,
        )

    # -- batches -----------------------------------------------------------------------------------

    def destination(self, batch: int) -> Destination:
        """Return where the tasks of a batch stage their parts."""
        reachable = self.lease is not None and not self.problem
        return Destination(
            self._quick.settings if reachable else None,
            self.registration.name,
            0 if self.lease is None else self.lease.sequencer,
            batch,
        )

    def prepare(
        self,
        batch: int,
        digest: str,
        tasks: Sequence[lowwater.TaskAttempt],
        reading: Reading,
        bound: int,
        *,
        covers_all: bool,
    ) -> str:
        """Name the accepted attempts of a batch.

        Returns why the stage must hold, or nothing. Raises what replaced the run.
        """
        lease = self.lease
        if lease is None or self.problem:
            return self.problem or "the stage has not been claimed yet"
        heuristics: Mapping[int, int] = reading.heuristics

        def call() -> str:
            missing = self._quick.batches.prepare(
                self.registration.name,
                lease.sequencer,
                batch,
                digest=bytes.fromhex(digest),
                tasks=tasks,
                bound=bound,
                seen=self._snapshot(reading),
                covers_all=covers_all,
                frontiers=[(share / 1_000_000, t) for share, t in heuristics.items()],
            )
            if missing:
                return f"the reports of {len(missing)} of {len(tasks)} tasks of batch {batch} never arrived"
            return ""

        return self._degrade(call)

    def commit(self, batch: int, refused: str | None = None, loads: Sequence[lowwater.RangeLoad] = ()) -> str:
        """Apply a prepared batch, and hear which layout is wanted; ``refused`` says why that is not followed, None: the stage follows none. Returns why the stage must hold, or nothing. Raises what replaced the run."""
        lease = self.lease
        if lease is None or self.problem:
            return self.problem or "the stage has not been claimed yet"

        def call() -> str:
            wanted: list[lowwater.Layout] = []
            known: list[int] = []
            layout = self.cut.told
            if self._told == (lease.sequencer, layout.version):
                layout = lowwater.Layout(layout.version)
            for each in self._quick.batches.commit(
                self.registration.name,
                lease.sequencer,
                batch,
                layout=None if refused is None else layout,
                layout_refused=refused or "",
                loads=loads,
                wanted=wanted.append,
                known=known.append,
            ):
                if each.reason == errors.StaleSequencer.reason:
                    raise errors.StaleSequencer(each.message, metadata={"computation": self.registration.name})
                # The rest counts; another batch would be refused as well. The lease says it again,
                # and the status shows it.
                logger.warning("batch %d of %s: %s", batch, self.registration.name, each.message)
            self.wanted = wanted[-1] if wanted else None
            self._told = (lease.sequencer, known[-1]) if known else None
            return ""

        return self._degrade(call)

    def propose(self, layout: lowwater.Layout) -> bool:
        """Ask for another layout, in place of the one that the stage has; False when it is not wanted: somebody else has asked for one, or may not be overruled."""
        lease = self.lease
        if lease is None or self.problem:
            return False
        try:
            version = self._quick.change_layout(self.registration.name, lease.incarnation, layout)
        except AWAY as failure:
            self.lost(failure)
            return False
        except errors.LowwaterError as failure:
            if failure.reason != self._unproposed:
                logger.warning("%s is not balanced: %s", self.full_name, failure)
            self._unproposed = failure.reason
            return False
        logger.info("%s asks for version %d of its layout, with %d key ranges", self.full_name, version, len(layout))
        self._unproposed = ""
        return True

    def vouch(self, through: int, reading: Reading) -> str:
        """Let the authority know what an output will say, before it does.

        Returns why it must not, or nothing. Raises what replaced the run.
        """
        lease = self.lease
        if lease is None or self.problem:
            return self.problem or "the stage has not been claimed yet"

        def call() -> str:
            try:
                self._quick.batches.vouch(
                    self.registration.name, lease.sequencer, lowwater.Watermark(through), seen=self._snapshot(reading)
                )
            except errors.LowwaterError as failure:
                if failure.reason != "UNIMPLEMENTED":
                    raise
                return str(failure)  # an authority of a release before this call is not away
            return ""

        why = self._degrade(call)
        if why not in ("", self.problem, self._unsaid):
            logger.warning("the outputs of %s say nothing new of how far they are complete: %s", self.full_name, why)
        self._unsaid = why
        return why

    def renew(
        self,
        reading: Reading,
        values: Sequence[int],
        *,
        pending: tuple[Sequence[int], Sequence[int]] | None = None,
        finished: int = 0,
        arrived: lowwater.Arrived | None = None,
        since: float | None = None,
        waiting_for: Sequence[str] = (),
        remarks: lowwater.Remarks = NO_REMARKS,
    ) -> None:
        """Stage what the ranges are at for the reporter; costs nothing on the network.

        Raises what replaced the run.

        ``pending`` only when it changed; ``arrived`` is how late the rows were that came since it
        was told last; ``since`` is the wall clock at which the running batch began, seconds.
        ``waiting_for`` as in Status, for whoever asks the authority why.
        """
        lease = self.lease
        assert lease is not None
        said = (reading, tuple(values), since, tuple(waiting_for), remarks)
        if pending is None and arrived is None and said == self._last_report and not lease.lost:
            return
        self._last_report = None
        with self._noticing():
            self._renew(lease, reading, values, pending, finished, arrived, since, in_short(waiting_for), remarks)
        self._last_report = said

    def tell(self, waiting_for: Sequence[str]) -> None:
        """Say the same as was said last, and that the stage waits for something else; nothing before the first report, and while away."""
        if self._last_report is not None and self.lease is not None and not self.problem:
            reading, values, since, _, remarks = self._last_report
            self.renew(reading, values, since=since, waiting_for=waiting_for, remarks=remarks)

    def end(self, failure: str) -> None:
        """Report that the run ends. ``failure``: first line of its error; empty: in good order.

        The report is for people alone. If the authority cannot be reached, it is left out.
        """
        if self._last_report is None or self.lease is None or self.problem:
            return
        reading, values, _, _, remarks = self._last_report
        try:
            self.renew(reading, values, remarks=remarks._replace(ended=True, failure=in_short([failure])))
        except errors.LowwaterError as refusal:
            logger.debug("nobody is told that %s ends: %s", self.full_name, refusal)

    def _renew(
        self,
        lease: lowwater.Lease,
        reading: Reading,
        values: Sequence[int],
        pending: tuple[Sequence[int], Sequence[int]] | None,
        finished: int,
        arrived: lowwater.Arrived | None,
        since: float | None,
        waits: str,
        remarks: lowwater.Remarks,
    ) -> None:
        shares = list(reading.heuristics.values())
        reference = max([t for t in (reading.low, *shares) if t != MAX], default=0)
        histogram = None if pending is None else lowwater.Histogram.from_columns(reference, *pending)
        operation = None if since is None else int(since * 1_000_000)
        snapshot = self._snapshot(reading)
        if snapshot is not None:
            lease.advance(
                snapshot,
                oldest=list(values),
                pending=histogram,
                finished=finished,
                arrived=arrived,
                oldest_operation=operation,
                waiting_for=waits,
                remarks=remarks,
            )
            return
        if reading.low == MAX:
            self._finish(lease, [handle for handle, value in enumerate(values) if value == MAX])
        if len(self._finished) < len(values):
            lease.advance(
                None,
                oldest=list(values),
                # Beyond all that is held: the finished ranges are finished, the others stand at
                # what they hold.
                frontier=reading.low if reading.low != MAX else max(value for value in values if value != MAX),
                pending=histogram,
                finished=finished,
                arrived=arrived,
                oldest_operation=operation,
                waiting_for=waits,
                remarks=remarks,
            )

    def _finish(self, lease: lowwater.Lease, handles: Sequence[int]) -> None:
        new = set(handles) - self._finished
        if not new:
            return
        try:
            lease.finish(new)
        except REPLACED:
            raise
        except errors.LowwaterError as failure:
            self.lost(failure)  # it stays staged
        self._finished |= new

    # -- away and back -----------------------------------------------------------------------------

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Remember, of the stage whose call it is, what is no reason to stop.

        Raises all the same.
        """
        try:
            yield
        except (*REPLACED, errors.Closed):
            raise
        except errors.LowwaterError as failure:
            self.lost(failure)
            raise

    def _degrade(self, call: Callable[[], str]) -> str:
        try:
            return call()
        except REPLACED:
            raise
        except (errors.NotPrepared, errors.InputVersion, errors.TooFarAhead) as refusal:
            return str(refusal)
        except errors.LowwaterError as failure:
            self.lost(failure)
            return self.problem

    def lost(self, failure: errors.LowwaterError) -> None:
        """Remember that the authority is away; tasks and batches do not wait for it until :meth:`probe` finds it."""
        if not self.problem:
            logger.warning("%s goes on without the authority, and holds: %s", self.registration.name, failure)
        self.problem = f"{failure.reason}: {failure}"
        self._probed = self.clock()

    def probe(self) -> bool:
        """Return whether the authority answers, asking it at most once a second while it is away."""
        if not self.problem:
            return True
        if self.clock() - self._probed < PROBE_INTERVAL:
            return False
        try:
            self._quick.get(self.registration.name)
        except REPLACED:
            raise
        except errors.LowwaterError as failure:
            self.problem = f"{failure.reason}: {failure}"
            self._probed = self.clock()  # the call may have waited longer than the pause between two
            return False
        logger.info("%s reaches the authority again", self.registration.name)
        self.problem = ""
        return True

    def close(self) -> None:
        """Stop reporting; the ranges hold where they stand."""
        if self._heard is not None:
            self._heard.close()
        if self._worker is not None:
            self._worker.close()
        self._quick.close()


def _uncut(name: str, refused: errors.RegistrationConflict) -> errors.LowwaterError:
    """Return why a stage cannot be registered: where that is so, that it is cut into slices, which no stage can be."""
    slices = refused.metadata.get("slices", "1")
    if slices == "1":
        return refused
    fix = "give the stage another name, or drop the computation (lowwater drop) and let the stage register it"
    msg = f"{name} is registered in {slices} slices, and a stage commits its claim on all of its key ranges as one, so that it cannot be cut: {fix}"
    return errors.RegistrationConflict(msg, metadata={**refused.metadata, "fix": fix})
