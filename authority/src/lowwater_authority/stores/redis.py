"""One deployment in Redis: its journal, and the directory of its shards."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from lowwater.core.text import counted
from lowwater_authority.cluster.membership import View
from lowwater_authority.cluster.redis_directory import RedisDirectory
from lowwater_authority.journal.redis import RedisJournal
from lowwater_authority.journal.redis_database import Keys
from lowwater_authority.journal.redis_link import Address, RedisExchange, RedisLink
from lowwater_authority.stores.store import SharedStore

ALIVE_SECONDS: Final = 10.0
"""Time in seconds after its last beat for which a shard counts as alive.

The time is longer than any common --dead-after. A slower shard is fenced all the same."""

_TIMEOUT_SECONDS: Final = 5.0


class RedisStore(SharedStore):
    """The keys of one deployment, behind one URL.

    Raises ValueError for a URL or a name that cannot be used.
    """

    def __init__(self, url: str, deployment: str) -> None:
        self._address = Address(url)
        self._keys = Keys.of(deployment)
        self._url = url
        self._deployment = deployment

    def __str__(self) -> str:
        return f"{self._address}#{self._deployment}"

    def journal(self, *, server_token: str = "", must_exist: bool = False, patience: float = 0.0) -> RedisJournal:
        """See Store."""
        return RedisJournal(
            self._url,
            namespace=self._deployment,
            server_token=server_token,
            must_exist=must_exist,
            patience=patience,
        )

    def directory(self, *, timeout: float, dead_after: int) -> RedisDirectory:
        """See SharedStore."""
        return RedisDirectory(self._url, namespace=self._deployment, timeout=timeout, dead_after=dead_after)

    async def exists(self) -> bool:
        """See Store."""
        return bool(await self._read("HGETALL", self._keys.deployment))

    async def served_by(self) -> str:
        """See Store. A shard that was stopped properly has removed its beat."""
        beats = await self._read("HGETALL", self._keys.beats)
        seconds, micros = map(int, await self._read("TIME"))
        now = seconds + micros / 1e6
        ages = {name.decode(): now - int(at) / 1e6 for name, at in zip(beats[::2], beats[1::2], strict=True)}
        alive = {name: age for name, age in ages.items() if age < ALIVE_SECONDS}
        if not alive:
            return ""
        newest, age = min(alive.items(), key=lambda item: item[1])
        return (
            f"{counted(len(alive), 'shard')}: {await self._address_of(newest)} was heard of {max(0.0, age):.1f} s ago. "
            f"Stop them; one that was killed counts for {ALIVE_SECONDS:.0f} s"
        )

    def removal(self) -> str:
        """See Store."""
        return f"delete the keys {self._keys.tag}:* in {self._address}"

    async def _address_of(self, member_id: str) -> str:
        """Return where a shard is reached, or its id where the view does not name it."""
        payload = await self._read("HGET", self._keys.view, "view")
        try:
            member = View.decode(payload or b"").member(member_id)
        except DecodeError:
            member = None
        return member.address if member else f"the shard {member_id}"

    async def _read(self, *command: str) -> Any:
        link = RedisLink(self._address, self._keys.deployment, _TIMEOUT_SECONDS)
        try:
            return await RedisExchange(link, timeout=_TIMEOUT_SECONDS).read(*command)
        finally:
            await link.close()
