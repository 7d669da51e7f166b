"""A connection to each other shard, which shows at once when the process of the shard dies.

The kernel of a dead process closes its connection and refuses the next one. That is evidence and no
proof: a shard loses what it serves only when it has not beaten either, if only for a shorter time
(``membership.proposal``). The kernel accepts connections for a process that is stopped, or very
busy, and a host that is away refuses none. So these two give no evidence, and lose what they serve
only after the usual silence.

Nothing is sent on a connection, and received bytes are thrown away. The server closes an idle
connection in the end, and it is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowwater_authority.cluster.membership import Member

SHORTEST: Final = 0.005
"""Seconds until a connection that was closed as soon as it was open is opened again. The pause
doubles each time."""

CHUNK: Final = 1 << 12
"""Bytes that are read, and thrown away, at a time."""


class Lifelines:
    """The connections of one process, one to each other member.

    ``pause`` is the time in seconds between two attempts to connect, and the most that one may
    take. Cost: a socket for each other member at both ends, and an attempt each time a connection
    was refused or closed.
    """

    def __init__(self, me: Member, pause: float) -> None:
        self.gone: set[str] = set()
        """Ids of the members whose process closed a connection, and whose address has refused one
        and accepted none since."""
        self.on_gone: Callable[[Member], None] = lambda _: None
        """Function that is called with each member that is added to ``gone``."""
        self._me = me
        self._pause = pause
        self._lines: dict[str, asyncio.Task[None]] = {}

    def follow(self, members: Iterable[Member]) -> None:
        """Hold a connection to each of these members but this process, and to no other.

        A process that was started again is another member.
        """
        others = {member.id: member for member in members if member.id != self._me.id}
        for member_id in self._lines.keys() - others.keys():
            self._lines.pop(member_id).cancel()
            self.gone.discard(member_id)
        for member_id, member in others.items():
            if member_id not in self._lines:
                self._lines[member_id] = asyncio.create_task(self._hold(member))

    async def close(self) -> None:
        """Close all connections."""
        lines = list(self._lines.values())
        self.follow(())
        await asyncio.gather(*lines, return_exceptions=True)

    async def _hold(self, member: Member) -> None:
        host, _, port = member.address.rpartition(":")
        advertised = host.strip("[]"), int(port)
        place, accepted, rest = advertised, False, 0.0
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            try:
                async with asyncio.timeout(self._pause):
                    reader, writer = await asyncio.open_connection(*place)
            except ConnectionRefusedError:
                if accepted and member.id not in self.gone:
                    self.gone.add(member.id)
                    self.on_gone(member)
            except (OSError, ValueError, OverflowError):  # a TimeoutError too, and a text that is no name or number
                # The member stays in ``gone`` if it is there: the network of a container ends a
                # moment after its process.
                place = advertised
            else:
                self.gone.discard(member.id)
                # A name may have several addresses. Only a refusal by the address that has accepted
                # is evidence. It is None when the connection was reset at once.
                if (peer := writer.get_extra_info("peername")) is not None:
                    place, accepted = (str(peer[0]), int(peer[1])), True
                try:
                    await _end(reader)
                finally:
                    writer.transport.abort()
                # A process that has just died refuses now, or in a moment. A server that closes
                # every connection at once is tried ever more rarely.
                rest = 0.0 if now() - began >= self._pause else min(max(2 * rest, SHORTEST), self._pause)
                await asyncio.sleep(rest)
                continue
            await asyncio.sleep(self._pause)


async def _end(reader: asyncio.StreamReader) -> None:
    """Wait until the other end closes a connection."""
    with contextlib.suppress(OSError):
        while await reader.read(CHUNK):
            pass
