"""What a lane remembers on its own disk: ids with their ranks, in RocksDB.

It is a copy of what the output says, and only ever lags: it is written after the commit, ids and
vector in one write batch, and what is missing is read from the output again. So it needs no sync,
and is thrown away when anything about it is doubtful.

Each id stands there twice, and a batch changes both: under itself, with its rank, and under its
rank, so that what is to be forgotten stands together at the beginning.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch

from lowwater_pipeline.dedup.errors import Held
from lowwater_pipeline.dedup.mark import NO_FLOOR

__all__ = ["Damaged", "Memory", "Standing"]

_ID: Final = b"i"
_RANK: Final = b"r"
_STANDING: Final = b"m"

_PACK: Final = struct.Struct(">Q")
_SIGN: Final = 2**63

_LOOKS: Final = tuple(
    re.compile(rf"rocksdb\.bloom\.filter\.{name} COUNT : (\d+)") for name in ("useful", "full\\.true\\.positive")
)

_FORGOTTEN: Final = 20_000
"""Ids that one write forgets at most: a floor that leaps must not stop the lane. Who asks compares
ranks with the floor, so what is still there harms nothing."""

_BUFFER: Final = 16 << 20
_CACHE: Final = 32 << 20


class Damaged(Exception):
    """RocksDB cannot read what is there."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a memory goes."""

    output: str
    """Topic id of the output that it is a copy of."""
    rule: str
    """See Settings.rule."""
    vector: int
    """It has every row of the output before this offset, but those below the floor."""
    next: int
    """How many rows of the job those are."""
    count: int
    """How many ids it has."""


def _packed(rank: int) -> bytes:
    return _PACK.pack(rank + _SIGN)


class Memory:
    """The ids of one lane, in a directory of its own that no other process has open. Close it."""

    def __init__(self, directory: Path) -> None:
        """Open it, empty when there is none.

        Raises Held when another process has it, and Damaged.
        """
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._options = _options()
        self._looks = (0, 0)
        with _damage():
            # Without the second, the options of whoever made it would count, and its figures go
            # nowhere.
            self._db = Rdict(str(directory), self._options, {"default": self._options})
        try:
            with _damage():
                self._standing = self._read()
        except BaseException:
            with contextlib.suppress(Damaged):  # it must not hide why
                self.close()
            raise
        self._seek = NO_FLOOR
        """No id has a lower rank. To start behind what was deleted spares a walk over its
        tombstones."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @classmethod
    def anew(cls, directory: Path) -> Memory:
        """Throw away what is there, and open an empty one."""
        cls.remove(directory)
        return cls(directory)

    @staticmethod
    def remove(directory: Path) -> None:
        """Throw away what is there. Raises Held when somebody has it open."""
        if directory.is_dir():
            # RocksDB takes its lock for that: files that vanish under another process, and come
            # again by ours, would be mixed up.
            with contextlib.suppress(Damaged), _damage():
                Rdict.destroy(str(directory), Options(raw_mode=True))
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """Let it go. What was written stays.

        Raises Damaged when it cannot be brought to the disk, which may be full.
        """
        with _damage():
            self._db.close()

    @property
    def standing(self) -> Standing | None:
        """How far it goes; None while it is empty."""
        return self._standing

    @property
    def size(self) -> int:
        """Bytes, about: files, and what is not in a file yet."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def looks(self) -> tuple[int, int]:
        """Return how many looks into a file were spared by its filter, and how many it let pass that found something, since it was asked last."""
        said = self._options.get_statistics() or ""
        now = tuple(int(found[1]) if (found := each.search(said)) else 0 for each in _LOOKS)
        before, self._looks = self._looks, (now[0], now[1])
        return now[0] - before[0], now[1] - before[1]

    def known(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return those of some ids that it has, with their ranks. One look for all of them."""
        with _damage():
            found: Any = self._db.get([_ID + each for each in ids])
        return {
            each: _PACK.unpack(value)[0] - _SIGN for each, value in zip(ids, found, strict=True) if value is not None
        }

    def write(self, fresh: Mapping[bytes, int], known: Mapping[bytes, int], floor: int, standing: Standing) -> None:
        """Take ids in with their ranks, forget some of those below the floor, and say how far it goes now; all of it or nothing.

        ``known`` says what :meth:`known` said of these ids; an id that is remembered anew has only its new rank from now on. ``standing.count`` is of no account.
        """
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        count = 0 if self._standing is None else self._standing.count
        replaced: set[bytes] = set()
        for each, rank in fresh.items():
            before = known.get(each)
            if before is not None:
                key = _RANK + _packed(before) + each
                delete(key)
                replaced.add(key)
                count -= 1
            packed = _packed(rank)
            put(_ID + each, packed)
            put(_RANK + packed + each, b"")
            count += 1
        with _damage():
            for key in self._below(floor):
                if key in replaced:
                    continue
                delete(key)
                delete(_ID + key[1 + _PACK.size :])
                count -= 1
            standing = Standing(standing.output, standing.rule, standing.vector, standing.next, count)
            put(_STANDING, json.dumps([standing.output, standing.rule, standing.vector, standing.next, count]).encode())
            self._db.write(batch)
        self._standing = standing
        if fresh:
            self._seek = min(self._seek, *fresh.values())

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Yield all ids with their ranks, those below the floor that are still there too."""
        for key in self._keys(_ID):
            value: Any = self._db[key]
            yield key[1:], _PACK.unpack(value)[0] - _SIGN

    def check(self) -> None:
        """Raise AssertionError unless every id stands twice, and is counted. Reads all of them."""
        ranks = {key[1 + _PACK.size :]: _PACK.unpack(key[1 : 1 + _PACK.size])[0] - _SIGN for key in self._keys(_RANK)}
        ids = dict(self.items())
        assert ranks == ids, "an id and its rank differ"
        assert len(ids) == len(list(self._keys(_RANK)))
        assert len(ids) == (0 if self._standing is None else self._standing.count)

    def _read(self) -> Standing | None:
        found: Any = self._db.get(_STANDING)
        return None if found is None else Standing(*json.loads(found))

    def _below(self, floor: int) -> list[bytes]:
        """Return the keys of ids that are to be forgotten, the oldest first."""
        if self._seek >= floor:
            return []
        found: list[bytes] = []
        end = _RANK + _packed(floor)
        walk = self._db.iter()
        walk.seek(_RANK + _packed(self._seek))
        while walk.valid() and len(found) < _FORGOTTEN:
            key = walk.key()
            if key >= end:
                break
            found.append(key)
            walk.next()
        walk.status()
        self._seek = floor if len(found) < _FORGOTTEN else _PACK.unpack(found[-1][1 : 1 + _PACK.size])[0] - _SIGN
        return found

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        walk = self._db.iter()
        walk.seek(prefix)
        while walk.valid() and walk.key().startswith(prefix):
            yield walk.key()
            walk.next()
        walk.status()


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """RocksDB raises Exception alone, with a text."""
    try:
        yield
    except (Held, AssertionError):
        raise
    except Exception as error:
        said = str(error)
        if "lock" in said.lower() and "LOCK" in said:
            raise Held(f"another process has the memory open: {said}") from error
        raise Damaged(said) from error


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_write_buffer_size(_BUFFER)
    options.enable_statistics()
    options.set_compression_type(DBCompressionType.none())  # ids look random: trying costs time and saves nothing
    options.set_keep_log_file_num(2)
    table = BlockBasedOptions()
    # Most ids are new: a filter says so without a look into the files.
    table.set_bloom_filter(10, block_based=False)
    table.set_block_cache(Cache(_CACHE))
    options.set_block_based_table_factory(table)
    return options
