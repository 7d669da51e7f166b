"""Traces of unary calls by OpenTelemetry: the extra ``lowwater-authority[otel]``.

OpenTelemetry is imported only when the environment asks for it. A call continues the trace of its
caller (the metadata ``traceparent``). Report and watch streams last for days and are no spans; the
metrics tell about them. Sampling, headers and batches are the SDK's own variables.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.events import event
from lowwater_authority.ops.otel import check_grpc, named_exporter, reason_of, resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc.aio

__all__ = ["Traces", "begin", "exporter_of"]

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

STREAMS: Final = ("Report", "Watch", "ServerReflectionInfo")
"""Methods of the server's services that are no unary calls."""

_PACKAGES: Final = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc opentelemetry-instrumentation-grpc"

CLOSE_SECONDS: Final = 3.0
"""Longest wait of a stop for the last spans, in seconds."""

log = logging.getLogger(__name__)


class Traces:
    """Interceptors of a server for its traces; by default none."""

    def __init__(self, interceptors: tuple[grpc.aio.ServerInterceptor, ...] = (), provider: Any = None) -> None:
        self.interceptors = interceptors
        """The server's first interceptors, so that a span contains the work of all others."""
        self._provider = provider

    def close(self) -> None:
        """Send the last spans, ``CLOSE_SECONDS`` at most: a collector may be away."""
        if self._provider is None:
            return
        ending = threading.Thread(target=self._provider.shutdown, name="lowwater-traces", daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)


def exporter_of(environment: Mapping[str, str]) -> str:
    """Return the exporter that an environment names: "otlp", "console", ...; empty: none.

    >>> exporter_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"})
    'otlp'
    >>> exporter_of({"OTEL_TRACES_EXPORTER": "none"})
    ''
    """
    named = named_exporter("TRACES", environment)
    if named:
        return "" if named == "none" else named
    return "otlp" if any(environment.get(name) for name in ENDPOINTS) else ""


def begin(version: str) -> Traces:
    """Begin to trace the calls of a server, if the environment asks for it.

    A missing extra or a bad variable is only logged: such variables are often set for all programs
    of a machine, and a watermark is worth more than its traces.
    """
    exporter = exporter_of(os.environ)
    if not exporter:
        return Traces()
    try:
        return _traces(exporter, version)
    except Exception as error:  # noqa: BLE001 - see reason_of
        reason = reason_of(error, _PACKAGES)
        log.warning("no traces are sent: %s", reason, extra=event("traces_off", reason=reason))
        return Traces()


def _traces(exporter: str, version: str) -> Traces:
    from opentelemetry.instrumentation import grpc as instrumentation
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource(version), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    instruments: Any = instrumentation
    filters = instruments.filters
    streams = filters.any_of(*(filters.method_name(name) for name in STREAMS), filters.health_check())
    unary = instruments.aio_server_interceptor(tracer_provider=provider, filter_=filters.negate(streams))
    log.info("traces of unary calls are sent", extra=event("traces_on", exporter=exporter))
    return Traces((unary,), provider)


def _exporter(name: str) -> Any:
    """Return an exporter of spans. Raises ValueError for an unknown name."""
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    check_grpc("TRACES", name, "otlp or console")
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
