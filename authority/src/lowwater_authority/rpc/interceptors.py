"""Interceptors around every method: one refuses malformed requests, one times calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from inspect import isasyncgenfunction
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from lowwater import errors
from lowwater.core.events import Limited, event
from lowwater_authority.rpc.refusals import refuse
from lowwater_authority.rpc.request_bounds import bound_of, shape_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from lowwater_authority.engine.observer import Observer

    Call = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]
    Read = Callable[[bytes], Any]


log = logging.getLogger(__name__)

FIX: Final = "generate the client from the .proto files of this version"


class Reading:
    """Deserializer of a method's requests.

    Raises InvalidArgument for a request that is too large, is not a message of the method, or has
    text that is not UTF-8.
    """

    __slots__ = ("_bound", "_deserialize", "_name", "_shape")

    def __init__(self, deserialize: Read, method: str) -> None:
        self._deserialize = deserialize
        self._bound = bound_of(method)
        self._shape = shape_of(deserialize)
        self._name = method.rpartition("/")[2]

    def __call__(self, data: bytes) -> Any:
        """Parse one request."""
        try:
            self._bound.check(data, self._name, self._shape)
            request = self._deserialize(data)
        except DecodeError as error:
            why = "has text that is not UTF-8" if "UTF-8" in str(error) else "is not a message of this method"
            raise errors.InvalidArgument(f"the request {why}; {FIX}", metadata={"field": "", "fix": FIX}) from None
        self._bound.check_names(request)
        return request


def reading(deserialize: Read | None, method: str) -> Read | None:
    """Return the deserializer of a method, given by its whole path; see :class:`Reading`."""
    return deserialize if deserialize is None or isinstance(deserialize, Reading) else Reading(deserialize, method)


def freed(failure: BaseException) -> None:
    """Free what the frames of a failed call hold, such as its request.

    gRPC keeps the exception that ends a call. The exception keeps these frames, and they keep
    gRPC's call: a cycle. So the request would stay until the garbage collector runs, which may be
    thousands of calls later.

    Only the frames of this exception are cleared. Its cause may be shared: all callers of a round
    that the store refuses get one exception, with the frames of those that still wait. If these
    were cleared, their calls would end.
    """
    clear_frames(failure.__traceback__)
    failure.__cause__ = failure.__context__ = None


class Decoding(grpc.aio.ServerInterceptor):
    """Refuses malformed requests of every method, and calls that are too many.

    gRPC parses the one request of a call before any code here sees it. If that fails, gRPC answers
    UNKNOWN without a reason. So the deserializer returns the error in place of the request, and
    this interceptor refuses it. A method that reads a stream gets the error as an exception.

    ``pace`` is called with the path of the method and the caller's address. It raises Overloaded
    when there are too many calls; None: there is no bound.
    """

    def __init__(self, observer: Observer, pace: Callable[[str, str], None] | None = None) -> None:
        self._observer = observer
        self._pace = pace
        self._quiet = Limited()

    async def intercept_service(
        self, continuation: Call, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        path = handler_call_details.method
        read = reading(handler.request_deserializer, path)
        codecs = {"request_deserializer": read, "response_serializer": handler.response_serializer}
        if handler.stream_stream is not None:
            serve = handler.stream_stream
            # A method that writes its answers itself is a coroutine, as the guard's health checks.
            serve = self._stream(path, serve) if isasyncgenfunction(serve) else serve
            return grpc.stream_stream_rpc_method_handler(serve, **codecs)
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._unary(path, handler.stream_unary), **codecs)
        codecs["request_deserializer"] = _or_error(read)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._stream(path, handler.unary_stream), **codecs)
        return grpc.unary_unary_rpc_method_handler(self._unary(path, handler.unary_unary), **codecs)

    def _unary(self, path: str, serve: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def decoded(request: Any, context: Any) -> Any:
            try:
                await self._admit(path, request, context)
                return await serve(request, context)
            except grpc.aio.AbortError as failure:
                del request
                freed(failure)
                raise

        return decoded

    def _stream(
        self, path: str, serve: Callable[[Any, Any], AsyncGenerator[Any, None]]
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def decoded(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                await self._admit(path, request, context)
                async with contextlib.aclosing(serve(request, context)) as responses:
                    async for response in responses:
                        yield response
            except grpc.aio.AbortError as failure:
                del request
                freed(failure)
                raise

        return decoded

    async def _admit(self, path: str, request: Any, context: Any) -> None:
        """Refuse a malformed request, and a call that is one too many."""
        method = path.rpartition("/")[2]
        if isinstance(request, errors.InvalidArgument):
            await self._refuse(method, request, context)
        if self._pace is None:
            return
        try:
            self._pace(path, context.peer())
        except errors.Overloaded as error:
            self._observer.refused(method, error.reason)
            await refuse(context, error)

    async def _refuse(self, method: str, error: errors.InvalidArgument, context: Any) -> NoReturn:
        self._observer.refused(method, error.reason)
        if count := self._quiet.count(method, time.monotonic()):
            fields = event("call_refused", method=method, reason=error.reason, count=count, error=error.message)
            log.warning("%s refused, %s: %s", method, error.reason, error.message, extra=fields)
        await refuse(context, error)


def _or_error(read: Read | None) -> Read | None:
    """Return a deserializer that returns InvalidArgument instead of raising it."""
    if read is None:
        return None

    def read_or_error(data: bytes) -> Any:
        try:
            return read(data)
        except errors.InvalidArgument as error:
            return error

    return read_or_error


CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class Timing(grpc.aio.ServerInterceptor):
    """Reports to the observer how long every unary call took, and its status. Streams pass by.

    It takes some microseconds a call.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def intercept_service(
        self, continuation: Call, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor.

        An unknown method has no handler, so it makes no time series.
        """
        handler: Any = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # type: ignore[no-any-return]
        method = handler_call_details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(
            self._timed(method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _timed(self, method: str, serve: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def timed(request: Any, context: Any) -> Any:
            began = time.perf_counter()
            code = "OK"
            try:
                return await serve(request, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except grpc.aio.AbortError:
                code = CODES.get(_number(context.code()), "UNKNOWN")
                raise
            except BaseException:
                code = "UNKNOWN"
                raise
            finally:
                self._observer.called(method, code, time.perf_counter() - began)

        return timed


def _number(code: Any) -> int:
    """Return a status code as a number; gRPC gives a number, or a member of StatusCode."""
    return int(code.value[0]) if isinstance(code, grpc.StatusCode) else int(code)
