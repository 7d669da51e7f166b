"""Meaning of a failed call, and the attempts of a repeated one."""

from __future__ import annotations

from typing import Any, Final

import grpc

from lowwater import errors
from lowwater.core import wire
from lowwater.core.backoff import PATIENCE, Backoff
from lowwater.core.settings import proxy_of
from lowwater.core.surroundings import Surroundings

__all__ = [
    "AGAIN",
    "AWAY",
    "BUSY",
    "DENIED",
    "Attempts",
    "cancelled_call",
    "closed_client",
    "error_of_call",
    "words_of",
]

BUSY: Final = (errors.Overloaded, errors.JournalFailed)
"""Refusals of a shard that goes on serving: its computations are at no other shard."""

AGAIN: Final = (errors.Unavailable, errors.ShuttingDown, *BUSY)
"""Errors after which a repeatable call is repeated."""

AWAY: Final = (errors.Unavailable, errors.ShuttingDown, errors.Timeout)
"""Errors which mean that no shard serves at an address, at least for now."""

DENIED: Final = (errors.Unauthenticated, errors.PermissionDenied)
"""Refusals of the caller. Calls are not repeated after them; streams are, with their backoff,
because the access rules may change."""

_BROKEN: Final = "Internal error from Core"
"""Text of gRPC on asyncio for a stream that ended while it was written to, even when the server
gave a reason: grpc/grpc#36066."""

_OF_A_PROXY: Final = {
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
}
"""Errors by status without details of the authority, which come from a proxy in front of it."""

_LEAST: Final = 0.001
"""Least seconds of an attempt, however little time is left."""


class Attempts:
    """Attempts of one call, within ``timeout`` seconds from now."""

    __slots__ = ("_backoff", "_deadline", "_monotonic")

    def __init__(self, surroundings: Surroundings, timeout: float) -> None:
        self._monotonic = surroundings.monotonic
        self._deadline = surroundings.monotonic() + timeout
        self._backoff = Backoff(surroundings.random, PATIENCE)

    @property
    def seconds_left(self) -> float:
        """Seconds that the next attempt may take."""
        return max(self._deadline - self._monotonic(), _LEAST)

    def pause(self, error: errors.LowwaterError, *, at_once: bool = False) -> float:
        """Return the seconds until the next attempt; raises the last one's error without time."""
        delay = 0.0 if at_once else self._backoff.next(error.retry_after)
        if self._monotonic() + delay >= self._deadline:
            raise error from None
        return delay


def closed_client() -> errors.Closed:
    """Return the error of a client that was used after its end."""
    return errors.Closed("the client is closed; connect() makes a new one")


def cancelled_call(address: str) -> errors.Unavailable:
    """Return the error of a call that gRPC, or an authority that stops, has cancelled."""
    msg = f"the call to the authority at {address} was cancelled, and gRPC gives no reason; an authority that stops cancels its calls"
    return errors.Unavailable(msg, metadata={"address": address, "grpc_status": grpc.StatusCode.CANCELLED.name})


def words_of(failure: Exception) -> str:
    """Return the text of a stream's failure; a foreign error needs its class to be understood."""
    return str(failure) if isinstance(failure, errors.LowwaterError) else repr(failure)


def error_of_call(failure: grpc.RpcError, address: str) -> errors.LowwaterError:
    """Return the error that a failed call means."""
    if not hasattr(failure, "code"):
        msg = f"the call to the authority at {address} could not be made: {failure!r}"
        return errors.LowwaterError(msg, reason=grpc.StatusCode.UNKNOWN.name, metadata={"address": address})
    # The failure of a call is the call as well, which gRPC's types do not say.
    call: Any = failure
    code, details = call.code(), call.details() or ""
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            error = wire.error_from_details(value)
            if error is not None:
                return error
    metadata = {"address": address, "grpc_status": code.name}
    if code is grpc.StatusCode.INTERNAL and details == _BROKEN:
        msg = f"the stream to the authority at {address} ended while it was written to, and gRPC gives no reason"
        return errors.Unavailable(msg, metadata=metadata)
    if code is grpc.StatusCode.CANCELLED:
        return cancelled_call(address)
    if code is grpc.StatusCode.UNAVAILABLE:
        proxy = proxy_of(address)
        way = (
            f" gRPC goes through the proxy of {proxy}: name the host in no_proxy if that proxy does not lead there."
            if proxy
            else ""
        )
        msg = f"no authority answers at {address}: {details}. Is `lowwater serve` running there?{way}"
        return errors.Unavailable(msg, metadata=metadata)
    if code in _OF_A_PROXY:
        return _OF_A_PROXY[code](f"{code.name} from {address}: {details}", metadata=metadata)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Timeout(f"the authority at {address} did not answer in time", metadata=metadata)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        msg = (
            f"the authority at {address} does not know this call: it is older than this client. "
            "Upgrade lowwater-authority first."
        )
        return errors.LowwaterError(msg, reason=code.name, metadata=metadata)
    return errors.LowwaterError(f"{code.name} from {address}: {details}", reason=code.name, metadata=metadata)
