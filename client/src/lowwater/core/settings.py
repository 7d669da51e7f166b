"""Settings that say how to reach the authority, for both shells."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from lowwater.core import checks

__all__ = ["DEFAULT_ADDRESS", "OPTIONS", "Settings", "address_of", "is_loopback", "options_of", "proxy_of", "with_port"]

DEFAULT_PORT: Final = 7420
"""Port at which an authority listens by default. gRPC's own default would be 443."""

DEFAULT_ADDRESS: Final = f"localhost:{DEFAULT_PORT}"

_RESOLVER: Final = re.compile(r"((?:dns:(?://[^/]*/)?)|ipv[46]:)?(.*)", re.DOTALL)
"""Scheme that gRPC resolves to hosts, and the host with its port behind it."""

_NO_PORT: Final = re.compile(r"(unix|unix-abstract|vsock|xds|passthrough):")
"""Schemes of addresses without host and port, which gRPC gets unchanged."""

_SECRET: Final = "(not shown)"
_TOKEN: Final = re.compile(r"[\x20-\x7e]*")

_MOST_WATCH_INTERVAL: Final = 1.0
"""Most seconds that the authority accepts: a stream that is silent for longer counts as broken."""

OPTIONS: Final = (
    # A frozen peer is noticed after 11 s; without ping_timeout_ms its default of 60 s would
    # override keepalive_timeout_ms. The authority allows a ping every 2 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A subscriber that stalls then finds some 17 KB of old watermarks in gRPC's buffers. It would
    # be 100 KB without the second option, and 4 MB without both.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 8_192),
    # Streams and calls have a backoff of their own, up to 5 s with full jitter; the channel must be
    # ready by then.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Room for a claim of a million ranges in one message.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
"""Options of every channel."""

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables in which gRPC looks for a proxy; the first that is set counts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one client: how it reaches the authority.

    Plain values, so that they can be pickled and sent to other processes. Raises InvalidArgument
    for values that can reach nothing.
    """

    address: str
    token: str | None = field(default=None, repr=False)
    root_certificates: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)
    certificate_chain: bytes | None = None
    server_token: str = ""
    namespace: str = ""
    timeout: float = 10.0
    report_interval: float = 0.05
    watch_interval: float = 0.0

    def __post_init__(self) -> None:
        checks.text("address", self.address)
        _ = self.addresses
        token: Any = self.token
        if token is not None and (not isinstance(token, str) or _TOKEN.fullmatch(token) is None):
            raise checks.refused("token", _SECRET, "text of printable ASCII, without line breaks")
        for field_name in ("root_certificates", "private_key", "certificate_chain"):
            # An empty value counts as given: taken for None, it would send the token over the
            # network unencrypted.
            value = getattr(self, field_name)
            if not isinstance(value, bytes | None) or value == b"":
                raise checks.refused(field_name, _SECRET if value else value, "the bytes of a PEM file, or None")
        if (self.private_key is None) != (self.certificate_chain is None):
            missing = "private_key" if self.private_key is None else "certificate_chain"
            raise checks.refused(missing, None, "private_key and certificate_chain, or neither")
        checks.text("server_token", self.server_token)
        if self.namespace != "":
            checks.name_part("namespace", self.namespace)
        checks.seconds("timeout", self.timeout, positive=True)
        checks.seconds("report_interval", self.report_interval, positive=True)
        if checks.seconds("watch_interval", self.watch_interval) > _MOST_WATCH_INTERVAL:
            raise checks.refused("watch_interval", self.watch_interval, f"at most {_MOST_WATCH_INTERVAL:g} second")

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses in ``address``, in order, each with its port. Raises InvalidArgument."""
        try:
            return tuple(with_port(address.strip()) for address in self.address.split(","))
        except ValueError as error:
            fix = "host:port, such as localhost:7420, several with commas between them"
            raise checks.refused("address", self.address, f"{fix} ({error})" if f"{error}" else fix) from None

    @property
    def encrypted(self) -> bool:
        """True when the channel uses TLS."""
        files = (self.root_certificates, self.private_key, self.certificate_chain)
        return any(file is not None for file in files)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """Credentials that every channel encrypts with; None without TLS."""
        if not self.encrypted:
            return None
        return grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """Return the credentials of the channel to an address; None without TLS."""
        return self.credentials

    @property
    def edition(self) -> object:
        """Value that changes with the credentials, for new channels; plain ones never change."""
        return None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call: the token, if there is one."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def with_port(address: str) -> str:
    """Return an address in gRPC's form, with the default port when it has none.

    Raises ValueError with what is wrong.

    >>> with_port("lowwater"), with_port("lowwater:1"), with_port("dns:///lowwater")
    ('lowwater:7420', 'lowwater:1', 'dns:///lowwater:7420')
    >>> with_port("unix:/run/lowwater")
    'unix:/run/lowwater'
    >>> with_port("::1"), with_port("[::1]"), with_port("[::1]:1"), with_port("ipv6:[::1]")
    ('[::1]:7420', '[::1]:7420', '[::1]:1', 'ipv6:[::1]:7420')
    """
    if _NO_PORT.match(address):
        return address
    match = _RESOLVER.fullmatch(address)
    scheme, place = (match[1] or "", match[2]) if match else ("", address)
    if not place or set(place) & set(" /@"):
        msg = "one address is empty" if not place else f"{address!r} is more than a host and a port; leave out the rest"
        raise ValueError(msg)
    if _is_ipv6(place):
        return f"{scheme}[{place}]:{DEFAULT_PORT}"
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    if not host or (":" in host and not (host[0] == "[" and host[-1] == "]" and _is_ipv6(host[1:-1]))):
        msg = f"{address!r} names no host; an IPv6 address with a port stands in brackets, such as [::1]:{DEFAULT_PORT}"
        raise ValueError(msg)
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"{port!r} is no port")
    return f"{scheme}{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return True when only this machine can reach a server at this host.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local(address: str) -> bool:
    match = _RESOLVER.fullmatch(address)
    return match is not None and is_loopback(match[2].rpartition(":")[0])


def options_of(address: str) -> tuple[tuple[str, int], ...]:
    """Return the options of a channel; a loopback address gets none of the environment's proxies.

    >>> options_of("localhost:7420")[-1]
    ('grpc.enable_http_proxy', 0)
    """
    return (*OPTIONS, ("grpc.enable_http_proxy", 0)) if _is_local(address) else OPTIONS


def proxy_of(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the environment variable whose proxy gRPC may use for an address; empty for none.

    Only the variable's name is for messages: its value may have a password.

    >>> proxy_of("lowwater:7420", {"http_proxy": "x"}), proxy_of("[::1]:7420", {"http_proxy": "x"})
    ('http_proxy', '')
    """
    return "" if _is_local(address) else next((name for name in _PROXIES if environment.get(name)), "")


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def address_of(address: str | None) -> str:
    """Return the given address; for None that of the environment, or the default."""
    return address if address is not None else os.environ.get("LOWWATER_ADDRESS") or DEFAULT_ADDRESS
