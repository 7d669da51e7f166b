"""Who calls: by a bearer token in the metadata of the call, or by the names of a verified client certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater_server.tokens import bearer, digest, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowwater_authority.access.policy import Access, Principal

__all__ = ["Credentials", "host_of", "presented"]

HEADER: Final = "authorization"

ALTERNATIVE_NAMES: Final = ("peer_uri", "peer_dns")
COMMON_NAME: Final = ("x509_common_name",)
"""What gRPC says of the certificate that a client has proved to own. It asks for one only under
--tls-client-ca, and ends the handshake of those that are not signed by it. Authorities check the
alternative names; the common name may be what the owner has asked for."""

HOW: Final = (
    "present a token (LOWWATER_TOKEN, or connect(token=...)) or a client certificate that the access file names"
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller has presented: enough to look it up again, and not the token."""

    token_digest: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """First digits of the token's hash, by which the log tells tokens apart; empty: no token."""
        return fingerprint(self.token_digest or "")

    def principal(self, access: Access, now: float) -> Principal:
        """Return who presents them at a second since the Unix epoch.

        A token counts before a certificate, and a wrong one is not made good by it.

        Raises Unauthenticated, which names whose token has expired.
        """
        if self.token_digest is not None:
            found = access.whose(self.token_digest, now)
            if found is not None:
                return found
            before = access.whose(self.token_digest, -math.inf)
            if before is not None:
                raise _unknown(f"this token of {before.name} has expired", before.name)
            raise _unknown("the token is nobody's: it is wrong, or was removed")
        if not self.names:
            raise _unknown("this authority wants to know who calls")
        several = access.certified(self.names)
        if not several:
            raise _unknown("the client certificate is nobody's")
        if len(several) > 1:
            raise _unknown("the names of the client certificate are those of several principals")
        return several[0]


def presented(metadata: Iterable[tuple[str, str | bytes]], auth_context: Mapping[str, Iterable[bytes]]) -> Credentials:
    """Return what a call presents: a token, or the names of a certificate, the common name only when it has no others.

    Raises Unauthenticated when there is something else than a bearer token, or several.
    """
    headers = [_text(value) for key, value in metadata if key == HEADER]
    if headers:
        try:
            return Credentials(digest(bearer(headers)))
        except ValueError as error:
            raise _unknown(str(error)) from None
    return Credentials(names=_names(auth_context, ALTERNATIVE_NAMES) or _names(auth_context, COMMON_NAME))


def host_of(peer: str) -> str:
    """Return the host of a peer, as gRPC writes it.

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
