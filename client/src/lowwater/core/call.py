"""Unary calls as values: what a shell sends, and what the answer becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lowwater.v1 import (
    cluster_pb2_grpc,
    tasks_pb2_grpc,
    topology_pb2_grpc,
    watermarks_pb2_grpc,
    workers_pb2_grpc,
)

__all__ = ["Call", "Gather", "Stubs"]

Result = TypeVar("Result")


class Stubs:
    """The generated stubs over a channel, of threads or of asyncio: which, their types cannot say here."""

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
    """What the answer becomes. It may change what is known, so the shell guards it. Raises what the
    answer means."""
    computation: str = ""
    """Which it is about, by its full name: only that one's shard answers. Empty: any shard does."""
    repeatable: bool = True
    """Whether the authority may get it twice."""
    in_slice: Callable[[str], Call[Result]] | None = None
    """The same call for a slice of the computation, where the authority says that the keys are
    those of one; or for the whole again."""


@dataclass(frozen=True, slots=True)
class Gather(Generic[Result]):
    """A read of several computations, of which each shard answers its own."""

    method: Callable[[Stubs], Callable[..., Any]]
    names: tuple[str, ...]
    """Their full names; none means all that are registered."""
    request: Callable[[Sequence[str]], Any]
    """The request for some of them."""
    take: Callable[[Sequence[Any]], Result]
    """What the answers become; as that of a call."""
