"""The driver's calls to the authority: claim, prepare, commit, renew.

If a call fails, the pipeline goes on without the authority. Two kinds of errors are kept apart.
*Replaced*: another run owns the stage, or its inputs are not the registered ones; the run must
stop, and the error is raised. *Away*: all others; the stage holds until the authority answers.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import lowwater
from lowwater import errors
from lowwater.core.calls import full_name
from lowwater.views import NO_REMARKS
from lowwater.watermark import MAX, MIN
from lowwater_spark.errors import AWAY
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.rows.cut import Cut
from lowwater_spark.track.rows.ranges import KEY_HASH
from lowwater_spark.track.run.status import in_short
from lowwater_spark.track.state.receipt import Destination

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
"""Refusals that end the query, also if the authority was away at the start."""

DEFERRABLE: Final = AWAY
"""Refusals of a claim after which it is tried again later; all others end the query."""

CALL_TIMEOUT: Final = 3.0
"""Greatest number of seconds that a task or a batch waits for the authority, before it goes on."""

WIDEN_INTERVAL: Final = 10.0
"""Seconds between two registrations after a watermark was refused for leading the clock."""

RETRY_INTERVAL: Final = 1.0
"""Seconds between attempts to reach an authority that was away."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The stage's registration, and the run that claims it."""

    name: str
    inputs: Sequence[str]
    heuristics: Sequence[float]
    ranges: int
    identity: str
    generation: int
    ordinal: int
    digest: bytes
    """Digest of the plan of the run's first batch; empty: Spark has not planned that batch."""
    adopt: bool
    estimated: bool = False
    """True: the stage's watermark is not exact, because of an approximate drive()."""
    lateness_budgets: Sequence[float] = ()
    max_skew: timedelta | None = None
    """Greatest lead of the watermark over the clock; None: as registered before or for inputs."""
    sidecar: bool = False
    """True: a sidecar claims for a query of another process; the worker's name says so."""


@dataclass(slots=True)
class Authority:
    """One run's claim, and whether the authority can be reached.

    The batch's thread and the clock's use it in turn. Only the claim, which may take long, is made
    by the clock's thread while a batch runs; the batch has no lease until then.
    """

    client: lowwater.Client
    registration: Registration
    clock: Callable[[], float] = time.monotonic
    as_of_now: Callable[[Registration], Registration] = lambda registration: registration
    """Function that updates a claim's facts about a checkpoint that another process writes."""
    lease: lowwater.Lease | None = field(default=None, init=False)
    registered: lowwater.Computation | None = field(default=None, init=False)
    problem: str = field(default="", init=False)
    """Why the authority cannot be reached; empty while it can."""
    cut: Cut = field(init=False)
    """Cut of the key space; the lease has its ranges."""
    wanted: lowwater.Layout | None = field(default=None, init=False)
    """Wanted layout, by the last commit; None: no other one is wanted."""
    _quick: lowwater.Client = field(init=False)
    _worker: lowwater.Worker | None = field(default=None, init=False)
    _last_try: float = field(default=0.0, init=False)
    _finished: set[int] = field(default_factory=set, init=False)
    _last_report: tuple[Reading, tuple[int, ...], float | None, tuple[str, ...], lowwater.Remarks] | None = field(
        default=None, init=False
    )
    """Arguments of the last renewal that the authority acknowledged: the reading of the inputs, a
    value for each range, the begin of the oldest operation, what the stage waits for, and remarks.
    """
    _unsaid: str = field(default="", init=False)
    """Last logged reason why outputs may not say how far they are complete; empty: they may."""
    _unproposed: str = field(default="", init=False)
    """Last logged reason why no layout could be requested."""
    _widened: float = field(default=-math.inf, init=False)
    """Time of the last repeated registration, by the clock."""
    _acknowledged_layout: tuple[int, int] | None = field(default=None, init=False)
    """Sequencer and layout version that the authority has acknowledged."""
    _last: Reading | None = field(default=None, init=False)

    _input_reader: lowwater.InputReader | None = field(default=None, init=False)
    """Reader that notices when the inputs move; :meth:`read` takes its values from the worker."""

    def __post_init__(self) -> None:
        self.cut = Cut(self.registration.ranges)
        settings = self.client.settings
        self._quick = lowwater.Client(dataclasses.replace(settings, timeout=min(settings.timeout, CALL_TIMEOUT)))

    @property
    def full_name(self) -> str:
        """Name of the computation with the client's namespace."""
        return full_name(self.client.settings.namespace, self.registration.name)

    @property
    def complaint(self) -> str:
        """Why the authority keeps new values from being reported: it is away or refuses.

        Else empty.
        """
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
        registration = self.registration
        return self._quick.register(
            registration.name,
            inputs=registration.inputs,
            heuristics=registration.heuristics,
            key_hash=KEY_HASH,
            max_skew=registration.max_skew,
            estimated=registration.estimated,
            lateness_budget=registration.lateness_budgets,
        )

    def widen(self) -> None:
        """Register again if a value was refused because it leads the clock by too much.

        The allowed lead is that of the registered inputs, which may have grown. One call on the
        network, at most once in :data:`WIDEN_INTERVAL`; the caller holds no lock. The lease itself
        repeats the refused value. A failed call is only logged.
        """
        registration, lease = self.registration, self.lease
        refused = None if lease is None or self.problem else lease.refused
        far = refused is not None and refused.reason == errors.TooFarAhead.reason
        inherits = registration.inputs and registration.max_skew is None
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
        """Register, compare the inputs, and claim. Returns whether the run has a lease now.

        ``check`` compares the registered inputs with the checkpoint's; if it raises, nothing is
        claimed. Then ``values`` returns the cut, and the value from which each range starts. A
        batch may change the stage's cut during the claim: such a lease is dropped. ``lock`` guards
        the cut; the caller does not hold it. Raises the errors that end the query.
        """
        try:
            check(self.register())
            self.registration = self.as_of_now(self.registration)
            cut, starting = values()
            lease = self._call_claim(cut, starting)
        except DEFERRABLE as failure:
            self.lost(failure)
            return False
        with lock:
            if cut == self.cut:
                self.lease = lease
            return self.lease is not None

    def claim(self, values: Sequence[int]) -> None:
        """Claim the whole key space; each range starts from at most its value.

        Raises LowwaterError.
        """
        self.lease = self._call_claim(self.cut, values)

    def claim_again(self, cut: Cut, values: Sequence[int], batch: int, digest: str) -> None:
        """Claim the ranges of another cut instead of the stage's, before a batch.

        Raises LowwaterError. ``lease`` is None then, because the old lease may be fenced by now,
        and the stage claims anew, as at the start.
        """
        before = self.lease
        assert before is not None
        self.drop_lease()
        self.registration = dataclasses.replace(self.registration, generation=batch, digest=bytes.fromhex(digest))
        self.lease = self._call_claim(cut, values, before.sequencer)
        self.cut = cut

    def drop_lease(self) -> None:
        """Forget the lease, and what was reported and finished of its ranges: the cut changes."""
        self.lease, self._last_report, self._finished = None, None, set()

    def _call_claim(self, cut: Cut, values: Sequence[int], instead_of: int = 0) -> lowwater.Lease:
        """Claim. A claim in place of another one has a short limit, since a batch waits."""
        registration = self.registration
        if self._worker is None:
            self._worker = self.client.worker(
                registration.name,
                name=f"{'sidecar ' if registration.sidecar else ''}{registration.name}-{registration.ordinal}",
                identity=registration.identity,
                generation=registration.generation,
                ordinal=registration.ordinal,
            )
        with self._noticing():
            lease = self._worker.claim(
                bounds=cut.bounds,
                bound=list(values),
                batch_digest=registration.digest,
                adopt=registration.adopt,
                instead_of=instead_of,
                generation=registration.generation,
                timeout=CALL_TIMEOUT if instead_of else None,
            )
        # adopt=True has taken the name over from another checkpoint. Later claims of this run must
        # not do so again: they would fence a third checkpoint that has taken it over since.
        self.registration = dataclasses.replace(self.registration, adopt=False)
        return lease

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> Reading | None:
        """Return the inputs' current reading, without a long wait.

        None for an injector, before the claim, and if the inputs cannot be read.
        """
        if self._worker is None or self.lease is None or not self.registration.inputs:
            return None
        try:
            with self._noticing():
                inputs = self._worker.inputs()
        except AWAY:
            return None
        self._last = Reading(
            inputs.low.micros,
            {round(share * 1_000_000): mark.micros for share, mark in inputs.heuristic.items()},
            inputs.input_version,
            tuple(inputs.incarnations),
            {round(share * 1_000_000): mark.micros for share, mark in inputs.budget.items()},
        )
        return self._last

    def news(self) -> bool:
        """Return whether :meth:`read` differs from its last result; False while away.

        Costs a read.
        """
        last = self._last
        return not self.problem and self.read() not in (None, last)

    def hear(self) -> Iterator[object]:
        """Yield whenever the inputs move. Waits in between, and ends when the run is closed."""
        if self._input_reader is None:
            self._input_reader = self.client.inputs(*self.registration.inputs)
        return self._input_reader.watch()

    def follow(self, names: Sequence[str]) -> lowwater.InputReader:
        """Return a reader of computations, which the caller closes.

        Its first read waits :data:`CALL_TIMEOUT` at most.
        """
        return self._quick.inputs(*names)

    def _snapshot(self, reading: Reading) -> lowwater.Inputs | None:
        """Return a reading in the client's form."""
        if self.registered is None or not self.registered.inputs:
            return None
        # A reading of MIN promises nothing, whatever the inputs are. UNREAD has input_version 0:
        # the authority would refuse it as a reading of other inputs than the registered ones.
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

    def destination(self) -> Destination:
        """Return the address to which the tasks of a batch send their parts."""
        reachable = self.lease is not None and not self.problem
        return Destination(
            self._quick.settings if reachable else None,
            self.registration.name,
            0 if self.lease is None else self.lease.sequencer,
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

        Returns why the stage must hold, or an empty text. Raises the error that replaced the run.
        """

        def call(lease: lowwater.Lease) -> str:
            missing = self._quick.batches.prepare(
                self.registration.name,
                lease.sequencer,
                batch,
                digest=bytes.fromhex(digest),
                tasks=tasks,
                bound=bound,
                seen=self._snapshot(reading),
                covers_all=covers_all,
                frontiers=[(share / 1_000_000, t) for share, t in reading.heuristics.items()],
            )
            if missing:
                return f"the reports of {len(missing)} of {len(tasks)} tasks of batch {batch} never arrived"
            return ""

        return self._degrade(call)

    def commit(self, batch: int, refused: str | None = None, loads: Sequence[lowwater.RangeLoad] = ()) -> str:
        """Apply a prepared batch, and learn the wanted layout.

        ``refused`` says why that layout is not followed; None: the stage follows none. Returns why
        the stage must hold, or an empty text. Raises the error that replaced the run.
        """

        def call(lease: lowwater.Lease) -> str:
            wanted_layouts: list[lowwater.Layout] = []
            known_versions: list[int] = []
            layout = self.cut.told
            if self._acknowledged_layout == (lease.sequencer, layout.version):
                layout = lowwater.Layout(layout.version)
            for refusal in self._quick.batches.commit(
                self.registration.name,
                lease.sequencer,
                batch,
                layout=None if refused is None else layout,
                layout_refused=refused or "",
                loads=loads,
                wanted=wanted_layouts.append,
                known=known_versions.append,
            ):
                if refusal.reason == errors.StaleSequencer.reason:
                    raise errors.StaleSequencer(refusal.message, metadata={"computation": self.registration.name})
                # The values of some ranges are refused, such as for being ahead of the authority's
                # clock by more than max_skew; the others count. The stage does not hold, because
                # another batch would be refused as well. The lease sends the values again, and the
                # status shows the refusal.
                logger.warning("batch %d of %s: %s", batch, self.registration.name, refusal.message)
            self.wanted = wanted_layouts[-1] if wanted_layouts else None
            self._acknowledged_layout = (lease.sequencer, known_versions[-1]) if known_versions else None
            return ""

        return self._degrade(call)

    def propose(self, layout: lowwater.Layout) -> bool:
        """Request another layout; False if another request is pending or has priority."""
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
        """Announce to the authority that an output is about to be marked complete ``through``.

        Returns why the output must not be marked, or an empty text. Raises the error that replaced
        the run.
        """

        def call(lease: lowwater.Lease) -> str:
            try:
                self._quick.batches.vouch(
                    self.registration.name, lease.sequencer, lowwater.Watermark(through), seen=self._snapshot(reading)
                )
            except errors.LowwaterError as failure:
                if failure.reason != "UNIMPLEMENTED":
                    raise
                return str(failure)  # an older release of the authority lacks the call, but is not away
            return ""

        claimed = self.lease is not None and not self.problem
        why = self._degrade(call)
        if not claimed:
            return why
        if why not in ("", self.problem, self._unsaid):
            logger.warning("the outputs of %s do not say anew how far they are complete: %s", self.full_name, why)
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
        """Stage the ranges' values for the reporter; no call on the network.

        ``pending`` is passed only when it changed. ``arrived`` is the lateness of the rows since
        the last call that had one. ``since`` is when the running batch began, epoch seconds.
        ``waiting_for`` is as in Status. Raises the error that replaced the run.
        """
        lease = self.lease
        assert lease is not None
        arguments = (reading, tuple(values), since, tuple(waiting_for), remarks)
        if pending is None and arrived is None and arguments == self._last_report and not lease.lost:
            return
        self._last_report = None
        shares = list(reading.heuristics.values())
        reference = max([t for t in (reading.low, *shares) if t != MAX], default=0)
        advance = partial(
            lease.advance,
            oldest=list(values),
            pending=None if pending is None else lowwater.Histogram.from_columns(reference, *pending),
            finished=finished,
            arrived=arrived,
            oldest_operation=None if since is None else int(since * 1_000_000),
            waiting_for=in_short(waiting_for),
            remarks=remarks,
        )
        snapshot = self._snapshot(reading)
        with self._noticing():
            if snapshot is not None:
                advance(snapshot)
            else:
                if reading.low == MAX:
                    self._finish(lease, [handle for handle, value in enumerate(values) if value == MAX])
                if len(self._finished) < len(values):
                    # Without a snapshot the stage is an injector, and ``reading.low`` its frontier.
                    # At MAX it brings in no more rows, but some ranges still hold rows. advance()
                    # never takes the frontier MAX. A range reports the lesser of the frontier and
                    # its own value: with the greatest held stamp as the frontier, each range that
                    # holds rows reports its own. The others stay at MAX, as _finish() has reported.
                    held = (value for value in values if value != MAX)
                    advance(None, frontier=reading.low if reading.low != MAX else max(held))
        self._last_report = arguments

    def tell(self, waiting_for: Sequence[str]) -> None:
        """Repeat the last report, if there is one, with another ``waiting_for``; not while away."""
        if self._last_report is not None and self.lease is not None and not self.problem:
            reading, values, since, _, remarks = self._last_report
            self.renew(reading, values, since=since, waiting_for=waiting_for, remarks=remarks)

    def end(self, failure: str) -> None:
        """Report that the run ends, by the first line of its error, or empty: in good order.

        The report is for people only. If the authority cannot be reached, it is left out.
        """
        if self._last_report is None or self.lease is None or self.problem:
            return
        reading, values, _, waiting_for, remarks = self._last_report
        ended = remarks._replace(ended=True, failure=in_short([failure]))
        try:
            self.renew(reading, values, waiting_for=waiting_for, remarks=ended)
        except errors.LowwaterError as refusal:
            logger.debug("the end of %s is not reported: %s", self.full_name, refusal)

    def _finish(self, lease: lowwater.Lease, handles: Sequence[int]) -> None:
        new = set(handles) - self._finished
        if not new:
            return
        try:
            lease.finish(new)
        except REPLACED:
            raise
        except errors.LowwaterError as failure:
            self.lost(failure)  # the lease keeps the end of the ranges staged, and sends it later
        self._finished |= new

    # -- away and back -----------------------------------------------------------------------------

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Raise all errors, and treat those that do not end the run as the authority being away."""
        try:
            yield
        except (*REPLACED, errors.Closed):
            raise
        except errors.LowwaterError as failure:
            self.lost(failure)
            raise

    def _degrade(self, call: Callable[[lowwater.Lease], str]) -> str:
        """Return the result of a call under the lease: why the stage must hold, or empty."""
        if self.lease is None or self.problem:
            return self.problem or "the stage has not been claimed yet"
        try:
            return call(self.lease)
        except REPLACED:
            raise
        except (errors.NotPrepared, errors.InputVersion, errors.TooFarAhead) as refusal:
            return str(refusal)
        except errors.LowwaterError as failure:
            self.lost(failure)
            return self.problem

    def lost(self, failure: errors.LowwaterError) -> None:
        """Note that the authority is away; calls skip it until :meth:`answers` reaches it."""
        if not self.problem:
            logger.warning("%s goes on without the authority, and holds: %s", self.registration.name, failure)
        self.problem = f"{failure.reason}: {failure}"
        self._last_try = self.clock()

    def answers(self) -> bool:
        """Return whether the authority answers; one that is away is asked once a second at most."""
        if not self.problem:
            return True
        if self.clock() - self._last_try < RETRY_INTERVAL:
            return False
        try:
            self._quick.get(self.registration.name)
        except REPLACED:
            raise
        except errors.LowwaterError as failure:
            self.problem = f"{failure.reason}: {failure}"
            self._last_try = self.clock()  # the call's end: it may take longer than RETRY_INTERVAL
            return False
        logger.info("%s reaches the authority again", self.registration.name)
        self.problem = ""
        return True

    def close(self) -> None:
        """Stop reporting; the ranges hold their values."""
        if self._input_reader is not None:
            self._input_reader.close()
        if self._worker is not None:
            self._worker.close()
        self._quick.close()


def _uncut(name: str, refused: errors.RegistrationConflict) -> errors.LowwaterError:
    """Return the error of a refused registration; for a sliced computation it names the fix."""
    slices = refused.metadata.get("slices", "1")
    if slices == "1":
        return refused
    fix = "give the stage another name, or drop the computation (lowwater drop) and let the stage register it"
    msg = f"{name} is registered in {slices} slices, and a stage commits its claim on all of its key ranges as one, so it cannot be sliced: {fix}"
    return errors.RegistrationConflict(msg, metadata={**refused.metadata, "fix": fix})
