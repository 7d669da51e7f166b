"""The one thread that reports the book to the authority. Spark's threads never wait for it.

A query's computation has one key range. It is claimed while the query runs and released when the
query ends; then it holds. Nothing is ever reported as finished: a query that stops may go on
tomorrow. If a query's inputs are declared, its computation reads them, and its watermark is not
above theirs.

A circuit breaker spares an authority that is away: after some failures in a row it waits for a
while, and then one attempt decides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import lowwater
from lowwater import RangeState, errors
from lowwater.core.calls import full_name
from lowwater.core.events import shortened
from lowwater.core.text import on_one_line
from lowwater.watermark import MIN
from lowwater_spark.attach.book import Book, Saying
from lowwater_spark.errors import AWAY

__all__ = ["IDENTITY", "Breaker", "Sender"]

logger = logging.getLogger("lowwater.spark")

IDENTITY: Final = "spark-attach"
"""Identity of attached computations: no other kind of worker may report under their names."""

SILENCE: Final = 15.0
"""Seconds after which an owner without a report counts as gone; live ones report every few
seconds."""

_MOST_FAILURE: Final = 200
"""Bytes of a failure that the authority takes."""

RETRY: Final = 1.0
"""Seconds before a report without an answer is repeated, while the breaker is closed."""

LEAVE: Final = 5.0
"""Longest time for releasing all claims, which the caller of ``stop`` waits, seconds."""


@dataclass(slots=True)
class _Speaker:
    """The authority's state of one query, as this thread knows it."""

    worker: lowwater.Worker | None = None
    lease: lowwater.Lease | None = None
    reported: int | None = None
    """Watermark that the authority acknowledged last, microseconds; None before the first."""
    ended: bool = False
    """True if the last report under the claim told of the query's end."""
    published: int = MIN
    """Greatest watermark published under the name, microseconds. It never goes down."""
    last_owner: tuple[int, int] | None = None
    """Sequencer and last report of another owner of the name, at the last look; None without."""
    looked_at: float = 0.0
    """Time at which ``last_owner`` was first seen so, in seconds of the sender's clock."""
    registered: bool = False
    """True after this query has been registered once."""
    warned: set[str] = field(default_factory=set)
    """Reasons of refusals that were logged since the last claim."""


class Sender:
    """Takes watermarks from the book, reports them, and repeats those without an answer.

    Owns the client. ``inputs`` are the computations' inputs by name.
    """

    def __init__(
        self,
        book: Book,
        client: lowwater.Client,
        clock: Callable[[], float] = time.monotonic,
        inputs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.delivered: int = 0
        """Number of values that the authority has answered."""
        self.failures: int = 0
        """Number of attempts without an answer."""
        self.problem: str = ""
        """Reason why the last attempt had no answer; empty after an answer."""
        self.breaker: Breaker = Breaker()
        self._book = book
        self._client = client
        self._clock = clock
        self._inputs: Mapping[str, Sequence[str]] = inputs or {}
        self._speakers: dict[str, _Speaker] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lowwater-attach", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Release all claims and end. Waits at most :data:`LEAVE` seconds; the thread may go on.

        A sender that was never started closes its client only.
        """
        with self._book.changed:
            self._stopping = True
            self._book.changed.notify_all()
        if self._thread.ident is None:
            self._client.close()
        else:
            self._thread.join(LEAVE)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (saying := self._next()) is not None:
                self._say(saying)
            self._leave()
        finally:
            self._client.close()

    def _next(self) -> Saying | None:
        """Wait for a value to report, and for the breaker; return None after ``stop``."""
        book = self._book
        with book.changed:
            while not self._stopping:
                pause = self.breaker.within(self._clock())
                if not pause:
                    saying = book.take()
                    if saying is not None:
                        return saying
                    book.changed.wait(book.within())
                else:
                    book.changed.wait(pause)
        return None

    def _say(self, saying: Saying) -> None:
        speaker = self._speakers.setdefault(saying.query, _Speaker())
        try:
            self._deliver(saying, speaker)
        except AWAY as failure:
            # The authority gave no answer, which counts for the breaker. A refusal below is an
            # answer: if it counted, one query with a refused report could open the breaker, and
            # stop the reports of all other queries.
            self._away(saying, failure)
        except errors.TooFarAhead as refusal:
            self._answered()
            self._warn(saying, speaker, refusal)
            # The book must not repeat the report, because the lease sends it with each heartbeat
            # until the authority's clock allows it: a second repetition would be refused each time.
            # Once the query has ended, its lease is released, and the report is given up.
            self._book.refused(saying.query, _words(refusal))
        except errors.LowwaterError as refusal:
            # For example, another query owns the computation, or the computation is registered with
            # other inputs. That may change while this query runs, so the report is tried again.
            self._answered()
            self._forget(speaker)
            self._warn(saying, speaker, refusal)
            if saying.ended:
                self._book.refused(saying.query, _words(refusal))
            else:
                self._book.failed(saying.query, _words(refusal), again=SILENCE)
        except Exception as failure:
            # A bug in this report must not end the thread, nor open the breaker: the reports of all
            # other queries go through both. It is likely to come again, so the next try is late.
            logger.exception("an attached query could not be reported")
            self._book.swallow(failure)
            self.failures += 1
            self.problem = _words(failure)
            self._book.failed(saying.query, self.problem, again=SILENCE)
        else:
            self._answered()
        if saying.ended and speaker.lease is None and not self._book.waits(saying.query):
            self._speakers.pop(saying.query, None)
        self._book.said()

    def _answered(self) -> None:
        if self.breaker.is_open:
            logger.info("the authority answers again")
        self.breaker.succeeded()
        self.delivered += 1
        self.problem = ""

    def _away(self, saying: Saying, failure: Exception) -> None:
        was_open = self.breaker.is_open
        self.breaker.failed(self._clock())
        self.failures += 1
        self.problem = _words(failure)
        if self.breaker.is_open and not was_open:
            logger.warning("queries go on without the authority, which is tried again later: %s", failure)
        self._book.failed(saying.query, self.problem, again=RETRY)

    def _warn(self, saying: Saying, speaker: _Speaker, refusal: errors.LowwaterError) -> None:
        if refusal.reason not in speaker.warned:
            speaker.warned.add(refusal.reason)
            logger.warning("query %s is not reported as %s: %s", saying.query, saying.computation, refusal)

    # -- reports to the authority ------------------------------------------------------------------

    def _deliver(self, saying: Saying, speaker: _Speaker) -> None:
        """Report the newest watermark; a repeat goes on from there. Raises LowwaterError."""
        lease = speaker.lease or self._claim(saying, speaker)
        # A query without a watermark, as before its first rows, reports what its range had at the
        # claim, so the published watermark stays. A finished range had MAX, which advance() refuses
        # as a frontier. MIN does no harm there, because a published watermark never goes down.
        before = lease.watermarks[0]
        watermark = saying.watermark if saying.watermark is not None else MIN if before.finished else before.micros
        reads = bool(self._inputs.get(saying.computation))
        inputs = speaker.worker.inputs() if reads and speaker.worker is not None else None
        stands = watermark if inputs is None else min(watermark, inputs.low.micros)
        try:
            if speaker.reported != stands or saying.failure or speaker.ended != saying.ended:
                # A failed query is reported even if its watermark has not moved: the report has
                # the error in ``remarks``, without which the release would count as good order. So
                # is a new run after an end that was reported and not released: it takes that back.
                failure = shortened(on_one_line(saying.failure.partition("\n")[0]), _MOST_FAILURE)
                remarks = lowwater.Remarks(ended=saying.ended, failure=failure)
                speaker.ended = saying.ended
                if inputs is None:
                    lease.advance(None, oldest=None, frontier=watermark, remarks=remarks)
                else:
                    lease.advance(inputs, oldest=watermark, remarks=remarks)
                lease.flush()
                self._took_over(saying, speaker, stands)
        except errors.TooFarAhead:
            if saying.ended:
                self._give_back(lease, speaker)
            raise
        if saying.ended:
            self._give_back(lease, speaker)
        elif stands < watermark:
            # The inputs hold the computation below Spark's watermark. Spark sends no event when an
            # input moves, so the query is reported again soon.
            self._book.look_again(saying.query, RETRY)

    def _took_over(self, saying: Saying, speaker: _Speaker, watermark: int) -> None:
        speaker.reported = watermark
        if saying.watermark is not None and saying.watermark < speaker.published and "behind" not in speaker.warned:
            speaker.warned.add("behind")
            logger.warning(
                "%s stands at %s, and %s was published before: it stays there until the query has caught up",
                saying.computation,
                lowwater.Watermark(saying.watermark),
                lowwater.Watermark(speaker.published),
            )
        speaker.published = max(speaker.published, watermark)
        self._book.reported(saying.query, watermark, speaker.published)

    def _give_back(self, lease: lowwater.Lease, speaker: _Speaker) -> None:
        lease.release()
        self._forget(speaker)

    def _claim(self, saying: Saying, speaker: _Speaker) -> lowwater.Lease:
        """Register and claim, unless another live query owns the name; or raise LowwaterError."""
        client = self._client
        if speaker.registered:
            self._refuse_dropped(saying.computation)
        worker = f"query {saying.query}"
        self._register(saying.computation, worker, speaker)
        speaker.registered = True
        self._look(saying.computation, worker, speaker)
        if speaker.worker is None:
            speaker.worker = client.worker(saying.computation, name=worker, identity=IDENTITY)
        speaker.lease = speaker.worker.claim()
        speaker.reported = speaker.last_owner = None
        speaker.ended = False
        speaker.warned.clear()
        speaker.published = client.get(saying.computation)[saying.computation].low.micros
        return speaker.lease

    def _register(self, computation: str, worker: str, speaker: _Speaker) -> None:
        """Register with the inputs; replace other inputs if no live query owns the name."""
        inputs = self._inputs.get(computation, ())
        try:
            self._client.register(computation, inputs, heuristics=(), estimated=True)
        except errors.RegistrationConflict:
            existing = self._client.topology().computations.get(full_name(self._client.settings.namespace, computation))
            if computation not in self._inputs or existing is None or not existing.estimated:
                raise
            self._look(computation, worker, speaker)
            self._client.set_inputs(computation, inputs)

    def _refuse_dropped(self, computation: str) -> None:
        """Raise UnknownComputation if an operator dropped it: a query must not undo that."""
        view = self._client.get(computation)[computation]
        if not view.registered and view.incarnation:
            msg = f"{computation} was dropped while this query reported it; start the query again, or register the name, to go on"
            raise errors.UnknownComputation(msg, metadata={"computation": computation})

    def _look(self, computation: str, worker: str, speaker: _Speaker) -> None:
        """Raise OlderClaim while another query owns the name and reports between two looks."""
        [claim] = self._client.ranges(computation, limit=1)
        if claim.state is not RangeState.OWNED or claim.worker == worker:
            return
        now, owner = self._clock(), (claim.sequencer, claim.last_report_micros)
        if owner == speaker.last_owner and now - speaker.looked_at >= SILENCE:
            return
        if owner != speaker.last_owner:
            speaker.last_owner, speaker.looked_at = owner, now
        msg = (
            f"{claim.worker} on {claim.host} reports under the name {computation}, or did until a moment ago. Give one of the two another "
            "name with queryName(), or attach one with another prefix; this one takes over when the other has left."
        )
        raise errors.OlderClaim(msg, metadata={"computation": computation, "worker": claim.worker, "host": claim.host})

    @staticmethod
    def _forget(speaker: _Speaker) -> None:
        """Forget the claim; at the authority it was released, was taken over, or holds."""
        if speaker.worker is not None:
            speaker.worker.close()
        speaker.worker = speaker.lease = speaker.reported = None

    def _leave(self) -> None:
        """Report the rest and release all claims; while the authority is away they just hold."""
        deadline = self._clock() + LEAVE
        while not self.breaker.is_open and self._clock() < deadline and (saying := self._book.take()) is not None:
            self._say(saying)
        for query, speaker in self._speakers.items():
            if speaker.lease is None or self.breaker.is_open or self._clock() >= deadline:
                continue
            try:
                speaker.lease.release()
            except errors.LowwaterError as failure:
                logger.warning("query %s is left without giving its claim back: %s", query, failure)
                self.breaker.failed(self._clock())


def _words(failure: Exception) -> str:
    return f"{failure.reason}: {failure}" if isinstance(failure, errors.LowwaterError) else repr(failure)


FAILURES: Final = 3
"""Number of failures in a row that open the breaker."""

FIRST_WAIT: Final = 5.0
"""Seconds that the breaker stays open at first; doubled after each failed attempt."""

LONGEST_WAIT: Final = 60.0


class Breaker:
    """A circuit breaker. Callers pass monotonic seconds. One thread uses it, any may read it."""

    def __init__(self) -> None:
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until: float | None = None

    @property
    def is_open(self) -> bool:
        """True after the last attempts failed. The next attempt closes it, or keeps it open."""
        return self._until is not None

    def within(self, now: float) -> float:
        """Return the seconds until an attempt may be made; 0 for now."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def succeeded(self) -> None:
        """Note an attempt that got an answer."""
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until = None

    def failed(self, now: float) -> None:
        """Note an attempt without an answer."""
        self._failures += 1
        if self._failures >= FAILURES:
            self._until = now + self._wait
            self._wait = min(LONGEST_WAIT, 2 * self._wait)
