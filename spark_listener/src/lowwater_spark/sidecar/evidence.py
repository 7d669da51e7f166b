"""What a checkpoint says of the query that writes it, and whether it still is the checkpoint that was looked at before.

Each look reads the newest batch in the commit log and its entry in the offset log, and then the query's id: an id that was left never comes back, so what was read before it is of that
query. A checkpoint that was deleted and begun anew has another id. One that was restored from a copy has the same, but its batches then have other entries, or are not there:
the digest of the newest batch that was seen committed is kept, durable, before anything is reported of it.

What the state directories say was read of PySpark 4.2: ``state/<n>/_metadata/metadata``, or the newest of ``_metadata/v2``, names the operator, and the schemas beside the state carry the
delay of the watermark in the metadata of the column that is under it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.checkpoint.location import Location
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import HISTORY, Declaration

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest
    from lowwater_spark.sources.base import Source

__all__ = ["ON_ARRIVAL", "Evidence", "operators", "query_id"]

ON_ARRIVAL: Final = frozenset({"dedupe", "dedupeWithinWatermark", "globalLimit"})
"""Operators, by the names that Spark keeps, that emit a row when it arrives, or never."""

_WINDOWS: Final = "stateStoreSave"

_AGGREGATIONS: Final = frozenset({"sessionWindowStateStoreSaveExec", _WINDOWS})

_FUNCTIONS: Final = frozenset(
    {
        "applyInPandasWithState",
        "flatMapGroupsWithState",
        "transformWithStateExec",
        "transformWithStateInPandasExec",
        "transformWithStateInPySparkExec",
    }
)

_JOIN: Final = "symmetricHashJoin"

_RESET: Final = "lowwater reset {name}, and begin with a new state directory."

_DELAY: Final = b'"spark.watermarkDelayMs"'


def query_id(checkpoint: Location) -> str:
    """Return Spark's id of the query that a checkpoint is of.

    Raises FileNotFoundError before its first start, OSError, CheckpointMismatch.
    """
    content = (checkpoint / "metadata").read_bytes()
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as failure:
        msg = f"{checkpoint / 'metadata'} is no metadata of a streaming query; name the directory that is the query's checkpointLocation"
        raise CheckpointMismatch(msg) from failure


def operators(checkpoint: Location) -> dict[str, str]:
    """Return the stateful operators of a checkpoint: the names that Spark keeps for them, by the names of their directories.

    Empty for one that is not known by name: a release of Spark that does not write it. Raises OSError.
    """
    state = checkpoint / "state"
    return {entry.name: _operator(entry) for entry in _entries(state) if entry.name.isdecimal()}


def _operator(folder: Location) -> str:
    try:
        newer = [entry for entry in _entries(folder / "_metadata" / "v2") if entry.name.isdecimal()]
        file = max(newer, key=lambda entry: int(entry.name), default=folder / "_metadata" / "metadata")
        _, content = lines_of(file.read_bytes().decode())
        return str(json.loads(content)["operatorInfo"]["operatorName"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _entries(folder: Location) -> list[Any]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _schemas(folder: Location) -> Iterator[bytes]:
    """Yield the schemas of an operator's state: of its first partition that has any, where releases with one file for each keep them, or of all its stores."""
    for partition in sorted(_entries(folder), key=lambda entry: str(entry.name)):
        if not partition.name.isdecimal():
            continue
        found = [each / "_metadata" / "schema" for each in (partition, *_entries(partition))]
        schemas = [path.read_bytes() for path in found if path.exists()]
        if schemas:
            yield from schemas
            return


class Evidence:
    """The checkpoint of one query, for one run that looks at it. One thread calls it.

    ``manifest`` keeps what must be remembered, elsewhere. ``sources`` are those that were declared.
    """

    def __init__(
        self, checkpoint: Location, manifest: Manifest, declared: Declaration, sources: Sequence[Source]
    ) -> None:
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._declared = declared
        self._sources = sources
        self._log = CheckpointLog(checkpoint)
        self._known: int | None = None
        """The newest batch for which the operators were looked at."""

    def begin(self) -> None:
        """Compare the checkpoint with what was seen of it before, and keep whose it is.

        Raises CheckpointMismatch, Unsupported, OSError.
        """
        if (self._checkpoint / "lowwater").exists():
            raise Unsupported(
                f"the checkpoint {self._checkpoint}",
                "its own job tracks it, and two would report one computation",
                "Leave it to the job, or start the job as a plain Spark query over a new checkpoint.",
            )
        watched = self._manifest["watched"]
        if watched is None:
            self._meet()
        elif not self._declared.has_shape(watched["shape"]) and watched["batch"] is not None:
            msg = (
                f"{self._declared.name} was tracked with other declarations: sources, retention, stamp and windows were {watched['shape']} and are {self._declared.shape()}. What was reported "
                f"may not hold with these: put them back, or {_RESET.format(name=self._declared.name)}"
            )
            raise CheckpointMismatch(msg)
        self.attend()

    def _meet(self) -> None:
        """Look at the checkpoint for the first time. What is refused leaves nothing behind."""
        found = query_id(self._checkpoint)
        batch = self._log.last_committed()
        plan = None if batch is None else self._log.plan(batch)
        if batch is not None:
            self._declared.require(HISTORY, "batches are committed already")
        if plan is not None:
            self._check(plan)
        if query_id(self._checkpoint) != found:
            msg = f"{self._checkpoint} was begun anew while it was looked at"
            raise OSError(msg)
        self._keep(found, None)

    def attend(self) -> None:
        """Raise CheckpointMismatch when the checkpoint is another query's by now, OSError when nobody can tell."""
        found, known = query_id(self._checkpoint), self._manifest["watched"]["id"]
        if found != known:
            msg = (
                f"{self._checkpoint} is of another query by now (its id was {known} and is {found}): it was deleted and begun anew, and reads its sources once more. Begin with a new "
                "state directory and adopt = true"
            )
            raise CheckpointMismatch(msg)

    def confirm(self, plan: Plan | None) -> None:
        """Compare the newest committed batch with the one that was seen before it, and remember it, durable. Raises CheckpointMismatch, Unsupported, OSError.

        None: no batch is committed. Costs a version of the manifest for each new batch.
        """
        self.attend()
        watched = self._manifest["watched"]
        batch, digest = watched["batch"], watched["digest"]
        if batch is not None:
            if plan is None or plan.batch < batch:
                raise self._rewound(batch, "its commit log ends before")
            before = plan if plan.batch == batch else self._log.plan(batch)
            if before is None:
                self._declared.require(
                    HISTORY,
                    f"the entry of batch {batch}, the newest that was seen before, is gone from {self._checkpoint}",
                )
            elif before.digest != digest:
                raise self._rewound(batch, "that batch was planned anew")
        if plan is None:
            return
        if self._check(plan):
            self.attend()
        if plan.batch != batch:
            self._keep(watched["id"], plan)

    def _keep(self, query: str, plan: Plan | None) -> None:
        self._manifest.keep(
            "watched",
            {
                "id": query,
                "shape": self._declared.shape(),
                "batch": None if plan is None else plan.batch,
                "digest": None if plan is None else plan.digest,
            },
        )

    def _rewound(self, batch: int, how: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"{self._checkpoint} is older than what was seen of it: batch {batch} was committed, and {how}. Restore the checkpoint that was there, or "
            + _RESET.format(name=self._declared.name)
        )

    def _check(self, plan: Plan) -> bool:
        """Compare a committed batch with what is declared; return whether more of the checkpoint was read for it. Raises Unsupported, CheckpointMismatch, OSError."""
        self._check_lines(plan)
        return self.check_operators(plan.batch)

    def _check_lines(self, plan: Plan) -> None:
        if len(plan.lines) != len(self._sources):
            raise Unsupported(
                f"{self._checkpoint}",
                f"its query reads {len(plan.lines)} sources, and {len(self._sources)} are declared: the others would not be waited for",
                "Declare all sources, in the order of the query.",
            )
        for source, line in zip(self._sources, plan.lines, strict=True):
            source.check(line)

    def check_operators(self, batch: int) -> bool:
        """Compare what Spark holds in its state, as of a batch, with what is declared; return whether it was read. Raises Unsupported, OSError."""
        if self._known == batch:
            return False
        found = operators(self._checkpoint)
        if self._declared.retention is not None and set(found.values()) <= ON_ARRIVAL:
            raise Unsupported(
                f"{self._checkpoint}",
                "a retention is declared, and Spark holds nothing in it: the query would wait for a watermark of Spark's for ever",
                "Leave the retention out.",
            )
        held = sorted(operator for operator in found.values() if operator not in ON_ARRIVAL)
        if self._declared.windows is not None and held != [_WINDOWS]:
            raise Unsupported(
                f"{self._checkpoint}",
                f"windows are declared to be all that Spark holds in it, and it holds {', '.join(held) or 'nothing'}",
                "Declare retention and stamp instead.",
            )
        for folder, operator in sorted(found.items()):
            self._check_operator(self._checkpoint / "state" / folder, operator)
        self._known = batch
        return True

    def _check_operator(self, folder: Location, operator: str) -> None:
        if operator in ON_ARRIVAL:
            return
        what = f"the operator {operator or 'without a name'} in {folder}"
        if operator not in _AGGREGATIONS | _FUNCTIONS | {_JOIN}:
            raise Unsupported(
                what, "this release does not know what Spark holds in it", "Do without it, or ask for it to be known."
            )
        if self._declared.retention is None:
            raise Unsupported(
                what,
                "Spark holds rows in it, and nothing says how far below its watermark they can come out",
                "Declare the retention: of windows their length, of sessions how long one lasts, of a join how long a row waits and a millisecond, of a function what it keeps, of several the sum.",
            )
        if operator in _AGGREGATIONS and not self._declared.output_mode:
            raise Unsupported(
                what,
                "the checkpoint does not say in which output mode it is written",
                'Declare output_mode, "append" or "update".',
            )
        if operator not in _FUNCTIONS and not self._is_bounded(folder, operator):
            raise Unsupported(
                what,
                "none of its columns is under a watermark, or its schema cannot be found: old rows could come out at any time",
                "Put withWatermark on the event time of every stream that it reads, and group by that event time or a window of it.",
            )

    @staticmethod
    def _is_bounded(folder: Location, operator: str) -> bool:
        delayed = sum(_DELAY in schema for schema in _schemas(folder))
        return delayed >= (2 if operator == _JOIN else 1)
