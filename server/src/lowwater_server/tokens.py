"""Bearer tokens, as they are presented over gRPC and HTTP."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEME: Final = "bearer"


def bearer(headers: Sequence[str]) -> str:
    """Return the token in the values of the authorization headers, of which there is one at least.

    Raises ValueError, which quotes nothing.
    """
    if len(headers) > 1:
        msg = "there are several authorization headers"
        raise ValueError(msg)
    scheme, _, token = headers[0].partition(" ")
    if scheme.lower() != SCHEME or not is_token(token.strip()):
        msg = "the authorization header is not of the form 'Bearer TOKEN'"
        raise ValueError(msg)
    return token.strip()


LEAST_TOKEN: Final = 32
"""Characters of the shortest token that is accepted; `lowwater access token` makes 43. Its digest
is not salted: a short token could be guessed from it."""


def is_token(given: str) -> bool:
    """Whether it can be a token at all: those are of printable ASCII, without spaces around them."""
    return bool(given) and given == given.strip() and given.isascii() and given.isprintable()


def fingerprint(token_digest: str) -> str:
    """Return the first digits of a digest, by which the log tells the tokens of one principal apart."""
    return token_digest[:8]


def digest(token: str) -> str:
    """Return the SHA-256 of a token, as files have it.

    Tokens are random and long, so that nothing slower is needed: there is nothing to guess.

    >>> digest("not a good one")[:16]
    'e072c646dfd81bdc'
    """
    return sha256(token.encode(errors="surrogateescape")).hexdigest()
