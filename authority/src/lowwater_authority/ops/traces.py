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

if TYPE_CHECKING:
    from collections.abc import Mapping

    import grpc.aio

__all__ = ["Traces", "begin", "exporter_of"]

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
EXPORTERS: Final = ("otlp", "console")

STREAMS: Final = ("Report", "Watch", "ServerReflectionInfo")
"""Methods of the server's services that are no unary calls."""

_INSTALL: Final = (
    "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc opentelemetry-instrumentation-grpc"
)

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
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    named = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
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
    except ModuleNotFoundError as error:
        reason = f"{error.name} is missing: {_INSTALL}"
    except Exception as error:  # noqa: BLE001 - the SDK raises what it likes for what it finds in the environment
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
    log.warning("no traces are sent: %s", reason, extra=event("traces_off", reason=reason))
    return Traces()


def _traces(exporter: str, version: str) -> Traces:
    from opentelemetry.instrumentation import grpc as instrumentation
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    attributes = {"service.version": version}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = "lowwater-authority"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
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
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if name != "otlp" or protocol not in {None, "", "grpc"}:
        exporter = name if name != "otlp" else f"otlp over {protocol}"
        msg = f"{exporter} is not supported; set OTEL_TRACES_EXPORTER to {' or '.join(EXPORTERS)}, and the protocol to grpc"
        raise ValueError(msg)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
