"""Real shards over a real Redis: several ``lowwater serve`` that a test starts, freezes and kills."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import lowwater
from lowwater_authority.cluster.membership import Member, View
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.serving import Serving

DEAD_AFTER: Final = 1.5


class Shard(Serving):
    def __init__(self, folder: Path, store: str, *flags: str, dead_after: float = DEAD_AFTER) -> None:
        # Its port is below those that the system gives to connections, so that it is free again after a kill.
        super().__init__(folder / "none", *flags, port=free_port())
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store
        self.dead_after = dead_after

    def journal(self) -> list[str]:
        return ["--store", self.store, "--advertise", self.address, "--dead-after", str(self.dead_after)]

    @property
    def log(self) -> str:
        return (self.data.parent / "serve.log").read_text()

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Sharded:
    """A Redis and some shards over it; all are killed in the end."""

    def __init__(
        self, folder: Path, shards: int, *options: str, dead_after: float = DEAD_AFTER, flags: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.dead_after = dead_after
        self.flags = flags
        self.redis = RedisServer(folder / "redis", *(options or DURABLE))
        self.shards = [self.more() for _ in range(shards)]

    def more(self, store: str = "") -> Shard:
        self._made = getattr(self, "_made", 0) + 1
        folder = self.folder / f"shard-{self._made}"
        return Shard(folder, store or self.redis.url, *self.flags, dead_after=self.dead_after)

    def __enter__(self) -> Self:
        self.redis.start()
        try:
            self.start(*self.shards)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def start(self, *shards: Shard) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Shard.start, shards))
        self.shards += [shard for shard in shards if shard not in self.shards]
        with lowwater.connect(shards[0].address) as lw:
            eventually(lambda: {shard.address for shard in shards} <= {member.address for member in lw.shards()})

    def __exit__(self, *failure: object) -> None:
        for shard in self.shards:
            if shard.running:
                shard.kill()
        self.redis.kill()

    @property
    def addresses(self) -> str:
        return ",".join(shard.address for shard in self.shards)

    def connect(self, **options: Any) -> lowwater.Client:
        return lowwater.connect(self.addresses, **options)


def move(lw: lowwater.Client, shard: Shard, *names: str) -> None:
    for name in names:
        lw.pin(name, shard.address)
    eventually(lambda: all(name in served(lw, shard) for name in names))


def served(lw: lowwater.Client, shard: Shard) -> tuple[str, ...]:
    return next((member.computations for member in lw.shards() if member.address == shard.address), ())


def view_of(*shards: Shard) -> View:
    view = View()
    for shard in shards:
        view = view.joined(Member(shard.address, shard.address))
    return view


def balanced(prefix: str, count: int, *shards: Shard) -> list[str]:
    """Names of computations, so many for each of some shards; sorted."""
    view = view_of(*shards)
    places: dict[str, list[str]] = {shard.address: [] for shard in shards}
    number = 0
    while any(len(names) < count for names in places.values()):
        name = f"{prefix}{number:03}"
        member = view.shard_of(name)
        assert member is not None
        if len(places[member.address]) < count:
            places[member.address].append(name)
        number += 1
    return sorted(name for names in places.values() for name in names)


def spread(lw: lowwater.Client, names: list[str], *shards: Shard) -> bool:
    places = {name: member.address for member in lw.shards() for name in member.computations}
    view = view_of(*shards)
    return all((member := view.shard_of(name)) is not None and places.get(name) == member.address for name in names)
