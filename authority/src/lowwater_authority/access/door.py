"""The access control of a process, put together: the file, the guard, and the tokens by which the deployment calls itself."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final

from lowwater._server.tokens import LEAST_TOKEN
from lowwater.core.events import event
from lowwater.core.settings import is_loopback
from lowwater_authority.access.file import AccessFile
from lowwater_authority.access.policy import PEER, SELF, insider
from lowwater_authority.files.secret import secret
from lowwater_authority.files.table import BadFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lowwater_authority.access.policy import Access, Limits

__all__ = ["PEER_TOKEN", "Door", "open_door"]

PEER_TOKEN: Final = "LOWWATER_PEER_TOKEN"
"""The variable with the token that shards present to each other: the first of those with commas
between them; all are accepted."""

log = logging.getLogger(__name__)


class Door:
    """Who may come in.

    ``shared``: whether there are other shards. Raises BadFile for a file, or a peer token, that
    cannot be used.

    What is asked of oneself, for the page, is asked of all shards in turn, so that the one token of
    a deployment serves for both. The only process of one makes its own token when it starts, and
    writes it nowhere.
    """

    def __init__(
        self, path: Path, *, shared: bool, environment: Mapping[str, str], limits: Limits | None = None
    ) -> None:
        tokens = _peer_tokens(environment) if shared else [secrets.token_urlsafe(32)]
        self.token: str = tokens[0]
        """What this process presents, to itself and to other shards."""
        self.insiders = (insider(PEER if shared else SELF, tokens),)
        self.file = AccessFile(path, limits=limits, check=self._check)
        """Followed by `watch`."""

    def access(self) -> Access:
        """Return the rules in force."""
        return self.file.value

    async def watch(self) -> None:
        """Follow the file, for ever."""
        await self.file.watch()

    def _check(self, access: Access) -> None:
        """Raise BadFile for a file that gives somebody the token of shards: who presents it could be either."""
        own = {each for principal in self.insiders for each in principal.digests}
        for number, principal in enumerate(access.principals, 1):
            if not own.isdisjoint(principal.digests):
                place = f"principal[{number}].token_sha256"
                raise BadFile(place, f"has the digest of a token in {PEER_TOKEN}", "give each a token of its own")


def open_door(
    path: Path | None,
    address: str,
    host: str,
    *,
    encrypted: bool,
    shared: bool,
    environment: Mapping[str, str],
    limits: Limits | None = None,
) -> Door | None:
    """Return who may come in to an address; None: everybody.

    Says once what is open to others than this machine. Raises BadFile.

    ``limits`` are those that count where the file sets none.
    """
    local = is_loopback(host)
    if path is not None:
        if not local and not encrypted:
            log.warning(
                "tokens go over the network as they are: give --tls-cert and --tls-key, unless something before this process encrypts",
                extra=event("tokens_in_clear", address=address),
            )
        return Door(path, shared=shared, environment=environment, limits=limits)
    if not local:
        log.warning(
            "whoever reaches %s may do everything, and whoever reaches the page sees all of it, under mutual TLS too: give --access to say who may do "
            "what (docs/security.md)",
            address,
            extra=event("open_to_all", address=address),
        )
    return None


def _peer_tokens(environment: Mapping[str, str]) -> list[str]:
    tokens = [token for token in (each.strip() for each in secret(PEER_TOKEN, environment).split(",")) if token]
    fix = f"set {PEER_TOKEN} in the environment of all shards to what `lowwater access token` prints"
    if not tokens:
        raise BadFile(PEER_TOKEN, "is missing: --access with --store needs it, for shards ask each other", fix)
    if min(map(len, tokens)) < LEAST_TOKEN:
        raise BadFile(PEER_TOKEN, f"has a token of less than {LEAST_TOKEN} characters", fix)
    return tokens
