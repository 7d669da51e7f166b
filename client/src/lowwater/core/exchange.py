"""One unary call, from shard to shard until it is answered."""

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
"""Reasons of an authority that cannot say where computations are, because it is older than the
question, or alone. It serves them itself."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, as a shell makes it."""

    address: str
    method: Callable[[Stubs], Callable[..., Any]]
    request: Any
    options: dict[str, Any]
    """Seconds it may take, and whether it waits for the channel."""
    repeatable: bool


class Exchange(ABC, Generic[Result]):
    """The attempts of one call.

    A repeatable call is repeated while a shard is away or overloaded: at home when that shard has a
    route, at the next home when it is home. One that is not waits for the channel instead: until it
    is ready nothing has been sent, so nothing can happen twice. Where there are several shards it
    is sent to one that has just answered a question.

    A redirect is followed, by any call: nothing was changed. After two of them in a row, and after
    one that leads nowhere, there is a delay, and before that a shard is asked where the computation
    is, with the ownership number seen.
    """

    result: Result
    """The answer, once :meth:`take` has returned None."""

    def __init__(
        self, calls: Calls, surroundings: Surroundings, timeout: float, *, router: Router, repeatable: bool
    ) -> None:
        self._calls = calls
        self._router = router
        self._repeatable = repeatable
        self._attempts = Attempts(surroundings, timeout)
        self._lost: list[str] = []
        self._why: errors.LowwaterError | None = (
            None  # what the call waits for: a redirect in vain, or an attempt refused for now
        )
        self._hops = 0
        self._address = ""
        self._alive = ""
        self._side: Call[None] | None = None  # a question on the way to the call itself

    @abstractmethod
    def _where(self) -> str:
        """Return the address to ask next, and settle what it is asked: the routes may change at any moment."""

    @abstractmethod
    def _call(self) -> tuple[Callable[[Stubs], Callable[..., Any]], Any]:
        """Return the method and the request for the address that was settled on."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """Return the computations that are waited for."""

    def _elsewhere(self, error: errors.LowwaterError) -> bool:
        """Whether the call goes on about something else, as an error says."""
        return False

    @abstractmethod
    def _took(self, answer: Any) -> float | None:
        """Take an answer to the call; as :meth:`take`."""

    def next(self) -> Attempt:
        """Return the next attempt."""
        router, left = self._router, self._attempts.left
        address = router.oracle() if self._lost else self._where()
        self._address, self._side = address, None
        if self._lost:
            self._side = self._calls.locate(self._lost[:MOST_NAMES])
        elif not self._repeatable and router.several and address != self._alive:
            self._side = self._calls.locate(list(self._names()))
        repeatable = self._repeatable or self._side is not None
        method, request = (self._side.method, self._side.request) if self._side is not None else self._call()
        # A shard that is frozen must leave time to ask another.
        timeout = left / 2 if repeatable and router.several else left
        return Attempt(address, method, request, {"timeout": timeout, "wait_for_ready": not repeatable}, repeatable)

    def take(self, answer: Any) -> float | None:
        """Take an answer; returns the seconds to wait before the next attempt, or None: it was the last.

        Raises what the answer means.
        """
        self._alive = self._address
        if self._side is not None:
            self._side.take(answer)
            return self._asked()
        try:
            return self._took(answer)
        except errors.StaleEpoch as stale:
            return self._lose([stale.metadata["computation"]], stale)

    def failed(self, failure: grpc.RpcError | errors.Unavailable) -> float:
        """Take a failed attempt; returns the seconds to wait before the next.

        Raises what the failure means when there is none.
        """
        error = error_of_call(failure, self._address) if isinstance(failure, grpc.RpcError) else failure
        if isinstance(error, errors.Moved):
            self._alive = self._address
            name, address, epoch = wire.moved(error)
            return self._moved(_unserved(name, error), [name], self._router.redirected(name, address, epoch))
        if self._side is not None and error.reason in _NOWHERE_ELSE:
            self._alive = self._address
            return self._asked()
        if self._side is None and self._elsewhere(error):
            self._alive, self._hops = self._address, 0
            return self._attempts.pause(error, at_once="slice" in error.metadata)
        if not self._repeatable and self._side is None:
            raise error from None
        elsewhere = self._router.several and (
            isinstance(error, errors.Timeout)
            or (isinstance(error, errors.ServerTokenMismatch) and not self._is_given_home(self._address))
        )
        # That the last question was not answered in the time left says less than why it was asked
        # again.
        why = self._why if isinstance(error, errors.Timeout) and self._why else error
        if not elsewhere and not isinstance(error, AGAIN):
            raise why from None
        if elsewhere or isinstance(error, AWAY):
            self._router.failed(self._address)
        if not isinstance(error, errors.Timeout):
            self._why = error
        return self._attempts.pause(why)

    def _is_given_home(self, address: str) -> bool:
        return address == self._router.home and self._router.given(address)

    def _moved(self, why: errors.LowwaterError, names: list[str], followed: bool) -> float:
        return self._hop(why) if followed else self._lose(names, why)

    def _hop(self, why: errors.LowwaterError) -> float:
        self._hops += 1
        at_once = self._hops % 2 == 1
        self._why = self._why if at_once else why
        return self._attempts.pause(why, at_once=at_once)

    def _lose(self, names: list[str], why: errors.LowwaterError) -> float:
        self._lost, self._why = names, why
        return self._attempts.pause(why, at_once=True)

    def _asked(self) -> float:
        """Go on after a question on the way."""
        if self._lost and self._why is not None:
            self._lost = []
            return self._attempts.pause(self._why)
        where = self._where()
        return 0.0 if where == self._address else self._hop(_unserved(", ".join(self._names()), None))


class _One(Exchange[Result]):
    """A call about one computation, or about none."""

    def __init__(
        self, call: Call[Result], calls: Calls, router: Router, surroundings: Surroundings, timeout: float
    ) -> None:
        super().__init__(calls, surroundings, timeout, router=router, repeatable=call.repeatable)
        self._what = self._whole = call

    def _where(self) -> str:
        return self._router.address_of(self._what.computation) if self._what.computation else self._router.home

    def _call(self) -> tuple[Callable[[Stubs], Callable[..., Any]], Any]:
        return self._what.method, self._what.request

    def _names(self) -> Iterable[str]:
        return (self._what.computation,) if self._what.computation else ()

    def _took(self, answer: Any) -> float | None:
        self.result = self._what.take(answer)
        return None

    def _elsewhere(self, error: errors.LowwaterError) -> bool:
        """Go on with the slice of the computation whose keys these are, and with the whole again if that slice was cut in two meanwhile.

        The call was refused before anything was changed, so any call goes on.
        """
        whole = self._whole
        if not isinstance(error, errors.OtherSlice) or whole.in_slice is None:
            return False
        if self._what.computation == whole.computation:
            named = error.metadata.get("slice", "")
            follows = slice_of(named) == whole.computation
        else:
            named = error.metadata.get("slice_of", "")
            follows = named == whole.computation
        if follows:
            self._what = whole.in_slice(named)
        return follows


class _Several(Exchange[Result]):
    """A read of several computations, or of all, whose shards are asked in turn."""

    def __init__(
        self, gather: Gather[Result], calls: Calls, router: Router, surroundings: Surroundings, timeout: float
    ) -> None:
        super().__init__(calls, surroundings, timeout, router=router, repeatable=True)
        self._what = gather
        self._begin()

    def _begin(self) -> None:
        self._parts: list[Any] = []
        self._all = not self._what.names
        self._pending = dict.fromkeys(self._what.names)
        self._there: list[str] = []

    def _where(self) -> str:
        if self._all:
            self._there = []
            return self._router.home
        places = {name: self._router.address_of(name) for name in self._pending}
        address = next(iter(places.values()))
        self._there = [name for name, place in places.items() if place == address][:MOST_NAMES]
        return address

    def _call(self) -> tuple[Callable[[Stubs], Callable[..., Any]], Any]:
        return self._what.method, self._what.request(self._there)

    def _names(self) -> Iterable[str]:
        return self._pending

    def _took(self, answer: Any) -> float | None:
        self._parts.append(answer)
        self._all = False
        for name in self._there:
            del self._pending[name]
        lost: list[str] = []
        for each in answer.redirects:
            self._pending[each.computation] = None
            if not self._router.redirected(each.computation, each.address, each.epoch):
                lost.append(each.computation)
        if not self._pending:
            try:
                self.result = self._what.take(self._parts)
            except errors.StaleEpoch:
                self._begin()
                raise
            return None
        if answer.watermarks:
            self._hops = 0
        if not answer.redirects:
            return 0.0
        why = _unserved(lost[0] if lost else next(iter(self._pending)), None)
        return self._moved(why, lost, not lost)


def exchange_of(
    call: Call[Result] | Gather[Result], calls: Calls, router: Router, surroundings: Surroundings, timeout: float
) -> Exchange[Result]:
    """Return the attempts of a call, within so many seconds from now."""
    kind: Any = _One if isinstance(call, Call) else _Several
    made: Exchange[Result] = kind(call, calls, router, surroundings, timeout)
    return made


def _unserved(name: str, error: errors.Moved | None) -> errors.Unavailable:
    """Return the error of a computation that no shard would answer for in time."""
    last = f": {error}" if error is not None else ""
    msg = (
        f"no shard answered for {name} in time: it is about to be taken over, or the shards send callers on to each other{last}. "
        "`lowwater shards` lists what is not served."
    )
    return errors.Unavailable(msg, metadata={"computation": name} | (error.metadata if error is not None else {}))
