"""Looking for the shards of computations that were not found where they should be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from lowwater import errors
from lowwater._core.attempts import AWAY, error_of_call
from lowwater._core.backoff import CAP, FIRST, PATIENCE, Backoff
from lowwater._core.router import HOME, MOST_NAMES, Router
from lowwater._core.surroundings import Surroundings
from lowwater._pb.lowwater.v1 import cluster_pb2

__all__ = ["TIMEOUT", "Search"]

logger = logging.getLogger("lowwater")

TIMEOUT: Final = CAP
"""Seconds after which home is taken to be away when it does not answer."""

_MOST_REFUSALS: Final = 6
"""Refusals of a computation, one after the other, after which it waits no longer for the next question: ``CAP``, by then."""


@dataclass(frozen=True, slots=True)
class _Lost:
    """What is known of a computation that is looked for."""

    earliest: float
    """When it may be asked about, unless it has turned up elsewhere."""
    epoch: int
    """The ownership number seen when it was lost: a higher one says that another shard has taken it over since."""


class Search:
    """The computations whose stream failed, or was redirected to nowhere, until it is known where they are served.

    A shard is asked, whichever is home, with the ownership numbers seen: one that has been replaced, or whose store has lost a
    number, then looks at its store. Each question follows a delay, which grows until those that were lost are served again:
    shards that send each other's clients on in circles, or fail as soon as they are found, are not asked in a tight circle.
    What an overloaded shard asked to wait for is not asked about before, unless another one has taken it over.

    What is found at a shard that then does not serve it is asked about later each time, up to ``CAP``: only to find out, streams that
    serve other computations are renewed. Those that were refused as often wait for the same moment, and are one question.
    """

    failure: errors.LowwaterError | None = None
    interrupted: bool = False

    def __init__(self, router: Router, surroundings: Surroundings, found: Callable[[str], None]) -> None:
        self._router = router
        self._found = found
        self._backoff = Backoff(surroundings.random, PATIENCE)  # many questions are answered as one
        self._monotonic = surroundings.monotonic
        self._random = surroundings.random
        self._lost: dict[str, _Lost] = {}
        self._suspects: dict[str, int] = {}  # with how often they were not where they were found
        self._again: dict[int, float] = {}  # when those that were refused so often are asked about
        self._asked = ""
        self._busy = "", 0.0  # who asked to be asked later, and when
        self._due = 0.0  # when the pause before the next question is over

    def lose(self, name: str, at_least: float = 0.0) -> None:
        """Look for a computation, in so many seconds at the earliest."""
        if name not in self._suspects:
            self._suspects[name] = 0
            self._backoff.reset()
        self._lost[name] = _Lost(self._monotonic() + at_least, self._router.epoch_of(name))

    def refused(self, name: str) -> float:
        """A shard does not serve what it was to; returns in how many seconds to look for it: at once the first time."""
        times = self._suspects.get(name)
        if times is None:
            return 0.0
        self._suspects[name] = times = min(times + 1, _MOST_REFUSALS)
        now = self._monotonic()
        if self._again.get(times, 0.0) <= now:
            self._again[times] = now + min(CAP, FIRST * 2.0**times) * self._random()
        return self._again[times] - now

    def lost(self, name: str) -> bool:
        """Whether a computation is looked for."""
        return name in self._lost

    @property
    def suspects(self) -> Sequence[str]:
        """What was looked for and has not been served for a while since."""
        return tuple(self._suspects)

    def heard(self, name: str) -> None:
        """A computation is served where it was found. O(1). It may be looked for still, for others who were elsewhere."""
        if name in self._suspects and name not in self._lost:
            self.forget(name)
            if not self._suspects:
                self._backoff.reset()

    def forget(self, name: str) -> None:
        """Look for a computation no longer."""
        self._suspects.pop(name, None)
        self._lost.pop(name, None)

    # -- as a stream of one message -----------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Who is asked."""
        return HOME

    @property
    def wanted(self) -> bool:
        """Whether anything is looked for."""
        return bool(self._lost)

    @property
    def address(self) -> str:
        """Who is asked next."""
        return self._router.oracle()

    @property
    def first_pause(self) -> float:
        """Seconds to wait before the first question: all clients of a shard that dies lose it at one moment."""
        return self._pause()

    @property
    def hurried(self) -> bool:
        """Whether something need not wait for as long as the pause lasts: it was lost since, or has turned up elsewhere. O(lost)."""
        left = self._due - self._monotonic()
        return left > PATIENCE and self._wait() < left - PATIENCE

    def retire(self) -> None:
        """Nothing is looked for any more."""

    def open(self, address: str, server_token: str) -> cluster_pb2.LocateRequest:
        """Ask at an address; returns the question."""
        self._asked = address
        now = self._monotonic()
        names = [name for name in self._lost if self._earliest(name) <= now][:MOST_NAMES]
        for name in names:  # those that are not found go behind the others
            self._lost[name] = self._lost.pop(name)
        epochs = [self._router.epoch_of(name) for name in names]
        return cluster_pb2.LocateRequest(server_token=server_token, computations=names, epochs=epochs)

    def take(self, response: cluster_pb2.LocateResponse) -> bool:
        """Take the answer."""
        for each in response.redirects:
            if self._router.redirected(each.computation, each.address, each.epoch):
                self._find(each.computation)
        return True

    def ended(self, failure: Exception | None) -> float:
        """Take the end of a question, and what it failed of if it did; returns the seconds to wait before the next."""
        if isinstance(failure, grpc.RpcError):
            failure = error_of_call(failure, self._asked)
        if isinstance(failure, AWAY):
            logger.info("where %d computations are served could not be asked: %s", len(self._lost), failure)
            self._router.failed(self._asked)
        elif failure is not None:
            # It may be older than this question. Its streams will say the same, or serve what is lost.
            logger.warning("where %d computations are served could not be asked: %s", len(self._lost), failure)
            for name in list(self._lost):
                self._router.forget(name)
                self._find(name)
        if isinstance(failure, errors.LowwaterError) and failure.retry_after:
            self._busy = self._asked, self._monotonic() + self._backoff.spread(failure.retry_after)
        return self._pause()

    def _pause(self) -> float:
        pause = max(self._backoff.next(), self._wait())
        self._due = self._monotonic() + pause
        return pause

    def _wait(self) -> float:
        """Return the seconds until anything may be asked about, and of whoever is asked."""
        earliest = min(map(self._earliest, self._lost), default=0.0)
        busy, until = self._busy
        if busy == self._router.home:
            earliest = max(earliest, until)
        return max(0.0, earliest - self._monotonic())

    def _earliest(self, name: str) -> float:
        lost = self._lost[name]
        return 0.0 if self._router.epoch_of(name) > lost.epoch else lost.earliest

    def _find(self, name: str) -> None:
        if name in self._lost:
            del self._lost[name]
            self._found(name)
