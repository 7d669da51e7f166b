"""Checks of what callers pass. Each error names field and fix, which gRPC's own would not."""

from __future__ import annotations

import numbers
import operator
import re
from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from lowwater import errors
from lowwater.core.lateness import EDGES, Arrived
from lowwater.core.text import did_you_mean, near
from lowwater.histogram import MOST_RECORDS, Histogram
from lowwater.views import Remarks, slice_of
from lowwater.watermark import MAX, MIN, to_micros

__all__ = [
    "arrived",
    "count",
    "counts",
    "flag",
    "followed_name",
    "is_name",
    "is_number",
    "key",
    "known_name",
    "listed",
    "micros",
    "name_part",
    "names",
    "offering",
    "operation",
    "other_incarnation",
    "records",
    "refused",
    "remarks",
    "seconds",
    "text",
    "unknown_computation",
    "whole",
    "words",
]

_PART: Final = r"[A-Za-z0-9_.-]{1,128}"
_NAME_PART: Final = re.compile(_PART)
_NAME: Final = re.compile(f"(?:{_PART}/)?{_PART}")
_PART_FIX: Final = "1 to 128 of A-Z a-z 0-9 _ . -"

_MOST_SECONDS: Final = 1e9
"""Longest timeout in seconds, 31 years: gRPC and threads accept no more."""

_YEAR_10000: Final = 253_402_300_800_000_000

MOST_WORDS: Final = 200
"""Most bytes of UTF-8 of one text that a worker reports."""

_MOST_COUNTED: Final = 2**63 - 1

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_SHOWN: Final = 80
"""Most characters of a value in a message."""


def refused(field: str, value: object, fix: str) -> errors.InvalidArgument:
    """Return the error of a bad value of a field."""
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return errors.InvalidArgument(f"{field}={shown} is refused: pass {fix}", metadata={"field": field, "fix": fix})


def unknown_computation(
    name: str,
    names: Collection[str] = (),
    otherwise: str = "register it first, or check the spelling and the namespace",
) -> errors.UnknownComputation:
    """Return the error of a name that is not registered; it offers similar ones of ``names``."""
    fix = did_you_mean(name, names, "") or otherwise
    metadata = {"computation": name, "near": ", ".join(near(name, names)), "fix": fix}
    return errors.UnknownComputation(f"there is no computation {name!r}: {fix}", metadata=metadata)


def offering(error: errors.UnknownComputation, names: Collection[str]) -> errors.UnknownComputation:
    """Return an error of the authority with similar names that are registered, if there are any."""
    name = error.metadata.get("computation", "")
    offer = did_you_mean(name, names, ": ")
    if not offer:
        return error
    metadata = {"near": ", ".join(near(name, names)), "fix": offer.removeprefix(": ")}
    return errors.UnknownComputation(error.message.rstrip(".") + offer, metadata=error.metadata | metadata)


def other_incarnation(
    name: str, waited_for: int, incarnation: int, message: str, **fix: str
) -> errors.IncarnationChanged:
    """Return the error of a computation in another incarnation than ``waited_for``; 0: none."""
    metadata = {"computation": name, "waited_for": str(waited_for), "incarnation": str(incarnation)}
    return errors.IncarnationChanged(message, metadata=metadata | fix)


def text(field: str, value: object) -> str:
    """Return a string that can be sent."""
    if not isinstance(value, str):
        raise refused(field, value, "a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refused(field, value, "text without lone surrogates") from None
    return value


def is_name(value: str) -> bool:
    """Return True for a computation's full name."""
    return _NAME.fullmatch(value) is not None


def followed_name(field: str, value: object) -> str:
    """Return the full name of a computation or of a slice."""
    return str(value) if is_name(slice_of(text(field, value))) else known_name(field, value)


def known_name(field: str, value: object) -> str:
    """Return a computation's full name; a name that cannot be registered is refused."""
    if not is_name(text(field, value)):
        root = slice_of(str(value))
        if root:
            raise refused(
                field, value, f"the whole, {root}: data that is complete in this slice may be missing in another"
            )
        raise refused(field, value, f"[namespace/]name, each part {_PART_FIX}")
    return str(value)


def name_part(field: str, value: object) -> str:
    """Return a namespace."""
    if _NAME_PART.fullmatch(text(field, value)) is None:
        raise refused(field, value, _PART_FIX)
    return str(value)


def key(field: str, value: object) -> bytes:
    """Return a key, or other bytes."""
    if not isinstance(value, bytes):
        raise refused(field, value, "bytes")
    return value


def flag(field: str, value: object) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise refused(field, value, "True or False")
    return value


def listed(field: str, values: Any) -> list[Any]:
    """Return several values; a str or bytes is refused, since it is one value."""
    fix = "a list or another iterable"
    if isinstance(values, str | bytes):
        raise refused(field, values, fix)
    try:
        iterator = iter(values)
    except TypeError:
        raise refused(field, values, fix) from None
    return list(iterator)


def names(field: str, values: Any) -> list[Any]:
    """Return several names; a str is refused, since its letters would count as names."""
    if isinstance(values, str):
        raise refused(field, values, f'a list: {field}=["{values}"]')
    return listed(field, values)


def whole(field: str, value: object, least: int, most: int, fix: str = "") -> int:
    """Return an integer of any type, numpy's included, within limits."""
    fix = fix or f"an integer of {least} to {most}"
    candidate: Any = value
    try:
        number = operator.index(candidate)
    except TypeError:
        raise refused(field, value, fix) from None
    if not least <= number <= most:
        raise refused(field, value, fix)
    return int(number)


def count(field: str, value: object, bits: int, *, least: int = 0) -> int:
    """Return an integer without a sign that fits into some bits."""
    return whole(field, value, least, 2**bits - 1, f"an integer of {least} to 2^{bits} - 1")


def counts(field: str, values: object, bits: int) -> list[int]:
    """Return several integers, each by :func:`count`."""
    numbers = listed(field, values)
    if set(map(type, numbers)) == {int} and 0 <= min(numbers) <= max(numbers) < 2**bits:
        return numbers
    return [count(f"{field}[{i}]", number, bits) for i, number in enumerate(numbers)]


def records(finished: object, pending: object) -> int:
    """Return the number of finished records; the authority has to accept both numbers."""
    number = whole("finished", finished, 0, MOST_RECORDS)
    if pending is None:
        return number
    if not isinstance(pending, Histogram):
        raise refused("pending", pending, "a Histogram")
    if pending.total > MOST_RECORDS:
        raise refused("pending", pending, f"at most {MOST_RECORDS} records")
    return number


def arrived(value: object) -> Arrived | None:
    """Return the lateness of records, with at most as many records as the authority accepts."""
    if value is None:
        return None
    fix = f"what Arrived.of(times, reference) returns, with at most {MOST_RECORDS} records"
    if not isinstance(value, Arrived):
        raise refused("arrived", value, fix)
    lateness: Any = value
    if not isinstance(lateness.reference, int) or not MIN < lateness.reference < MAX:
        raise refused("arrived.reference", lateness.reference, "the time in microseconds that lateness counts from")
    ints = all(isinstance(number, int) for pair in lateness.counts.items() for number in pair)
    if not ints or not all(0 <= bucket < len(EDGES) and count > 0 for bucket, count in value.counts.items()):
        raise refused("arrived.counts", value.counts, f"{fix}, by buckets from 0 to {len(EDGES) - 1}")
    if sum(value.counts.values()) > MOST_RECORDS:
        raise refused("arrived.counts", value.counts, fix)
    return value


def operation(started: Any) -> int:
    """Return the start of the oldest operation in microseconds; 0 for none."""
    if started is None:
        return 0
    fix = "a time by the wall clock: an aware datetime, or microseconds since 1970"
    return whole("oldest_operation", to_micros(started), 0, _YEAR_10000 - 1, fix)


def words(field: str, value: object) -> str:
    """Return a text of a worker that the authority accepts."""
    content = text(field, value)
    if len(content.encode()) > MOST_WORDS:
        raise refused(field, content, f"at most {MOST_WORDS} bytes of UTF-8")
    if _CONTROL.search(content):
        raise refused(field, content, "text without control characters")
    return content


def remarks(value: object) -> Remarks:
    """Return a worker's remarks that the authority accepts."""
    if not isinstance(value, Remarks):
        raise refused("remarks", value, "a lowwater.Remarks")
    holdback, ended, failure, untimed = value
    return Remarks(
        whole("remarks.holdback_micros", holdback, 0, _MOST_COUNTED),
        bool(ended),
        words("remarks.failure", failure),
        whole("remarks.untimed_rows", untimed, 0, _MOST_COUNTED),
    )


def micros(field: str, length: object, least: timedelta, most: timedelta) -> int:
    """Return a timedelta within limits as microseconds."""
    if not isinstance(length, timedelta) or not least <= length <= most:
        raise refused(field, length, f"a timedelta of {least} to {most}")
    return length // timedelta(microseconds=1)


def seconds(field: str, value: object, *, positive: bool = False) -> float:
    """Return a length of time in seconds, 0 or more."""
    number: Any = value
    if not is_number(value) or not 0 <= number <= _MOST_SECONDS or (positive and not number):
        raise refused(field, value, f"a number of seconds {'above 0' if positive else 'from 0'} to {_MOST_SECONDS:.0f}")
    return float(number)


def is_number(value: object) -> bool:
    """Return True for a real number of any type, numpy's included."""
    return not isinstance(value, bool) and isinstance(value, numbers.Real)
