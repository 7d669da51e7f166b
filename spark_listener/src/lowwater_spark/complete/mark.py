"""Marks in the versions of a table: how far the table is complete. Pure functions, no table format.

A stage that appends the rows of a batch as one version of a table leaves a mark in that version:
*complete through 14:00, life 3, epoch 7*. The time is the one that the stage reports when the batch
is committed: no later version of this writer has a row below it. So a reader of this version, or of
a later one, has every row below the time that the writer has written or will write. A single
version cannot exclude two accidents:

* **Rows were removed**, by a RESTORE, a CLONE, an overwrite. A mark tells up to which version its
  writer has checked all versions since its first one (``checked``), and what it found. A reader
  checks the versions after that. So a RESTORE between the check and the commit of a writer is found
  by the reader, and by the writer's next check.
* **Another checkpoint goes on.** A stage that starts again with another checkpoint is another
  *life* of the computation. The mark of the highest life counts. A run of an older life may still
  commit; its marks are ignored. A writer that finds a mark of a higher life is refused.

A table here is a history of versions, one after the other. It counts the batches of each writer
under a name, the writer's *app*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Self

import lowwater
from lowwater.watermark import MIN
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.tables.versioned import writer_of

__all__ = [
    "COMPLETE",
    "ClaimEpoch",
    "Completeness",
    "History",
    "Mark",
    "Standing",
    "Version",
    "OutputWriter",
    "follow",
    "read",
]

COMPLETE: Final = "complete"
"""Key of the mark in the metadata that lowwater leaves in a version."""


class ClaimEpoch(NamedTuple):
    """Claim of a computation under which a mark was written."""

    life: int
    """Incarnation of the computation."""
    epoch: int


class Standing(NamedTuple):
    """State of a stage while it writes a batch."""

    low: int
    """Lowest event time that a later batch of the stage can still write, microseconds."""
    claim: ClaimEpoch | None
    """Claim of the stage; None: it has none at the moment."""
    current: bool = True
    """True when ``low`` was read from the inputs that the stage is registered with now."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of one writer in one version."""

    through: int
    """Event time below which no later version of this writer has a row, microseconds; MIN:
    unknown."""
    life: int
    """Incarnation of the computation; 0: it was never claimed."""
    epoch: int
    checked: int
    """Place of the newest version that the writer had checked."""
    rewound: str = ""
    """First change that removed rows, or may have, since the checkpoint's first version, in words;
    empty: none up to ``checked``."""
    deleted: str = ""
    """First DELETE since the checkpoint's first version, in words; empty: none up to ``checked``.
    """
    after: tuple[str, ...] = ()
    """Apps of the computation's earlier checkpoints."""
    before: int = -1
    """Place of the writer's version before this one; -1: there is none, or it was not noted."""

    def to_json(self) -> dict[str, Any]:
        """Return the mark as plain JSON values, and in words under ``complete``."""
        return {"complete": str(self), **asdict(self), "after": list(self.after)}

    @classmethod
    def from_json(cls, values: Any) -> Self | None:
        """Return the mark from the values of :meth:`to_json`; None for other values."""
        try:
            through, life, epoch, checked = (values[name] for name in ("through", "life", "epoch", "checked"))
            rewound, deleted, after = values["rewound"], values["deleted"], tuple(values["after"])
            before = values.get("before", -1)
        except (KeyError, TypeError):
            return None
        numbers, texts = (through, life, epoch, checked, before), (rewound, deleted, *after)
        if not all(type(value) is int for value in numbers) or not all(type(value) is str for value in texts):
            return None
        return cls(through, life, epoch, checked, rewound, deleted, after, before)

    def __str__(self) -> str:
        """Return the mark in words.

        >>> str(Mark(0, 3, 7, 41))
        'complete through 1970-01-01T00:00:00Z, life 3, epoch 7'
        >>> str(Mark(MIN, 3, 7, 41))
        'complete through unknown, life 3, epoch 7'
        """
        return f"complete through {lowwater.Watermark(self.through)}, life {self.life}, epoch {self.epoch}"


class Version(NamedTuple):
    """One version of a table: its batches, and the rows that it removes."""

    writes: Mapping[str, Mark | None] = {}
    """Mark of each app that has counted a batch in the version; None: that app has left none."""
    rewinds: str = ""
    """Change that removes or replaces older rows, in words; empty: none."""
    deletes: str = ""
    """DELETE that removes older rows, in words; empty: none."""


Log = Callable[[int], Version | None]
"""Function that returns the version at a place; None: the table does not have it any more."""


@dataclass(frozen=True, slots=True)
class History:
    """The versions that led to a table's state at one moment."""

    newest: int
    """Place of the newest version. The first version of all has place 0, though the table may not
    have it any more."""
    apps: Collection[str]
    """Apps that count batches in the table."""
    log: Log
    lost: Mapping[str, str] = field(default_factory=dict)
    """Reason why the last batch of an app is not in the table, by app. Only for tables that note
    last batches beside the versions."""
    lives: Mapping[str, int] = field(default_factory=dict)
    """Life of the computation at that last batch, by app."""
    word: str = "version"
    """Word that the table has for a version."""
    number: Callable[[int], int | None] = int
    """Function that returns the table's number for the version at a place."""

    def named(self, at: int) -> str:
        """Return the name of the version at a place, like ``version 7``."""
        return f"{self.word} {self.number(at)}"

    def gone(self, at: int) -> str:
        """Return in words that the table does not have a version any more."""
        return f"{self.named(at)} is not there any more"

    def went_back(self, at: int, app: str, mark: Mark) -> str:
        """Return in words how a mark shows that the table was restored to an older version.

        Empty: it was not. The mark is the one of ``app`` at place ``at``. The versions that it
        names must precede it, and still be in the table. Costs reading one version.
        """
        if at <= mark.checked:
            return f"{self.named(at)} was made when the table had {self.number(mark.checked)} already: it was put back meanwhile"
        # ``mark.checked`` does not show every loss. For example, after the writer's check somebody
        # put back a copy of the table without its last three versions, one of them this writer's,
        # and others added three: ``mark.before``, the place of this writer's previous version, then
        # has one of theirs. Without this test the table would read as complete, but rows are gone.
        before = self.log(mark.before) if mark.before >= 0 else None
        if before is not None and app not in before.writes:
            return f"{self.named(mark.before)} is not that of this writer, as it was when {self.number(at)} was made: the table was put back meanwhile"
        return ""


_UNKNOWN: Final = "so the rows that it removed are unknown"


def follow(app: str, standing: Standing, history: History) -> tuple[Mark, str]:
    """Return a writer's mark for the table's next version, and a newly found removal of rows.

    The removal is in words; empty: none, or an earlier mark names one already. Raises
    CheckpointMismatch when a higher life of the computation has written into the table. Costs
    reading the versions since the writer's last check, and its version before the last one; at a
    writer's first batch the versions since its predecessor's last check.
    """
    apps, log = history.apps, history.log
    others = {other for other in apps if other != app and writer_of(other) == writer_of(app)}
    previous: Mark | None = None
    place = -1
    rewound, deleted, at = history.lost.get(app, ""), "", history.newest
    pending = set(others)
    lives: dict[str, int] = {}
    while at >= 0:
        unchecked = app in apps and (previous is None or at > previous.checked)
        # ``life`` is the incarnation of the computation: a new checkpoint has a higher one. When
        # the writer left its previous mark, it compared its life with those in the marks of
        # ``others``, and a higher one would have ended it. With life 0 (not claimed yet) it could
        # not compare, and before its first batch it has no mark. Then the older versions are read
        # too: otherwise a run that another checkpoint has replaced would go on writing here.
        compared_lives = app in apps and (previous is None or previous.life > 0)
        if not unchecked and (compared_lives or not pending):
            break
        version = log(at)
        if version is None:
            # Without ``unchecked`` the version was wanted only for the life in another app's mark:
            # the writer had checked it for removed rows, or writes its first batch and has no rows
            # to lose. So the removed rows are unknown only if the version was ``unchecked``.
            rewound = rewound or (f"{history.gone(at)}, {_UNKNOWN}" if unchecked else "")
            break
        if unchecked:
            rewound, deleted = version.rewinds or rewound, version.deletes or deleted
        for name, mark in version.writes.items():
            pending.discard(name)
            if name == app and previous is None:
                previous = mark or Mark(MIN, 0, 0, at, f"{history.named(at)} of this writer has no mark")
                place = at
                rewound = rewound or ("" if mark is None else history.went_back(at, app, mark))
            elif name in others and mark is not None:
                lives.setdefault(name, mark.life)
        at -= 1
    if app in apps and previous is None:
        rewound = rewound or f"no {history.word} of it shows what this writer had written"
    last = Mark(MIN, 0, 0, history.newest) if previous is None else previous
    life, epoch = standing.claim or ClaimEpoch(last.life, last.epoch)
    lives |= {other: max(history.lives.get(other, 0), lives.get(other, 0)) for other in others & history.lost.keys()}
    newest_life = max(lives.values(), default=0)
    if 0 < life < newest_life:
        msg = (
            f"life {newest_life} of {writer_of(app)} has written into the table, and this run is of life {life}. Either another checkpoint has replaced this one: then stop this run, whose "
            "rows nobody needs any more. Or the authority has lost its journal and counts lives from the beginning: then stop all runs of life "
            f"{newest_life}, call `lowwater reset {writer_of(app)}` {newest_life + 1 - life} times, which makes this life {newest_life + 1}, and start this run again."
        )
        raise CheckpointMismatch(msg)
    if standing.claim is not None and standing.current:
        through = standing.low
    else:
        through = min(last.through, standing.low) if last.life == life else MIN
    after = last.after if last.life == life else tuple(sorted(others))
    news = "" if last.rewound else rewound
    rewound, deleted = last.rewound or rewound, last.deleted or deleted
    return Mark(through, life, epoch, history.newest, rewound, deleted, after, place), news


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputWriter:
    """Completeness of an output for one of its writers."""

    low: lowwater.Watermark
    """Watermark below which the output has every row of this writer."""
    why: str = ""
    """Reason why ``low`` is unknown; empty: it is known."""
    version: int | None = None
    """Version, or batch, with the mark that counts; None: there is none."""
    life: int = 0
    """Incarnation of the computation in that mark."""
    epoch: int = 0
    """Epoch of the computation in that mark: its ownership number among shards."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """Completeness of an output, by the marks in it."""

    low: lowwater.Watermark
    """Watermark below which the output has every row of all writers: the least of theirs, unknown
    when one of these is."""
    why: str
    """Reason why ``low`` is unknown; empty: it is known."""
    version: int | None
    """Newest version of the table that was read; None for a directory."""
    writers: Mapping[str, OutputWriter] = field(default_factory=dict)
    """Completeness by writer, in the order of the call."""

    @classmethod
    def of(cls, writers: Mapping[str, OutputWriter], version: int | None, strangers: Iterable[str] = ()) -> Self:
        """Return the completeness of an output from that of its writers.

        ``strangers`` are further writers of the output, for which the caller did not ask.
        """
        why = next((f"{name}: {writer.why}" for name, writer in writers.items() if writer.why), "")
        if others := sorted(strangers):
            why = f"{others[0]} writes into it as well: name it in writers"
        low = min((writer.low.micros for writer in writers.values()), default=MIN)
        return cls(lowwater.Watermark(MIN if why else low), why, version, writers)


def read(history: History, writers: Sequence[str], *, ignore_deletes: bool = False) -> Completeness:
    """Return how far a table is complete at its newest version.

    ``history.apps`` may come from an earlier version. Costs reading the versions since the last
    check of each writer, and each writer's version before its last one.
    """
    apps, log = history.apps, history.log
    marks: dict[str, dict[str, tuple[int, Mark | None]]] = {name: {} for name in writers}
    apps_of = {name: {app for app in apps if writer_of(app) == name} for name in writers}
    rewinds: list[tuple[int, str]] = []
    deletes: list[tuple[int, str]] = []
    expired, at = -1, history.newest
    while at >= 0 and any(_needs(at, apps_of[name], marks[name]) for name in writers):
        version = log(at)
        if version is None:
            expired = at
            break
        rewinds += [(at, version.rewinds)] if version.rewinds else []
        deletes += [(at, version.deletes)] if version.deletes else []
        for app, mark in version.writes.items():
            if writer_of(app) in marks:
                marks[writer_of(app)].setdefault(app, (at, mark))
        at -= 1

    def state_of(name: str) -> OutputWriter:
        app, at, mark = _best(marks[name]) or ("", -1, None)
        version = None if at < 0 else history.number(at)
        if mark is None:
            return OutputWriter(lowwater.Watermark(MIN), _silent(apps_of[name], marks[name], history, expired), version)
        others = sorted(apps_of[name] - marks[name].keys() - set(mark.after))
        # ``history.lost`` has the apps (checkpoints) whose last batch is not in the table any more,
        # for example after a rollback. For those in ``mark.after``, which ``app`` has replaced,
        # that does not count. But if the last batch of one has a higher life (incarnation of the
        # computation) than the mark, it went on after ``app``: if that loss were ignored, the table
        # would read as complete without those rows.
        earlier = {app for app in mark.after if history.lives.get(app, 0) <= mark.life}
        lost = [history.lost[app] for app in sorted(apps_of[name] - earlier) if app in history.lost]
        newer = [what for place, what in rewinds if place > mark.checked]
        removed = [what for place, what in deletes if place > mark.checked]
        why = (
            mark.rewound
            or history.went_back(at, app, mark)
            or (newer[-1] if newer else "")
            or (lost[0] if lost else "")
        )
        if not ignore_deletes:
            why = why or mark.deleted or (removed[-1] if removed else "")
        if not why and expired > mark.checked:
            why = f"{history.gone(expired)}, {_UNKNOWN}"
        if not why and others:
            why = f"{history.gone(expired)}, and what another checkpoint of it has said is not known ({others[0]})"
        if not why and mark.life == 0:
            why = "its stage had not been claimed yet"
        if not why and mark.through == MIN:
            why = "it did not know yet how far its inputs are"
        return OutputWriter(lowwater.Watermark(MIN if why else mark.through), why, version, mark.life, mark.epoch)

    strangers = {writer_of(app) for app in apps} - {"", *writers}
    newest = history.number(history.newest)
    return Completeness.of({name: state_of(name) for name in writers}, newest, strangers)


def _best(marks: Mapping[str, tuple[int, Mark | None]]) -> tuple[str, int, Mark | None] | None:
    """Return app, place and mark of the highest life among the newest marks of a writer's apps."""
    if not marks:
        return None
    app = max(marks, key=lambda app: (_life_of(marks[app][1]), marks[app][0]))
    return app, *marks[app]


def _life_of(mark: Mark | None) -> float:
    """Return the highest life that a version may have: infinity for one without a usable mark."""
    return float("inf") if mark is None or (mark.life == 0 and mark.rewound) else mark.life


def _needs(at: int, apps: Collection[str], marks: Mapping[str, tuple[int, Mark | None]]) -> bool:
    """Return whether the version at a place may change what is known of a writer."""
    best = _best(marks)
    if best is None:
        return bool(apps)
    mark = best[2]
    if mark is None:
        return False
    return at > mark.checked or bool(set(apps) - marks.keys() - set(mark.after))


def _silent(apps: Collection[str], marks: Mapping[str, object], history: History, expired: int) -> str:
    """Return in words why a writer without a mark is unknown."""
    if marks:
        return f"a {history.word} of it says nothing of how far it is"
    if lost := sorted(app for app in apps if app in history.lost):
        return history.lost[lost[0]]
    if apps:
        return f"{history.gone(expired)}, and none since says how far it is"
    return "it has written nothing that says how far it is"
