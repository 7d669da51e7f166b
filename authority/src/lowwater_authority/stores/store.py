"""The contract of a store, and the table that the scheme of a URL chooses one from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from lowwater_authority.cluster.directory import Directory
    from lowwater_authority.journal.contract import Journal


class Store(ABC):
    """Holds the journal of one deployment, or none yet.

    Its text names it for people, and unlike the URL holds no secret.
    """

    @abstractmethod
    def journal(self, *, server_token: str = "", must_exist: bool = False, patience: float = 0.0) -> Journal:
        """Return the journal, to be opened.

        ``server_token`` is the identity that the deployment must have, and that a new one gets;
        empty: any. With ``must_exist`` opening makes no new deployment. ``patience``, in seconds,
        is how long opening an empty store waits for shards that put back what the store has lost.
        Raises JournalFailed when there is no place for a journal.
        """

    @abstractmethod
    async def exists(self) -> bool:
        """Return whether a journal is there; looking makes none. Raises JournalFailed."""

    @abstractmethod
    async def served_by(self) -> str:
        """Return who serves the journal now, as words that end "it is being served by".

        Empty: nobody, or opening the journal finds out. Raises JournalFailed.
        """

    @abstractmethod
    def removal(self) -> str:
        """Return what removes the journal, as words that end "to remove it,"."""


class SharedStore(Store):
    """A store that several processes serve at once."""

    @abstractmethod
    def directory(self, *, timeout: float, dead_after: int) -> Directory:
        """Return the directory of the shards, to be opened.

        ``timeout``, in seconds, is after what a beat is given up. ``dead_after``, in microseconds,
        is how long a shard may be silent, the same for all shards.
        """


class Kind(NamedTuple):
    """One kind of store: a line of the table."""

    schemes: tuple[str, ...]
    """Schemes of its URLs."""
    module: str
    """Module of its class, imported only when a URL has one of the schemes."""
    name: str
    """Name of the class, a SharedStore, which is made of a URL and the name of a deployment. It
    raises ValueError for what cannot be used, which quotes neither."""
    package: str
    """What pip installs to make the module work."""


KINDS: Final = (
    Kind(
        ("redis", "rediss", "redis+sentinel", "redis+cluster"),
        "lowwater_authority.stores.redis",
        "RedisStore",
        "redis[hiredis]>=6",
    ),
)
"""Every kind of store that has a URL. The embedded journal has none: it is a ``Folder``."""


def store_at(url: str, deployment: str) -> SharedStore:
    """Return the store that a URL names.

    Raises ValueError, which never quotes the URL.

    >>> print(store_at("redis://redis/0", "orders"))
    redis://redis:6379/0#orders
    >>> store_at("postgres://me:secret@db", "orders")
    Traceback (most recent call last):
        ...
    ValueError: the URL of a store begins with one of redis://, rediss://, ...
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    kind = next((kind for kind in KINDS if scheme in kind.schemes), None)
    if kind is None:
        schemes = ", ".join(f"{scheme}://" for kind in KINDS for scheme in kind.schemes)
        raise ValueError(f"the URL of a store begins with one of {schemes}")
    try:
        module = import_module(kind.module)
    except ModuleNotFoundError as error:
        raise ValueError(f"{scheme}:// needs the module {error.name}: pip install '{kind.package}'") from error
    store: SharedStore = getattr(module, kind.name)(url, deployment)
    return store
