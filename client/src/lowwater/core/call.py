"""Unary calls as values: the request that a shell sends, and the conversion of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lowwater.v1 import cluster_pb2_grpc, tasks_pb2_grpc, topology_pb2_grpc, watermarks_pb2_grpc, workers_pb2_grpc

__all__ = ["Call", "Gather", "Stubs"]

Result = TypeVar("Result")


class Stubs:
    """Generated stubs over a channel, of threads or of asyncio; their types cannot say which."""

    def __init__(self, channel: Any) -> None:
        self.workers: Any = workers_pb2_grpc.WorkerServiceStub(channel)
        self.watermarks: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel)
        self.graph: Any = topology_pb2_grpc.TopologyServiceStub(channel)
        self.tasks: Any = tasks_pb2_grpc.TaskServiceStub(channel)
        self.cluster: Any = cluster_pb2_grpc.ClusterServiceStub(channel)


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One unary call."""

    method: Callable[[Stubs], Callable[..., Any]]
    request: Any
    take: Callable[[Any], Result]
    """Conversion of the answer. It may change the shared state, so the shell holds the guard.
    Raises the error that the answer means."""
    computation: str = ""
    """Full name of the computation whose shard has to answer; empty when any shard can."""
    repeatable: bool = True
    """True when the authority may get the call twice."""
    in_slice: Callable[[str], Call[Result]] | None = None
    """Same call for a slice of the computation, after the authority answered that the keys are in
    that slice; or for the whole again."""


@dataclass(frozen=True, slots=True)
class Gather(Generic[Result]):
    """A read of several computations, of which each shard answers its own."""

    method: Callable[[Stubs], Callable[..., Any]]
    names: tuple[str, ...]
    """Full names of the computations; none means all registered ones."""
    request: Callable[[Sequence[str]], Any]
    """Request for some of them."""
    take: Callable[[Sequence[Any]], Result]
    """Conversion of all the answers, like ``Call.take``."""
