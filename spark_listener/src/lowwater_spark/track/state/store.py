"""Keyed state of a stage: one version a batch, with one directory of files, made before the output.

Version N is built from version N - 1, which never changes. It has the state of each range, the rows
that the batch emits, and a manifest of what each range still holds. With the emitted rows in the
version a replay is simple: if an earlier run has named the version, the replay reads the rows there
and computes nothing; otherwise it computes N again from N - 1, with the same plan and the same
durable W.

Each task attempt has file names of its own, and a file counts only if the manifest names it, so a
retried or duplicated task cannot disturb a version. State that a batch did not change is linked,
not copied: a range's one file, or each of its segments (:mod:`~lowwater_spark.track.segments`). So
a version can be deleted without harm to the others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from lowwater import Arrived
from lowwater.layout import Layout
from lowwater_spark.checkpoint.durable import make_directory
from lowwater_spark.checkpoint.location import Location, way
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, StateLost
from lowwater_spark.track.rows.counts import Counted
from lowwater_spark.track.rows.cut import EQUAL, layout_from_json, layout_to_json
from lowwater_spark.track.segments import Due, Segment
from lowwater_spark.track.state.handover import sweep

__all__ = ["StageSection", "RangeEntry", "StateStore", "StateVersion"]

_WHOLE: Final = 1
_SEGMENTED: Final = 2
_LAID_OUT: Final = 3
"""Formats of a manifest. Each is written only where it is needed, so that older releases can read
manifests without segments, and with equal ranges."""
_MANIFEST: Final = "manifest.json"

KEPT_VERSIONS: Final = 3
"""Number of versions that stay: the last committed one, the one before, and the one being built."""


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """One key range in one version."""

    state: str = ""
    """Name of the range's state file; empty without one."""
    emitted: str = ""
    """File with the emitted rows of a task, named only by the task's first range with rows."""
    oldest: int | None = None
    """Oldest stamp that the range still holds, microseconds; None: it holds none."""
    records: int = 0
    segments: tuple[Segment, ...] = ()
    """Segments of the range's state, if the update keeps its state in segments."""
    facts: tuple[int, ...] = ()
    """Numbers that the update notes about the range besides its segments."""
    due: Due | None = None
    """Time at which the range acts without any row; None if the update does not say."""

    @property
    def segmented(self) -> bool:
        """True if the range's state is in segments."""
        return bool(self.segments or self.facts)

    def columns(self) -> list[Any]:
        """Return the entry as JSON values."""
        whole: list[Any] = [self.state, self.emitted, self.oldest, self.records]
        if not self.segmented:
            return whole
        segments = [
            [segment.name, segment.part, segment.rows, segment.size, segment.of, *segment.facts]
            for segment in self.segments
        ]
        return [*whole, segments, self.facts, *([] if self.due is None else [self.due])]

    @classmethod
    def of(cls, columns: Sequence[Any]) -> RangeEntry:
        """Return the entry from the values of :meth:`columns`."""
        state, emitted, oldest, records, *segmented = columns
        segments, noted, *due = segmented or ((), ())
        named = tuple(
            Segment(name, part, rows, size, of, tuple(facts)) for name, part, rows, size, of, *facts in segments
        )
        return cls(state, emitted, oldest, records, named, tuple(noted), Due(*due[0]) if due else None)


@dataclass(frozen=True, slots=True)
class StateVersion:
    """One version of the state, as the manifest in its folder describes it."""

    batch: int
    digest: str
    low: int
    """Low watermark of the batch, microseconds."""
    ranges: Sequence[RangeEntry]
    pending: tuple[Sequence[int], Sequence[int]] = ((), ())
    """Histogram of the held records: bucket starts in microseconds, counts."""
    counted: Counted = field(default_factory=Counted)
    layout: Layout = EQUAL
    """Layout of the key ranges; version 0: equal parts."""

    @property
    def held(self) -> list[int | None]:
        """Oldest stamp that each range holds."""
        return [entry.oldest for entry in self.ranges]

    @property
    def due(self) -> Due | None:
        """Earliest time at which any range acts without a row; None if no range says."""
        reported = [entry.due for entry in self.ranges if entry.due is not None]
        if not reported:
            return None
        times = [[time for time in moments if time is not None] for moments in zip(*reported, strict=True)]
        return Due(*(min(moments, default=None) for moments in times))

    def write(self, folder: Path) -> None:
        """Write the manifest of the version into its folder."""
        (folder / _MANIFEST).write_text(json.dumps(self.to_json()), encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """Return the version as JSON values."""
        laid_out = {"layout": layout_to_json(self.layout)} if self.layout.version else {}
        segmented = _SEGMENTED if any(entry.segmented for entry in self.ranges) else _WHOLE
        counted, arrived = self.counted, self.counted.arrived
        return {
            "format": _LAID_OUT if laid_out else segmented,
            **laid_out,
            "batch": self.batch,
            "digest": self.digest,
            "low": self.low,
            "ranges": [entry.columns() for entry in self.ranges],
            "pending": [list(self.pending[0]), list(self.pending[1])],
            "finished": counted.finished,
            "late": counted.late,
            "late_example": counted.late_example,
            "late_handle": counted.late_handle,
            **({"untimed": counted.untimed} if counted.untimed else {}),
            **(
                {}
                if arrived is None
                else {"arrived": [arrived.reference, list(arrived.counts), list(arrived.counts.values())]}
            ),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Return the version from the values of :meth:`to_json`."""
        arrived = entry.get("arrived")
        return cls(
            batch=entry["batch"],
            digest=entry["digest"],
            low=entry["low"],
            ranges=[RangeEntry.of(columns) for columns in entry["ranges"]],
            pending=(entry["pending"][0], entry["pending"][1]),
            counted=Counted(
                entry["finished"],
                entry["late"],
                entry["late_example"],
                entry.get("late_handle"),
                None if arrived is None else Arrived(arrived[0], dict(zip(*arrived[1:], strict=True))),
                entry.get("untimed", 0),
            ),
            layout=layout_from_json(entry["layout"]) if "layout" in entry else EQUAL,
        )


@dataclass(frozen=True, slots=True)
class StageSection:
    """The section about one stage's state in the manifest of a checkpoint.

    ``home`` is the parent of the stage's directory ``lowwater``.
    """

    manifest: Manifest
    home: Location

    @property
    def name(self) -> str:
        """Name of the stage in the checkpoint's files: the path to its home, not its own name."""
        return way(self.manifest.checkpoint, self.home)

    def is_moved(self, stored: str, now: Path) -> bool:
        """Return whether a stored path is from before the checkpoint was moved or copied.

        ``now`` is that directory's present path. A path that the user has chosen is outside of the
        checkpoint, and stays.
        """
        checkpoint = self.manifest.checkpoint
        if not isinstance(checkpoint, Path) or not now.is_relative_to(checkpoint) or stored == os.fspath(now):
            return False
        return stored.endswith(f"/{way(checkpoint, now)}") and now.is_dir()

    def read(self) -> Mapping[str, Any] | None:
        """Return the stored entry; None if the stage has no state."""
        states: Mapping[str, Any] | None = self.manifest["state"]
        return (states or {}).get(self.name)

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Store the entry durably; costs and raises as Manifest.keep."""
        self.manifest.keep_entry("state", self.name, entry)


@dataclass(slots=True)
class StateStore:
    """The versions of one stage's state.

    The checkpoint's manifest stores the folder of the state, its number of ranges, its first batch
    and its key, stamps and schema. So a version that is missing raises StateLost; otherwise the
    stage would look like a new one.
    """

    section: StageSection
    root: Path
    ranges: int
    first: int = field(init=False, default=-1)
    description: Mapping[str, Any] | None = field(init=False, default=None)
    """Key, stamps and schema of the state, see :meth:`match`; None from old releases."""
    ordinal: int = field(init=False, default=0)
    """Number of the run that builds versions; 0: the store is only read."""

    @classmethod
    def existing(cls, section: StageSection) -> StateStore | None:
        """Return the store that earlier batches of this checkpoint made; None without one."""
        entry = section.read()
        if entry is None:
            return None
        own, root = section.home / "lowwater" / "state", Path(entry["root"])
        if isinstance(own, Path) and section.is_moved(entry["root"], own):
            root = own
        store = cls(section, root, int(entry["ranges"]))
        store.first = int(entry["first"])
        store.description = entry.get("made")
        return store

    @classmethod
    def opened(cls, section: StageSection, root: Path, ranges: int, batch: int, *, ordinal: int) -> StateStore:
        """Return the store for the run of this number; the first batch makes the store.

        Raises CheckpointMismatch if it was made in another folder, or for another number of ranges.
        """
        store = cls.existing(section)
        if store is None:
            make_directory(root)
            store = cls(section, root, ranges)
            store.first = batch
            store._keep(None)
        if store.root != root:
            msg = f"the state of this checkpoint is in {store.root}, not in {root}; pass the same path in every batch"
            raise CheckpointMismatch(msg)
        if store.ranges != ranges:
            msg = (
                f"the state in {root} is kept for {store.ranges} key ranges, the stage has {ranges}; start it with "
                f"ranges={store.ranges}, or from a new checkpoint"
            )
            raise CheckpointMismatch(msg)
        store.ordinal = ordinal
        return store

    def match(self, stage: Mapping[str, str], schema: Mapping[str, str], batch: int) -> None:
        """Compare the stage's key, stamps and schema with those that the state was made with.

        ``schema`` maps the columns to their types, in any order. Columns may be added, unless
        ``batch`` was interrupted after its rows had been written without them. A state without a
        stored schema is adopted as this stage's. Raises CheckpointMismatch.
        """
        if self.description is None:
            self._keep({**stage, "schema": dict(schema)})
            return
        before = self.description["schema"]
        # Old releases stored the schema as one text (``as_text``), and a key that is a plain column
        # by its name without the backticks that it may have now. Beside such a schema, texts that
        # differ only by backticks are equal: else an upgrade would refuse the state of its own key.
        as_text = isinstance(before, str)
        for what, now in stage.items():
            stored = self.description.get(what, now)
            self._refuse_other(what, now if as_text and _bare(stored) == _bare(now) else stored, now, "")
        if as_text:
            self._refuse_other("schema", before, _struct(schema), "")
            self._keep({**stage, "schema": dict(schema)})
            return
        if not stage.keys() <= self.description.keys():
            self._keep({**self.description, **stage})
        if before == schema:
            return
        interrupted = self.version(batch)
        until = ""
        if before.items() <= schema.items():
            if interrupted is None or not any(entry.emitted for entry in interrupted.ranges):
                self._keep({**stage, "schema": dict(schema)})
                return
            until = f" until batch {batch} is committed, which was interrupted"
        self._refuse_other("schema", _struct(before), _struct(schema), until)

    def _keep(self, stage: Mapping[str, Any] | None) -> None:
        self.section.keep({"root": os.fspath(self.root), "ranges": self.ranges, "first": self.first, "made": stage})
        self.description = stage

    def _refuse_other(self, what: str, before: str, now: str, until: str) -> None:
        if before != now:
            raise CheckpointMismatch(
                _OTHER.format(root=self.root, what=what, before=before, now=now, why=_WHY[what], until=until)
            )

    def version(self, batch: int) -> StateVersion | None:
        """Return a version; None if it does not exist."""
        try:
            entry = json.loads((self.root / str(batch) / _MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        if entry["format"] not in (_WHOLE, _SEGMENTED, _LAID_OUT):
            msg = f"version {batch} in {self.root} is of format {entry['format']}; this release reads {_WHOLE} to {_LAID_OUT}"
            raise CheckpointMismatch(msg)
        return StateVersion.from_json(entry)

    def before(self, batch: int) -> StateVersion | None:
        """Return the version that a batch builds on; None for the first batch. Raises StateLost."""
        version = self.version(batch - 1)
        if version is None and batch > self.first:
            msg = (
                f"batch {batch} needs version {batch - 1} of the state in {self.root}, which does not exist. A stage with state must call "
                "batch.stateful() in every batch. If the directory was removed, restore it with the checkpoint, or start from a new one."
            )
            raise StateLost(msg)
        return version

    def check_layout(self, version: StateVersion, logged: Layout | None) -> None:
        """Raise CheckpointMismatch if a version's layout is not the logged one (or None)."""
        if version.layout != logged:
            log_says = "nothing" if logged is None else _cut(logged)
            raise CheckpointMismatch(
                _DRIFTED.format(batch=version.batch, root=self.root, cut=_cut(version.layout), said=log_says)
            )

    def file(self, batch: int, name: str) -> str:
        """Return the path of a file in a version."""
        return os.fspath(self.root / str(batch) / name)

    def purge(self, committed: int) -> None:
        """Delete the versions that no replay needs after the last committed batch."""
        for entry in self.root.iterdir():
            if entry.name.isdecimal() and int(entry.name) <= committed - KEPT_VERSIONS + 1:
                shutil.rmtree(entry, ignore_errors=True)

    def sweep(self) -> None:
        """Delete versions that earlier runs have left half built."""
        sweep(self.root, self.ordinal)


_OTHER: Final = (
    "the state in {root} was made with the {what} {before}, and the stage has the {what} {now}: {why}. Start the stage with the former {what}{until}, or "
    "begin a new checkpoint, with adopt=True."
)

_DRIFTED: Final = (
    "version {batch} of the state in {root} has {cut}, and the log of batches has {said} for that batch: one of the two was changed, or restored from a "
    "copy without the other. Restore the checkpoint as a whole, or begin a new one, with adopt=True."
)

_WHY: Final = {
    "key": "the state of a key would be looked up in another key range",
    "time zone": "the key depends on it, so the state of a key would be looked up under another one",
    "stamp": "the held records would get other stamps than were promised for them",
    "schema": "an interrupted batch would read its rows by other columns than it has written, as nulls",
}


def _bare(text: str) -> str:
    return text.replace("`", "")


def _cut(layout: Layout) -> str:
    return (
        f"version {layout.version} of a layout, with {len(layout)} key ranges" if layout.version else "equal key ranges"
    )


def _struct(schema: Mapping[str, str]) -> str:
    return f"struct<{','.join(f'{name}:{kind}' for name, kind in schema.items())}>"
