"""A worker without the client library."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from typing import cast

import grpc

from lowwater.v1 import (
    errors_pb2,
    topology_pb2,
    topology_pb2_grpc,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)
from tests.kit.times import HOUR, MAX, MIN
from tests.process.serving import Serving


class Peer:
    def __init__(self, server: Serving) -> None:
        self.channel = server.channel()
        self.topology = topology_pb2_grpc.TopologyServiceStub(self.channel)
        self.workers = workers_pb2_grpc.WorkerServiceStub(self.channel)
        self.watermarks = watermarks_pb2_grpc.WatermarkServiceStub(self.channel)
        self.sender = os.urandom(16)
        self.sent: queue.Queue[workers_pb2.ReportRequest | None] = queue.Queue()

    def register(self, name: str, *inputs: str) -> topology_pb2.RegisterResponse:
        return self.topology.Register(topology_pb2.RegisterRequest(name=name, inputs=inputs, heuristics_ppm=[990_000]))

    def claim(self, name: str, *bounds: bytes, **fields: object) -> workers_pb2.ClaimResponse:
        request = workers_pb2.ClaimRequest(
            computation=name,
            bounds=bounds or (b"", b""),
            worker="w",
            host="h",
            request_id=os.urandom(16),
            **fields,  # type: ignore[arg-type]
        )
        return self.workers.Claim(request)

    def release(self, name: str, sequencer: int) -> None:
        self.workers.Release(workers_pb2.ReleaseRequest(computation=name, sequencer=sequencer))

    def open(self, stream: int = 1, **fields: object) -> Iterator[workers_pb2.ReportResponse]:
        opening = workers_pb2.ReportOpen(sender=self.sender, stream=stream, **fields)  # type: ignore[arg-type]
        self.sent.put(workers_pb2.ReportRequest(open=opening))
        return self.workers.Report(iter(self.sent.get, None))

    def report(
        self, number: int, claim: workers_pb2.ClaimResponse, *hours: int, name: str = "a", **fields: object
    ) -> None:
        values = [hour if hour in (MIN, MAX) else hour * HOUR for hour in hours]
        group = workers_pb2.GroupReport(
            computation=name,
            sequencer=claim.sequencer,
            watermarks_micros=values,
            **fields,  # type: ignore[arg-type]
        )
        self.sent.put(workers_pb2.ReportRequest(report=workers_pb2.Report(number=number, groups=[group])))

    def low(self, name: str = "a") -> int:
        request = watermarks_pb2.GetWatermarksRequest(computations=[name])
        return self.watermarks.GetWatermarks(request).watermarks[0].low_micros


def reason(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    trailers = dict(cast(list[tuple[str, bytes]], error.trailing_metadata()))
    details = trailers["grpc-status-details-bin"]
    status = errors_pb2.RpcStatus.FromString(details)
    info = errors_pb2.ErrorInfo()
    assert status.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    info.ParseFromString(status.details[0].value)
    assert status.message == error.details()
    return error.code(), info.reason, dict(info.metadata)
