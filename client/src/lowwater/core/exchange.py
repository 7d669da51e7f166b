"""One unary call, from shard to shard until one answers it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc

from lowwater import errors
from lowwater.core import wire
from lowwater.core.attempts import AGAIN, AWAY, Attempts, error_of_call
from lowwater.core.call import Call, Gather, Stubs
from lowwater.core.calls import Calls
from lowwater.core.router import MOST_NAMES, Router
from lowwater.core.surroundings import Surroundings
from lowwater.views import slice_of

__all__ = ["Attempt", "Exchange", "exchange_of"]

Result = TypeVar("Result")

_NOWHERE_ELSE: Final = (grpc.StatusCode.UNIMPLEMENTED.name, errors.InvalidArgument.reason)
"""Reasons of an authority that cannot locate computations, because it is older than the question or
consists of one shard: it serves all itself."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, for a shell to make."""

    address: str
    method: Callable[[Stubs], Callable[..., Any]]
    request: Any
    options: dict[str, Any]
    """Options of the gRPC call: its timeout in seconds, and whether it waits for the channel."""
    repeatable: bool


class Exchange(ABC, Generic[Result]):
    """Attempts of one call.

    A repeatable call is repeated while a shard is away or overloaded: at home when the computation
    has a route, at the next home when that shard is home. Any other call waits for the channel
    instead: until the channel is ready nothing has been sent, so nothing can happen twice. With
    several shards it is sent to one that has just answered a question.

    A redirect is followed by any call: the shard has changed nothing. Two redirects in a row,
    or one without an address, are followed by a pause. Before it a shard is asked where the
    computation is, with the ownership number seen.
    """

    result: Result
    """Result of the call, once :meth:`take` has returned None."""

    def __init__(
        self, calls: Calls, surroundings: Surroundings, timeout: float, *, router: Router, repeatable: bool
    ) -> None:
        self._calls = calls
        self._router = router
        self._repeatable = repeatable
        self._attempts = Attempts(surroundings, timeout)
        self._lost: list[str] = []
        # Why the call waits: a useless redirect, or a refusal that may pass.
        self._wait_reason: errors.LowwaterError | None = None
        self._hops = 0
        self._address = ""
        self._alive = ""
        # A Locate question that comes before the call itself.
        self._question: Call[None] | None = None

    @abstractmethod
    def _where(self) -> str:
        """Return the address of the next attempt, and choose its computations by the routes."""

    @abstractmethod
    def _call(self) -> tuple[Callable[[Stubs], Callable[..., Any]], Any]:
        """Return the method and the request for the address of :meth:`_where`."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Return the computations that the call waits for."""

    def _retarget(self, error: errors.LowwaterError) -> bool:
        """Return True when the call goes on about another computation that an error names."""
        return False

    @abstractmethod
    def _took(self, answer: Any) -> float | None:
        """Take an answer to the call itself; returns like :meth:`take`."""

    def next(self) -> Attempt:
        """Return the next attempt."""
        router, time_left = self._router, self._attempts.seconds_left
        address = router.oracle() if self._lost else self._where()
        self._address, self._question = address, None
        if self._lost:
            self._question = self._calls.locate(self._lost[:MOST_NAMES])
        elif not self._repeatable and router.several and address != self._alive:
            self._question = self._calls.locate(list(self._names()))
        repeatable = self._repeatable or self._question is not None
        method, request = (
            (self._question.method, self._question.request) if self._question is not None else self._call()
        )
        # A shard that is frozen must leave time to ask another.
        timeout = time_left / 2 if repeatable and router.several else time_left
        return Attempt(address, method, request, {"timeout": timeout, "wait_for_ready": not repeatable}, repeatable)

    def take(self, answer: Any) -> float | None:
        """Take an answer; returns the seconds until the next attempt, None after the last.

        Raises the error that the answer means.
        """
        self._alive = self._address
        if self._question is not None:
            self._question.take(answer)
            return self._resume()
        try:
            return self._took(answer)
        except errors.StaleEpoch as stale:
            return self._lose([stale.metadata["computation"]], stale)

    def failed(self, failure: grpc.RpcError | errors.Unavailable) -> float:
        """Take a failed attempt; returns the seconds until the next, or raises its error."""
        error = error_of_call(failure, self._address) if isinstance(failure, grpc.RpcError) else failure
        if isinstance(error, errors.Moved):
            self._alive = self._address
            name, address, epoch = wire.moved(error)
            return self._moved(_unserved(name, error), [name], self._router.redirected(name, address, epoch))
        if self._question is not None and error.reason in _NOWHERE_ELSE:
            self._alive = self._address
            return self._resume()
        if self._question is None and self._retarget(error):
            self._alive, self._hops = self._address, 0
            return self._attempts.pause(error, at_once="slice" in error.metadata)
        if not self._repeatable and self._question is None:
            raise error from None
        elsewhere = self._router.several and (
            isinstance(error, errors.Timeout)
            or (isinstance(error, errors.ServerTokenMismatch) and not self._is_given_home(self._address))
        )
        # A timeout of the last question says less than the reason for asking it again.
        reason = self._wait_reason if isinstance(error, errors.Timeout) and self._wait_reason else error
        if not elsewhere and not isinstance(error, AGAIN):
            raise reason from None
        if elsewhere or isinstance(error, AWAY):
            self._router.failed(self._address)
        if not isinstance(error, errors.Timeout):
            self._wait_reason = error
        return self._attempts.pause(reason)

    def _is_given_home(self, address: str) -> bool:
        return address == self._router.home and self._router.configured(address)

    def _moved(self, reason: errors.LowwaterError, names: list[str], follow: bool) -> float:
        return self._hop(reason) if follow else self._lose(names, reason)

    def _hop(self, reason: errors.LowwaterError) -> float:
        self._hops += 1
        at_once = self._hops % 2 == 1
        self._wait_reason = self._wait_reason if at_once else reason
        return self._attempts.pause(reason, at_once=at_once)

    def _lose(self, names: list[str], reason: errors.LowwaterError) -> float:
        self._lost, self._wait_reason = names, reason
        return self._attempts.pause(reason, at_once=True)

    def _resume(self) -> float:
        """Continue with the call after a Locate question."""
        if self._lost and self._wait_reason is not None:
            self._lost = []
            return self._attempts.pause(self._wait_reason)
        address = self._where()
        return 0.0 if address == self._address else self._hop(_unserved(", ".join(self._names()), None))


class _One(Exchange[Result]):
    """A call about one computation, or about none."""

    def __init__(
        self, call: Call[Result], calls: Calls, router: Router, surroundings: Surroundings, timeout: float
    ) -> None:
        super().__init__(calls, surroundings, timeout, router=router, repeatable=call.repeatable)
        self._current = self._whole = call

    def _where(self) -> str:
        return self._router.address_of(self._current.computation) if self._current.computation else self._router.home

    def _call(self) -> tuple[Callable[[Stubs], Callable[..., Any]], Any]:
        return self._current.method, self._current.request

    def _names(self) -> Iterable[str]:
        return (self._current.computation,) if self._current.computation else ()

    def _took(self, answer: Any) -> float | None:
        self.result = self._current.take(answer)
        return None

    def _retarget(self, error: errors.LowwaterError) -> bool:
        """Continue with the slice that has the keys, or with the whole when that slice was cut.

        The error came before any change, so a call that may not be repeated continues, too.
        """
        whole = self._whole
        if not isinstance(error, errors.OtherSlice) or whole.in_slice is None:
            return False
        if self._current.computation == whole.computation:
            slice_name = error.metadata.get("slice", "")
            matches = slice_of(slice_name) == whole.computation
        else:
            slice_name = error.metadata.get("slice_of", "")
            matches = slice_name == whole.computation
        if matches:
            self._current = whole.in_slice(slice_name)
        return matches


class _Several(Exchange[Result]):
    """A read of several computations, or of all; their shards are asked in turn."""

    def __init__(
        self, gather: Gather[Result], calls: Calls, router: Router, surroundings: Surroundings, timeout: float
    ) -> None:
        super().__init__(calls, surroundings, timeout, router=router, repeatable=True)
        self._gather = gather
        self._begin()

    def _begin(self) -> None:
        self._parts: list[Any] = []
        self._all = not self._gather.names
        self._pending = dict.fromkeys(self._gather.names)
        self._here: list[str] = []

    def _where(self) -> str:
        if self._all:
            self._here = []
            return self._router.home
        places = {name: self._router.address_of(name) for name in self._pending}
        address = next(iter(places.values()))
        self._here = [name for name, place in places.items() if place == address][:MOST_NAMES]
        return address

    def _call(self) -> tuple[Callable[[Stubs], Callable[..., Any]], Any]:
        return self._gather.method, self._gather.request(self._here)

    def _names(self) -> Iterable[str]:
        return self._pending

    def _took(self, answer: Any) -> float | None:
        self._parts.append(answer)
        self._all = False
        for name in self._here:
            del self._pending[name]
        lost: list[str] = []
        for redirect in answer.redirects:
            self._pending[redirect.computation] = None
            if not self._router.redirected(redirect.computation, redirect.address, redirect.epoch):
                lost.append(redirect.computation)
        if not self._pending:
            try:
                self.result = self._gather.take(self._parts)
            except errors.StaleEpoch:
                self._begin()
                raise
            return None
        if answer.watermarks:
            self._hops = 0
        if not answer.redirects:
            return 0.0
        reason = _unserved(lost[0] if lost else next(iter(self._pending)), None)
        return self._moved(reason, lost, not lost)


def exchange_of(
    call: Call[Result] | Gather[Result], calls: Calls, router: Router, surroundings: Surroundings, timeout: float
) -> Exchange[Result]:
    """Return the attempts of a call within ``timeout`` seconds."""
    kind: Any = _One if isinstance(call, Call) else _Several
    exchange: Exchange[Result] = kind(call, calls, router, surroundings, timeout)
    return exchange


def _unserved(name: str, error: errors.Moved | None) -> errors.Unavailable:
    """Return the error of a computation that no shard answered for in time."""
    last = f": {error}" if error is not None else ""
    msg = (
        f"no shard answered for {name} in time: it is about to be taken over, or the shards redirect callers to each other{last}. "
        "`lowwater shards` lists the computations that no shard serves."
    )
    return errors.Unavailable(msg, metadata={"computation": name} | (error.metadata if error is not None else {}))
