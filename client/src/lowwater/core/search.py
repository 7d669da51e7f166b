"""Search for the shards of computations that were not served where they should be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeGuard, TypeVar

import grpc

from lowwater import errors
from lowwater.core.attempts import AWAY, error_of_call
from lowwater.core.backoff import CAP, FIRST, PATIENCE, Backoff
from lowwater.core.question import Question
from lowwater.core.router import MOST_NAMES, Router
from lowwater.core.surroundings import Surroundings
from lowwater.v1 import cluster_pb2

__all__ = ["TIMEOUT", "Search", "Sought", "is_search"]

logger: logging.Logger = logging.getLogger("lowwater")

TIMEOUT: Final = CAP
"""Seconds without an answer after which home counts as away."""

_MOST_REFUSALS: Final = 6
"""Most refusals in a row that are counted for one computation; the pause has reached ``CAP`` by
then."""


class Sought:
    """One computation that one side of the client reports for or follows, and may search for."""

    __slots__ = ("earliest", "hops", "lost", "lost_epoch", "name", "refusals", "suspect")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.hops: int = 0
        """Number of redirects in a row since it was last served or found."""
        self.suspect: bool = False
        """True from the loss of a computation until its stream has served it for a while."""
        self.refusals: int = 0
        """Number of shards that refused it after the search had found it there, while it is
        suspect."""
        self.lost: bool = False
        """True while it is searched for. It is suspect then."""
        self.earliest: float = 0.0
        """Time from which it may be asked about while lost. A route to a newer owner makes it due
        at once."""
        self.lost_epoch: int = 0
        """Ownership number seen when it was lost; a higher one means that another shard has taken
        over."""


Record = TypeVar("Record", bound=Sought)


class Search(Question, Generic[Record]):
    """Search for computations whose stream failed, or was redirected to no shard.

    The shard that is home is asked, with the ownership numbers seen. When a number is higher than
    its own, that shard looks at its store: it was replaced, or its store lost a number. Each
    question follows a delay, which grows until the lost computations are served again. Without it,
    shards that redirect in a circle, or fail as soon as they are found, would be asked in a busy
    loop. A computation of an overloaded shard waits as long as that shard asked, unless another has
    taken over.

    Each refusal by a shard that was found makes the next question later, up to ``CAP``, because an
    answer may renew a stream that serves others. Computations with equally
    many refusals wait for the same moment, and share a question.
    """

    def __init__(self, router: Router, surroundings: Surroundings, on_found: Callable[[Record], None]) -> None:
        super().__init__(surroundings)
        self._router = router
        self._on_found = on_found
        # One answer settles many questions, so the first pause is short.
        self._backoff = Backoff(surroundings.random, PATIENCE)
        self._lost: dict[str, Record] = {}  # in the order of the next questions
        self._suspects: dict[str, Record] = {}
        self._next_times: dict[int, float] = {}  # times of the next question, by number of refusals
        self._address = ""
        # Address of a busy shard, and the time until which it wants no question.
        self._busy = "", 0.0

    def lose(self, sought: Record, at_least: float = 0.0) -> None:
        """Search for a computation, in ``at_least`` seconds at the earliest."""
        name = sought.name
        if not sought.suspect:
            sought.suspect, sought.refusals = True, 0
            self._suspects[name] = sought
            self._backoff.reset()
        sought.lost = True
        sought.earliest, sought.lost_epoch = self._monotonic() + at_least, self._router.epoch_of(name)
        self._lost[name] = sought

    def refused(self, sought: Record) -> float:
        """Count a refusal by a shard that was found; return the seconds until the next search."""
        if not sought.suspect:
            return 0.0
        times = sought.refusals = min(sought.refusals + 1, _MOST_REFUSALS)
        now = self._monotonic()
        if self._next_times.get(times, 0.0) <= now:
            self._next_times[times] = now + min(CAP, FIRST * 2.0**times) * self._random()
        return self._next_times[times] - now

    @property
    def suspects(self) -> Sequence[Record]:
        """Computations that were lost and have not been served for a while since."""
        return tuple(self._suspects.values())

    def served(self, sought: Record) -> None:
        """Note that a computation is served where it was found, unless it is lost again. O(1)."""
        if sought.suspect and not sought.lost:
            self.forget(sought)
            if not self._suspects:
                self._backoff.reset()

    def forget(self, sought: Record) -> None:
        """Stop searching for a computation."""
        sought.suspect = sought.lost = False
        self._suspects.pop(sought.name, None)
        self._lost.pop(sought.name, None)

    # -- as a stream of one message ----------------------------------------------------------------

    @property
    def needed(self) -> bool:
        """True when a computation is searched for."""
        return bool(self._lost)

    @property
    def address(self) -> str:
        """Address of the next question."""
        return self._router.oracle()

    def open(self, address: str, server_token: str) -> cluster_pb2.LocateRequest:
        """Begin a question to an address; returns its request."""
        self._address = address
        now = self._monotonic()
        names = [name for name, sought in self._lost.items() if self._earliest(sought) <= now][:MOST_NAMES]
        for name in names:  # asked names go behind the others, for the case that they are not found
            self._lost[name] = self._lost.pop(name)
        epochs = [self._router.epoch_of(name) for name in names]
        return cluster_pb2.LocateRequest(server_token=server_token, computations=names, epochs=epochs)

    def take(self, response: cluster_pb2.LocateResponse) -> bool:
        """Take the answer."""
        for redirect in response.redirects:
            if self._router.redirected(redirect.computation, redirect.address, redirect.epoch):
                sought = self._lost.get(redirect.computation)
                if sought is not None:
                    self._find(sought)
        return True

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a question and its error, if any; return the seconds until the next."""
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._address)
        if failure is not None:
            logger.info("where %d computations are served could not be asked: %s", len(self._lost), failure)
        if isinstance(failure, AWAY):
            self._router.failed(self._address)
        elif failure is not None:
            # The error may be older than this question. The streams meet it themselves, or serve
            # the lost computations.
            for sought in list(self._lost.values()):
                self._router.forget(sought.name)
                self._find(sought)
        if isinstance(failure, errors.LowwaterError) and failure.retry_after:
            self._busy = self._address, self._monotonic() + self._backoff.spread(failure.retry_after)
        return self._pause()

    def _least(self) -> float:
        # The pause is random: all clients of a shard that dies lose it at the same moment.
        return self._backoff.next()

    def _wait(self) -> float:
        """Return the seconds until a computation may be asked about, and home asked."""
        earliest = min(map(self._earliest, self._lost.values()), default=0.0)
        busy, until = self._busy
        if busy == self._router.home:
            earliest = max(earliest, until)
        return max(0.0, earliest - self._monotonic())

    def _earliest(self, sought: Record) -> float:
        return 0.0 if self._router.epoch_of(sought.name) > sought.lost_epoch else sought.earliest

    def _find(self, sought: Record) -> None:
        if sought.lost:
            sought.lost = False
            del self._lost[sought.name]
            self._on_found(sought)


def is_search(machine: object) -> TypeGuard[Search[Any]]:
    """Return True for a search, whose question is a unary call, among the machines of a shell."""
    return isinstance(machine, Search)
