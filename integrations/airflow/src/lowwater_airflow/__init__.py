"""Low watermarks in Airflow: a connection, a sensor that waits for an interval, and asset events.

``hook`` has the connection, ``sensor`` the task that waits, ``trigger`` its part in the triggerer,
and ``watch`` the source of asset events.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

__all__ = ["get_provider_info"]


def _text(label: str) -> dict[str, Any]:
    return {"label": label, "schema": {"type": ["string", "null"]}}


def get_provider_info() -> dict[str, Any]:
    """Return what Airflow asks of a provider."""
    return {
        "package-name": "airflow-provider-lowwater",
        "name": "lowwater",
        "description": "Tasks that wait until an interval of event time is complete, and asset events when it is.",
        "versions": [version("airflow-provider-lowwater")],
        "integrations": [{"integration-name": "lowwater", "external-doc-url": "", "tags": ["service"]}],
        "hooks": [{"integration-name": "lowwater", "python-modules": ["lowwater_airflow.hook"]}],
        "sensors": [{"integration-name": "lowwater", "python-modules": ["lowwater_airflow.sensor"]}],
        "triggers": [
            {"integration-name": "lowwater", "python-modules": ["lowwater_airflow.trigger", "lowwater_airflow.watch"]}
        ],
        "connection-types": [
            {
                "hook-class-name": "lowwater_airflow.hook.LowwaterHook",
                "hook-name": "lowwater",
                "connection-type": "lowwater",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login"],
                    "relabeling": {"host": "Host, or several addresses with commas", "password": "Token"},
                    "placeholders": {"host": "lowwater", "port": "7420"},
                },
                "conn-fields": {
                    "namespace": _text("Namespace, put before names that have none"),
                    "ca": _text("File of certificates to trust; turns TLS on"),
                    "cert": _text("File of this client's certificates"),
                    "key": _text("File of this client's key"),
                    "server_token": _text("The deployment that must answer"),
                },
            }
        ],
    }
