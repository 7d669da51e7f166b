"""A gRPC proxy that passes everything on but what a test tells it to cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from lowwater.v1 import workers_pb2

Cut = Callable[[workers_pb2.StageTaskRequest], bool]


class Proxy(grpc.GenericRpcHandler):
    """Stands between clients and the authority at ``target``. A StageTask call for which ``cut`` is true never arrives.

    ``arrived`` is called when the authority has answered one, before its caller hears of it.
    """

    def __init__(
        self, target: str, cut: Cut, arrived: Callable[[workers_pb2.StageTaskRequest], object] = lambda _: None
    ) -> None:
        self._channel = grpc.insecure_channel(target)
        self._cut = cut
        self._arrived = arrived
        self._lock = threading.Lock()
        self.lost: list[workers_pb2.StageTaskRequest] = []
        self._server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers([self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        # On the wire a unary call is a stream of one message, so one kind of handler passes on all.
        def forward(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            return self.forward(handler_call_details.method, requests, context)

        return grpc.stream_stream_rpc_method_handler(forward)

    def forward(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        request: workers_pb2.StageTaskRequest | None = None
        if method.endswith("/StageTask"):
            [message] = requests
            request = workers_pb2.StageTaskRequest.FromString(message)
            if self._cut(request):
                with self._lock:
                    self.lost.append(request)
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
            requests = iter([message])
        multi: Any = self._channel.stream_stream(method)
        call = multi(requests, metadata=context.invocation_metadata())
        context.add_callback(call.cancel)
        try:
            for reply in call:
                if request is not None:
                    self._arrived(request)
                yield reply
        except grpc.RpcError:
            context.set_trailing_metadata(call.trailing_metadata() or ())
            context.set_code(call.code())
            context.set_details(call.details())

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()
