"""Credentials of a call: a bearer token, or the names of a verified client certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater_server.tokens import bearer, digest, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowwater_authority.access.policy import Access, Principal

HEADER: Final = "authorization"

ALTERNATIVE_NAMES: Final = ("peer_uri", "peer_dns")
COMMON_NAME: Final = ("x509_common_name",)
"""Keys under which gRPC gives the names of a client's certificate. gRPC asks for a certificate only
with --tls-client-ca, and verifies it. Certificate authorities check the alternative names; the
common name may be whatever its owner has asked for."""

HOW: Final = (
    "present a token (LOWWATER_TOKEN, or connect(token=...)) or a client certificate that the access file names"
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller has presented: the digest of its token, or the names of its certificate."""

    token_digest: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """First digits of the token's digest, which name the token in logs; empty: no token."""
        return fingerprint(self.token_digest or "")

    def principal(self, access: Access, now: float) -> Principal:
        """Return the principal with these credentials at ``now``, in seconds since the Unix epoch.

        If there is a token, it decides, and a certificate does not make up for a wrong one. Raises
        Unauthenticated, which names the owner of an expired token.
        """
        if self.token_digest is not None:
            owner = access.whose(self.token_digest, now)
            if owner is not None:
                return owner
            former = access.whose(self.token_digest, -math.inf)
            if former is not None:
                raise _unknown(f"this token of {former.name} has expired", former.name)
            raise _unknown("no principal has this token: it is wrong, or was removed")
        if not self.names:
            raise _unknown("the call has no token and no client certificate")
        principals = access.certified(self.names)
        if not principals:
            raise _unknown("no principal has this client certificate")
        if len(principals) > 1:
            raise _unknown("the names of the client certificate are those of several principals")
        return principals[0]


def presented(metadata: Iterable[tuple[str, str | bytes]], auth_context: Mapping[str, Iterable[bytes]]) -> Credentials:
    """Return the credentials of a call: its token, or the names of its certificate.

    The common name counts only when the certificate has no other names. Raises Unauthenticated for
    an authorization other than one bearer token.
    """
    headers = [_text(value) for key, value in metadata if key == HEADER]
    if headers:
        try:
            return Credentials(digest(bearer(headers)))
        except ValueError as error:
            raise _unknown(str(error)) from None
    return Credentials(names=_names(auth_context, ALTERNATIVE_NAMES) or _names(auth_context, COMMON_NAME))


def host_of(peer: str) -> str:
    """Return the host of a peer in gRPC's notation.

    >>> host_of("ipv4:10.0.0.7:40150"), host_of("ipv6:%5B::1%5D:40150"), host_of("unix:")
    ('10.0.0.7', '::1', 'unix')
    """
    kind, _, rest = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return kind
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")


def _names(auth_context: Mapping[str, Iterable[bytes]], keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_text(value) for key in keys for value in auth_context.get(key, ())))


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _unknown(what: str, principal: str = "") -> errors.Unauthenticated:
    return errors.Unauthenticated(f"{what}; {HOW}", metadata={"principal": principal} if principal else {})
