"""One event time per key range, for up to millions of ranges."""

from __future__ import annotations

import datetime as dt
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeGuard

from lowwater.watermark import MAX, EventTime, Watermark, all_to_micros

__all__ = ["Column", "Handles", "everything_but", "is_one"]

Handles = array  # unsigned 32-bit integers, ascending

_BLOCK: Final = 1024
"""Number of ranges compared at a time when numpy is not there."""

_SPARSE: Final = 16
"""Share of exceptions, one in so many ranges, up to which a column is stored sparsely."""


class Column:
    """One event time per range of a claim, in microseconds.

    Stored as one common value and a few exceptions while that is possible, since most ranges of
    most workers hold nothing; as 64-bit integers otherwise. Costs: reading and setting one range
    O(1); the rest O(exceptions), or O(ranges) when there are many, at the speed of numpy if the
    process has imported it.
    """

    __slots__ = ("_common", "_dense", "_exceptions", "_finished", "count")

    def __init__(self, count: int, common: int) -> None:
        self.count: int = count
        self._common = common
        self._exceptions: dict[int, int] = {}
        self._dense: array[int] | None = None
        # Number of dense values that are MAX, once it was counted.
        self._finished: int | None = None

    @classmethod
    def of(cls, values: Iterable[EventTime | None]) -> Column:
        """Return a copy of event times. Raises TypeError or ValueError for other values."""
        dense = _int64s(values)
        copied = cls(len(dense), 0)
        copied._dense = dense
        return copied

    def copy(self) -> Column:
        """Return an independent copy."""
        copied = Column(self.count, self._common)
        copied._exceptions = dict(self._exceptions)
        copied._dense = None if self._dense is None else self._dense[:]
        return copied

    def __getitem__(self, handle: int) -> int:
        if self._dense is not None:
            return self._dense[handle]
        return self._exceptions.get(handle, self._common)

    def __setitem__(self, handle: int, micros: int) -> None:
        if self._dense is not None:
            if self._finished is not None:
                self._finished += (micros == MAX) - (self._dense[handle] == MAX)
            self._dense[handle] = micros
        elif micros != self._common:
            self._exceptions[handle] = micros
            if len(self._exceptions) * _SPARSE > self.count:
                self._dense = self.values()
                self._exceptions = {}
        else:
            self._exceptions.pop(handle, None)

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column):
            return NotImplemented
        return self.values() == other.values()

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # mutable

    @property
    def uniform(self) -> int | None:
        """Value of all the ranges, if the column is stored as one value; else None."""
        return self._common if self._dense is None and not self._exceptions else None

    @property
    def holds_nothing(self) -> bool:
        """True when every value is MAX. O(1) but for the first time in a dense column."""
        if self._dense is None:
            return self.uniform == MAX
        if self._finished is None:
            if self.count and self._dense[0] != MAX:
                return False
            self._finished = self._dense.count(MAX)
        return self._finished == self.count

    def update(self, values: Mapping[int, int]) -> None:
        """Set some ranges."""
        for handle, micros in values.items():
            self[handle] = micros

    def at_most(self, limit: int) -> Column:
        """Return a new column of the lesser of each value and the limit."""
        capped = Column(self.count, min(self._common, limit))
        if self._dense is not None:
            capped._dense = _clamped(self._dense, limit)
        else:
            capped.update({handle: min(micros, limit) for handle, micros in self._exceptions.items()})
        return capped

    def differences(self, other: Column) -> Handles[int] | None:
        """Return the handles at which another column of this length differs; None: all of them."""
        if self._dense is not None or other._dense is not None:
            different = _differences(self.values(), other.values())
            return None if len(different) == self.count else different
        exceptions = self._exceptions.keys() | other._exceptions.keys()
        if self._common == other._common:
            return array("I", sorted(handle for handle in exceptions if self[handle] != other[handle]))
        return everything_but(self.count, [handle for handle in exceptions if self[handle] == other[handle]])

    def values(self, handles: Handles[int] | None = None) -> array[int]:
        """Return the values of some handles, or of all, as a new 64-bit column."""
        if self._dense is None and handles is None:
            dense = array("q", [self._common]) * self.count
            for handle, micros in self._exceptions.items():
                dense[handle] = micros
            return dense
        if self._dense is None:
            return array("q", [self._exceptions.get(handle, self._common) for handle in handles or ()])
        if handles is None:
            return self._dense[:]
        numpy = _numpy()
        if numpy is None:
            return array("q", [self._dense[handle] for handle in handles])
        return _from_numpy("q", numpy.frombuffer(self._dense, numpy.int64)[numpy.frombuffer(handles, numpy.uint32)])

    def value_of(self, handles: Handles[int] | None) -> int | None:
        """Return the common value of some handles (None: all) if none needs a look; else None."""
        if self._dense is not None:
            return None
        if handles is None:
            return self.uniform
        for handle in self._exceptions:
            index = bisect_left(handles, handle)
            if index < len(handles) and handles[index] == handle:
                return None
        return self._common


def is_one(value: object) -> TypeGuard[EventTime]:
    """Return True for one event time; numpy's integers are one, its arrays are not."""
    return isinstance(value, int | dt.datetime | str | Watermark) or not hasattr(value, "__len__")


def everything_but(count: int, handles: Collection[int]) -> Handles[int] | None:
    """Return the handles 0 to count - 1 except some, ascending; None: no exception."""
    if not handles:
        return None
    # Stretches between exceptions are copied as bytes. That takes milliseconds for a million
    # handles, and fifty for one by one.
    every = memoryview(_every(count)).cast("B")
    size = len(every) // count
    stretches: list[memoryview] = []
    start = 0
    for handle in sorted(handles):
        stretches.append(every[start * size : handle * size])
        start = handle + 1
    stretches.append(every[start * size :])
    rest: Handles[int] = array("I")
    rest.frombytes(b"".join(stretches))
    return rest


@lru_cache(maxsize=4)
def _every(count: int) -> Handles[int]:
    return array("I", range(count))


def _int64s(values: Iterable[EventTime | None]) -> array[int]:
    """Copy event times into a column; buffers of native 64-bit integers are copied as bytes."""
    try:
        view = memoryview(values)  # type: ignore[arg-type]  # whether it is a buffer is the question
    except (TypeError, ValueError):
        return array("q", all_to_micros(values))
    if view.ndim != 1:
        raise ValueError(f"one event time per range is one dimension, not {view.ndim}")
    if view.itemsize == 8 and view.format in {"q", "l", "@q", "@l", "=q"}:
        copied = array("q")
        copied.frombytes(view.tobytes() if not view.contiguous else view.cast("B"))
        return copied
    return array("q", all_to_micros(values))


def _clamped(values: array[int], limit: int) -> array[int]:
    numpy = _numpy()
    if numpy is None:
        return array("q", [micros if micros < limit else limit for micros in values])  # noqa: FURB136 - min() is 3 x slower
    return _from_numpy("q", numpy.minimum(numpy.frombuffer(values, numpy.int64), limit))


def _differences(these: array[int], those: array[int]) -> Handles[int]:
    numpy = _numpy()
    if numpy is not None and len(these):
        unequal = numpy.frombuffer(these, numpy.int64) != numpy.frombuffer(those, numpy.int64)
        return _from_numpy("I", numpy.flatnonzero(unequal).astype(numpy.uint32))
    different: Handles[int] = array("I")
    for start in range(0, len(these), _BLOCK):
        first, second = these[start : start + _BLOCK], those[start : start + _BLOCK]
        if first != second:
            different.extend(start + i for i in range(len(first)) if first[i] != second[i])
    return different


def _from_numpy(typecode: str, values: Any) -> array[int]:
    column: array[int] = array(typecode)
    column.frombytes(values.data.cast("B") if len(values) else b"")
    return column


def _numpy() -> Any:
    """Return numpy if the process has imported it, else None: it is no dependency."""
    numpy = sys.modules.get("numpy")
    return numpy if hasattr(numpy, "flatnonzero") else None  # another thread may be importing it
