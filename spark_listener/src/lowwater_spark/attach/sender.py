"""The one thread that tells the authority what the book says. Nothing of Spark's ever waits for it.

A query's computation has one key range, claimed as long as the query runs and given back when it
ends: then it holds. Nobody is told that anything is finished: a query that stops may go on
tomorrow. Where a query's inputs are declared, its computation reads them, and stands no higher than
they do.

A circuit breaker spares an authority that is away: after some failures in a row nothing is tried
for a while, then one attempt decides.
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
from lowwater.watermark import MIN
from lowwater_spark.attach.book import Book, Saying
from lowwater_spark.errors import AWAY

__all__ = ["IDENTITY", "Breaker", "Sender"]

logger = logging.getLogger("lowwater.spark")

IDENTITY: Final = "spark-attach"
"""What attached computations are bound to: no other kind of worker reports under their names."""

SILENCE: Final = 15.0
"""Seconds between two looks at another owner of the name. Living ones repeat themselves every few
seconds."""

RETRY: Final = 1.0
"""Seconds before what got no answer is said again, while the breaker is closed."""

LEAVE: Final = 5.0
"""Seconds that giving back all claims may take, and that whoever stops the sender waits."""


@dataclass(slots=True)
class _Speaker:
    """What the authority knows of one query."""

    worker: lowwater.Worker | None = None
    lease: lowwater.Lease | None = None
    said: int | None = None
    """What it took over last."""
    published: int = MIN
    """What was published under the name before; that never goes back."""
    seen: tuple[int, int] | None = None
    """Sequencer and last report of the other owner of the name, when it was looked at last."""
    looked: float = 0.0
    registered: bool = False
    """Whether it was registered for this query before."""
    warned: set[str] = field(default_factory=set)


class Sender:
    """Takes from the book, says it, and keeps what was not said for later.

    Owns the client. ``inputs`` are those of computations, by their names.
    """

    def __init__(
        self,
        book: Book,
        client: lowwater.Client,
        clock: Callable[[], float] = time.monotonic,
        inputs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.delivered: int = 0
        """What the authority has answered."""
        self.failures: int = 0
        """Attempts without an answer."""
        self.problem: str = ""
        """Why the last one had none."""
        self.breaker: Breaker = Breaker()
        self._book = book
        self._client = client
        self._clock = clock
        self._inputs: Mapping[str, Sequence[str]] = inputs or {}
        self._speakers: dict[str, _Speaker] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lowwater-attach", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Give all claims back and end; waits :data:`LEAVE` seconds at most, and leaves the rest to itself."""
        with self._book.changed:
            self._stopping = True
            self._book.changed.notify_all()
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
        """Wait for something to say, and for the breaker; None when it is time to leave."""
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
        except AWAY as failure:  # these count for the breaker; every other refusal is an answer about one query
            self._away(saying, failure)
        except errors.TooFarAhead as refusal:
            self._answered()
            self._warn(saying, speaker, refusal)
            self._book.refused(saying.query, _words(refusal))  # the lease repeats it until it is taken over
        except errors.LowwaterError as refusal:
            # Another query has the name, or it is registered as something else: that may change
            # while this one runs, so look again.
            self._answered()
            self._forget(speaker)
            self._warn(saying, speaker, refusal)
            if saying.ended:
                self._book.refused(saying.query, _words(refusal))
            else:
                self._book.failed(saying.query, _words(refusal), again=SILENCE)
        except Exception as failure:
            # The thread must go on: the other queries, and the next value of this one, have nothing
            # to do with it.
            logger.exception("an attached query could not be reported")
            self._book.swallow(failure)
            self._away(saying, failure)
        else:
            self._answered()
        if saying.ended and speaker.lease is None and not self._book.waits(saying.query):
            self._speakers.pop(saying.query, None)

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

    # -- what is said ------------------------------------------------------------------------------

    def _deliver(self, saying: Saying, speaker: _Speaker) -> None:
        """Bring the authority up to the newest of a query.

        Raises LowwaterError; a repetition goes on where it stopped.
        """
        lease = speaker.lease or self._claim(saying, speaker)
        # A query that has no watermark yet promises nothing, and takes nothing back: it stays where
        # the last run left it.
        before = lease.watermarks[0]
        watermark = saying.watermark if saying.watermark is not None else MIN if before.finished else before.micros
        reads = bool(self._inputs.get(saying.computation))
        seen = speaker.worker.inputs() if reads and speaker.worker is not None else None
        stands = watermark if seen is None else min(watermark, seen.low.micros)
        try:
            if speaker.said != stands:
                if seen is None:
                    lease.advance(None, oldest=None, frontier=watermark)
                else:
                    lease.advance(seen, oldest=watermark)
                lease.flush()
                self._took_over(saying, speaker, stands)
        except errors.TooFarAhead:
            if saying.ended:
                self._give_back(lease, speaker)
            raise
        if saying.ended:
            self._give_back(lease, speaker)
        elif stands < watermark:
            self._book.look_again(saying.query, RETRY)  # it waits for its inputs, and Spark says nothing when they move

    def _took_over(self, saying: Saying, speaker: _Speaker, watermark: int) -> None:
        speaker.said = watermark
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
        """Register and claim, unless another living query reports under the name.

        Raises LowwaterError.
        """
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
        speaker.said = speaker.seen = None
        speaker.warned.clear()
        speaker.published = client.get(saying.computation)[saying.computation].low.micros
        return speaker.lease

    def _register(self, computation: str, worker: str, speaker: _Speaker) -> None:
        """Register it with its inputs; where it has others, and nobody reports under the name, with these in their place."""
        inputs = self._inputs.get(computation, ())
        try:
            self._client.register(computation, inputs, heuristics=(), estimated=True)
        except errors.RegistrationConflict:
            known = self._client.topology().computations.get(full_name(self._client.settings.namespace, computation))
            if computation not in self._inputs or known is None or not known.estimated:
                raise
            self._look(computation, worker, speaker)
            self._client.set_inputs(computation, inputs)

    def _refuse_dropped(self, computation: str) -> None:
        """Raise UnknownComputation for what an operator has dropped: it must not come back by itself while the query goes on."""
        found = self._client.get(computation)[computation]
        if not found.registered and found.incarnation:
            msg = f"{computation} was dropped while this query reported it; start the query again, or register the name, to go on"
            raise errors.UnknownComputation(msg, metadata={"computation": computation})

    def _look(self, computation: str, worker: str, speaker: _Speaker) -> None:
        """Raise OlderClaim while another query reports under the name: until it leaves, or has been silent from one look to the next."""
        [held] = self._client.ranges(computation, limit=1)
        if held.state is not RangeState.OWNED or held.worker == worker:
            return
        now, seen = self._clock(), (held.sequencer, held.last_report_micros)
        if seen == speaker.seen and now - speaker.looked >= SILENCE:
            return
        if seen != speaker.seen:
            speaker.seen, speaker.looked = seen, now
        msg = (
            f"{held.worker} on {held.host} reports under the name {computation}, or did until a moment ago. Give one of the two another "
            "name with queryName(), or attach one with another prefix; this one takes over when the other has left."
        )
        raise errors.OlderClaim(msg, metadata={"computation": computation, "worker": held.worker, "host": held.host})

    @staticmethod
    def _forget(speaker: _Speaker) -> None:
        """End the claim here; at the authority it is over, or another's, or holds."""
        if speaker.worker is not None:
            speaker.worker.close()
        speaker.worker = speaker.lease = speaker.said = None

    def _leave(self) -> None:
        """Say what waits and give back what is claimed, unless the authority is away: the claims hold just as well."""
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
"""Failures in a row that open the breaker."""

FIRST_WAIT: Final = 5.0
"""Seconds that the breaker stays open at first; twice as long after each attempt that fails."""

LONGEST_WAIT: Final = 60.0


class Breaker:
    """Pure: the time is passed in, in seconds by any clock that does not go back.

    Used by one thread, read by any.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the last attempts failed.

        The next one is the probe that closes it, or keeps it open.
        """
        return self._until is not None

    def within(self, now: float) -> float:
        """Return in how many seconds an attempt may be made; 0 for now."""
        return 0.0 if self._until is None else max(0.0, self._until - now)

    def succeeded(self) -> None:
        """An attempt got an answer."""
        self._failures = 0
        self._wait = FIRST_WAIT
        self._until = None

    def failed(self, now: float) -> None:
        """An attempt got none."""
        self._failures += 1
        if self._failures >= FAILURES:
            self._until = now + self._wait
            self._wait = min(LONGEST_WAIT, 2 * self._wait)
