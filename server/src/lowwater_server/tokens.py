"""Bearer tokens, as gRPC and HTTP carry them."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from lowwater.core.events import event

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEME: Final = "bearer"

log = logging.getLogger(__name__)


def bearer(headers: Sequence[str]) -> str:
    """Return the token of one or more authorization headers.

    Raises ValueError, whose message does not quote them.
    """
    if len(headers) > 1:
        raise ValueError("there are several authorization headers")
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != SCHEME or not is_token(token.strip()):
        raise ValueError("the authorization header is not of the form 'Bearer TOKEN'")
    return token.strip()


LEAST_TOKEN: Final = 32
"""Length of the shortest token that is accepted; `lowwater access token` makes longer ones. Digests
have no salt, so a short token could be guessed from it."""


def warn_in_clear(address: str) -> None:
    """Log that whoever sees the network between callers and an address sees their tokens."""
    log.warning(
        "tokens go over the network unencrypted: give --tls-cert and --tls-key, unless a proxy before this process encrypts",
        extra=event("tokens_in_clear", address=address),
    )


def is_token(text: str) -> bool:
    """Tell whether a text can be a token: printable ASCII without spaces around it."""
    return bool(text) and text == text.strip() and text.isascii() and text.isprintable()


def fingerprint(token_digest: str) -> str:
    """Return the first digits of a digest, which identify a token in the log."""
    return token_digest[:8]


def digest(token: str) -> str:
    """Return the SHA-256 of a token, as files have it.

    Tokens are random and long, so they cannot be guessed even by a fast hash.

    >>> digest("not a good one")[:16]
    'e072c646dfd81bdc'
    """
    return sha256(token.encode(errors="surrogateescape")).hexdigest()
