"""One process's channel to the authority, and calls on it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc

from lowwater import errors
from lowwater._core import wire
from lowwater._core.backoff import Backoff
from lowwater._pb.lowwater.v1 import topology_pb2_grpc, watermarks_pb2_grpc, workers_pb2_grpc

__all__ = ["Connection", "Settings", "error_of_call"]

logger = logging.getLogger("lowwater")

Answer = TypeVar("Answer")

_OPTIONS: Final = (
    # A frozen peer is noticed after 30 s; without ping_timeout_ms its default of 60 s would override keepalive_timeout_ms.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # With probing, a subscriber that stalls would find thousands of old watermarks in gRPC's buffers.
    ("grpc.http2.bdp_probe", 0),
    # Streams and calls back off by themselves, up to 5 s with full jitter; the channel must be ready for them by then.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A claim of a million ranges in one message.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)

_AGAIN: Final = (errors.Unavailable, errors.Overloaded, errors.JournalFailed, errors.ShuttingDown)
"""Refusals after which a repeatable call is repeated."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach the authority. Plain values, so that it may be pickled and sent to other processes."""

    address: str
    token: str | None = field(default=None, repr=False)
    root_certificates: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)
    certificate_chain: bytes | None = None
    server_token: str = ""
    namespace: str = ""
    timeout: float = 10.0
    report_interval: float = 0.05

    @property
    def encrypted(self) -> bool:
        """Whether the channel uses TLS."""
        return any((self.root_certificates, self.private_key, self.certificate_chain))


class Connection:
    """A channel of this process, made at the first use. Safe for threads; never used across a fork."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metadata = (("authorization", f"Bearer {settings.token}"),) if settings.token else ()
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    @property
    def channel(self) -> grpc.Channel:
        """The channel. Raises Closed after :meth:`close`."""
        with self._lock:
            if self.closed.is_set():
                raise closed_client()
            if self._channel is None:
                self._channel = self._make()
            return self._channel

    def _make(self) -> grpc.Channel:
        settings = self.settings
        if not settings.encrypted:
            return grpc.insecure_channel(settings.address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            settings.root_certificates, settings.private_key, settings.certificate_chain
        )
        return grpc.secure_channel(settings.address, credentials, options=_OPTIONS)

    @property
    def workers(self) -> workers_pb2_grpc.WorkerServiceStub:
        """What owners of key ranges call."""
        return workers_pb2_grpc.WorkerServiceStub(self.channel)

    @property
    def watermarks(self) -> watermarks_pb2_grpc.WatermarkServiceStub:
        """What readers call."""
        return watermarks_pb2_grpc.WatermarkServiceStub(self.channel)

    @property
    def graph(self) -> topology_pb2_grpc.TopologyServiceStub:
        """What changes the graph."""
        return topology_pb2_grpc.TopologyServiceStub(self.channel)

    def call(
        self, method: Callable[..., Answer], request: Any, *, repeatable: bool, timeout: float | None = None
    ) -> Answer:
        """Make a unary call within a deadline of ``timeout`` seconds, the client's by default.

        A repeatable call is repeated while the server is away or overloaded. One that is not waits for the channel
        instead: until it is ready nothing has been sent, so nothing can happen twice.
        Raises LowwaterError; Unavailable when no server answered at all.
        """
        deadline = time.monotonic() + (self.settings.timeout if timeout is None else timeout)
        backoff = Backoff(random.random)
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            try:
                return method(request, timeout=left, metadata=self.metadata, wait_for_ready=not repeatable)
            except grpc.RpcError as failure:
                error = error_of_call(failure, self.settings.address)
                delay = backoff.next()
                if not repeatable or not isinstance(error, _AGAIN) or time.monotonic() + delay >= deadline:
                    raise error from None
            except ValueError:
                # gRPC's word for a channel that was closed in the meantime.
                raise closed_client() from None
            if self.closed.wait(delay):
                raise closed_client()

    def close(self) -> None:
        """Close the channel; calls on it end."""
        with self._lock:
            self.closed.set()
            if self._channel is not None:
                self._channel.close()


def closed_client() -> errors.Closed:
    """Return the error of using a client after its end."""
    return errors.Closed("the client is closed; connect() makes a new one")


def error_of_call(failure: grpc.RpcError, address: str) -> errors.LowwaterError:
    """Return what a failed call means."""
    # Raised failures are calls as well, which the types do not say.
    call: Any = failure
    code, details = call.code(), call.details() or ""
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            error = wire.error_from_details(value)
            if error is not None:
                return error
    metadata = {"address": address, "grpc_status": code.name}
    if code is grpc.StatusCode.UNAVAILABLE:
        msg = f"no authority answers at {address}: {details}. Is `lowwater serve` running there?"
        return errors.Unavailable(msg, metadata=metadata)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.Timeout(f"the authority at {address} did not answer in time", metadata=metadata)
    return errors.LowwaterError(f"{code.name} from {address}: {details}", reason=code.name, metadata=metadata)
