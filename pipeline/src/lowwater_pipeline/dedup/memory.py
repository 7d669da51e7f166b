"""The memory of a lane on its own disk: ids with their ranks, in RocksDB.

It is a copy of the output that may only lag. It is written after the commit, ids and vector in one
write batch, and missing rows are read from the output again. So it needs no sync, and is thrown
away when it may be wrong.

Each id has two entries, and a write batch changes both: one under the id, with its rank, and one
under the rank, so that the ids to forget are next to each other at the beginning.
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
"""Greatest number of ids that one write forgets: a floor that leaps must not stop the lane. Readers
compare ranks with the floor, so an id that is still stored does no harm."""

_BUFFER: Final = 16 << 20
_CACHE: Final = 32 << 20


class Damaged(Exception):
    """RocksDB cannot read the directory."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a memory has read the output, and by which rule."""

    output: str
    """Id of the output topic."""
    rule: str
    """The rule of the window, see Settings.rule."""
    vector: int
    """Offset of the output before which the memory has every row that is not below the floor."""
    next: int
    """Number of the deduplicator's rows before that offset."""
    count: int
    """Number of stored ids."""


def _packed(rank: int) -> bytes:
    return _PACK.pack(rank + _SIGN)


class Memory:
    """The ids of one lane, in a directory that no other process has open. Close it."""

    def __init__(self, directory: Path) -> None:
        """Open the memory, or a new one. Raises Held if another process has it, and Damaged."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._options = _options()
        self._looks = (0, 0)
        with _damage():
            # Without the second argument, RocksDB would use the options stored by another process,
            # and count figures elsewhere.
            self._db = Rdict(str(directory), self._options, {"default": self._options})
        try:
            with _damage():
                self._standing = self._read()
        except BaseException:
            with contextlib.suppress(Damaged):  # a second error must not hide the first
                self.close()
            raise
        self._seek = NO_FLOOR
        """Lower bound of all ranks. A walk from here skips the tombstones of deleted entries."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @classmethod
    def anew(cls, directory: Path) -> Memory:
        """Remove the directory, and open an empty memory."""
        cls.remove(directory)
        return cls(directory)

    @staticmethod
    def remove(directory: Path) -> None:
        """Remove the directory. Raises Held when another process has it open."""
        if directory.is_dir():
            # RocksDB locks the directory for this. Otherwise another process that has it open would
            # mix its files with our new ones.
            with contextlib.suppress(Damaged), _damage():
                Rdict.destroy(str(directory), Options(raw_mode=True))
            shutil.rmtree(directory, ignore_errors=True)

    def close(self) -> None:
        """Close the memory; its files stay. Raises Damaged if they cannot be written."""
        with _damage():
            self._db.close()

    @property
    def standing(self) -> Standing | None:
        """How far the memory has read the output; None while it is empty."""
        return self._standing

    @property
    def size(self) -> int:
        """Approximate bytes: files, and what is not in a file yet."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def looks(self) -> tuple[int, int]:
        """Return the lookups in files since the last call: spared by filters, passed with a hit."""
        statistics = self._options.get_statistics() or ""
        now = tuple(int(match[1]) if (match := pattern.search(statistics)) else 0 for pattern in _LOOKS)
        before, self._looks = self._looks, (now[0], now[1])
        return now[0] - before[0], now[1] - before[1]

    def known(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """Return the ranks of those ids that are stored. One lookup for all of them."""
        with _damage():
            values: Any = self._db.get([_ID + id_ for id_ in ids])
        return {
            id_: _PACK.unpack(value)[0] - _SIGN for id_, value in zip(ids, values, strict=True) if value is not None
        }

    def write(self, fresh: Mapping[bytes, int], ranks: Mapping[bytes, int], floor: int, standing: Standing) -> None:
        """Store ids with their ranks, forget some ids below the floor, and store the standing.

        All in one atomic write. ``ranks`` is what :meth:`known` returned for these ids; the new
        rank of an id replaces the one there. ``standing.count`` is ignored.
        """
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        count = 0 if self._standing is None else self._standing.count
        replaced: set[bytes] = set()
        for id_, rank in fresh.items():
            before = ranks.get(id_)
            if before is not None:
                key = _RANK + _packed(before) + id_
                delete(key)
                replaced.add(key)
                count -= 1
            packed = _packed(rank)
            put(_ID + id_, packed)
            put(_RANK + packed + id_, b"")
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
        """Yield all ids with their ranks, also those below the floor that are still stored."""
        for key in self._keys(_ID):
            value: Any = self._db[key]
            yield key[1:], _PACK.unpack(value)[0] - _SIGN

    def check(self) -> None:
        """Raise AssertionError unless each id has both entries and is counted. Reads all."""
        ranks = {key[1 + _PACK.size :]: _PACK.unpack(key[1 : 1 + _PACK.size])[0] - _SIGN for key in self._keys(_RANK)}
        ids = dict(self.items())
        assert ranks == ids, "an id and its rank differ"
        assert len(ids) == len(list(self._keys(_RANK)))
        assert len(ids) == (0 if self._standing is None else self._standing.count)

    def _read(self) -> Standing | None:
        value: Any = self._db.get(_STANDING)
        return None if value is None else Standing(*json.loads(value))

    def _below(self, floor: int) -> list[bytes]:
        """Return the keys of ids to forget, the oldest first."""
        if self._seek >= floor:
            return []
        keys: list[bytes] = []
        end = _RANK + _packed(floor)
        walk = self._db.iter()
        walk.seek(_RANK + _packed(self._seek))
        while walk.valid() and len(keys) < _FORGOTTEN:
            key = walk.key()
            if key >= end:
                break
            keys.append(key)
            walk.next()
        walk.status()
        self._seek = floor if len(keys) < _FORGOTTEN else _PACK.unpack(keys[-1][1 : 1 + _PACK.size])[0] - _SIGN
        return keys

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        walk = self._db.iter()
        walk.seek(prefix)
        while walk.valid() and walk.key().startswith(prefix):
            yield walk.key()
            walk.next()
        walk.status()


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Turn RocksDB's errors, which are plain Exceptions with a text, into Held and Damaged."""
    try:
        yield
    except (Held, AssertionError):
        raise
    except Exception as error:
        text = str(error)
        if "lock" in text.lower() and "LOCK" in text:
            raise Held(f"another process has the memory open: {text}") from error
        raise Damaged(text) from error


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.set_write_buffer_size(_BUFFER)
    options.enable_statistics()
    options.set_compression_type(DBCompressionType.none())  # ids look random and do not compress
    options.set_keep_log_file_num(2)
    table = BlockBasedOptions()
    # Most ids are new: the filter answers without reading a file.
    table.set_bloom_filter(10, block_based=False)
    table.set_block_cache(Cache(_CACHE))
    options.set_block_based_table_factory(table)
    return options
