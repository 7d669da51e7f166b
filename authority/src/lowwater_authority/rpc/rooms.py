"""What streams share and must not use up: places behind a gate, and bytes of memory."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater_authority.engine.admission import MOST_DELAY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

    from lowwater_authority.engine.admission import Gate

WATCHED_BYTES: Final = 256 << 20
"""Bytes of the names that watch streams follow, and of the values that wait for them."""

WATCHED_LEAST: Final = 16 << 10
"""Bytes of names that each stream may follow, whatever the others do: fifty names."""

NAME_WATCHED: Final = 512
"""Bytes that a followed name takes besides its characters, about: in the request, in the
subscription, and for the value that waits."""

SHARE: Final = 4
"""Divisor of a share: a stream may use at most 1/4 of the bytes that it leaves free, so the next
stream finds some."""

FLOOR: Final = 20
"""Guaranteed share. The n-th open stream may always use 1/(20 n) of the shared bytes. For 8,192
streams these shares add up to less than half of the bytes."""


class Turn(asyncio.Future[None]):
    """A stream's turn before a gate: done when the stream is inside."""

    def __init__(self, who: str) -> None:
        """``who``: principal of the stream; empty where callers are not told apart."""
        super().__init__()
        self.who = who


async def enter(gate: Gate[Turn], who: str) -> None:
    """Return when a stream of a principal is inside; call :func:`leave` then. Raises Overloaded."""
    loop = asyncio.get_running_loop()
    turn = Turn(who)
    if gate.enter(turn, loop.time(), who):
        return
    try:
        await turn
    except BaseException:  # cancelled: the caller has gone
        if not gate.give_up(turn) and not turn.cancelled() and turn.exception() is None:
            leave(gate, who)
        raise


def leave(gate: Gate[Turn], who: str) -> None:
    """Leave a gate, and let the next stream in."""
    now = asyncio.get_running_loop().time()
    turn = gate.leave(now, who)
    while turn is not None and turn.cancelled():  # its caller has gone in this moment
        turn = gate.leave(now, turn.who)
    if turn is not None:
        turn.set_result(None)


@asynccontextmanager
async def inside(gate: Gate[Turn], who: str) -> AsyncIterator[None]:
    """Be inside a gate. Raises Overloaded."""
    await enter(gate, who)
    try:
        yield
    finally:
        leave(gate, who)


class Room:
    """A bound of bytes; messages that do not fit wait, in order.

    A message that is larger than the bound is let in alone. All costs are O(1).
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.bytes = 0
        """Bytes of the messages inside."""
        self.peak = 0
        """Most bytes that ever were inside."""
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size: int) -> None:
        """Return when a message of ``size`` bytes is inside; call :meth:`leave` then."""
        if self.free(size):
            self._admit(size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append((turn, size))
        try:
            await turn
        except BaseException:  # cancelled: the caller has gone
            if turn.cancelled():
                self._next()  # the message behind it may be smaller
            else:
                self.leave(size)
            raise

    def free(self, size: int) -> bool:
        """Return whether a message of ``size`` bytes may enter at once."""
        return not self._line and self._fits(size)

    def leave(self, size: int) -> None:
        """Leave with a message of ``size`` bytes, and let others in."""
        self.bytes -= size
        self._next()

    def _next(self) -> None:
        while self._line:
            turn, size = self._line[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self._admit(size)
                turn.set_result(None)
            self._line.popleft()

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self.bound

    def _admit(self, size: int) -> None:
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


class Shared:
    """A bound of bytes that all streams share, without a line: unsent refusals, or followed names.

    Nobody waits here, so a client that does not read keeps no other out. All costs are O(1).

    The share of a stream falls as the bytes fill up (Choudhury and Hahne 1998, "Dynamic queue
    length thresholds for shared-memory packet switches"), so the next stream finds some. Behind
    forty streams that take all they can, that share would be nothing. So each stream also has a
    guaranteed share, which falls with the number of streams; see ``FLOOR``.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.bytes = 0
        """Bytes in use."""
        self.streams = 0
        """Streams that use some, where they are counted here."""

    def share(self, own: int, streams: int) -> int:
        """Return how many bytes a stream may use that uses ``own`` now, one of ``streams``."""
        others = self.bytes - own
        return max((self.bound - others) // (SHARE + 1), self.bound // (FLOOR * streams))


@contextmanager
def watched(room: Shared, names: Collection[str]) -> Iterator[None]:
    """Use the bytes that it takes to follow names.

    Raises Overloaded when that is more than the share of a stream.
    """
    size = sum(map(len, names)) * 2 + len(names) * NAME_WATCHED
    if size > max(room.share(0, room.streams + 1), WATCHED_LEAST):
        msg = f"{len(names)} names are more than there is room to follow just now; follow fewer, or name none, for all"
        error = errors.Overloaded(msg, metadata={"bound": "watched_names", "limit": str(WATCHED_BYTES)})
        error.retry_after = MOST_DELAY
        raise error
    room.bytes += size
    room.streams += bool(names)
    try:
        yield
    finally:
        room.bytes -= size
        room.streams -= bool(names)
