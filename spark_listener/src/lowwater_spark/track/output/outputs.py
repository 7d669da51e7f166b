"""Outputs of a batch: the protocol that every kind of output implements, and the table of kinds.

How data flows. A batch makes an :class:`OutputTurn`: all that an output may know of the batch.
:meth:`OpenOutputs.open` asks the kinds that the user's method allows for the output at a place,
refuses a second write to it in the batch, and lets an output that is new in this run remove what a
crashed run has left there. :func:`write_once` asks the output whether it has the batch already
(:meth:`BatchOutput.find`) and compares the plan. Then the output either writes the rows with their
mark (:meth:`BatchOutput.append`), or makes those that are there durable and whole
(:meth:`BatchOutput.finish`).

What is pure: the decision in :func:`write_once`, from what was found; and how far a mark may say
that the output is complete (:mod:`lowwater_spark.complete.mark`). All that reads or writes a store
is a method of an output.

A checkpoint also notes the newest batch that it has written to each output. An output that has
fewer batches was made anew, or restored from an older copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, cast

from lowwater_spark.checkpoint.identity import identity
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.complete.mark import ClaimEpoch, Standing
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.track.facts import BatchFacts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lowwater_spark.track.output.removal import Removal
    from lowwater_spark.track.state.store import StageSection

__all__ = [
    "KINDS",
    "FoundBatch",
    "OutputKind",
    "OpenOutputs",
    "BatchOutput",
    "OutputTurn",
    "needed_options",
    "remember",
    "remembered",
    "write_once",
]

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class OutputTurn:
    """One batch of one stage, as its outputs see it."""

    facts: BatchFacts
    run: int
    """Number of the run; a later run of the checkpoint has a greater one."""
    writer: str
    """Full name of the computation."""
    section: StageSection
    """The stage's section of the checkpoint's manifest."""
    claim: Callable[[], ClaimEpoch | None]
    """Returns the stage's claim; None: it has none at the moment."""
    standing: Callable[[], Standing]
    """Returns what an output may claim of its completeness. It fixes the batch's frontier."""
    probe: Callable[[str], None]
    """Called at the named steps of a write; for tests."""

    @property
    def checkpoint(self) -> str:
        """Identity of the query's checkpoint."""
        return identity(self.section.manifest.checkpoint)


class FoundBatch(NamedTuple):
    """A batch of this writer that an output has."""

    batch: int
    """Number of the batch: the turn's, or a later one."""
    digest: str
    """Digest of the plan in the batch's mark."""
    where: str
    """The batch in words, such as the path of its directory."""


class BatchOutput:
    """One place that one stage writes to, in one batch."""

    resolution: ClassVar[timedelta] = _MICROSECOND
    """Smallest difference of two times that the output keeps."""
    says_complete: ClassVar[bool] = False
    """True: each batch's mark says how far the output is complete."""
    removal: Removal | None = None
    """Removal of old batches in this run; None: none was asked for."""

    @classmethod
    def at(cls, frame: DataFrame, turn: OutputTurn, place: str, *args: Any, **options: Any) -> Self | None:
        """Return the output at a place; None if another kind of output is there.

        Writes nothing. Raises ValueError and Unsupported for a place or options that cannot be
        used.
        """
        raise NotImplementedError

    @property
    def key(self) -> Hashable:
        """The place under its real name. A batch may write to each key once."""
        raise NotImplementedError

    def resume(self, earlier: BatchOutput) -> BatchOutput | None:
        """Return the object that goes on after the run's ``earlier`` one at this key.

        None: a new one must begin.
        """
        return earlier if type(earlier) is type(self) else None

    def begin(self, frame: DataFrame, turn: OutputTurn) -> None:
        """Prepare the place for this run, and remove what earlier runs have left half written.

        A run that was replaced must not remove what its successor is writing.
        """

    def find(self, turn: OutputTurn) -> FoundBatch | None:
        """Return the turn's batch, or a later one of this checkpoint; None: it has neither.

        Raises CheckpointMismatch if the output has lost a batch, Unsupported if it could not tell.
        """
        raise NotImplementedError

    def append(self, frame: DataFrame, turn: OutputTurn, standing: Standing | None) -> bool:
        """Write the rows with their mark, at once and durably; False if another run was faster.

        ``standing`` is None unless the output says how far it is complete. Raises
        CheckpointMismatch if a newer life or run of the computation has written to the output.
        """
        raise NotImplementedError

    def finish(self, frame: DataFrame, turn: OutputTurn) -> bool:
        """Make a batch that is there durable and complete; True if some rows were missing."""
        return False

    def remove(self, turn: OutputTurn) -> None:
        """Remove the output's own old batches that nobody needs, after the write."""

    def close(self) -> None:
        """Close the connections, at the end of the run."""

    @classmethod
    def sink_options(cls, frame: DataFrame, name: str, options: Mapping[str, Any], writer: str) -> dict[str, str]:
        """Return the options that Spark's own sink of this kind needs besides the user's.

        ``name`` is Spark's name of the format, ``writer`` the full name of the computation. Raises
        Unsupported for options by which rows would be lost or become older.
        """
        return {}


class OutputKind(NamedTuple):
    """One kind of output."""

    module: str
    name: str
    """Name of the class, a subclass of :class:`BatchOutput`."""
    formats: frozenset[str] = frozenset()
    """Formats of Spark's own sinks that write such an output."""

    @property
    def output(self) -> type[BatchOutput]:
        """The class. Its module is imported at the first use."""
        return cast("type[BatchOutput]", getattr(import_module(self.module), self.name))


_HERE: Final = "lowwater_spark.track.output"

KINDS: Final[dict[str, OutputKind]] = {
    "folder": OutputKind(
        f"{_HERE}.folder_out", "FolderOut", frozenset({"csv", "json", "orc", "parquet", "text", "xml"})
    ),
    "kafka": OutputKind(f"{_HERE}.kafka_out", "KafkaOut", frozenset({"kafka"})),
    "iceberg": OutputKind(f"{_HERE}.iceberg_out", "IcebergOut", frozenset({"iceberg"})),
    "delta": OutputKind(f"{_HERE}.delta_out", "DeltaOut", frozenset({"delta"})),
}
"""Every kind of output, by its name in ``batch.write_to()``."""


def needed_options(frame: DataFrame, name: str, options: Mapping[str, Any], writer: str) -> dict[str, str]:
    """Return the options that a sink of Spark's own needs: see :meth:`BatchOutput.sink_options`."""
    kinds = (kind for kind in KINDS.values() if name.lower() in kind.formats)
    return next((kind.output.sink_options(frame, name, options, writer) for kind in kinds), {})


def write_once(output: BatchOutput, frame: DataFrame, turn: OutputTurn) -> bool:
    """Write a batch to an output, once and durably; False if an earlier run has written it.

    Raises CheckpointMismatch if the output has a batch that this run cannot have begun.
    """
    standing = turn.standing() if output.says_complete else None
    existing = output.find(turn)
    turn.probe("output read")
    written = existing is None and output.append(frame, turn, standing)
    if existing is None and not written:
        existing = output.find(turn)  # another run has written the batch since find() above
    if existing is not None:
        if (existing.batch, existing.digest) != (turn.facts.batch, turn.facts.digest):
            msg = (
                f"{existing.where} is batch {existing.batch}, made from another plan than batch {turn.facts.batch} of this run: the checkpoint is older than its output, another "
                "checkpoint or run has written there, or the batch was planned anew. A write would be skipped, and its rows lost. Restore checkpoint and output from "
                "one moment, or start from a new checkpoint and a new output."
            )
            raise CheckpointMismatch(msg)
        if not turn.facts.replayed:
            msg = (
                f"{existing.where} is there already, but no run of this checkpoint had begun batch {turn.facts.batch}: the directory 'lowwater' of the checkpoint is older than its "
                "output, or another run of it goes on beside this one. Let only one run, and start it again; if that ends here too, restore both from one moment."
            )
            raise CheckpointMismatch(msg)
        written = output.finish(frame, turn)
    output.remove(turn)
    return written


@dataclass(slots=True)
class OpenOutputs:
    """The outputs that a run has begun to write to, by key."""

    by_key: dict[Hashable, BatchOutput] = field(default_factory=dict)
    states: set[Path] = field(default_factory=set)
    """Folders of state that the run has begun to write to."""

    def open(
        self,
        kinds: Sequence[str],
        frame: DataFrame,
        turn: OutputTurn,
        place: str,
        options: Mapping[str, Any],
        *,
        window: timedelta | None,
        taken: set[Hashable],
    ) -> BatchOutput:
        """Return the output at a place, of the first kind that is there, ready for a batch.

        If the run has an output at its key already, and that can go on, the result is that one;
        otherwise a new one begins. ``window`` is the length to which the stage floors its
        watermark; None: it does not. ``taken`` has the keys that the batch has written to, and gets
        this one.

        Raises ValueError for an unknown kind and for a second write in one batch, Unsupported if
        the output's times would be below the watermark, and as :meth:`BatchOutput.at` and
        :meth:`BatchOutput.begin`.
        """
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            msg = f"{unknown[0]!r} is no kind of output; there are {', '.join(KINDS)}"
            raise ValueError(msg)
        outputs = (KINDS[kind].output.at(frame, turn, place, **options) for kind in kinds)
        output = next((output for output in outputs if output is not None), None)
        if output is None:
            msg = f"{place} is no {' or '.join(kinds)}"
            raise ValueError(msg)
        if output.resolution > _MICROSECOND and (window is None or window % output.resolution):
            raise Unsupported(
                f"The output {place}, which keeps times to {output.resolution} only,",
                "a row would be read again as an older one, and count as late",
                f"Declare a stamp of the stage, a multiple of {output.resolution!r}, to which its watermark is floored.",
            )
        if output.key in taken:
            msg = (
                f"batch {turn.facts.batch} has been written to {place} already; a second write would be skipped. Unite the rows first, and give each "
                "stage an output of its own."
            )
            raise ValueError(msg)
        taken.add(output.key)
        earlier = self.by_key.get(output.key)
        resumed = None if earlier is None else output.resume(earlier)
        if resumed is None:
            output.begin(frame, turn)
            if earlier is not None:
                earlier.close()
        self.by_key[output.key] = resumed or output
        return self.by_key[output.key]

    @property
    def removals(self) -> list[Removal]:
        """The removals from the outputs."""
        return [output.removal for output in list(self.by_key.values()) if output.removal is not None]

    def close(self) -> None:
        """Close all outputs."""
        for output in self.by_key.values():
            output.close()


# -- what a checkpoint notes -----------------------------------------------------------------------

_SECTION: Final = "outputs"
"""Name of the section in the checkpoint's manifest that has the newest batches."""

_keeping: Final = threading.Lock()
"""Lock for these sections: a function may write to several outputs at a time."""


def remembered(manifest: Manifest, writer: str, output: str, section: str = _SECTION) -> Any:
    """Return what is noted for a stage's output, by default its newest batch, or None."""
    return (manifest[section] or {}).get(writer, {}).get(output)


def remember(manifest: Manifest, writer: str, output: str, value: object, section: str = _SECTION) -> None:
    """Note a batch, or what another section has, for a stage's output, durably.

    Costs and raises as a change of the manifest; no cost if it is noted already.
    """
    with _keeping:
        everything = manifest[section] or {}
        mine = everything.get(writer, {})
        if mine.get(output) != value:
            manifest.keep(section, {**everything, writer: {**mine, output: value}})
