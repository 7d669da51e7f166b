"""The access control of a process: the access file, and the tokens of the deployment itself."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final

from lowwater.core.events import event
from lowwater.core.settings import is_loopback
from lowwater_authority.access.file import AccessFile
from lowwater_authority.access.policy import PEER, SELF, insider
from lowwater_authority.files.secret import secret
from lowwater_authority.files.table import BadFile
from lowwater_server.tokens import LEAST_TOKEN, warn_in_clear

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lowwater_authority.access.policy import Access, Limits

PEER_TOKEN: Final = "LOWWATER_PEER_TOKEN"
"""Variable with the tokens of shards, separated by commas. A shard presents the first to others,
and accepts all."""

log = logging.getLogger(__name__)


class Door:
    """The access file of a process, and the token by which the process calls itself.

    ``shared``: the deployment may have other shards. They call each other, and themselves for the
    page, with one token. A process without other shards makes a token of its own at its start,
    which is in no file. Raises BadFile for a file, or a peer token, that cannot be used.
    """

    def __init__(
        self, path: Path, *, shared: bool, environment: Mapping[str, str], limits: Limits | None = None
    ) -> None:
        tokens = _peer_tokens(environment) if shared else [secrets.token_urlsafe(32)]
        self.token: str = tokens[0]
        """Token that this process presents to itself and to other shards."""
        self.insiders = (insider(PEER if shared else SELF, tokens),)
        self.file = AccessFile(path, limits=limits, check=self._check)
        """The access file, which :meth:`watch` follows."""

    def access(self) -> Access:
        """Return the rules in force."""
        return self.file.value

    async def watch(self) -> None:
        """Follow the file, without end."""
        await self.file.watch()

    def _check(self, access: Access) -> None:
        """Raise BadFile when a principal of the file has a token of the shards."""
        own = {token for principal in self.insiders for token in principal.digests}
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
    """Return the access control of an address; None: every caller may do everything.

    It logs once what is open to other machines. ``limits`` count where the file sets none. Raises
    BadFile.
    """
    local = is_loopback(host)
    if path is not None:
        if not local and not encrypted:
            warn_in_clear(address)
        return Door(path, shared=shared, environment=environment, limits=limits)
    if not local:
        log.warning(
            "whoever reaches %s may do everything, and whoever reaches the page sees all of it, under mutual TLS too: give "
            "--access to say who may do what (docs/operate/security.md)",
            address,
            extra=event("open_to_all", address=address),
        )
    return None


def _peer_tokens(environment: Mapping[str, str]) -> list[str]:
    tokens = [token for token in (part.strip() for part in secret(PEER_TOKEN, environment).split(",")) if token]
    fix = f"set {PEER_TOKEN} in the environment of all shards to what `lowwater access token` prints"
    if not tokens:
        raise BadFile(PEER_TOKEN, "is missing: --access with --store needs it, for shards ask each other", fix)
    if min(map(len, tokens)) < LEAST_TOKEN:
        raise BadFile(PEER_TOKEN, f"has a token of less than {LEAST_TOKEN} characters", fix)
    return tokens
