"""Errors on the wire: a gRPC status with one ErrorInfo, whose reason names the client's exception.

Errors that a later repeat may cure have a RetryInfo too, if the delay is known.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import grpc

from lowwater import errors
from lowwater.core.events import event, shortened
from lowwater.v1 import errors_pb2
from lowwater_authority.access.caller import calling
from lowwater_authority.core.requests import bad_field

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lowwater_authority.rpc.services import Services

DETAILS: Final = "grpc-status-details-bin"
"""Name of the trailer from which every gRPC library reads error details."""

ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"

RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"

LATER: Final = (errors.Overloaded, errors.ShuttingDown, errors.Unavailable, errors.JournalFailed)
"""Errors after which the same call may succeed later, unchanged."""

CODES: Final[dict[str, grpc.StatusCode]] = {
    errors.InvalidArgument.reason: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TooFarAhead.reason: grpc.StatusCode.INVALID_ARGUMENT,
    errors.FinishRequired.reason: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownComputation.reason: grpc.StatusCode.NOT_FOUND,
    errors.UnknownReference.reason: grpc.StatusCode.NOT_FOUND,
    errors.RegistrationConflict.reason: grpc.StatusCode.ALREADY_EXISTS,
    errors.Overloaded.reason: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.LimitReached.reason: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated.reason: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied.reason: grpc.StatusCode.PERMISSION_DENIED,
    errors.JournalFailed.reason: grpc.StatusCode.UNAVAILABLE,
    errors.ShuttingDown.reason: grpc.StatusCode.UNAVAILABLE,
    errors.Unavailable.reason: grpc.StatusCode.UNAVAILABLE,
    errors.LowwaterError.reason: grpc.StatusCode.INTERNAL,
}
"""Status code of each reason. All other reasons have FAILED_PRECONDITION: the caller must change
something before it tries again."""

MESSAGE_BYTES: Final = 1024
"""Most bytes of an error's message, and of all its metadata. gRPC replaces a status of more than
8 KB by an empty one."""

log = logging.getLogger(__name__)

Method = TypeVar("Method", bound="Callable[..., Awaitable[Any]]")


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], error: errors.LowwaterError, *, again: float = 0.0
) -> NoReturn:
    """End a call with an error.

    ``again``: seconds after which to try again, for an error that a repeat may cure and that names
    no delay of its own.
    """
    caller = calling()
    if caller is not None:
        caller.reason = error.reason
    code = CODES.get(error.reason, grpc.StatusCode.FAILED_PRECONDITION)
    room = MESSAGE_BYTES // max(1, len(error.metadata))
    facts = {key: shortened(value, room) for key, value in error.metadata.items()}
    info = errors_pb2.ErrorInfo(reason=error.reason, domain="lowwater", metadata=facts)
    message = shortened(error.message, MESSAGE_BYTES)
    status = errors_pb2.RpcStatus(code=code.value[0], message=message)
    status.details.add(type_url=ERROR_INFO, value=info.SerializeToString())
    delay = error.retry_after or again
    if delay and isinstance(error, LATER):
        retry = errors_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(delay * 1e9))
        status.details.add(type_url=RETRY_INFO, value=retry.SerializeToString())
    await context.abort(code, message, ((DETAILS, status.SerializeToString()),))


def refusing(method: Method) -> Method:
    """Turn the errors of a unary method of a servicer into statuses.

    The servicer has ``services``. While this shard is cut off from its store, it refuses all calls.
    """

    @functools.wraps(method)
    async def guarded(self: Any, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        services: Services = self.services
        try:
            services.check()
            check_token(services.token, request.server_token)
            try:
                return await method(self, request, context)
            except errors.Moved as moved:
                await services.settle([moved.metadata["computation"]], context)
                raise await services.located(moved) from None
        except errors.LowwaterError as error:
            services.observer.refused(method.__name__, error.reason)
            tell_refusal(services, method.__name__, error)
            caller = calling()
            await refuse(
                context, error if caller is None else caller.redacted(error, services.shard.topology.computations)
            )

    return guarded  # type: ignore[return-value]  # the same signature, which a TypeVar bound to a method cannot say


def tell_refusal(services: Services, method: str, error: errors.LowwaterError) -> None:
    """Log a refusal that its caller has to act on, once in a while.

    Each method, reason and computation is counted apart. Unregistered names count as one
    computation, because a caller can make up any number.
    """
    alone = method == "Locate" and services.cluster is None  # a client asks so of any authority
    redirects = (
        alone or isinstance(error, errors.Moved) or (isinstance(error, errors.OtherSlice) and "slice" in error.metadata)
    )
    if redirects or isinstance(error, LATER):
        return
    name = error.metadata.get("computation", "")
    registered = name if name in services.shard.topology.computations else ""
    if count := services.quiet.count((method, error.reason, registered), services.shard.now / 1e6):
        message, computation = shortened(error.message, MESSAGE_BYTES), shortened(name)
        fields = event(
            "call_refused", method=method, reason=error.reason, computation=computation, count=count, error=message
        )
        log.warning("%s refused, %s: %s", method, error.reason, message, extra=fields)


def check_token(expected: str, token: str) -> None:
    """Raise ServerTokenMismatch for a caller that means another deployment (rule 9).

    An empty token accepts any. The message does not quote the token, which may be any text.
    """
    if token and token != expected:
        msg = (
            f"this is the deployment {expected}, not the one that is meant: the address leads elsewhere than before, or its journal was "
            "replaced. Restart the client if that is meant."
        )
        raise errors.ServerTokenMismatch(msg, metadata={"server_token": expected})


def at_most(path: str, value: int, most: int) -> int:
    """Return a number of a request. Raises InvalidArgument for one above ``most``."""
    if value > most:
        raise bad_field(path, f"is {value}", f"ask for at most {most}")
    return value
