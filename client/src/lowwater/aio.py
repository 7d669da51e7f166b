"""The client on asyncio: the same names and rules as :mod:`lowwater`, with coroutines where something is waited for.

    async with lowwater.aio.connect() as lw:
        await lw.register("enriched", inputs=["flights"])
        async with lw.worker("enriched") as worker:
            lease = await worker.claim()
            seen = await worker.inputs()      # first the snapshot,
            await process(everything_there())   # then all that was there,
            lease.advance(seen, oldest=None)    # then the claim

Event times, views and errors are those of :mod:`lowwater`.
"""

from __future__ import annotations

from lowwater._aio.client import Client
from lowwater._aio.inputs import InputReader
from lowwater._aio.lease import Lease
from lowwater._aio.worker import Worker
from lowwater._core.settings import Settings, address_of

__all__ = ["Client", "InputReader", "Lease", "Worker", "connect"]


def connect(
    address: str | None = None,
    *,
    token: str | None = None,
    root_certificates: bytes | None = None,
    private_key: bytes | None = None,
    certificate_chain: bytes | None = None,
    server_token: str = "",
    namespace: str = "",
    timeout: float = 10.0,
    report_interval: float = 0.05,
) -> Client:
    """Return a client for the running event loop; the arguments are those of :func:`lowwater.connect`.

    Nothing goes over the network before its first use, so this never fails or waits.
    """
    return Client(
        Settings(
            address=address_of(address),
            token=token,
            root_certificates=root_certificates,
            private_key=private_key,
            certificate_chain=certificate_chain,
            server_token=server_token,
            namespace=namespace,
            timeout=timeout,
            report_interval=report_interval,
        )
    )
