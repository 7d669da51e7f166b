"""Evidence in a checkpoint, and whether it is still the checkpoint that was seen before.

Each look reads the newest batch in the commit log, its entry in the offset log, and then the
query's id. An id never comes back after another, so everything read before it is of that query. A
checkpoint that was deleted and begun anew has another id. One that was restored from a copy has the
same id, but other entries for its batches, or none. So the digest of the newest committed batch is
stored, durably, before a report rests on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lowwater_spark.checkpoint.location import Location, numbers_in
from lowwater_spark.checkpoint.log import CheckpointLog, Plan
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import HISTORY, SAME_OPERATORS, Declaration
from lowwater_spark.sidecar.stateful import (
    AGGREGATIONS,
    FUNCTIONS,
    JOIN,
    ON_ARRIVAL,
    PROVIDERS,
    WINDOWS,
    StatefulOperator,
    has_version,
    operators,
    word_of,
)

if TYPE_CHECKING:
    from lowwater_spark.checkpoint.manifest import Manifest
    from lowwater_spark.sources.base import Source

__all__ = ["CHECKPOINTS", "Evidence", "newer_checkpoint", "query_id", "refuse_tracked"]

CHECKPOINTS: Final = "_checkpoints"
"""Folder in the storage of a declarative pipeline with the checkpoints of its flows, each in
``CATALOG/DATABASE/TABLE/FLOW/N``."""

_RESET: Final = "lowwater reset {name}, and begin with a new state directory."


def query_id(checkpoint: Location) -> str:
    """Return Spark's id of a checkpoint's query.

    Raises FileNotFoundError before its first start, OSError, CheckpointMismatch.
    """
    content = (checkpoint / "metadata").read_bytes()
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as failure:
        msg = f"{checkpoint / 'metadata'} is no metadata of a streaming query; name the directory that is the query's checkpointLocation"
        raise CheckpointMismatch(msg) from failure


def refuse_tracked(checkpoint: Location) -> None:
    """Raise Unsupported for the checkpoint of a stage, which its own job tracks."""
    if (checkpoint / "lowwater").exists():
        raise Unsupported(
            f"the checkpoint {checkpoint}",
            "its own job tracks it, and two would report one computation",
            "Leave it to the job, or start the job as a plain Spark query over a new checkpoint.",
        )


def newer_checkpoint(checkpoint: Location) -> Path | None:
    """Return the newest checkpoint that a full refresh of a declarative pipeline has begun since.

    A full refresh makes the directory N + 1 beside the checkpoint N, and empties the table.
    None: there is none, or the checkpoint is no local one of a flow. Raises OSError.
    """
    # The parents are FLOW, TABLE, DATABASE, CATALOG and _checkpoints.
    if not isinstance(checkpoint, Path) or not checkpoint.name.isdecimal() or len(checkpoint.parents) < 6:
        return None
    if checkpoint.parents[4].name != CHECKPOINTS:
        return None
    newest = max(numbers_in(checkpoint.parent), default=-1)
    return checkpoint.parent / str(newest) if newest > int(checkpoint.name) else None


class Evidence:
    """The checkpoint of one query, during one run of a sidecar. Used by one thread.

    ``manifest`` stores, outside of the checkpoint, what was seen. ``sources`` are the declared
    ones.
    """

    def __init__(
        self, checkpoint: Location, manifest: Manifest, declared: Declaration, sources: Sequence[Source]
    ) -> None:
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._declared = declared
        self._sources = sources
        self._log = CheckpointLog(checkpoint)
        self._writers: dict[str, str] = {}
        """Checkpoints of the flows whose tables are read: the directory of each flow's checkpoints,
        and the number of the first that was seen."""
        self._checked_batch: int | None = None
        """The newest batch for which the operators were checked."""

    def begin(self) -> None:
        """Compare the checkpoint with what was seen of it before, and store the query's id.

        Raises CheckpointMismatch, Unsupported, OSError.
        """
        refuse_tracked(self._checkpoint)
        watched = self._manifest["watched"]
        if watched is None:
            self._meet()
        elif not self._declared.has_shape(watched["shape"]) and watched["batch"] is not None:
            msg = (
                f"{self._declared.name} was tracked with other declarations: sources, retention, stamp and windows were {watched['shape']} and are {self._declared.shape()}. What was reported "
                f"may not hold with these: put them back, or {_RESET.format(name=self._declared.name)}"
            )
            raise CheckpointMismatch(msg)
        self._keep_writers()
        self.attend()

    def _keep_writers(self) -> None:
        """Store the checkpoints of the writers, of which those that were stored before stay.

        The stored ones count: a full refresh while no sidecar ran is seen by them.
        """
        watched = self._manifest["watched"]
        declared = (Path(path) for path in self._declared.writers)
        self._writers = {str(path.parent): path.name for path in declared} | watched.get("writers", {})
        if self._writers != watched.get("writers", {}):
            self._manifest.keep("watched", {**watched, "writers": self._writers})

    def _meet(self) -> None:
        """Check a checkpoint that was never seen before. A refused one leaves nothing stored."""
        current = query_id(self._checkpoint)
        batch = self._log.last_committed()
        plan = None if batch is None else self._log.plan(batch)
        if batch is not None:
            self._declared.require(HISTORY, "batches are committed already")
        if plan is not None:
            self._check(plan)
        if query_id(self._checkpoint) != current:
            msg = f"{self._checkpoint} was begun anew while it was looked at"
            raise OSError(msg)
        self._keep(current, None)

    def attend(self) -> None:
        """Raise CheckpointMismatch if the checkpoint or a table that is read was begun anew.

        Costs a read of the query's id and a listing for each writer. Raises OSError.
        """
        current, stored = query_id(self._checkpoint), self._manifest["watched"]["id"]
        if current != stored:
            msg = (
                f"{self._checkpoint} is of another query by now (its id was {stored} and is {current}): it was deleted and begun anew, and reads its sources once more. Begin with a new "
                "state directory and adopt = true"
            )
            raise CheckpointMismatch(msg)
        # Asked for after everything else has been read: what was read before the new directory
        # was there is of the old table.
        newer = newer_checkpoint(self._checkpoint)
        if newer is not None:
            msg = (
                f"a full refresh has begun {newer} after {self._checkpoint}, and empties the table: what was reported does not hold for it. "
                f"lowwater reset {self._declared.name}, and begin with adopt = true and a new state directory for it"
            )
            raise CheckpointMismatch(msg)
        for flow, number in self._writers.items():
            newer = newer_checkpoint(Path(flow, number))
            if newer is not None:
                msg = (
                    f"a full refresh has begun {newer}, whose table {self._declared.name} reads, directly or through others: what was reported does not hold for the new rows. "
                    f"lowwater reset the computation of that flow, refresh the query of {self._declared.name} as well, and begin both with adopt = true and new state directories"
                )
                raise CheckpointMismatch(msg)

    def confirm(self, plan: Plan | None) -> None:
        """Compare the newest committed batch with the one seen before, and store it durably.

        ``plan`` is None before the first commit. Costs a version of the manifest for each new
        batch. Raises CheckpointMismatch, Unsupported, OSError.
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
        batch, digest = (None, None) if plan is None else (plan.batch, plan.digest)
        watched = {"id": query, "shape": self._declared.shape(), "batch": batch, "digest": digest}
        if self._writers:
            watched["writers"] = self._writers
        self._manifest.keep("watched", watched)

    def _rewound(self, batch: int, how: str) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"{self._checkpoint} is older than what was seen of it: batch {batch} was committed, and {how}. Restore the checkpoint that was there, or "
            + _RESET.format(name=self._declared.name)
        )

    def _check(self, plan: Plan) -> bool:
        """Compare a committed batch with the declaration; return True if state files were read.

        Raises Unsupported, CheckpointMismatch, OSError.
        """
        if len(plan.lines) != len(self._sources):
            raise Unsupported(
                f"{self._checkpoint}",
                f"its query reads {len(plan.lines)} sources, and {len(self._sources)} are declared: the others would not be waited for",
                "Declare all sources, in the order of the query.",
            )
        for source, line in zip(self._sources, plan.lines, strict=True):
            source.check(line)
        return self.check_operators(plan)

    def check_operators(self, plan: Plan) -> bool:
        """Compare Spark's operators as of a batch with the declaration.

        Return True if state files were read for it.

        Raises Unsupported, OSError.
        """
        if self._checked_batch == plan.batch:
            return False
        stateful = operators(self._checkpoint, plan)
        unnamed = [operator for operator in stateful if not operator.named]
        for operator in unnamed:
            self._check_unnamed(operator, plan)
        words = tuple(word_of(operator.name) for operator in stateful)
        if unnamed:
            self._check_provider(plan, words)
            self._declared.require(SAME_OPERATORS, f"Spark before 4.0 keeps the state of {', '.join(words)}")
        self._check_words(words, named=not unnamed)
        names = [operator.name for operator in stateful]
        if self._declared.retention is not None and set(names) <= ON_ARRIVAL:
            raise Unsupported(
                f"{self._checkpoint}",
                "a retention is declared, and Spark holds nothing in it: the query would wait for a watermark of Spark's for ever",
                "Leave the retention out.",
            )
        holding = sorted(name for name in names if name not in ON_ARRIVAL)
        if self._declared.windows is not None and holding != [WINDOWS]:
            raise Unsupported(
                f"{self._checkpoint}",
                f"windows are declared to be all that Spark holds in it, and it holds {', '.join(holding) or 'nothing'}",
                "Declare retention and stamp instead.",
            )
        for operator in stateful:
            self._check_operator(operator)
        self._checked_batch = plan.batch
        return True

    def _check_unnamed(self, operator: StatefulOperator, plan: Plan) -> None:
        """Refuse an operator that its files do not show, or show as one of an earlier plan.

        Only Spark before 4.0 writes no names.
        """
        if operator.abandoned:
            raise self._abandoned(operator, plan)
        if operator.name:
            return
        stores = "; ".join(
            f"{store} has {schema or 'no schema that can be read'}"
            for store, schema in sorted(operator.schemas.items())
        )
        raise Unsupported(
            f"the operator in {operator.folder}",
            "Spark before 4.0 does not name it, and its state stores are those of no operator that is known: "
            f"{stores or 'none has a schema'}. An aggregation without a watermark is written like this, too",
            "If it is one, put withWatermark on the event time, group by that or a window of it, and begin with a new checkpoint: Spark writes the schema of a state store once. "
            "Spark 4 names other operators, also with a new checkpoint.",
        )

    def _abandoned(self, operator: StatefulOperator, plan: Plan) -> Unsupported | OSError:
        """Return why an operator is refused whose stores lack the version of a batch.

        It is an OSError, after which the sidecar looks again, if the job has gone on: Spark may
        have removed that version meanwhile.
        """
        newest = self._log.last_committed()
        if newest is None or (
            newest != plan.batch
            and (
                any(has_version(store, newest + 1, plan.state_stores) for store in operator.abandoned)
                or self._log.last_committed() != newest
            )
        ):
            return OSError(f"the job has gone on beyond batch {plan.batch} while {operator.folder} was looked at")
        stores = ", ".join(str(store) for store in operator.abandoned)
        return Unsupported(
            f"the operator in {operator.folder}",
            f"batch {newest}, the newest that is committed, has not written {stores}: a new version of the query has left the operator out, or its files were removed",
            "Begin the changed query with a new checkpoint.",
        )

    def _check_provider(self, plan: Plan, words: Sequence[str]) -> None:
        """Refuse operators without names in state stores of another provider, unless declared.

        ``words`` are what is seen, for the declaration to paste.
        """
        if plan.state_stores not in PROVIDERS and self._declared.operators is None:
            raise Unsupported(
                f"{self._checkpoint}",
                f"Spark before 4.0 does not name its operators, and the files of its state stores are not known (provider: {plan.state_stores or 'none is named'}), so they do not show which operators the query has now",
                f"Declare them all, as state/0, state/1 and so on have them: operators = {json.dumps(words)}.",
            )

    def _check_words(self, words: tuple[str, ...], *, named: bool) -> None:
        """Refuse other operators than the declared ones. ``named``: Spark has named all of them."""
        declared = self._declared.operators
        if declared is None or declared == words:
            return
        fix = f"If these are the operators of the query, declare them: operators = {json.dumps(words)}."
        if not named:
            # To paste what is seen would lead if one operator has the state of another.
            fix = (
                "Correct the declaration if the query has other operators. If it is right, the state of one looks like that of another operator, "
                "and a sidecar cannot track the query before Spark 4, with a new checkpoint."
            )
        raise Unsupported(
            f"{self._checkpoint}",
            f"operators = {json.dumps(declared)} is declared, and Spark keeps the state of {', '.join(words) or 'none'} in it",
            fix,
        )

    def _check_operator(self, operator: StatefulOperator) -> None:
        name = operator.name
        if name in ON_ARRIVAL:
            return
        what = f"the operator {name or 'without a name'} in {operator.folder}"
        if name not in AGGREGATIONS | FUNCTIONS | {JOIN}:
            raise Unsupported(
                what, "this release does not know what Spark holds in it", "Do without it, or ask for it to be known."
            )
        if self._declared.retention is None:
            raise Unsupported(
                what,
                "Spark holds rows in it, and nothing says how far below its watermark they can come out",
                "Declare the retention: of windows their length, of sessions how long one lasts, of a join how long a row waits and a millisecond, of a function what it keeps, of several the sum.",
            )
        if name in AGGREGATIONS and not self._declared.output_mode:
            raise Unsupported(
                what,
                "the checkpoint does not say in which output mode it is written",
                'Declare output_mode, "append" or "update".',
            )
        if name not in FUNCTIONS and not operator.is_bounded():
            raise Unsupported(
                what,
                "none of its columns is under a watermark, or its schema cannot be found: old rows could come out at any time",
                "Put withWatermark on the event time of every stream that it reads, group by that event time or a window of it, and begin with a new checkpoint: Spark writes the schema of a state store once.",
            )
