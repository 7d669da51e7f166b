"""A strict reader of TOML files: its errors name the place in the file, and the fix."""

from __future__ import annotations

import sys
import tomllib
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.text import did_you_mean

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping
    from pathlib import Path

MOST: Final = 2**31 - 1
"""Largest whole number in a file: the largest that gRPC takes."""

WRITABLE_BY_ALL: Final = 0o002


def bytes_of(path: Path) -> bytes:
    """Return the bytes of a file. Raises BadFile, also when every user may write it."""
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise BadFile(str(path), f"cannot be read: {error.strerror}", "name a file that this user can read") from None
    if mode & WRITABLE_BY_ALL:
        raise BadFile(str(path), "can be written by everybody on this machine", f"chmod o-w {path}")
    return data


def parsed(data: bytes, source: str) -> dict[str, Any]:
    """Return the tables of a TOML file; ``source`` is what errors call it. Raises BadFile."""
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise BadFile(source, "is not UTF-8", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise BadFile(source, f"is not TOML: {error}", "correct it there") from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; [[[[...
        raise BadFile(source, "has a number or a nesting that nobody means", "remove it") from None


class BadFile(ValueError):
    """A file is refused: the place in it, the problem, and what to write instead.

    The error quotes no value that may be a secret.
    """

    def __init__(self, place: str, problem: str, fix: str) -> None:
        super().__init__(f"{place} {problem}; {fix}")
        self.place = place
        self.problem = problem
        self.fix = fix

    def within(self, source: str) -> BadFile:
        """Return this error with the file in front of its place."""
        return BadFile(f"{source}: {self.place}" if self.place else source, self.problem, self.fix)


class Table:
    """One table of a file. It refuses unknown keys: a misspelt one would be a rule that is lost."""

    def __init__(self, place: str, values: Mapping[str, Any], keys: Iterable[str]) -> None:
        self._place = place
        self._values = values
        allowed = tuple(keys)
        for key in values:
            if key not in allowed:
                fix = f"write one of {', '.join(allowed)}{did_you_mean(key, allowed)}"
                raise BadFile(self._at(key), "is unknown", fix)

    def bad(self, key: str, problem: str, fix: str) -> BadFile:
        """Return an error about a key, or about the table if ``key`` is empty."""
        return BadFile(self._at(key) if key else self._place, problem, fix)

    def text(self, key: str, shape: re.Pattern[str], fix: str, *, secret: bool = False) -> str:
        """Return a text that must not be missing. An error quotes no ``secret`` value."""
        if key not in self._values:
            raise self.bad(key, "is missing", f"write {fix}")
        return self.optional_text(key, shape, fix, secret=secret)

    def optional_text(self, key: str, shape: re.Pattern[str], fix: str, *, secret: bool = False) -> str:
        """Return a text; empty when it is missing."""
        value = self._values.get(key)
        if key not in self._values:
            return ""
        if not isinstance(value, str) or shape.fullmatch(value) is None:
            raise self.bad(key, "is malformed" if secret else f"is {shown(value)}", f"write {fix}")
        return value

    def texts(self, key: str, shape: re.Pattern[str], fix: str, *, secret: bool = False) -> tuple[str, ...]:
        """Return a list of texts, empty when it is missing. An error quotes no ``secret`` value."""
        values = self._values.get(key, [])
        if not isinstance(values, list):
            raise self.bad(key, "is not a list", f"write a list, in brackets, of {fix}")
        for number, value in enumerate(values, 1):
            if not isinstance(value, str) or shape.fullmatch(value) is None:
                problem = "is malformed" if secret else f"is {shown(value)}"
                raise self.bad(f"{key}[{number}]", problem, f"write {fix}")
        return tuple(dict.fromkeys(values))

    def flag(self, key: str) -> bool:
        """Return a truth value; False when it is missing."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.bad(key, f"is {shown(value)}", "write true or false")
        return value

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return a whole number from ``least`` to MOST; None when it is missing."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST):
            fix = f"write a whole number, {least} or more, up to {MOST}, or leave it out for no limit"
            raise self.bad(key, f"is {shown(value)}", fix)
        return value

    def number(self, key: str) -> float | None:
        """Return a number above 0; None when it is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise self.bad(key, f"is {shown(value)}", "write a number above 0, or leave it out for no limit")
        return float(value)

    def moment(self, key: str) -> float | None:
        """Return a date or a time as seconds since the Unix epoch; None when it is missing.

        A date means its first moment. Times without an offset are in UTC.
        """
        value = self._values.get(key)
        if value is None:
            return None
        if type(value) is date:
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        try:
            if isinstance(value, datetime):
                return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).timestamp()
        except OverflowError:  # an offset leads out of the calendar
            pass
        fix = "write a date or a time without quotes, such as 2027-01-31 or 2027-01-31T12:00:00Z"
        raise self.bad(key, f"is {shown(value)}", fix)

    def table(self, key: str, keys: Iterable[str]) -> Table | None:
        """Return an inner table; None when it is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(key, "is not a table", f"write [{key}] above its lines")
        return Table(self._at(key), value, keys)

    def tables(self, key: str, keys: Iterable[str]) -> list[Table]:
        """Return a list of inner tables. Errors count them from 1."""
        values = self._values.get(key, [])
        path = self._at(key).partition("[")[0] if not self._place else f"{self._place.partition('[')[0]}.{key}"
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.bad(key, "is not a list of tables", f"write [[{path}]] above each")
        return [Table(f"{self._at(key)}[{number}]", value, keys) for number, value in enumerate(values, 1)]

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key


def date_text(seconds: float) -> str:
    """Return seconds since the Unix epoch as a date in the notation of TOML.

    >>> date_text(1801440000.0)
    '2027-02-01T00:00:00Z'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def shown(value: object) -> str:
    """Return a value of a file as errors quote it."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "too large to show"
    return text if len(text) <= 40 else f"{text[:40]}..."
