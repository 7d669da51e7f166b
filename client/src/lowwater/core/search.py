"""Looking for the shards of computations that were not found where they should be."""

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
"""Seconds after which home is taken to be away when it does not answer."""

_MOST_REFUSALS: Final = 6
"""Refusals of a computation, one after the other, after which it waits no longer for the next
question: ``CAP``, by then."""


class Sought:
    """One computation as one side of the client has it: what reports for it, or follows it, and looks for it where it is not served."""

    __slots__ = ("earliest", "hops", "lost", "lost_epoch", "name", "refusals", "suspect")

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.hops: int = 0
        """Redirects followed, one after the other, since it was served or found."""
        self.suspect: bool = False
        """Whether it was lost, and has not been served for a while since."""
        self.refusals: int = 0
        """How often it was not where it was found, as long as it is suspect."""
        self.lost: bool = False
        """Whether it is looked for. It is suspect then."""
        self.earliest: float = 0.0
        """When it may be asked about, while it is lost, unless it has turned up elsewhere."""
        self.lost_epoch: int = 0
        """The ownership number seen when it was lost: a higher one says that another shard has
        taken it over since."""


Record = TypeVar("Record", bound=Sought)


class Search(Question, Generic[Record]):
    """The computations whose stream failed, or was redirected to nowhere, until it is known where they are served.

    A shard is asked, whichever is home, with the ownership numbers seen: one that has been replaced, or whose store has lost a
    number, then looks at its store. Each question follows a delay, which grows until those that were lost are served again:
    shards that send each other's clients on in circles, or fail as soon as they are found, are not asked in a tight circle.
    What an overloaded shard asked to wait for is not asked about before, unless another one has taken it over.

    What is found at a shard that then does not serve it is asked about later each time, up to ``CAP``: only to find out, streams that
    serve other computations are renewed. Those that were refused as often wait for the same moment, and are one question.
    """

    def __init__(self, router: Router, surroundings: Surroundings, found: Callable[[Record], None]) -> None:
        super().__init__(surroundings)
        self._router = router
        self._found = found
        self._backoff = Backoff(surroundings.random, PATIENCE)  # many questions are answered as one
        self._lost: dict[str, Record] = {}  # in the order in which they are asked about
        self._suspects: dict[str, Record] = {}
        self._again: dict[int, float] = {}  # when those that were refused so often are asked about
        self._asked = ""
        self._busy = "", 0.0  # who asked to be asked later, and when

    def lose(self, sought: Record, at_least: float = 0.0) -> None:
        """Look for a computation, in so many seconds at the earliest."""
        name = sought.name
        if not sought.suspect:
            sought.suspect, sought.refusals = True, 0
            self._suspects[name] = sought
            self._backoff.reset()
        sought.lost = True
        sought.earliest, sought.lost_epoch = self._monotonic() + at_least, self._router.epoch_of(name)
        self._lost[name] = sought

    def refused(self, sought: Record) -> float:
        """A shard does not serve what it was to; returns in how many seconds to look for it: at once the first time."""
        if not sought.suspect:
            return 0.0
        times = sought.refusals = min(sought.refusals + 1, _MOST_REFUSALS)
        now = self._monotonic()
        if self._again.get(times, 0.0) <= now:
            self._again[times] = now + min(CAP, FIRST * 2.0**times) * self._random()
        return self._again[times] - now

    @property
    def suspects(self) -> Sequence[Record]:
        """What was looked for and has not been served for a while since."""
        return tuple(self._suspects.values())

    def heard(self, sought: Record) -> None:
        """A computation is served where it was found.

        O(1). It may be looked for still, for others who were elsewhere.
        """
        if sought.suspect and not sought.lost:
            self.forget(sought)
            if not self._suspects:
                self._backoff.reset()

    def forget(self, sought: Record) -> None:
        """Look for a computation no longer."""
        sought.suspect = sought.lost = False
        self._suspects.pop(sought.name, None)
        self._lost.pop(sought.name, None)

    # -- as a stream of one message ----------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether anything is looked for."""
        return bool(self._lost)

    @property
    def address(self) -> str:
        """Who is asked next."""
        return self._router.oracle()

    def open(self, address: str, server_token: str) -> cluster_pb2.LocateRequest:
        """Ask at an address; returns the question."""
        self._asked = address
        now = self._monotonic()
        names = [name for name, sought in self._lost.items() if self._earliest(sought) <= now][:MOST_NAMES]
        for name in names:  # those that are not found go behind the others
            self._lost[name] = self._lost.pop(name)
        epochs = [self._router.epoch_of(name) for name in names]
        return cluster_pb2.LocateRequest(server_token=server_token, computations=names, epochs=epochs)

    def take(self, response: cluster_pb2.LocateResponse) -> bool:
        """Take the answer."""
        for each in response.redirects:
            if self._router.redirected(each.computation, each.address, each.epoch):
                sought = self._lost.get(each.computation)
                if sought is not None:
                    self._find(sought)
        return True

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a question, and what it failed of if it did; returns the seconds to wait before the next."""
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._asked)
        if isinstance(failure, AWAY):
            logger.info("where %d computations are served could not be asked: %s", len(self._lost), failure)
            self._router.failed(self._asked)
        elif failure is not None:
            # It may be older than this question. Its streams will say the same, or serve what is
            # lost.
            logger.warning("where %d computations are served could not be asked: %s", len(self._lost), failure)
            for sought in list(self._lost.values()):
                self._router.forget(sought.name)
                self._find(sought)
        if isinstance(failure, errors.LowwaterError) and failure.retry_after:
            self._busy = self._asked, self._monotonic() + self._backoff.spread(failure.retry_after)
        return self._pause()

    def _least(self) -> float:
        # All clients of a shard that dies lose it at one moment.
        return self._backoff.next()

    def _wait(self) -> float:
        """Return the seconds until anything may be asked about, and of whoever is asked."""
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
            self._found(sought)


def is_search(machine: object) -> TypeGuard[Search[Any]]:
    """Whether what a shell drives is a search, whose question is a unary call."""
    return isinstance(machine, Search)
