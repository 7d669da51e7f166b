"""A connection to each other shard, which says at once when a process has died: the kernel closes it, and refuses the next one.

That is evidence and not proof, and it never comes alone: a shard loses what it serves only when the store has not heard of it either, if only
for a shorter time (``membership.proposal``). A process that is stopped, or very busy, still accepts connections, as the kernel does that
for it; a host that is away refuses none. So both give no evidence, and their silence is waited for as ever.

Nothing is said on a connection, and what is heard is thrown away. The server closes it in the end, as one on which nobody begins, and it is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lowwater_authority.cluster.membership import Member

__all__ = ["Lifelines"]

SHORTEST: Final = 0.005
"""Seconds until a connection is opened again that was closed as soon as it was open; twice as long
each time."""

CHUNK: Final = 1 << 12
"""Bytes that are thrown away at once."""


class Lifelines:
    """The connections of one process, one to each other member.

    ``pause``: seconds between two attempts to connect, and that one may take.

    Cost: a socket for each other member at both ends, and a connect each time one was refused or
    closed.
    """

    def __init__(self, me: Member, pause: float) -> None:
        self.gone: set[str] = set()
        """The ids of members whose process closed a connection, and whose address has refused one
        and accepted none since."""
        self.on_gone: Callable[[Member], None] = lambda _: None
        """Told of each more."""
        self._me = me
        self._pause = pause
        self._lines: dict[str, asyncio.Task[None]] = {}

    def follow(self, members: Iterable[Member]) -> None:
        """Hold a connection to each of these but this process, and to nobody else.

        A process that was started again is another member.
        """
        wanted = {member.id: member for member in members if member.id != self._me.id}
        for member_id in self._lines.keys() - wanted.keys():
            self._lines.pop(member_id).cancel()
            self.gone.discard(member_id)
        for member_id, member in wanted.items():
            if member_id not in self._lines:
                self._lines[member_id] = asyncio.create_task(self._hold(member))

    async def close(self) -> None:
        """Let go of all connections."""
        lines = list(self._lines.values())
        self.follow(())
        await asyncio.gather(*lines, return_exceptions=True)

    async def _hold(self, member: Member) -> None:
        host, _, port = member.address.rpartition(":")
        named = host.strip("[]"), int(port)
        place, held, rest = named, False, 0.0
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            try:
                async with asyncio.timeout(self._pause):
                    reader, writer = await asyncio.open_connection(*place)
            except ConnectionRefusedError:
                if held and member.id not in self.gone:
                    self.gone.add(member.id)
                    self.on_gone(member)
            except (OSError, ValueError, OverflowError):  # a TimeoutError too, and a text that is no name or number
                # It says nothing against a death before: the network of a container goes a moment
                # after its process.
                place = named
            else:
                self.gone.discard(member.id)
                # A name may have several addresses. Who has accepted is who has to refuse. None: it
                # was reset at once.
                if (reached := writer.get_extra_info("peername")) is not None:
                    place, held = (str(reached[0]), int(reached[1])), True
                try:
                    await _end(reader)
                finally:
                    writer.transport.abort()
                # What has just died refuses now, or in a moment. What hangs up on everybody is
                # asked ever more rarely.
                rest = 0.0 if now() - began >= self._pause else min(max(2 * rest, SHORTEST), self._pause)
                await asyncio.sleep(rest)
                continue
            await asyncio.sleep(self._pause)


async def _end(reader: asyncio.StreamReader) -> None:
    """Wait for the end of a connection."""
    with contextlib.suppress(OSError):
        while await reader.read(CHUNK):
            pass
