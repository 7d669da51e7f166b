"""Tables of a TOML file, taken apart with errors that name the place and the fix."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CERTIFICATE", "NAMESPACE", "PATTERN", "SHA256", "BadAccess", "Table"]

_PART: Final = r"[A-Za-z0-9_.-]"

NAMESPACE: Final = re.compile(rf"\*|{_PART}{{0,128}}")
PATTERN: Final = re.compile(rf"{_PART}{{0,127}}\*|{_PART}{{1,128}}")
SHA256: Final = re.compile(r"[0-9a-f]{64}")
CERTIFICATE: Final = re.compile(r"[^\s*]{1,256}|[^\s*][^\n*]{0,254}[^\s*]")
MOST: Final = 2**31 - 1
"""Of a whole number: more than anything here can have, and what gRPC takes."""

_NAME: Final = re.compile(rf"{_PART}{{1,64}}")
_NAME_FIX: Final = "1 to 64 of A-Z a-z 0-9 _ . -"


class BadAccess(ValueError):
    """A file of access rules is refused: where, what is wrong, and what to write instead. No value that may be a secret is quoted."""

    def __init__(self, place: str, problem: str, fix: str) -> None:
        super().__init__(f"{place} {problem}; {fix}")
        self.place = place
        self.problem = problem
        self.fix = fix

    def within(self, source: str) -> BadAccess:
        """Return the same, said of a file."""
        return BadAccess(f"{source}: {self.place}" if self.place else source, self.problem, self.fix)


class Table:
    """One table, of which every key must be known: a misspelt one would be a rule that is not there."""

    def __init__(self, place: str, values: Mapping[str, Any], keys: Iterable[str]) -> None:
        self._place = place
        self._values = values
        known = tuple(keys)
        for key in values:
            if key not in known:
                raise BadAccess(self._at(key), "is unknown", f"write one of {', '.join(known)}")

    def bad(self, key: str, problem: str, fix: str) -> BadAccess:
        """Return the error of a key; empty: of the table."""
        return BadAccess(self._at(key) if key else self._place, problem, fix)

    def text(self, key: str, shape: re.Pattern[str] = _NAME, fix: str = _NAME_FIX) -> str:
        """Return a text that must be there."""
        value = self._values.get(key)
        if key not in self._values:
            raise self.bad(key, "is missing", f"write {fix}")
        if not isinstance(value, str) or shape.fullmatch(value) is None:
            raise self.bad(key, f"is {_shown(value)}", f"write {fix}")
        return value

    def texts(self, key: str, shape: re.Pattern[str], fix: str) -> tuple[str, ...]:
        """Return a list of texts; none when it is missing."""
        values = self._values.get(key, [])
        if not isinstance(values, list):
            raise self.bad(key, "is not a list", f"write a list, in brackets, of {fix}")
        for number, value in enumerate(values, 1):
            if not isinstance(value, str) or shape.fullmatch(value) is None:
                # What stands where a digest should may be the token itself.
                shown = "is malformed" if shape is SHA256 else f"is {_shown(value)}"
                raise self.bad(f"{key}[{number}]", shown, f"write {fix}")
        return tuple(dict.fromkeys(values))

    def flag(self, key: str) -> bool:
        """Return a truth value; False when it is missing."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.bad(key, f"is {_shown(value)}", "write true or false")
        return value

    def whole(self, key: str, least: int = 1) -> int | None:
        """Return a whole number from ``least`` to MOST; None when it is missing."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST):
            fix = f"write a whole number, {least} or more, up to {MOST}, or leave it out for no limit"
            raise self.bad(key, f"is {_shown(value)}", fix)
        return value

    def number(self, key: str) -> float | None:
        """Return a number above 0; None when it is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise self.bad(key, f"is {_shown(value)}", "write a number above 0, or leave it out for no limit")
        return float(value)

    def table(self, key: str, keys: Iterable[str]) -> Table | None:
        """Return a table within; None when it is missing."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(key, "is not a table", f"write [{key}] above its lines")
        return Table(self._at(key), value, keys)

    def tables(self, key: str, keys: Iterable[str]) -> list[Table]:
        """Return tables within, counted from 1."""
        values = self._values.get(key, [])
        path = self._at(key).partition("[")[0] if not self._place else f"{self._place.partition('[')[0]}.{key}"
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.bad(key, "is not a list of tables", f"write [[{path}]] above each")
        return [Table(f"{self._at(key)}[{number}]", value, keys) for number, value in enumerate(values, 1)]

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key


def _shown(value: object) -> str:
    try:
        shown = repr(value)
    except ValueError:  # a number of thousands of digits, which it would take long to write
        return "too large to show"
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
