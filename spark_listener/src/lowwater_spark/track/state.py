"""Keyed state of a stage: a new version per batch, files per key range, named as one directory before the output.

Version N is built from version N - 1, which is never changed, and holds three things: the state of each range, the rows that the
batch emits, and a manifest of what each range still holds. Keeping the emitted rows in the version makes a replay simple: whatever
was interrupted after the version had been named finds it and takes the rows from there, without computing anything; whatever
was interrupted before finds only N - 1 and computes N again, with the same plan and the same durable W.

Files are named by task attempt and counted only when the manifest names them, so a retried, doubled or forgotten task cannot
disturb a version. State that a batch did not change is linked, not copied: a range's one file, or each of its segments (:mod:`~lowwater_spark.track.segments`).
So a version that is deleted takes nothing from the others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lowwater import Arrived
from lowwater.layout import Layout
from lowwater_spark.checkpoint.durable import make_directory
from lowwater_spark.checkpoint.location import Location, way
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, StateLost
from lowwater_spark.track.cut import EQUAL, layout_from_json, layout_to_json
from lowwater_spark.track.handover import publish_directory, sweep
from lowwater_spark.track.segments import Due, Segment

__all__ = ["Place", "RangeEntry", "StateStore", "Version"]

_WHOLE: Final = 1
_SEGMENTED: Final = 2
_LAID_OUT: Final = 3
"""Formats of a manifest. One without segments is written as releases read it that know none, and so
is one of equal ranges."""
_MANIFEST: Final = "manifest.json"

KEPT_VERSIONS: Final = 3
"""Versions that stay: the last committed one, the one before, and the one that a batch is building.
"""


@dataclass(frozen=True, slots=True)
class RangeEntry:
    """One key range in one version."""

    state: str = ""
    """Name of the file with its state; empty when it has none."""
    emitted: str = ""
    """Name of the file with the rows that the ranges of its task emitted, of the first of them that
    did; of the others, and of one that emitted nothing, empty."""
    oldest: int | None = None
    """The oldest stamp that it still holds, microseconds."""
    records: int = 0
    """How many records it still holds."""
    segments: tuple[Segment, ...] = ()
    """Its state, when that is in segments."""
    facts: tuple[int, ...] = ()
    """What the update has noted of the range beside its segments."""
    due: Due | None = None
    """When it has something to do without any row; None when the update does not tell."""

    @property
    def segmented(self) -> bool:
        """Whether its state is in segments."""
        return bool(self.segments or self.facts)

    def columns(self) -> list[Any]:
        """Return it as JSON has it."""
        whole: list[Any] = [self.state, self.emitted, self.oldest, self.records]
        if not self.segmented:
            return whole
        segments = [[each.name, each.part, each.rows, each.size, each.of, *each.facts] for each in self.segments]
        return [*whole, segments, self.facts, *([] if self.due is None else [self.due])]

    @classmethod
    def of(cls, columns: Sequence[Any]) -> RangeEntry:
        """Return what :meth:`columns` has told."""
        state, emitted, oldest, records, *segmented = columns
        segments, noted, *due = segmented or ((), ())
        named = tuple(
            Segment(name, part, rows, size, of, tuple(facts)) for name, part, rows, size, of, *facts in segments
        )
        return cls(state, emitted, oldest, records, named, tuple(noted), Due(*due[0]) if due else None)


@dataclass(frozen=True, slots=True)
class Version:
    """What one version consists of."""

    batch: int
    digest: str
    low: int
    """The W that the batch ran with, microseconds."""
    ranges: Sequence[RangeEntry]
    pending: tuple[Sequence[int], Sequence[int]] = ((), ())
    """Histogram of the records held: bucket starts in microseconds, counts."""
    finished: int = 0
    """Records that the batch finished."""
    late: int = 0
    """Rows below what had been promised."""
    late_example: int | None = None
    """Event time of the oldest of them."""
    late_handle: int | None = None
    """Its key range."""
    layout: Layout = EQUAL
    """How the key space is cut; version 0: into equal parts."""
    arrived: Arrived | None = None
    """How late its rows were; None when nobody asked."""
    untimed: int = 0
    """Number of its rows that had no event time."""

    @property
    def held(self) -> list[int | None]:
        """The oldest stamp that each range holds."""
        return [entry.oldest for entry in self.ranges]

    @property
    def due(self) -> Due | None:
        """When the first range has something to do without any row; None when no range tells."""
        told = [entry.due for entry in self.ranges if entry.due is not None]
        if not told:
            return None
        times = [[time for time in each if time is not None] for each in zip(*told, strict=True)]
        return Due(*(min(each, default=None) for each in times))


@dataclass(frozen=True, slots=True)
class Place:
    """Where the manifest of a checkpoint says of one stage where its state is.

    ``home`` is where the stage has its directory ``lowwater``.
    """

    manifest: Manifest
    home: Location

    @property
    def name(self) -> str:
        """What the stage goes by in the checkpoint's files: where its home is, and not the computation's name, which may be changed."""
        return way(self.manifest.checkpoint, self.home)

    def is_moved(self, kept: str, now: Path) -> bool:
        """Return whether a directory of the checkpoint was kept by a path at which the checkpoint stood before it was moved or copied.

        ``now`` is where that directory is by now. One that the user has named stays where it is, and is not in the checkpoint.
        """
        checkpoint = self.manifest.checkpoint
        if not isinstance(checkpoint, Path) or not now.is_relative_to(checkpoint) or kept == os.fspath(now):
            return False
        return kept.endswith(f"/{way(checkpoint, now)}") and now.is_dir()

    def read(self) -> Mapping[str, Any] | None:
        """Return what is kept, None when the stage has no state."""
        states: Mapping[str, Any] | None = self.manifest["state"]
        return (states or {}).get(self.name)

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Keep it, durable when it returns.

        Costs and raises as :meth:`~lowwater_spark.checkpoint.manifest.Manifest.keep`.
        """
        self.manifest.keep_entry("state", self.name, entry)


@dataclass(slots=True)
class StateStore:
    """The versions of one stage's state.

    The checkpoint's manifest remembers where the state is, for how many ranges, since which batch,
    and by what it is made: a version that should be there and is not raises StateLost instead of
    being taken for a stage that starts.
    """

    place: Place
    root: Path
    ranges: int
    first: int = field(init=False, default=-1)
    made: Mapping[str, Any] | None = field(init=False, default=None)
    """By what the state was made, see :meth:`match`; None in checkpoints of releases that kept
    nothing of it."""
    ordinal: int = field(init=False, default=0)
    """The run that builds in it; 0 for reading."""

    @classmethod
    def existing(cls, place: Place) -> StateStore | None:
        """Return the store that earlier batches of this checkpoint made, None when there was none."""
        entry = place.read()
        if entry is None:
            return None
        own, root = place.home / "lowwater" / "state", Path(entry["root"])
        if isinstance(own, Path) and place.is_moved(entry["root"], own):
            root = own
        store = cls(place, root, int(entry["ranges"]))
        store.first = int(entry["first"])
        store.made = entry.get("made")
        return store

    @classmethod
    def opened(cls, place: Place, root: Path, ranges: int, batch: int, *, ordinal: int) -> StateStore:
        """Return the store for the run of this ordinal, made at its first batch.

        Raises CheckpointMismatch when it was made elsewhere, or for another number of ranges.
        """
        store = cls.existing(place)
        if store is None:
            make_directory(root)
            store = cls(place, root, ranges)
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

    def match(self, made: Mapping[str, str], schema: Mapping[str, str], batch: int) -> None:
        """Compare the stage with the one that made the state: its key and its stamps, in words, and the schema of what it emits.

        ``schema`` has the types of the columns by their names; their order is no matter. It may have more columns than it had, unless ``batch`` was
        interrupted after its rows had been made without them. A state that nothing is known of is taken to be of this stage, from now on.
        Raises CheckpointMismatch.
        """
        if self.made is None:
            self._keep({**made, "schema": dict(schema)})
            return
        before = self.made["schema"]
        # Releases that kept the schema as one text named a plain column without quotes.
        as_text = isinstance(before, str)
        for what, now in made.items():
            kept = self.made.get(what, now)
            self._refuse_other(what, now if as_text and _bare(kept) == _bare(now) else kept, now, "")
        if as_text:
            self._refuse_other("schema", before, _struct(schema), "")
            self._keep({**made, "schema": dict(schema)})
            return
        if not made.keys() <= self.made.keys():
            self._keep({**self.made, **made})
        if before == schema:
            return
        interrupted = self.version(batch)
        until = ""
        if before.items() <= schema.items():
            if interrupted is None or not any(entry.emitted for entry in interrupted.ranges):
                self._keep({**made, "schema": dict(schema)})
                return
            until = f" until batch {batch} is committed, which was interrupted"
        self._refuse_other("schema", _struct(before), _struct(schema), until)

    def _keep(self, made: Mapping[str, Any] | None) -> None:
        self.place.keep({"root": os.fspath(self.root), "ranges": self.ranges, "first": self.first, "made": made})
        self.made = made

    def _refuse_other(self, what: str, before: str, now: str, until: str) -> None:
        if before != now:
            raise CheckpointMismatch(
                _OTHER.format(root=self.root, what=what, before=before, now=now, why=_WHY[what], until=until)
            )

    def version(self, batch: int) -> Version | None:
        """Return a version, None when it does not exist."""
        try:
            entry = json.loads((self.root / str(batch) / _MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        if entry["format"] not in (_WHOLE, _SEGMENTED, _LAID_OUT):
            msg = f"version {batch} in {self.root} is of format {entry['format']}; this release reads {_WHOLE} to {_LAID_OUT}"
            raise CheckpointMismatch(msg)
        return _manifest(entry)

    def before(self, batch: int) -> Version | None:
        """Return the version that a batch builds on, None for the first one. Raises StateLost."""
        manifest = self.version(batch - 1)
        if manifest is None and batch > self.first:
            msg = (
                f"batch {batch} needs version {batch - 1} of the state in {self.root}, which is not there. A stage with state must call "
                "batch.stateful() in every batch. If the directory was removed, restore it with the checkpoint, or start from a new one."
            )
            raise StateLost(msg)
        return manifest

    def check_layout(self, version: Version, logged: Layout | None) -> None:
        """Compare how a version cuts the key space with what the batch log says of its batch, None: nothing. Raises CheckpointMismatch."""
        if version.layout != logged:
            said = "nothing" if logged is None else _cut(logged)
            raise CheckpointMismatch(
                _DRIFTED.format(batch=version.batch, root=self.root, cut=_cut(version.layout), said=said)
            )

    def build(self, batch: int, digest: str, fill: Callable[[Path], Version]) -> Version:
        """Return version ``batch``; when it does not exist yet, ``fill`` makes its files and tells its manifest.

        Durable when it returns. Raises CheckpointMismatch when it was made from another plan.
        """

        def write(folder: Path) -> None:
            manifest = fill(folder)
            (folder / _MANIFEST).write_text(json.dumps(_entry(manifest)), encoding="utf-8")

        publish_directory(self.root, str(batch), digest, write, ordinal=self.ordinal)
        made = self.version(batch)
        assert made is not None
        return made

    def file(self, batch: int, name: str) -> str:
        """Return the path of a file that a manifest names."""
        return os.fspath(self.root / str(batch) / name)

    def purge(self, committed: int) -> None:
        """Delete the versions that no replay can need any more, given the last committed batch."""
        for entry in self.root.iterdir():
            if entry.name.isdecimal() and int(entry.name) <= committed - KEPT_VERSIONS + 1:
                shutil.rmtree(entry, ignore_errors=True)

    def sweep(self) -> None:
        """Delete what earlier runs left half built."""
        sweep(self.root, self.ordinal)


_OTHER: Final = (
    "the state in {root} was made with the {what} {before}, and the stage has the {what} {now}: {why}. Start the stage with what it was{until}, or "
    "begin a new checkpoint, with adopt=True."
)

_DRIFTED: Final = (
    "version {batch} of the state in {root} has {cut}, and the log of batches has {said} for that batch: one of the two was changed, or restored from a "
    "copy without the other. Restore the checkpoint as a whole, or begin a new one, with adopt=True."
)

_WHY: Final = {
    "key": "what is held of a key would be looked for in another key range",
    "time zone": "its key depends on it, so what is held of a key would be looked for under another one",
    "stamp": "what is held would be promised by other stamps than it was kept for",
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


def _entry(manifest: Version) -> dict[str, Any]:
    laid_out = {"layout": layout_to_json(manifest.layout)} if manifest.layout.version else {}
    segmented = _SEGMENTED if any(entry.segmented for entry in manifest.ranges) else _WHOLE
    return {
        "format": _LAID_OUT if laid_out else segmented,
        **laid_out,
        "batch": manifest.batch,
        "digest": manifest.digest,
        "low": manifest.low,
        "ranges": [entry.columns() for entry in manifest.ranges],
        "pending": [list(manifest.pending[0]), list(manifest.pending[1])],
        "finished": manifest.finished,
        "late": manifest.late,
        "late_example": manifest.late_example,
        "late_handle": manifest.late_handle,
        **({"untimed": manifest.untimed} if manifest.untimed else {}),
        **({} if manifest.arrived is None else {"arrived": _counted(manifest.arrived)}),
    }


def _counted(arrived: Arrived) -> list[Any]:
    return [arrived.reference, list(arrived.counts), list(arrived.counts.values())]


def _manifest(entry: Mapping[str, Any]) -> Version:
    return Version(
        batch=entry["batch"],
        digest=entry["digest"],
        low=entry["low"],
        ranges=[RangeEntry.of(columns) for columns in entry["ranges"]],
        pending=(entry["pending"][0], entry["pending"][1]),
        finished=entry["finished"],
        late=entry["late"],
        late_example=entry["late_example"],
        late_handle=entry.get("late_handle"),
        untimed=entry.get("untimed", 0),
        layout=layout_from_json(entry["layout"]) if "layout" in entry else EQUAL,
        arrived=_arrived(*entry["arrived"]) if "arrived" in entry else None,
    )


def _arrived(reference: int, buckets: Sequence[int], counts: Sequence[int]) -> Arrived:
    return Arrived(reference, dict(zip(buckets, counts, strict=True)))
