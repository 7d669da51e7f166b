"""Promises about computations, from the file of ``--promises``, shown to readers of watermarks.

They decide nothing. docs/operate/monitoring.md shows a file.
"""

from __future__ import annotations

import argparse
import logging
import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from lowwater.cli.arguments import parse_duration
from lowwater.core.events import event
from lowwater.core.text import counted
from lowwater.v1 import types_pb2
from lowwater_authority.files.followed import FollowedFile
from lowwater_authority.files.table import BadFile, Table, bytes_of, parsed, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

NOTHING: Final = types_pb2.Promise()
"""Promise about a computation for which the file has no entry."""

MOST_ENTRIES: Final = 10_000
"""Most entries of one file."""

MOST_PATTERNS: Final = 500
"""Most entries of one file with a pattern. Each name is compared with all patterns, once."""

MOST_CACHED: Final = 20_000
"""Most names in the cache of promises."""

LEAST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 366 * 86_400.0

ENTRY: Final = ("computations", "late", "owner", "team", "runbook", "logs")

PATTERN: Final = re.compile(r"(?=.{1,257}\Z)(?:[A-Za-z0-9_./*?-]|\[!?[A-Za-z0-9_.-]+\])+")
WILD: Final = frozenset("*?[")

LITERALS: Final = re.compile(r"[*?]|\[[^\]]*\]")
"""Separators of the literal parts of a pattern."""

PATTERN_FIX: Final = (
    'a name, or a shell pattern such as "billing-*": A-Z a-z 0-9 _ . - / * ? and [abc], at most 257 characters'
)

TEXT: Final = re.compile(r"(?=.{1,128}\Z)\S(?:.*\S)?")
TEXT_FIX: Final = "1 to 128 printable characters, without spaces around them"

LATE: Final = re.compile(r"(?=.{1,128}\Z)[!-~](?:[ -~]*[!-~])?")
LATE_FIX: Final = 'a duration in quotes, such as "90s", "15m" or "2h", from 1 s to 366 days'

URL: Final = re.compile(r"https?://(?=.{1,1000}\Z)(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2}|{[a-z]+})+")
URL_FIX: Final = "an http or https URL of at most 1000 characters, with %-escapes for what is not allowed in one"

PLACES: Final = re.compile(r"{([a-z]+)}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the file."""

    computations: str
    promise: types_pb2.Promise
    """Promise about each computation that fits. ``{computation}`` is not replaced in it yet."""


class Promises:
    """The promises of a file. Every method may be called on any thread."""

    def __init__(self, entries: Iterable[_Entry] = ()) -> None:
        self._entries = tuple(entries)
        self._names: dict[str, int] = {}
        """Index of the first entry of each full name."""
        self._patterns: list[tuple[int, str, re.Pattern[str]]] = []
        """The other entries in order: index, longest literal text, and pattern. A search for the
        text takes a twentieth of the time of a match, and excludes most names."""
        for i, entry in enumerate(self._entries):
            if WILD.isdisjoint(entry.computations):
                self._names.setdefault(entry.computations, i)
            else:
                literal = max(LITERALS.split(entry.computations), key=len)
                self._patterns.append((i, literal, re.compile(translate(entry.computations))))
        self._cache: dict[str, types_pb2.Promise] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    @classmethod
    def load(cls, path: Path) -> Promises:
        """Read a file. Raises BadFile, which names the place in the file and the fix."""
        return cls.parse(bytes_of(path), str(path))

    @classmethod
    def parse(cls, data: bytes, source: str) -> Promises:
        """Parse the bytes of a file; ``source`` is what errors call it. Raises BadFile."""
        table = parsed(data, source)
        try:
            entries = Table("", table, ("promise",)).tables("promise", ENTRY)
            if len(entries) > MOST_ENTRIES:
                problem, fix = f"has {len(entries)} entries", f"write at most {MOST_ENTRIES}, with patterns"
                raise BadFile("promise", problem, fix)
            promises = cls(map(_entry, entries))
            if len(promises._patterns) > MOST_PATTERNS:
                problem = f"has {len(promises._patterns)} patterns"
                raise BadFile("promise", problem, f"write at most {MOST_PATTERNS}, and names in full")
            return promises
        except BadFile as error:
            raise error.within(source) from None

    def of(self, name: str) -> types_pb2.Promise:
        """Return the promise of the first entry that fits, or ``NOTHING``; shared, so unchanged.

        O(1), the first time for a name O(patterns).
        """
        promise = self._cache.get(name)
        if promise is None:
            if len(self._cache) >= MOST_CACHED:
                self._cache.clear()
            i = self._first(name)
            promise = self._cache[name] = NOTHING if i is None else _filled(self._entries[i].promise, name)
        return promise

    def _first(self, name: str) -> int | None:
        """Return the index of the first entry that fits."""
        named = self._names.get(name)
        for i, literal, pattern in self._patterns:
            if named is not None and named < i:
                break
            if literal in name and pattern.match(name):
                return i
        return named


class PromiseFile(FollowedFile[Promises]):
    """The promises of a file, followed. While a new file is bad, those before stay.

    ``served`` returns the names of the computations that this process serves. Their promises are
    looked up in the thread that reads a new file, because all of them are needed as soon as it
    counts. Raises BadFile when the first file cannot be used.
    """

    served: Callable[[], Iterable[str]] = staticmethod(tuple)
    _names: Sequence[str] = ()

    def _before_read(self) -> None:
        self._names = tuple(self.served())

    def _load(self) -> Promises:
        promises = Promises.load(self.path)
        for name in self._names:
            promises.of(name)
        return promises

    def _tell_read(self) -> None:
        entries = len(self.value)
        fields = event("promises_read", file=str(self.path), promises=entries)
        log.info("the file of promises was read again: %s", counted(entries, "promise"), extra=fields)

    def _tell_refused(self, error: BadFile) -> None:
        log.error(
            "the file of promises is bad, and what it said before stands: %s",
            error,
            extra=event("promises_refused", file=str(self.path), error=str(error)),
        )

    def _tell_failed(self, error: Exception, count: int) -> None:
        fields = event("promises_failed", file=str(self.path), error=str(error), count=count)
        log.exception("the file of promises cannot be followed, which is tried again", extra=fields)


def _filled(promise: types_pb2.Promise, name: str) -> types_pb2.Promise:
    escaped = quote(name, safe="")
    return types_pb2.Promise(
        late_micros=promise.late_micros,
        owner=promise.owner,
        team=promise.team,
        runbook=promise.runbook.replace("{computation}", escaped),
        logs=promise.logs.replace("{computation}", escaped),
    )


def _entry(table: Table) -> _Entry:
    return _Entry(
        table.text("computations", PATTERN, PATTERN_FIX),
        types_pb2.Promise(
            late_micros=_late(table),
            owner=_text(table, "owner"),
            team=_text(table, "team"),
            runbook=_url(table, "runbook", ("computation",)),
            logs=_url(table, "logs", ("computation", "worker", "host")),
        ),
    )


def _late(table: Table) -> int:
    """Return the microseconds of a duration; 0 when it is missing."""
    text = table.optional_text("late", LATE, LATE_FIX)
    if not text:
        return 0
    try:
        seconds = parse_duration(text)
    except argparse.ArgumentTypeError:
        raise table.bad("late", f"is {shown(text)}, which is no duration", f"write {LATE_FIX}") from None
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise table.bad("late", f"is {shown(text)}", f"write {LATE_FIX}")
    return round(seconds * 1e6)


def _text(table: Table, key: str) -> str:
    text = table.optional_text(key, TEXT, TEXT_FIX)
    if not text.isprintable():
        raise table.bad(key, f"is {shown(text)}", f"write {TEXT_FIX}")
    return text


def _url(table: Table, key: str, places: tuple[str, ...]) -> str:
    """Return a URL for a link. The operator alone chooses its host: names are filled in behind."""
    text = table.optional_text(key, URL, URL_FIX)
    if not text:
        return ""
    for place in PLACES.findall(text):
        if place not in places:
            named = " and ".join(f"{{{allowed}}}" for allowed in places)
            raise table.bad(key, f"has {{{place}}}", f"write {named} alone in braces")
    place = urlsplit(text).netloc if _has_host(text) else ""
    if not place:
        raise table.bad(key, f"is {shown(text)}, which has no host", f"write {URL_FIX}")
    if "@" in place:
        raise table.bad(key, "has a user or a password in it, which every reader would see", "leave them out")
    if "{" in place:
        raise table.bad(
            key, "has braces in its host", "write them behind it: names are filled in there that others chose"
        )
    return text


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a malformed port, a bracket that does not end
        return False
