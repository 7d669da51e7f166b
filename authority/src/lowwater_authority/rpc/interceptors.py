"""What surrounds every method: what is no message of it is refused like any other bad input, and the observer hears how calls end."""

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
    """Reads the requests of a method.

    Raises InvalidArgument for one that is too large, is no such message, or has text that is not
    UTF-8.
    """

    __slots__ = ("_bound", "_deserialize", "_name", "_shape")

    def __init__(self, deserialize: Read, method: str) -> None:
        self._deserialize = deserialize
        self._bound = bound_of(method)
        self._shape = shape_of(deserialize)
        self._name = method.rpartition("/")[2]

    def __call__(self, data: bytes) -> Any:
        """Read one."""
        try:
            self._bound.check(data, self._name, self._shape)
            request = self._deserialize(data)
        except DecodeError as error:
            why = "has text that is not UTF-8" if "UTF-8" in str(error) else "is not a message of this method"
            raise errors.InvalidArgument(f"the request {why}; {FIX}", metadata={"field": "", "fix": FIX}) from None
        self._bound.check_names(request)
        return request


def reading(deserialize: Read | None, method: str) -> Read | None:
    """Return what reads the requests of a method, named by its whole path; see :class:`Reading`."""
    return deserialize if deserialize is None or isinstance(deserialize, Reading) else Reading(deserialize, method)


def freed(failure: BaseException) -> None:
    """Let go of all that the frames of a failed call hold, such as its request.

    gRPC keeps the exception that ends a call, and the exception keeps these frames, which keep the
    call of gRPC. So the request would stay until the garbage collector looks for such circles,
    which may be thousands of calls later.

    Only the frames of this exception are cleared. What it was raised from may be shared: all
    callers of a round that the store refuses get one exception, and it has the frames of those that
    still wait. To clear those would end their calls.
    """
    clear_frames(failure.__traceback__)
    failure.__cause__ = failure.__context__ = None


class Decoding(grpc.aio.ServerInterceptor):
    """Surrounds every method. gRPC reads the one request of a call before anybody is asked, and answers UNKNOWN, without a reason, when that fails.

    So what cannot be read becomes the error, as a request, and is refused in place of the method. The messages of a stream are read by the method
    itself, which takes the error as any other.

    ``pace`` raises Overloaded for a call, by the path of its method and the caller's address, that is one too many; None: nothing does.
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
            # One that writes its answers itself is a coroutine, as the health checks of the guard
            # are.
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
        """Refuse what is no request, and what is one too many."""
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
    """Return what reads a message, or returns the error."""
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
    """Surrounds every unary call, whatever serves it; streams pass by.

    Costs some microseconds a call.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def intercept_service(
        self, continuation: Call, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor.

        Nothing serves an unknown method, so it makes no series.
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
    """Return a status as a number: gRPC has it as one, or as its name."""
    return int(code.value[0]) if isinstance(code, grpc.StatusCode) else int(code)
