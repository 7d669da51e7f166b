"""How to reach the authority, for both shells."""

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
"""Where an authority listens unless it is told otherwise. gRPC itself would take 443."""

DEFAULT_ADDRESS: Final = f"localhost:{DEFAULT_PORT}"

_RESOLVER: Final = re.compile(r"((?:dns:(?://[^/]*/)?)|ipv[46]:)?(.*)", re.DOTALL)
"""What gRPC resolves to hosts, and the host with its port behind that."""

_NO_PORT: Final = re.compile(r"(unix|unix-abstract|vsock|xds|passthrough):")
"""What gRPC is given as it is: it names no host and port."""

_SECRET: Final = "(not shown)"
_TOKEN: Final = re.compile(r"[\x20-\x7e]*")

_MOST_WATCH_INTERVAL: Final = 1.0
"""What the authority takes: a stream on which nothing comes for longer passes for broken."""

OPTIONS: Final = (
    # A frozen peer is noticed after 11 s; without ping_timeout_ms its default of 60 s would
    # override keepalive_timeout_ms. The authority allows a ping every 2 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A subscriber that stalls finds some 17 KB of old watermarks in gRPC's buffers: 100 KB without
    # the second, 4 MB without either.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 8_192),
    # Streams and calls back off by themselves, up to 5 s with full jitter; the channel must be
    # ready for them by then.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A claim of a million ranges in one message.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)
"""Options of every channel."""

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
"""The variables of the environment in which gRPC looks for a proxy, the first that is set."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach the authority.

    Plain values, so that it may be pickled and sent to other processes.

    Raises InvalidArgument for what nothing could be reached with.
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
            # An empty one is no less asked for: taken for None, it would have a token go over the
            # network as it is.
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
        """The addresses in ``address``, in order, each with its port.

        Raises InvalidArgument for what is no address.
        """
        try:
            return tuple(with_port(each.strip()) for each in self.address.split(","))
        except ValueError as error:
            fix = "host:port, such as localhost:7420, several with commas between them"
            raise checks.refused("address", self.address, f"{fix} ({error})" if f"{error}" else fix) from None

    @property
    def encrypted(self) -> bool:
        """Whether the channel uses TLS."""
        given = (self.root_certificates, self.private_key, self.certificate_chain)
        return any(each is not None for each in given)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """What the channel encrypts with; None without TLS."""
        if not self.encrypted:
            return None
        return grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """What the channel to an address encrypts with; None without TLS."""
        return self.credentials

    @property
    def edition(self) -> object:
        """Changes whenever the credentials do, so that channels are made anew with them.

        Plain values never change.
        """
        return None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes along with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def with_port(address: str) -> str:
    """Return an address as gRPC takes it; without a port, with that of an authority.

    Raises ValueError, which says what is wrong.

    >>> with_port("lowwater"), with_port("lowwater:1"), with_port("dns:///lowwater"), with_port("unix:/run/lowwater")
    ('lowwater:7420', 'lowwater:1', 'dns:///lowwater:7420', 'unix:/run/lowwater')
    >>> with_port("::1"), with_port("[::1]"), with_port("[::1]:1"), with_port("ipv6:[::1]")
    ('[::1]:7420', '[::1]:7420', '[::1]:1', 'ipv6:[::1]:7420')
    """
    if _NO_PORT.match(address):
        return address
    found = _RESOLVER.fullmatch(address)
    scheme, place = (found[1] or "", found[2]) if found else ("", address)
    if not place or set(place) & set(" /@"):
        msg = "one is empty" if not place else f"{address!r} is more than a host and a port; leave out the rest"
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
        msg = f"{port!r} is no port"
        raise ValueError(msg)
    return f"{scheme}{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_local(address: str) -> bool:
    found = _RESOLVER.fullmatch(address)
    return found is not None and is_loopback(found[2].rpartition(":")[0])


def options_of(address: str) -> tuple[tuple[str, int], ...]:
    """Return the options of a channel.

    No proxy of the environment can reach what listens on this machine alone.

    >>> options_of("localhost:7420")[-1]
    ('grpc.enable_http_proxy', 0)
    """
    return (*OPTIONS, ("grpc.enable_http_proxy", 0)) if _is_local(address) else OPTIONS


def proxy_of(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the variable of the environment whose proxy gRPC may go through to an address; empty when there is none.

    Its value is no part of a message: it may have a password.

    >>> proxy_of("lowwater:7420", {"http_proxy": "http://proxy:3128"}), proxy_of("[::1]:7420", {"http_proxy": "x"})
    ('http_proxy', '')
    """
    return "" if _is_local(address) else next((name for name in _PROXIES if environment.get(name)), "")


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def address_of(address: str | None) -> str:
    """Return the address given; None: that of the environment, or the default."""
    return address if address is not None else os.environ.get("LOWWATER_ADDRESS") or DEFAULT_ADDRESS
