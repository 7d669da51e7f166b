"""How long unary calls take, and how they end, told to the observer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lowwater_authority.ops.observer import Observer

    Call = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]

CODES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class Timing(grpc.aio.ServerInterceptor):
    """Surrounds every unary call, whatever serves it; streams pass by. Costs some microseconds a call."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def intercept_service(
        self, continuation: Call, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See grpc.aio.ServerInterceptor. Nothing serves an unknown method, so it makes no series."""
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
