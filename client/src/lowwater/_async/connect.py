"""The function that makes a client."""

from __future__ import annotations

from lowwater._async.client import Client
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
    """Return a client for the running event loop.

    Nothing goes over the network before its first use, so this never fails or waits.

    Args:
        address: ``host:port`` or a gRPC name; by default the environment's ``LOWWATER_ADDRESS``,
            else ``localhost:7420``. Several, separated by commas, are tried in turn. One living
            shard is enough to reach all of a deployment: the client learns the others' addresses.
        token: Token of this client, sent as ``authorization: Bearer`` with every call.
        root_certificates: PEM of the authorities to trust; with any of the three, the channel uses
            TLS.
        private_key: PEM of this client's key, for a server that requires one. A renewed key needs a
            new client.
        certificate_chain: PEM of this client's certificates.
        server_token: Token of the deployment that must answer; by default the first that does.
        namespace: Prefix of names that have none: ``enriched`` becomes ``NAMESPACE/enriched``.
        timeout: Seconds within which a call must be answered, with all its repetitions.
        report_interval: Seconds between the reports of one claim in the long run, for a worker that
            stages states without a pause; states in between are conflated. A claim that was quiet
            is sent at once, until it has reported as often as it could have in the last ten
            seconds. All claims together report to a shard at most five times as often. ``flush``
            does not wait for this interval.
        watch_interval: Least seconds between two messages of watermarks of one shard to this
            client, at most 1. Changes in between are conflated at the shard, which saves work on
            both sides. 0: each change is sent at once. For programs that show watermarks and wait
            for none. An authority of 0.1 ignores it.
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
