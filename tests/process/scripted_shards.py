"""Shards of a few lines, which serve what a test tells them to: the other end of the client's routing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from lowwater._pb.lowwater.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    errors_pb2,
    types_pb2,
    watermarks_pb2,
    watermarks_pb2_grpc,
    workers_pb2,
    workers_pb2_grpc,
)

TOKEN = "scripted"
BEAT = 0.2


class Deployment:
    """What is true: which shard serves each computation, under which ownership number, and what is durable of it."""

    def __init__(self, *names: str) -> None:
        self.changed = threading.Condition()
        self.owners: dict[str, tuple[str, int]] = dict.fromkeys(names, ("", 1))
        self.low = dict.fromkeys(names, 0)
        self.taken: dict[str, list[tuple[str, int]]] = {name: [] for name in names}
        """The states that were taken over of each computation, and by whom."""
        self.asked: Counter[tuple[str, str]] = Counter()
        """How often each method of each shard was called."""

    def give(self, name: str, shard: Shard | None) -> None:
        """Have a shard serve a computation from now on, under the next number."""
        with self.changed:
            self.owners[name] = (shard.address if shard is not None else "", self.owners[name][1] + 1)
            self.changed.notify_all()

    def publish(self, name: str, low: int) -> None:
        with self.changed:
            self.low[name] = low
            self.changed.notify_all()

    def until(self, condition: Any) -> None:
        """Wait for something that calls bring about."""
        with self.changed:
            assert self.changed.wait_for(condition, 30)


class Shard(
    watermarks_pb2_grpc.WatermarkServiceServicer,
    workers_pb2_grpc.WorkerServiceServicer,
    cluster_pb2_grpc.ClusterServiceServicer,
):
    """One of them."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.stopping = threading.Event()
        self.server: Any = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        watermarks_pb2_grpc.add_WatermarkServiceServicer_to_server(self, self.server)
        workers_pb2_grpc.add_WorkerServiceServicer_to_server(self, self.server)
        cluster_pb2_grpc.add_ClusterServiceServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    @classmethod
    def start(cls, deployment: Deployment) -> Shard:
        """Start one; the methods that no test calls are not there."""
        kind: Any = cls
        made: Shard = kind(deployment)
        return made

    def kill(self) -> None:
        """End it and all that it was about to answer."""
        with self.deployment.changed:
            self.stopping.set()
            self.deployment.changed.notify_all()
        self.server.stop(None).wait()

    def where(self, name: str) -> tuple[str, int]:
        return self.deployment.owners[name]

    def redirect(self, name: str) -> types_pb2.Redirect | None:
        """Where a computation is, unless it is here."""
        address, epoch = self.where(name)
        if address == self.address:
            return None
        return types_pb2.Redirect(computation=name, address=address, epoch=epoch)

    def watermark(self, name: str) -> types_pb2.Watermark:
        low = self.deployment.low[name]
        return types_pb2.Watermark(
            computation=name, registered=True, incarnation=1, epoch=self.where(name)[1], low_micros=low
        )

    def asked(self, method: str) -> None:
        with self.deployment.changed:
            self.deployment.asked[self.address, method] += 1
            self.deployment.changed.notify_all()

    def refuse_moved(self, name: str, context: Any) -> None:
        redirect = self.redirect(name)
        if redirect is not None:
            metadata = {"computation": name, "address": redirect.address, "epoch": str(redirect.epoch)}
            info = errors_pb2.ErrorInfo(reason="MOVED", domain="lowwater", metadata=metadata)
            status = errors_pb2.RpcStatus(code=9, message=f"{name} is served elsewhere")
            status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, status.message)

    # -- the methods --------------------------------------------------------------------------------------------------

    def GetWatermarks(self, request: Any, context: Any) -> watermarks_pb2.GetWatermarksResponse:
        self.asked("Get")
        names = list(request.computations) or sorted(self.deployment.owners)
        redirects = [redirect for redirect in map(self.redirect, names) if redirect is not None]
        here = [self.watermark(name) for name in names if self.redirect(name) is None]
        return watermarks_pb2.GetWatermarksResponse(server_token=TOKEN, watermarks=here, redirects=redirects)

    def Watch(self, request: Any, context: Any) -> Iterator[watermarks_pb2.WatchResponse]:
        self.asked("Watch")
        names, told = list(request.computations), dict[str, object]()
        while context.is_active() and not self.stopping.is_set():
            response = watermarks_pb2.WatchResponse(server_token=TOKEN)
            with self.deployment.changed:
                for name in names or sorted(self.deployment.owners):
                    redirect = self.redirect(name)
                    news = self.where(name) if redirect is not None else self.deployment.low[name]
                    if told.get(name) != news:
                        told[name] = news
                        if redirect is not None:
                            response.redirects.append(redirect)
                        else:
                            response.watermarks.append(self.watermark(name))
            response.time_micros = response.clock_micros = time.time_ns() // 1000
            yield response
            with self.deployment.changed:
                self.deployment.changed.wait(BEAT)

    def Claim(self, request: Any, context: Any) -> workers_pb2.ClaimResponse:
        self.asked("Claim")
        self.refuse_moved(request.computation, context)
        epoch = self.where(request.computation)[1]
        return workers_pb2.ClaimResponse(
            server_token=TOKEN, sequencer=(epoch << 32) + 1, incarnation=1, epoch=epoch, watermarks_micros=[0]
        )

    def Release(self, request: Any, context: Any) -> workers_pb2.ReleaseResponse:
        self.asked("Release")
        self.refuse_moved(request.computation, context)
        return workers_pb2.ReleaseResponse()

    def Report(self, request_iterator: Any, context: Any) -> Iterator[workers_pb2.ReportResponse]:
        self.asked("Report")
        next(request_iterator)
        yield workers_pb2.ReportResponse(opened=workers_pb2.ReportOpened(server_token=TOKEN))
        for request in request_iterator:
            ack = workers_pb2.ReportAck(number=request.report.number)
            with self.deployment.changed:
                for group in request.report.groups:
                    redirect = self.redirect(group.computation)
                    if redirect is not None:
                        ack.refused.add(
                            computation=group.computation, sequencer=group.sequencer, reason="MOVED", redirect=redirect
                        )
                    else:
                        self.deployment.taken[group.computation].append((self.address, group.watermarks_micros[0]))
                self.deployment.changed.notify_all()
            self.asked("report")
            yield workers_pb2.ReportResponse(ack=ack)

    def Locate(self, request: Any, context: Any) -> cluster_pb2.LocateResponse:
        self.asked("Locate")
        owners = [(name, *self.deployment.owners[name]) for name in request.computations]
        redirects = [types_pb2.Redirect(computation=name, address=at, epoch=epoch) for name, at, epoch in owners]
        return cluster_pb2.LocateResponse(server_token=TOKEN, redirects=redirects)
