"""Slices of one computation on several shards: subscribers of the root see nothing that goes back or leads what the workers said, whatever happens."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

import lowwater
from lowwater import errors
from tests.kit.eventually import eventually
from tests.process.following import WORK_SECONDS, Following, Work
from tests.process.sharding import Shard, Sharded, move

ROOT = "hourly"
KEYS = (b"\x40", b"\x80", b"\xc0")
HALVES = tuple(pairwise((b"", b"\x20", b"\x40", b"\x60", b"\x80", b"\xa0", b"\xc0", b"\xe0", b"")))
"""Workers claim halves of slices, so that those of one half go on when their slice is cut in the middle."""


class Halves(Work):
    """A worker of all halves, claimed by the name of the root, which claims again what it has lost."""

    def __init__(self, lw: lowwater.Client) -> None:
        super().__init__(lw, ())
        self._worker = lw.worker(ROOT)
        self._claims: dict[tuple[bytes, bytes], lowwater.Lease] = {}

    def _work(self) -> None:
        while not self._stopping.wait(WORK_SECONDS):
            self.done += 1
            for half in HALVES:
                with suppress(errors.LowwaterError):  # what must come is waited for
                    lease = self._claims.get(half)
                    if lease is None or lease.lost or not lease.live:
                        lease = self._claims[half] = self._worker.claim(*half)
                    lease.advance(None, oldest=self.done, frontier=self.done)


def cut_anew(lw: lowwater.Client, name: str, at: bytes) -> str:
    """Cut a slice in two, whoever dies meanwhile; returns the new one."""

    def new() -> list[str]:
        return [each.name for each in lw.slices(ROOT) if each.start == at]

    while not (made := new()):
        with suppress(errors.Unavailable, errors.InvalidArgument):  # another one is still taken over, or it is done
            lw.split_slice(name, at)
    return made[0]


def taken_over(lw: lowwater.Client, name: str) -> bool:
    """Whether a slice has its keys, and says so at the root."""
    found = lw.topology().computations[name]
    at_root = {(each.start, each.end): each.worker for each in lw.ranges(ROOT)}
    return not found.slice_source and at_root.get((found.slice_start, found.slice_end)) == name


def server_of(lw: lowwater.Client, shards: list[Shard], name: str) -> Shard:
    """The process that serves something."""

    def found() -> list[Shard]:
        serving = {each.address for each in lw.shards() if name in each.computations}
        return [each for each in shards if each.address in serving]

    eventually(found)
    return found()[0]


@pytest.mark.slow
def test_a_slice_is_cut_in_two_while_the_shards_of_both_and_of_the_root_are_killed(tmp_path: Path) -> None:
    """As soon as the cut is known, wherever it has come to by then."""
    with Sharded(tmp_path, 3) as deployment, deployment.connect(timeout=60) as lw, Following() as following:
        shards = deployment.shards
        lw.register(ROOT, slices=KEYS)
        move(lw, shards[0], ROOT)
        for number in range(len(KEYS) + 1):
            move(lw, shards[1 + number % 2], f"{ROOT}~{number}")
        following.follow(*(shard.address for shard in shards))
        with Halves(lw) as work:
            following.until(1, [ROOT])
            for victim, number, at in (("source", 1, b"\x60"), ("new", 0, b"\x20"), ("root", 2, b"\xa0")):
                name = f"{ROOT}~{number}"
                dies = server_of(lw, shards, ROOT if victim == "root" else name)
                made = cut_anew(lw, name, at)
                dies = server_of(lw, shards, made) if victim == "new" else dies
                dies.kill()
                following.until(work.done + 1, [ROOT], 180)
                dies.start()
                eventually(lambda: len(lw.shards()) == len(shards))
                for each in (made, name):
                    eventually(partial(taken_over, lw, each))
                following.until(work.done + 1, [ROOT], 180)
        following.check()
        assert following.low(ROOT) <= work.done
