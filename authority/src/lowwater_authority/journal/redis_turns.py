"""The use of connections to Redis: calls in turn, calls beside, and logs taken together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from lowwater_authority.journal.contract import JournalClosed, JournalError, Ownership
from lowwater_authority.journal.redis_database import RedisDatabase
from lowwater_authority.journal.redis_link import Lost, NotSent
from lowwater_authority.journal.rules import Owned

T = TypeVar("T")

_TAKEN_AT_ONCE: Final = 256
"""Logs that are taken together at most. Each is a call of a script, and meanwhile Redis serves no
other call."""

_IDLE_SECONDS: Final = 10.0
"""Seconds after which an idle connection is not used again: a load balancer, say, may have dropped
it without a word."""


class Line:
    """The connection of a journal, one call at a time.

    A call goes on to its end when its caller is cancelled.
    """

    def __init__(self, database: RedisDatabase) -> None:
        self._database: RedisDatabase | None = database
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        """Calls under way; without a reference they could be collected."""

    def run(self, call: Callable[[RedisDatabase], Awaitable[T]]) -> Awaitable[T]:
        """Do a call when it has its turn. The place in the line is taken at once.

        Raises JournalClosed.
        """
        database = self._database
        if database is None:
            raise JournalClosed

        async def take_turn() -> T:
            async with self._turn:
                return await call(database)

        task = asyncio.create_task(take_turn())
        self._calls.add(task)
        task.add_done_callback(self._done)
        return asyncio.shield(task)

    def describe(self) -> str:
        """Return in one line what the settings of the server can lose. Raises JournalClosed."""
        if self._database is None:
            raise JournalClosed
        return self._database.describe()

    async def close(self) -> None:
        """Close the connection after the calls before. Does nothing the second time."""
        if self._database is not None:
            closing = self.run(lambda database: database.close())
            self._database = None
            await closing

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, because the caller may be gone


class Aside:
    """A second connection, one call at a time, for calls that wait until the store is durable.

    They hold up no other.
    """

    def __init__(self, database: RedisDatabase) -> None:
        self._database = database
        self._turn = asyncio.Lock()
        self._used_at = time.perf_counter()
        self._closed = False

    async def run(self, call: Callable[[RedisDatabase], Awaitable[T]]) -> T:
        """Do a call when it has its turn, over a new connection if the last one was idle for long.

        Raises JournalClosed.
        """
        async with self._turn:
            if self._closed:
                raise JournalClosed
            if time.perf_counter() - self._used_at > _IDLE_SECONDS:
                await self._database.hang_up()
            try:
                return await call(self._database)
            finally:
                self._used_at = time.perf_counter()

    async def close(self) -> None:
        """Close the connection after the call under way."""
        async with self._turn:
            self._closed = True
            await self._database.close()


class Takes:
    """Takes logs that this process does not own yet.

    Calls that come while others wait share one round trip. An error of one log is raised to its
    caller only; the silence of the store to all callers.
    """

    def __init__(self, aside: Aside, owned: Owned) -> None:
        self._aside = aside
        self._owned = owned
        self._waiting: dict[str, tuple[Ownership, asyncio.Future[Ownership]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def take(self, log: str, claim: Ownership) -> Ownership:
        """Take one log, which no other caller takes meanwhile.

        The call goes on to its end when its caller is cancelled.
        """
        answer: asyncio.Future[Ownership] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieved)
        self._waiting[log] = claim, answer
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await asyncio.shield(answer)

    async def close(self) -> None:
        """Close the connection after what is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._aside.close()

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = {log: self._waiting.pop(log) for log in list(self._waiting)[:_TAKEN_AT_ONCE]}
                outcomes = await self._outcomes({log: claim for log, (claim, _) in batch.items()})
                for log, (_, answer) in batch.items():
                    outcome = outcomes[log]
                    if isinstance(outcome, Exception):
                        answer.set_exception(outcome)
                    else:
                        answer.set_result(outcome)
        finally:
            self._task = None

    async def _outcomes(self, claims: Mapping[str, Ownership]) -> Mapping[str, Ownership | Exception]:
        """Take logs together, and one by one if the store refuses all because of one."""
        try:
            return await self._aside.run(lambda database: database.take(self._owned.states(claims), claims))
        except Exception as error:  # noqa: BLE001 - it is raised to the callers
            if len(claims) == 1 or _is_silence(error):
                return dict.fromkeys(claims, error)
        outcomes: dict[str, Ownership | Exception] = {}
        for log, claim in claims.items():
            outcomes.update(await self._outcomes({log: claim}))
            if _is_silence(outcomes[log]):
                return {**dict.fromkeys(claims, outcomes[log]), **outcomes}
        return outcomes


def _is_silence(outcome: object) -> bool:
    """Return whether the store has not answered at all."""
    return isinstance(outcome, JournalError) and isinstance(outcome.__cause__, NotSent | Lost)


def _retrieved(answer: asyncio.Future[Any]) -> None:
    answer.exception()  # its caller may be gone
