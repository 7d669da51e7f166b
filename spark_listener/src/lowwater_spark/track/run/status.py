"""The status of a tracked query, for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import lowwater
from lowwater.core.text import on_one_line, without_secrets
from lowwater_spark.track.rows.cut import Cut

__all__ = ["KeyRange", "Status", "first_line", "in_short"]

_MOST: Final = 200
"""Greatest number of bytes of UTF-8 that the authority accepts as ``waiting_for``."""

_LEADING_FOLDERS: Final = re.compile(r"\S*/(?=[^\s/]+/[^\s/]+)")
"""All of a path but its last two names, which are the most informative."""

_SPARKS_OWN: Final = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ")
"""Spark's prefix of the error that ended a query."""


def in_short(waiting_for: Sequence[str]) -> str:
    """Return the first reason for waiting as the authority accepts it, shortened if it is too long.

    >>> in_short([]), in_short(["/in/a.json"]), in_short(["/in/a.json", "/in/b.json"])
    ('', '/in/a.json', '/in/a.json, and 1 more')
    """
    if not any(waiting_for):
        return ""
    first = on_one_line(waiting_for[0])
    more = f", and {len(waiting_for) - 1} more" if waiting_for[1:] else ""
    room = _MOST - len(more)
    if len(first.encode()) > room:
        first = _LEADING_FOLDERS.sub(".../", first)
    encoded = first.encode()
    if len(encoded) > room:
        # Leave the middle out: a text that is too long mostly begins with a path, and ends with the
        # reason. Its first third of ``room`` stays, "..." takes three bytes, and the end the rest.
        head = encoded[: room // 3]
        first = f"{head.decode(errors='ignore')}...{encoded[len(head) + 3 - room :].decode(errors='ignore')}"
    return first + more


def first_line(failure: BaseException | None) -> str:
    r"""Return the first line of an error without its secrets, for people; empty for no error.

    Spark's prefix with the ids of the query is left out.

    >>> first_line(None), first_line(OSError("no space left")), first_line(KeyError())
    ('', 'no space left', 'KeyError')
    >>> prefix = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    >>> first_line(ValueError(prefix + "[SCHEMA] no\nat"))
    '[SCHEMA] no'
    >>> first_line(OSError("jdbc:postgresql://etl:pass@db/x does not answer"))
    'jdbc:postgresql://***@db/x does not answer'
    """
    if failure is None:
        return ""
    line = _SPARKS_OWN.sub("", str(failure)).strip().partition("\n")[0]
    return without_secrets(line) or type(failure).__name__


@dataclass(frozen=True, slots=True)
class KeyRange:
    """One key range of a stage."""

    handle: int
    start: bytes
    end: bytes
    """First key behind the range; empty: it has no upper bound."""

    @classmethod
    def of(cls, handle: int, cut: Cut) -> Self:
        """Return one of the ranges of a cut.

        >>> str(KeyRange.of(1, Cut(3)))
        '1 [5555555555555556, aaaaaaaaaaaaaaab)'
        """
        bounds = cut.bounds
        return cls(handle, bounds[handle], bounds[handle + 1])

    def __str__(self) -> str:
        """Return its handle and its bounds."""
        return f"{self.handle} [{self.start.hex()}, {self.end.hex()})"


@dataclass(frozen=True, slots=True)
class Status:
    """A snapshot of a tracked query's state."""

    batch: int | None
    """Last committed batch; None before the first."""
    low: lowwater.Watermark
    """Low watermark of the inputs (an injector's frontier) that committed batches have reached."""
    reported: lowwater.Watermark
    """Least value that the key ranges report."""
    holding: str
    """Why the stage reports nothing new at the moment; empty if it does."""
    waiting_for: tuple[str, ...]
    """Reasons for waiting, a few: files that were in a source when a newer watermark was read and
    that no committed batch has read yet. If waiting does not help, the reason is added: written
    again after it was read, too old for maxFileAge, or the mark of a writer that the inputs do not
    name. And holds of the stage itself: rows that no broker has acknowledged, parts of an
    injector's source.
    """
    late_rows: int
    """Number of rows of this run below the inputs' earlier promise, or below what an injector
    declares of its source."""
    late_example: str
    """Oldest of these rows: its batch and event time."""
    ticks: int
    """Number of empty batches that this run has requested."""
    untimed_rows: int = 0
    """Number of rows of this run without an event time: they hold no watermark, and are in no
    window. A driven query with a function counts a row once for each Spark action on its batch."""
    late_range: KeyRange | None = None
    """Key range of the oldest late row; None without one, or if unknown."""
    dropped_rows: int = 0
    """Number of rows that Spark's own operators have dropped in this run, below Spark's own
    watermark, in a query with withWatermark. Of a sidecar that counts them by reading again: since
    it first did, one for each row."""
    dropped_hours: Mapping[str, int] = field(default_factory=dict)
    """Dropped rows that a sidecar has counted, by the start of their hour in UTC, as ISO texts. The
    oldest hour is first."""
    dropped_example: str = ""
    """Oldest dropped row that a sidecar has counted: event time, place in the source, and batch."""
    dropped_through: int | None = None
    """Last batch whose dropped rows a sidecar has counted or given up; None: it counts none."""
    dropped_uncounted: str = ""
    """Why a sidecar has not counted the dropped rows of some batches, or of all. Empty: it has
    counted all, or the query has no sidecar."""
    removed_batches: int = 0
    """Number of batches whose files this run has removed (``keep`` of ``batch.write``)."""
    removed_bytes: int = 0
    removal_held_back: float = 0.0
    """Seconds for which a reader has kept a batch beyond ``keep``: the longest of all outputs. 0.0:
    there was no such batch at the last write."""
    remembered_files: int = 0
    """Number of read files whose names are kept: the existing ones twice, and 1,000 a source."""
    ahead_rows: int = 0
    """Number of rows of this run too far ahead of the driver's clock, in an injector with
    ``disorder``: they do not move the frontier."""
    ahead_example: str = ""
    """Newest of these rows: its event time, partition or producer, offset and batch."""
    unsent_rows: int = 0
    """Number of rows, of a computation with weak productions, that no broker has acknowledged yet:
    they stay in the state, are sent again, and hold the watermark; see ``waiting_for``."""
    unsent_since: float | None = None
    """Clock of the batch of the first of these rows, epoch seconds; None: no row, or unknown."""
    unsent_oldest: lowwater.Watermark | None = None
    """Oldest timestamp of these rows, which holds the low watermark; None without any."""
