"""What the versions of a table say of how far it is complete: written into them, followed from one to the next, and read. Pure.

A stage that appends the rows of a batch as one version of a table leaves a mark in it: *complete through 14:00, life 3, epoch 7*. It is what the stage reports when the
batch is committed: no version of this writer after this one has a row below it. So who has this version, or a later one, has every row below it that the writer has
written or will write, but for two things that a single version cannot tell:

* **Rows were taken away.** By a RESTORE, a CLONE, an overwrite. A mark says up to which version its writer has looked at all versions since its first one (``checked``), and
  what it has found. A reader looks at those after that. So a RESTORE that comes between the look and the commit of a writer is found by the reader, and by the writer's next look.
* **Somebody else goes on.** A stage that is begun anew with another checkpoint is another *life* of the computation. The mark of the highest life counts; a run of an older one that did not
  notice may still commit, and says nothing. A writer that finds a mark of a higher life than its own is refused.

It knows nothing of Delta or Iceberg: a table is a history of versions, one after the other, and counts the batches of who writes into it under a name (its *app*).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import lowwater
from lowwater.watermark import MIN
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.delta import writer_of

__all__ = [
    "COMPLETE",
    "Claim",
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
"""Under which name what lowwater leaves in a version has the mark."""


class Claim(NamedTuple):
    """Under which claim a stage runs."""

    life: int
    """The computation's incarnation."""
    epoch: int


class Standing(NamedTuple):
    """What a stage can say of itself while it writes."""

    low: int
    """The lowest stamp that a later batch of it can still write, microseconds."""
    claim: Claim | None
    """None: it is not claimed, or not any more."""
    current: bool = True
    """Whether what it goes by was read of the inputs that it is registered with now."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a version says of its writer."""

    through: int
    """No later version of this writer has a row below it, microseconds; MIN: unknown."""
    life: int
    """Of the computation; 0: it was never claimed."""
    epoch: int
    checked: int
    """The place of the newest version that its writer had looked at."""
    rewound: str = ""
    """What has taken rows away since the checkpoint's first version, or may have, in words; empty:
    nothing up to ``checked``."""
    deleted: str = ""
    """The same of what was deleted by a condition."""
    after: tuple[str, ...] = ()
    """Under which other names the computation's batches were counted before: its earlier
    checkpoints."""
    before: int = -1
    """The place of its writer's version before this one; -1: there is none, or nobody has noted it.
    """

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, and in words."""
        return {
            "complete": str(self),
            "through": self.through,
            "life": self.life,
            "epoch": self.epoch,
            "checked": self.checked,
            "rewound": self.rewound,
            "deleted": self.deleted,
            "after": list(self.after),
            "before": self.before,
        }

    @classmethod
    def from_json(cls, said: Any) -> Self | None:
        """Return what :meth:`to_json` described, None for what is no mark."""
        try:
            through, life, epoch, checked = (said[name] for name in ("through", "life", "epoch", "checked"))
            rewound, deleted, after = said["rewound"], said["deleted"], tuple(said["after"])
            before = said.get("before", -1)
        except (KeyError, TypeError):
            return None
        numbers, texts = (through, life, epoch, checked, before), (rewound, deleted, *after)
        if not all(type(each) is int for each in numbers) or not all(type(each) is str for each in texts):
            return None
        return cls(through, life, epoch, checked, rewound, deleted, after, before)

    def __str__(self) -> str:
        """Return it in words.

        >>> str(Mark(0, 3, 7, 41)), str(Mark(MIN, 3, 7, 41))
        ('complete through 1970-01-01T00:00:00Z, life 3, epoch 7', 'complete through unknown, life 3, epoch 7')
        """
        return f"complete through {lowwater.Watermark(self.through)}, life {self.life}, epoch {self.epoch}"


class Version(NamedTuple):
    """What one version of a table says."""

    writes: Mapping[str, Mark | None] = {}
    """The mark of whoever has counted a batch in it, by app; None: it has left none."""
    rewinds: str = ""
    """How it takes rows away that were there, in words; empty: it takes none."""
    deletes: str = ""
    """The same of rows that are deleted by a condition."""


Log = Callable[[int], Version | None]
"""Returns a version by its place, None when it is not there any more."""


@dataclass(frozen=True, slots=True)
class History:
    """The versions that a table has come from, as of one moment."""

    newest: int
    """The place of the newest one; the first of all has 0, or a later one where the table does not
    know it any more."""
    apps: Collection[str]
    """All who count batches in the table by then."""
    log: Log
    lost: Mapping[str, str] = field(default_factory=dict)
    """By app: why what it has written last is not there, in words, where that is known by something
    else than the versions."""
    lives: Mapping[str, int] = field(default_factory=dict)
    """By app: in which life of the computation that was, where it is known in the same way."""
    word: str = "version"
    """What the table calls a version."""
    number: Callable[[int], int | None] = int
    """Returns the number that the table has for the version at a place."""

    def named(self, at: int) -> str:
        """Return what the version at a place is called."""
        return f"{self.word} {self.number(at)}"

    def gone(self, at: int) -> str:
        """Return that a version is not there any more, in words."""
        return f"{self.named(at)} is not there any more"

    def went_back(self, at: int, app: str, mark: Mark) -> str:
        """Return why the version of a mark of that app cannot be where it is, or has lost the one before it, in words; empty: neither. Costs the reading of a version."""
        if at <= mark.checked:
            return f"{self.named(at)} was made when the table had {self.number(mark.checked)} already: it was put back meanwhile"
        # Others may have written by then as many as were lost.
        before = self.log(mark.before) if mark.before >= 0 else None
        if before is not None and app not in before.writes:
            return f"{self.named(mark.before)} is not that of this writer, as it was when {self.number(at)} was made: the table was put back meanwhile"
        return ""


_UNKNOWN: Final = "and what it took away is not known"


def follow(app: str, standing: Standing, history: History) -> tuple[Mark, str]:
    """Return the mark that a writer leaves in the table's next version, and what it has found by its look that it had not known before, in words.

    Raises CheckpointMismatch when a higher life of the computation writes into the table. Costs the reading of the versions since the
    writer's last look, of its version before the last one, and of those since the last look of its predecessor when it begins.
    """
    apps, log = history.apps, history.log
    others = {each for each in apps if each != app and writer_of(each) == writer_of(app)}
    previous: Mark | None = None
    place = -1
    rewound, deleted, at = history.lost.get(app, ""), "", history.newest
    sought = set(others)
    lives: dict[str, int] = {}
    while at >= 0:
        unseen = app in apps and (previous is None or at > previous.checked)
        # Before it was claimed it had no life to compare with the others'.
        compared = app in apps and (previous is None or previous.life > 0)
        if not unseen and (compared or not sought):
            break
        version = log(at)
        if version is None:
            # Before its own first version nothing is of interest but who else was there.
            rewound = rewound or (f"{history.gone(at)}, {_UNKNOWN}" if unseen else "")
            break
        if unseen:
            rewound, deleted = version.rewinds or rewound, version.deletes or deleted
        for name, mark in version.writes.items():
            sought.discard(name)
            if name == app and previous is None:
                previous = mark or Mark(MIN, 0, 0, at, f"{history.named(at)} of this writer has no mark")
                place = at
                rewound = rewound or ("" if mark is None else history.went_back(at, app, mark))
            elif name in others and mark is not None:
                lives.setdefault(name, mark.life)
        at -= 1
    if app in apps and previous is None:
        rewound = rewound or f"no {history.word} of it shows what this writer had written"
    known = Mark(MIN, 0, 0, history.newest) if previous is None else previous
    life, epoch = standing.claim or Claim(known.life, known.epoch)
    lives |= {each: max(history.lives.get(each, 0), lives.get(each, 0)) for each in others & history.lost.keys()}
    newer = max(lives.values(), default=0)
    if 0 < life < newer:
        msg = (
            f"life {newer} of {writer_of(app)} has written into the table, and this run is of life {life}. Either another checkpoint has taken its place: then stop this run, for "
            "what it would write is of no use any more. Or the authority has begun to count lives anew, since its journal was lost: then stop all that life "
            f"{newer} may still run, call `lowwater reset {writer_of(app)}` {newer + 1 - life} times, which makes this life {newer + 1}, and start this run again."
        )
        raise CheckpointMismatch(msg)
    if standing.claim is not None and standing.current:
        through = standing.low
    else:
        through = min(known.through, standing.low) if known.life == life else MIN
    after = known.after if known.life == life else tuple(sorted(others))
    found = "" if known.rewound else rewound
    rewound, deleted = known.rewound or rewound, known.deleted or deleted
    return Mark(through, life, epoch, history.newest, rewound, deleted, after, place), found


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputWriter:
    """What an output says of one of its writers."""

    low: lowwater.Watermark
    """Every row of it below this is there."""
    why: str = ""
    """Why ``low`` is unknown; empty: it is known."""
    version: int | None = None
    """The version, or the batch, that says so."""
    life: int = 0
    """The computation's incarnation by then."""
    epoch: int = 0
    """Its ownership number among shards by then."""


@dataclass(frozen=True, slots=True)
class Completeness:
    """How far an output is complete, as it says itself."""

    low: lowwater.Watermark
    """Every row below this that one of the writers writes is there: the least of all writers;
    unknown if it is of one."""
    why: str
    """Why ``low`` is unknown; empty: it is known."""
    version: int | None
    """The newest version of the table that was looked at; None for a directory."""
    writers: Mapping[str, OutputWriter] = field(default_factory=dict)
    """By writer, in the order in which they were asked for."""

    @classmethod
    def of(cls, writers: Mapping[str, OutputWriter], version: int | None, strangers: Iterable[str] = ()) -> Self:
        """Return what the writers come to.

        ``strangers``: who writes as well, and was not asked for.
        """
        why = next((f"{name}: {writer.why}" for name, writer in writers.items() if writer.why), "")
        if unasked := sorted(strangers):
            why = f"{unasked[0]} writes into it as well: name it in writers"
        low = min((writer.low.micros for writer in writers.values()), default=MIN)
        return cls(lowwater.Watermark(MIN if why else low), why, version, writers)


def read(history: History, writers: Sequence[str], *, ignore_deletes: bool = False) -> Completeness:
    """Return how far a table is complete at its newest version.

    Who counts batches in it may be known of an earlier one.

    Costs the reading of the versions since the last look of each writer, of the last of all at
    most, and of each writer's version before its last one.
    """
    apps, log = history.apps, history.log
    found: dict[str, dict[str, tuple[int, Mark | None]]] = {name: {} for name in writers}
    asked = {name: {app for app in apps if writer_of(app) == name} for name in writers}
    rewinds: list[tuple[int, str]] = []
    deletes: list[tuple[int, str]] = []
    gone, at = -1, history.newest
    while at >= 0 and any(_needs(at, asked[name], found[name]) for name in writers):
        version = log(at)
        if version is None:
            gone = at
            break
        rewinds += [(at, version.rewinds)] if version.rewinds else []
        deletes += [(at, version.deletes)] if version.deletes else []
        for app, mark in version.writes.items():
            if writer_of(app) in found:
                found[writer_of(app)].setdefault(app, (at, mark))
        at -= 1

    def told(name: str) -> OutputWriter:
        app, at, mark = _best(found[name]) or ("", -1, None)
        version = None if at < 0 else history.number(at)
        if mark is None:
            return OutputWriter(lowwater.Watermark(MIN), _silent(asked[name], found[name], history, gone), version)
        others = sorted(asked[name] - found[name].keys() - set(mark.after))
        # What came before its life may be gone, unless it has gone on in a later one.
        earlier = {app for app in mark.after if history.lives.get(app, 0) <= mark.life}
        lost = [history.lost[app] for app in sorted(asked[name] - earlier) if app in history.lost]
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
        if not why and gone > mark.checked:
            why = f"{history.gone(gone)}, {_UNKNOWN}"
        if not why and others:
            why = f"{history.gone(gone)}, and what another checkpoint of it has said is not known ({others[0]})"
        if not why and mark.life == 0:
            why = "its stage had not been claimed yet"
        if not why and mark.through == MIN:
            why = "it did not know yet how far its inputs are"
        return OutputWriter(lowwater.Watermark(MIN if why else mark.through), why, version, mark.life, mark.epoch)

    strangers = {writer_of(app) for app in apps} - {"", *writers}
    newest = history.number(history.newest)
    return Completeness.of({name: told(name) for name in writers}, newest, strangers)


def _best(found: Mapping[str, tuple[int, Mark | None]]) -> tuple[str, int, Mark | None] | None:
    """Return the app, the version and the mark that count among the newest of each checkpoint: those of the highest life."""
    if not found:
        return None
    app = max(found, key=lambda each: (_life_of(found[each][1]), found[each][0]))
    return app, *found[app]


def _life_of(mark: Mark | None) -> float:
    """Return of which life a mark may be at most."""
    # One without a mark may be of any life, and one that has lost what it knew of its own.
    return float("inf") if mark is None or (mark.life == 0 and mark.rewound) else mark.life


def _needs(at: int, asked: Collection[str], found: Mapping[str, tuple[int, Mark | None]]) -> bool:
    """Return whether a version may say something of a writer that is not known yet."""
    best = _best(found)
    if best is None:
        return bool(asked)
    mark = best[2]
    if mark is None:
        return False
    return at > mark.checked or bool(set(asked) - found.keys() - set(mark.after))


def _silent(asked: Collection[str], found: Mapping[str, object], history: History, gone: int) -> str:
    if found:
        return f"a {history.word} of it says nothing of how far it is"
    if lost := sorted(app for app in asked if app in history.lost):
        return history.lost[lost[0]]
    if asked:
        return f"{history.gone(gone)}, and none since says how far it is"
    return "it has written nothing that says how far it is"
