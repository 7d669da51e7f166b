"""Event times: the value of a watermark, and conversions of other times to it."""

from __future__ import annotations

import datetime as dt
import operator
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, SupportsIndex, cast, overload

__all__ = ["MAX", "MIN", "EventTime", "Watermark", "Watermarks", "all_to_micros", "parse_iso", "to_micros"]

MIN: Final = -(2**63)
"""Unknown: no promise yet."""

MAX: Final = 2**63 - 1
"""Finished: no more data will come."""

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


@dataclass(frozen=True, order=True, slots=True)
class Watermark:
    """An event time in whole microseconds since the Unix epoch, UTC; or unknown, or finished.

    Every event time below it is complete. Watermarks are ordered by time, unknown first and
    finished last. Raises TypeError for anything but an integer (:meth:`of` takes datetimes),
    ValueError beyond 64 bits.

    >>> Watermark.of(dt.datetime(2013, 1, 9, 14, tzinfo=dt.UTC))
    Watermark(2013-01-09T14:00:00Z)
    >>> Watermark(0) < Watermark.FINISHED, Watermark.UNKNOWN.unknown
    (True, True)
    """

    micros: int

    UNKNOWN: ClassVar[Watermark]
    FINISHED: ClassVar[Watermark]

    def __post_init__(self) -> None:
        value: Any = self.micros
        if type(value) is not int or not MIN <= value <= MAX:
            if isinstance(value, Watermark | dt.datetime | str):
                raise TypeError(f"Watermark takes microseconds, not a {type(value).__name__}; use Watermark.of(...)")
            # Integers of other types, such as numpy's, become plain ones.
            object.__setattr__(self, "micros", to_micros(value))

    @classmethod
    def of(cls, value: EventTime) -> Watermark:
        """Return the watermark of microseconds, an aware datetime, its text, or a watermark.

        Raises ValueError for a time without a zone and for numbers beyond 64 bits, TypeError for
        other types.
        """
        return value if isinstance(value, Watermark) else cls(to_micros(value))

    @property
    def unknown(self) -> bool:
        """True when nothing is promised yet."""
        return self.micros == MIN

    @property
    def finished(self) -> bool:
        """True when no more data will come."""
        return self.micros == MAX

    def datetime(self) -> dt.datetime:
        """Return it as an aware datetime in UTC. Raises ValueError when it has no date."""
        if self.unknown or self.finished:
            raise ValueError(f"the watermark is {self} and has no date; ask .unknown and .finished first")
        try:
            return _EPOCH + dt.timedelta(microseconds=self.micros)
        except OverflowError:
            msg = f"{self.micros} microseconds since 1970 are outside of the years 1 to 9999; use .micros"
            raise ValueError(msg) from None

    def __str__(self) -> str:
        if self.unknown:
            return "unknown"
        if self.finished:
            return "finished"
        try:
            return self.datetime().isoformat().removesuffix("+00:00") + "Z"
        except ValueError:
            return f"{self.micros} us"

    def __repr__(self) -> str:
        return f"Watermark({self})"


Watermark.UNKNOWN = Watermark(MIN)
Watermark.FINISHED = Watermark(MAX)


class Watermarks(Sequence[Watermark]):
    """One watermark per key range, in 8 bytes each; ``micros`` is the plain column, for numpy.

    Takes microseconds; raises like :func:`all_to_micros`.
    """

    __slots__ = ("_micros",)

    def __init__(self, micros: Iterable[int]) -> None:
        # A slice, or a column of the wire, has 64-bit integers already.
        plain = isinstance(micros, array) and micros.typecode == "q"
        self._micros: array[int] = array("q", micros if plain else all_to_micros(micros))

    @property
    def micros(self) -> memoryview:
        """Column of 64-bit microseconds, read-only."""
        return memoryview(self._micros).toreadonly()

    def __len__(self) -> int:
        return len(self._micros)

    @overload
    def __getitem__(self, index: int) -> Watermark: ...
    @overload
    def __getitem__(self, index: slice) -> Watermarks: ...
    def __getitem__(self, index: int | slice) -> Watermark | Watermarks:
        return Watermarks(self._micros[index]) if isinstance(index, slice) else Watermark(self._micros[index])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(cast(Sequence[object], other)) if isinstance(other, Sequence) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # compares to lists, which have none

    def __repr__(self) -> str:
        return f"<{len(self)} watermarks, the least {min(self, default=None)}>"


EventTime = int | dt.datetime | str | Watermark
"""Types that every argument for an event time accepts: microseconds, an aware datetime, its ISO
8601 text with a zone such as ``"2013-01-09T14:00Z"``, or a watermark."""


def parse_iso(text: str) -> dt.datetime:
    """Return the aware datetime of an ISO 8601 text. Raises ValueError, also without a zone.

    >>> parse_iso("2013-01-09T14:00Z")
    datetime.datetime(2013, 1, 9, 14, 0, tzinfo=datetime.timezone.utc)
    >>> parse_iso("2013-01-09 14:00")
    Traceback (most recent call last):
    ValueError: '2013-01-09 14:00' has no time zone; write 2013-01-09 14:00Z for UTC
    """
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is no time; write it with its zone, like '2013-01-09T14:00Z'"
        raise ValueError(msg) from None
    if time.utcoffset() is None:
        fix = f"{text}Z" if "T" in text or " " in text else f"{text}T00:00Z"
        msg = f"{text!r} has no time zone; write {fix} for UTC"
        raise ValueError(msg)
    return time


def to_micros(value: EventTime | SupportsIndex) -> int:
    """Return an event time as microseconds since the epoch, rounded down.

    Raises ValueError for a time without a zone and for numbers beyond 64 bits, TypeError for other
    types.

    >>> to_micros("1970-01-01T01:00:01+01:00")
    1000000
    >>> to_micros(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
    1000000
    """
    if isinstance(value, Watermark):
        return value.micros
    if isinstance(value, str):
        value = parse_iso(value)
    if isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{value.isoformat()} has no time zone; add one, for example .replace(tzinfo=UTC)")
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, bool):
        raise TypeError(f"an event time is microseconds, an aware datetime, its text or a Watermark, not {value!r}")
    try:
        micros = operator.index(value)
    except TypeError:
        msg = f"an event time is microseconds, an aware datetime, its text or a Watermark, not {type(value).__name__} {value!r}"
        raise TypeError(msg) from None
    if not MIN <= micros <= MAX:
        raise ValueError(f"{micros} is beyond 64 bits; event times are microseconds since the epoch")
    return micros


def all_to_micros(values: Iterable[EventTime | None]) -> list[int]:
    """Return event times as a new list of microseconds; None, for "nothing", becomes MAX.

    Takes any iterable; arrays of integers (numpy, pandas, array) by their own fast ``tolist``.
    Raises like :func:`to_micros`, and TypeError for arrays of anything but integers, whose unit
    would be a guess.
    """
    column: Any = values
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if kind is not None and kind not in "iuO":
        msg = (
            f"an array of {column.dtype} does not say its event times in microseconds; "
            'convert it, for example by .astype("datetime64[us]").astype("int64")'
        )
        raise TypeError(msg)
    plain: object = column.tolist() if hasattr(column, "tolist") else values
    if isinstance(plain, str | bytes) or not isinstance(plain, Iterable):
        msg = f"pass a list or another iterable of event times in microseconds, not {type(values).__name__} {values!r}"
        raise TypeError(msg)
    times = cast(Iterable[EventTime | None], plain)
    micros = [time if type(time) is int else MAX if time is None else to_micros(time) for time in times]
    if micros and not MIN <= min(micros) <= max(micros) <= MAX:
        raise ValueError("an event time is beyond 64 bits; event times are microseconds since the epoch")
    return micros
