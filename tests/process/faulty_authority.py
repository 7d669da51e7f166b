"""An authority with one fault planted: a real one, behind a proxy that changes what goes up or down."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, Final

import grpc

from lowwater._pb.lowwater.v1 import topology_pb2, watermarks_pb2, workers_pb2

MODULES: Final[list[Any]] = [topology_pb2, watermarks_pb2, workers_pb2]


class Fault:
    """Changes messages; each connection has its own."""

    def up(self, message: Any) -> Any:
        """Return what the authority gets; None: nothing."""
        return message

    def down(self, message: Any) -> Any:
        """Return what the client gets; None: nothing."""
        return message


class TakesGaps(Fault):
    """Numbers of reports do not matter."""

    def __init__(self) -> None:
        self._number = 0

    def up(self, message: Any) -> Any:
        if isinstance(message, workers_pb2.ReportRequest):
            if message.HasField("open"):
                self._number = 0
            else:
                self._number += 1
                message.report.number = self._number
        return message


class ForgetsIds(Fault):
    """Each claim is a new one."""

    def up(self, message: Any) -> Any:
        if isinstance(message, workers_pb2.ClaimRequest) and len(message.request_id) == 16:
            message.request_id = os.urandom(16)
        return message


class NoFencing(Fault):
    """Whoever reports is taken for the newest owner."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._asked = ""

    def up(self, message: Any) -> Any:
        if isinstance(message, workers_pb2.ClaimRequest):
            self._asked = message.computation
        if isinstance(message, workers_pb2.ReportRequest):
            for group in message.report.groups:
                if group.sequencer < self._newest.get(group.computation, 0):
                    group.sequencer = self._newest[group.computation]
                    del group.watermarks_micros[1:]
        return message

    def down(self, message: Any) -> Any:
        if isinstance(message, workers_pb2.ClaimResponse):
            self._newest[self._asked] = message.sequencer
        return message


class GoesBack(Fault):
    """What is published is the least of the ranges as they stand."""

    def down(self, message: Any) -> Any:
        if isinstance(message, watermarks_pb2.GetWatermarksResponse):
            for each in message.watermarks:
                if each.HasField("holder"):
                    each.low_micros = each.holder.watermark_micros
        return message


class CompleteAtOnce(Fault):
    """A time is complete that is not below the watermark."""

    def down(self, message: Any) -> Any:
        if isinstance(message, watermarks_pb2.CheckCompleteResponse):
            message.complete = True
        return message


FAULTS: Final[dict[type[Fault], str]] = {
    TakesGaps: "gap",
    ForgetsIds: "repeated-claim",
    NoFencing: "cut",
    GoesBack: "never-back",
    CompleteAtOnce: "complete",
}
"""The check that has to fail of each."""


class Proxy:
    """Stands before an authority."""

    def __init__(self, address: str, fault: Callable[[], Fault]) -> None:
        self._channel = grpc.insecure_channel(address)
        self._fault = fault()
        self._server = grpc.server(futures.ThreadPoolExecutor(32))
        for module in MODULES:
            for service in module.DESCRIPTOR.services_by_name.values():
                handlers = {method.name: self._handler(module, service.full_name, method) for method in service.methods}
                self._server.add_generic_rpc_handlers(
                    [grpc.method_handlers_generic_handler(service.full_name, handlers)]
                )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Proxy:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def _handler(self, module: Any, service: str, method: Any) -> Any:
        request, response = getattr(module, method.input_type.name), getattr(module, method.output_type.name)
        path = f"/{service}/{method.name}"
        formats = {"request_serializer": request.SerializeToString, "response_deserializer": response.FromString}
        served = {"request_deserializer": request.FromString, "response_serializer": response.SerializeToString}
        if method.client_streaming:
            call: Any = self._channel.stream_stream(path, **formats)
            return grpc.stream_stream_rpc_method_handler(self._both(call), **served)
        if method.server_streaming:
            call = self._channel.unary_stream(path, **formats)
            return grpc.unary_stream_rpc_method_handler(self._down(call), **served)
        call = self._channel.unary_unary(path, **formats)
        return grpc.unary_unary_rpc_method_handler(self._one(call), **served)

    def _one(self, call: Any) -> Any:
        def serve(request: Any, context: Any) -> Any:
            try:
                return self._fault.down(call(self._fault.up(request), timeout=30))
            except grpc.RpcError as error:
                return refuse(context, error)

        return serve

    def _down(self, call: Any) -> Any:
        def serve(request: Any, context: Any) -> Iterator[Any]:
            yield from self._passed(call(self._fault.up(request)), context)

        return serve

    def _both(self, call: Any) -> Any:
        def serve(requests: Any, context: Any) -> Iterator[Any]:
            yield from self._passed(call(map(self._fault.up, requests)), context)

        return serve

    def _passed(self, down: Any, context: Any) -> Iterator[Any]:
        context.add_callback(down.cancel)
        try:
            for message in down:
                changed = self._fault.down(message)
                if changed is not None:
                    yield changed
        except grpc.RpcError as error:
            refuse(context, error)


def refuse(context: Any, error: Any) -> Any:
    """Refuse as the authority does."""
    details = [(key, value) for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    context.set_trailing_metadata(details)
    context.abort(error.code(), error.details())
