"""What a shard asks of the others and of itself: how, and how far computations are that they serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

import lowwater
from lowwater import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater._server.tls import Certificates
    from lowwater.aio import Client
    from lowwater_authority.engine.placement import Lows


@dataclass(frozen=True, slots=True)
class PeerSettings(lowwater.Settings):
    """How this process reaches other shards, and itself. Not for other processes.

    With certificates it shows its own pair, which mutual TLS wants of whoever connects, and trusts what ``--peer-ca`` names; each new
    channel takes those in force. Other shards are checked by the names that they advertise, as by any client.
    """

    certificates: Certificates | None = None
    own: str = ""
    """The socket by which only this process reaches itself, if there is one. It never leaves the machine, and lies in a folder that nobody
    else can enter: who could listen there could read the key as well. TLS would have to be told not to mind the name on a certificate that is
    not for 127.0.0.1, and that certificate to be one for clients too, which public authorities no longer sign."""

    @property
    def encrypted(self) -> bool:
        """Whether channels use TLS."""
        return self.certificates is not None

    @property
    def edition(self) -> object:
        """The pair in force."""
        return None if self.certificates is None else self.certificates.current()

    def credentials_for(self, address: str) -> grpc.ChannelCredentials | None:
        """What the channel to an address encrypts with; None without TLS."""
        if self.certificates is None or (self.own and address == self.own):
            return None
        pair = self.certificates.current()
        return grpc.ssl_channel_credentials(pair.peer_ca, pair.key, pair.chain)


class Peers:
    """Asks by the client library, which finds the shards. ``connect`` makes its client at the first question."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    async def lows(self, names: Sequence[str]) -> Lows:
        """See Placement."""
        if not names:
            return {}
        if self._client is None:
            self._client = self._connect()
        try:
            views = await self._client.get(*names)
        except (errors.Timeout, errors.StaleEpoch) as error:
            msg = f"the shards of {', '.join(names)} cannot be asked how far these are: {error}"
            raise errors.Unavailable(msg) from error
        except (errors.Unauthenticated, errors.PermissionDenied) as error:
            msg = f"the shards of {', '.join(names)} do not know this one: LOWWATER_PEER_TOKEN must name the same token at all of them: {error}"
            raise errors.Unavailable(msg) from error
        return {name: (view.incarnation, view.low.micros) for name, view in views.items()}

    async def close(self) -> None:
        """Let go of the client."""
        if self._client is not None:
            await self._client.close()
