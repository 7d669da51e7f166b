"""What traces and figures by OpenTelemetry share: the extra ``lowwater-authority[otel]``.

OpenTelemetry is imported only when the environment asks for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def named_exporter(signal: str, environment: Mapping[str, str]) -> str:
    """Return the exporter that an environment names for TRACES or METRICS; empty: it names none.

    It is "none" while the environment turns OpenTelemetry off.
    """
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return "none" if off else environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()


def check_grpc(signal: str, exporter: str, offered: str) -> None:
    """Raise ValueError unless an exporter is OTLP over gRPC."""
    variables = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next(filter(None, map(os.environ.get, variables)), "grpc")
    if exporter != "otlp" or protocol != "grpc":
        named = exporter if exporter != "otlp" else f"otlp over {protocol}"
        msg = f"{named} is not supported; set OTEL_{signal}_EXPORTER to {offered}, and the protocol to grpc"
        raise ValueError(msg)


def resource(version: str) -> Any:
    """Return the SDK's description of this process."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    attributes = {"service.version": version}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes[SERVICE_NAME] = "lowwater-authority"
    return Resource.create(attributes)


def reason_of(error: Exception, packages: str) -> str:
    """Return why OpenTelemetry cannot begin: the SDK raises what it likes for its variables."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is missing: pip install {packages}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
