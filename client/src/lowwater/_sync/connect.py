# Made by scripts/generate_sync.py from _async/connect.py: change that one.
"""How a program gets its client."""

from __future__ import annotations

from lowwater._sync.client import Client
from lowwater.core.settings import Settings, address_of

__all__ = ["connect"]


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
    watch_interval: float = 0.0,
) -> Client:
    """Return a client. Nothing goes over the network before its first use, so this never fails or waits.

    Args:
        address: ``host:port`` or a gRPC name; the environment's ``LOWWATER_ADDRESS``, else
            ``localhost:7420``. Several, with commas between them, are tried in turn. One is enough
            to reach every shard of a deployment while it lives: the client learns of the others and
            goes to whichever serves a computation by itself.
        token: Sent as ``authorization: Bearer`` with every call: who this is, where the authority
            or a proxy wants to know.
        root_certificates: PEM of whom to trust; with any of the three, the channel uses TLS.
        private_key: PEM of this client's key, where the server wants one. When it is renewed, make
            another client.
        certificate_chain: PEM of this client's certificates.
        server_token: The deployment that must answer; by default the first that does.
        namespace: Put before names that have none: ``enriched`` becomes ``NAMESPACE/enriched``.
        timeout: Seconds within which a call must be answered, its repetitions included.
        report_interval: Seconds between the reports of one claim in the long run, for a worker that
            stages states without a pause; in between they are conflated. A state of a claim that
            was quiet leaves at once, and so do more, until it has reported as often as it might
            have in the last ten seconds. All claims together report to a shard at most five times
            as often, likewise. What is flushed waits for none of this.
        watch_interval: Seconds that each shard leaves at least between two messages of watermarks
            to this client, at most one; what changes meanwhile is conflated there, and costs
            neither end anything. 0: each change is told at once. For programs that show watermarks,
            and wait for none. An authority of 0.1 takes no notice.
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
            watch_interval=watch_interval,
        )
    )
