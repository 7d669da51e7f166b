"""The ``Directory`` in Redis, 7.0 or newer, beside the journal of the same namespace.

| key           | type | holds                                                                 |
| ------------- | ---- | --------------------------------------------------------------------- |
| ``TAG:view``  | hash | version, the view, and since when beats came without a gap            |
| ``TAG:beats`` | hash | by id: when the shard last beat, microseconds by the clock of Redis   |

Both carry the hash tag of the journal. Times and versions stay below 2^53 (the year 2255), where a
Lua number is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from google.protobuf.message import DecodeError
from redis.exceptions import RedisError

from lowwater_authority.cluster.directory import Directory
from lowwater_authority.cluster.membership import Beats, View
from lowwater_authority.journal.contract import JournalClosed, JournalCorrupt, JournalFailed, JournalUnknown
from lowwater_authority.journal.redis_database import Keys
from lowwater_authority.journal.redis_link import Address, Command, Lost, NotSent, RedisLink
from lowwater_authority.journal.redis_scripts import Script

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local text = string.format('%.0f', now)
"""

# KEYS: view, beats. ARGV: id, the largest gap. Answers now, since, version, view, and the beats:
# id, time, ...
BEAT: Final = Script(f"""#!lua
{_NOW}
local found = redis.call('HMGET', KEYS[1], 'since', 'version', 'view')
local beats, newest = redis.call('HGETALL', KEYS[2]), 0
for i = 1, #beats, 2 do
    newest = math.max(newest, tonumber(beats[i + 1]))
    if tonumber(beats[i + 1]) > now then
        redis.call('HSET', KEYS[2], beats[i], text)
    end
end
redis.call('HSET', KEYS[2], ARGV[1], text)
local since = found[1]
if not since or tonumber(since) > now or now - newest > tonumber(ARGV[2]) then
    since = text
    redis.call('HSET', KEYS[1], 'since', since)
end
return {{text, since, found[2] or '0', found[3] or '', redis.call('HGETALL', KEYS[2])}}
""")

# KEYS: view, beats. ARGV: the version to replace, the new one, the new view, the ids in it.
PROPOSE: Final = Script(f"""#!lua
{_NOW}
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then
    return {{'CHANGED'}}
end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'view', ARGV[3])
local members = {{}}
for i = 4, #ARGV do
    members[ARGV[i]] = true
    redis.call('HSETNX', KEYS[2], ARGV[i], text)
end
for _, id in ipairs(redis.call('HKEYS', KEYS[2])) do
    if not members[id] then
        redis.call('HDEL', KEYS[2], id)
    end
end
return {{'OK'}}
""")


class RedisDirectory(Directory):
    """The contract over Redis, on a connection of its own.

    An append that waits for replicas holds up no beat. ``url``, ``namespace`` and ``timeout``, in
    seconds, are those of RedisJournal, and raise the same ValueErrors. A beat is given up after
    ``timeout``, which should be well below ``dead_after``. ``dead_after``, in microseconds, is the
    same for all shards.
    """

    def __init__(self, url: str, *, namespace: str = "default", timeout: float = 1.0, dead_after: int) -> None:
        keys = Keys.of(namespace)
        self._address = Address(url)
        self._keys = [keys.view, keys.beats]
        self._timeout = timeout
        self._gap = dead_after // 2
        self._link: RedisLink | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """See Directory."""
        self._link = RedisLink(self._address, self._keys[0], self._timeout)
        try:
            await self._ask(lambda link: link.run(("PING",)))
        except BaseException:
            await self.close()
            raise

    async def beat(self, member_id: str) -> tuple[View, Beats]:
        """See Directory."""
        now, since, version, payload, beats = await self._run(BEAT, [member_id, self._gap])
        last = {name.decode(): int(time) for name, time in zip(beats[::2], beats[1::2], strict=True)}
        return self._view(int(version), payload), Beats(int(now), last, int(since))

    async def propose(self, view: View, *, over: int) -> bool:
        """See Directory."""
        ids = [member.id for member in view.members]
        reply = await self._run(PROPOSE, [over, view.version, view.encode(), *ids])
        return bool(reply[0] == b"OK")

    async def close(self) -> None:
        """See Directory."""
        async with self._turn:
            link, self._link = self._link, None
            if link is not None:
                await link.close()

    def _view(self, version: int, payload: bytes) -> View:
        try:
            view = View.decode(payload)
        except DecodeError:
            view = View(-1)
        if view.version != version:
            # Nothing else is lost when an operator deletes the key.
            key = self._keys[0]
            raise JournalCorrupt(
                None, None, f"the key {key} holds no view of the shards; delete it, the shards write it again"
            )
        return view

    async def _run(self, script: Script, arguments: Command) -> list[Any]:
        """Return the answer of a script."""
        return list(await self._ask(lambda link: link.call(script, self._keys, arguments)))

    async def _ask(self, send: Callable[[RedisLink], Awaitable[list[Any]]]) -> Any:
        """Send when it is the turn of this call; return the answer."""
        async with self._turn:
            link = self._link
            if link is None:
                raise JournalClosed
            try:
                (answer,) = await send(link)
            except NotSent as error:
                raise JournalFailed(f"{error}; nothing was done") from error
            except Lost as error:
                raise JournalUnknown(f"{error}; the next beat tells whether it was done") from error
        if isinstance(answer, RedisError):
            raise JournalFailed(f"{self._address}: {answer}; nothing was done: see what Redis says")
        return answer
