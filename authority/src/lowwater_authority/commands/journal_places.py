"""Where a journal is, as a person writes it: a folder of ``lowwater serve --data``, or URL#DEPLOYMENT of a store.

/var/lib/lowwater                    the folder
redis://redis:6379/0#orders          the deployment "orders" of a store; without #NAME, the one named "default"
env:LOWWATER_STORE#orders            the same, with the URL in an environment variable, where one with a password must be
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from lowwater_authority.cluster.membership import View
from lowwater_authority.commands.serve_arguments import refuse_password
from lowwater_authority.journal import Journal, SqliteJournal
from lowwater_authority.journal.copy import CopyRefused

LATELY_SECONDS: Final = 10.0
"""A shard that was heard of since then is alive. Longer than any common --dead-after; who is slower is fenced all the same."""

_REDIS_SECONDS: Final = 5.0


class Place(ABC):
    """Holds one journal, or none yet. Its text, unlike what it was made of, holds no secret."""

    @abstractmethod
    async def exists(self) -> bool:
        """Whether a journal is there; looking makes none. Raises JournalFailed."""

    @abstractmethod
    async def refuse_served(self) -> None:
        """Raise CopyRefused while processes serve it, as far as opening it would not. Raises JournalFailed."""

    @abstractmethod
    def journal(self, *, server_token: str = "") -> Journal:
        """The journal, to be opened; a new one gets the token. Raises CopyRefused when there is no place for it."""

    @abstractmethod
    def removal(self) -> str:
        """What removes it, to be read behind "to remove it, "."""


class Folder(Place):
    """What ``lowwater serve --data`` was given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path / "journal.sqlite"

    def __str__(self) -> str:
        return str(self._path)

    async def exists(self) -> bool:
        """See Place."""
        files = (self._file, self._file.with_name("journal.sqlite-wal"))
        return any(file.exists() and file.stat().st_size > 0 for file in files)

    async def refuse_served(self) -> None:
        """See Place: the lock on the file refuses."""

    def journal(self, *, server_token: str = "") -> Journal:
        """See Place."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{self} cannot be made a folder: {error.strerror}. Name one on a writable local disk"
            raise CopyRefused(msg) from error
        return SqliteJournal(self._file, server_token=server_token)

    def removal(self) -> str:
        """See Place."""
        return f"delete {self._file} with its -wal, -shm and .lock"


class Deployment(Place):
    """One deployment of a store in Redis."""

    def __init__(self, url: str, name: str) -> None:
        try:
            from lowwater_authority.journal.redis import RedisJournal
            from lowwater_authority.journal.redis_database import Keys
            from lowwater_authority.journal.redis_link import Address
        except ModuleNotFoundError as error:
            msg = "a store URL needs the Redis client: pip install 'lowwater-authority[redis]'"
            raise CopyRefused(msg) from error
        self._url = url
        self._name = name
        try:
            self._address = Address(url)
            self._keys = Keys.of(name)
            RedisJournal(url, namespace=name)
        except ValueError as error:
            raise CopyRefused(str(error)) from error

    def __str__(self) -> str:
        return f"{self._address}#{self._name}"

    async def exists(self) -> bool:
        """See Place."""
        return bool(await self._read("HGETALL", self._keys.deployment))

    async def refuse_served(self) -> None:
        """See Place. Whoever has beaten lately is alive; a shard that was stopped properly has taken its beat along."""
        beats = await self._read("HGETALL", self._keys.beats)
        seconds, micros = map(int, await self._read("TIME"))
        silent = {
            name.decode(): seconds + micros / 1e6 - int(time) / 1e6
            for name, time in zip(beats[::2], beats[1::2], strict=True)
        }
        alive = {name: age for name, age in silent.items() if age < LATELY_SECONDS}
        if not alive:
            return
        newest = min(alive, key=alive.__getitem__)
        shards = f"{len(alive)} shard{'' if len(alive) == 1 else 's'}"
        raise CopyRefused(
            f"{self} is being served by {shards}: {await self._address_of(newest)} was heard of {max(0.0, alive[newest]):.1f} s ago. "
            f"Stop them; one that was killed counts for {LATELY_SECONDS:.0f} s"
        )

    def journal(self, *, server_token: str = "") -> Journal:
        """See Place."""
        from lowwater_authority.journal.redis import RedisJournal

        return RedisJournal(self._url, namespace=self._name, server_token=server_token, timeout=_REDIS_SECONDS)

    def removal(self) -> str:
        """See Place."""
        return f"delete the keys {self._keys.tag}:* in {self._address}"

    async def _address_of(self, member: str) -> str:
        """Where a shard is reached, as far as the view tells; else its id."""
        payload = await self._read("HGET", self._keys.view, "view")
        try:
            found = View.decode(payload or b"").member(member)
        except DecodeError:
            found = None
        return found.address if found else f"the shard {member}"

    async def _read(self, *command: str) -> Any:
        from lowwater_authority.journal.redis_exchange import RedisExchange
        from lowwater_authority.journal.redis_link import RedisLink

        link = RedisLink(self._address, self._keys.deployment, _REDIS_SECONDS)
        try:
            return await RedisExchange(link, timeout=_REDIS_SECONDS).read(*command)
        finally:
            await link.close()


def parse_place(text: str) -> Place:
    """The place that an argument names. Raises CopyRefused, which quotes no URL.

    >>> print(parse_place("redis://redis/0#orders"))
    redis://redis:6379/0#orders
    >>> print(parse_place("/var/lib/lowwater"))
    /var/lib/lowwater
    """
    fix = "put it into an environment variable, and name that: env:VARIABLE#NAME"
    try:
        refuse_password(text, "the URL of a store", fix)
    except ValueError as error:
        raise CopyRefused(str(error)) from None
    url, _, name = text.partition("#")
    if url.startswith("env:"):
        variable = url.removeprefix("env:")
        url = os.environ.get(variable, "")
        if not url:
            msg = f"env:{variable} names an environment variable, which is not set: put the URL of the store there"
            raise CopyRefused(msg)
    elif "://" not in text:
        return _folder(Path(text))
    return Deployment(url, name or "default")


def _folder(path: Path) -> Folder:
    if path.is_file():
        msg = f"{path} is a file: name its folder, as for lowwater serve --data"
        raise CopyRefused(msg)
    return Folder(path)
