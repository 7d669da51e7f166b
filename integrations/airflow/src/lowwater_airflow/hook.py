"""The connection to an authority."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

import lowwater
import lowwater.aio

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["LowwaterHook", "arguments_of"]


def arguments_of(connection: Connection) -> dict[str, Any]:
    """Return what ``lowwater.connect`` takes, by a connection of Airflow.

    The host may be several addresses, with commas between them, or a name that gRPC knows, such as
    ``dns:///host:7420``. The password is the token. Files of certificates are read here, so that a
    connection is made with those that are there now. Raises OSError.
    """
    extra = connection.extra_dejson
    host, port = connection.host or "localhost", connection.port
    address = f"{host}:{port}" if port and "," not in host and "/" not in host else host

    def file(name: str) -> bytes | None:
        return Path(extra[name]).read_bytes() if extra.get(name) else None

    return {
        "address": address,
        "token": connection.password or None,
        "root_certificates": file("ca"),
        "certificate_chain": file("cert"),
        "private_key": file("key"),
        "namespace": extra.get("namespace") or "",
        "server_token": extra.get("server_token") or "",
    }


class LowwaterHook(BaseHook):
    """Connection to an authority.

    ``with LowwaterHook().get_conn() as lw: lw.complete("hourly", until=...)``
    """

    conn_name_attr = "lowwater_conn_id"
    default_conn_name = "lowwater_default"
    conn_type = "lowwater"
    hook_name = "lowwater"

    def __init__(self, lowwater_conn_id: str = default_conn_name, **settings: Any) -> None:
        super().__init__(**settings)
        self.lowwater_conn_id = lowwater_conn_id

    def get_conn(self) -> lowwater.Client:
        """Return a client of the authority; close it after use."""
        return lowwater.connect(**arguments_of(self.get_connection(self.lowwater_conn_id)))

    async def aget_conn(self) -> lowwater.aio.Client:
        """Return a client on the running event loop; close it after use."""
        return lowwater.aio.connect(**arguments_of(await self.aget_connection(self.lowwater_conn_id)))

    def test_connection(self) -> tuple[bool, str]:
        """Tell whether the authority answers; Airflow shows it in the form of the connection."""
        try:
            with self.get_conn() as lw:
                lw.get()
                return True, f"the deployment {lw.server_token} answers"
        except (lowwater.LowwaterError, OSError) as error:
            return False, str(error)
