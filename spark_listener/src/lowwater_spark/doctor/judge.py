"""Which rungs are possible for a running query or a checkpoint, by the checks of these rungs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.durable import mounted_at
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.doctor.facts import Checkpoint, Query, Rung
from lowwater_spark.drive.plan import check_drivable
from lowwater_spark.errors import Unsupported
from lowwater_spark.sidecar.declaration import PROMISES, Declaration
from lowwater_spark.sidecar.description import describe, looked_at
from lowwater_spark.sidecar.evidence import Evidence, query_id, refuse_tracked
from lowwater_spark.sidecar.running import Running, undeclared
from lowwater_spark.sidecar.stateful import ON_ARRIVAL, operators, word_of
from lowwater_spark.sources.kinds import guess, kind_of
from lowwater_spark.track.plan.checked import (
    Checked,
    absolute,
    check_classic,
    check_output_mode,
    check_plan,
    check_session,
    check_trigger,
    read_plan,
)
from lowwater_spark.track.plan.writer import trigger_of
from lowwater_spark.track.run.status import first_line
from lowwater_spark.tracked import is_tracked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ["look_at_checkpoint", "look_at_query"]

_DECLARED: Final = timedelta(days=36500)
"""Retention for a check whose outcome must not depend on the one that the user will declare."""

_UNKNOWN_SOURCE: Final = "?"
"""Guess for a source of the offset log that no kind recognizes."""

_FUNCTION: Final = "ForeachBatch"
"""Beginning of Spark's name for a sink that is a function."""


def look_at_checkpoint(checkpoint: str, session: Callable[[], SparkSession]) -> Checkpoint:
    """Return what a sidecar would make of a checkpoint. ``session()`` is called for a URI."""
    texts = list[str]()

    def reader() -> SparkSession:
        spark = session()
        check_classic(spark, f"The checkpoint {checkpoint}", "Run lowwater-spark doctor --checkpoint without --remote.")
        return spark

    def check() -> None:
        _check_checkpoint(checkpoint, reader)
        texts.append(describe(checkpoint, reader))

    refused = _rung("sidecar", "", check).refused
    return Checkpoint(checkpoint, _store_of(checkpoint), refused, "".join(texts))


def _check_checkpoint(checkpoint: str, session: Callable[[], SparkSession]) -> None:
    """Raise what a sidecar of this checkpoint would raise, with the best of declarations."""
    where = looked_at(checkpoint, session)
    query_id(where)
    refuse_tracked(where)
    plan = CheckpointLog(where).newest_committed()
    if plan is None:
        return
    for line in plan.lines:
        if guess(line) == _UNKNOWN_SOURCE:
            kind_of(line[:80])
    stateful = operators(where, plan)
    declared = Declaration(
        "query",
        checkpoint,
        (),
        (),
        frozenset(PROMISES),
        retention=None if {operator.name for operator in stateful} <= ON_ARRIVAL else _DECLARED,
        output_mode="append",
        operators=tuple(word_of(operator.name) for operator in stateful),
    )
    Evidence(where, Manifest(where), declared, ()).check_operators(plan)


def look_at_query(spark: SparkSession, query: StreamingQuery, address: str) -> Query:
    """Return what is known of a running query, and its rungs with the lines to paste."""
    running = Running.of(query, wait=False)
    progress = query.lastProgress
    described: Mapping[str, Any] = {} if progress is None else json.loads(progress.json)
    name = query.name or str(query.id)
    seen = Query(
        name,
        tuple(source["description"] for source in described.get("sources", ())),
        described.get("sink", {}).get("description", ""),
        checkpoint=running.checkpoint,
    )
    execution = _Execution.of(spark, query)
    if execution is not None:
        seen = replace(seen, trigger=execution.words, checkpoint=execution.checkpoint, sink=execution.sink)
    seen = replace(seen, store=_store_of(seen.checkpoint))
    if is_tracked(str(query.id), str(query.runId), query.name):
        return seen
    attach = Rung("attach", "possible, an estimate", paste=f"lws.attach(spark, {_text(address)})")
    sidecar = _sidecar(spark, seen, running, execution, address)
    return replace(seen, rungs=(attach, sidecar, *_stages(spark, execution, name, address)))


@dataclass(frozen=True, slots=True)
class _Execution:
    """A query as the JVM of a classic driver has it."""

    jvm: Any
    checkpoint: str
    sink: str
    mode: str
    words: str
    """Spark's name of the trigger."""

    @classmethod
    def of(cls, spark: SparkSession, query: Any) -> _Execution | None:
        """Return it; None in another session, and on a platform that does not show it."""
        if not hasattr(spark, "_jvm"):
            return None
        try:
            jvm = query._jsq.streamingQuery()
            checkpoint, sink = str(jvm.resolvedCheckpointRoot()), str(jvm.sink().toString())
            mode, trigger = str(jvm.outputMode().toString()).lower(), str(jvm.trigger().toString())
        except Exception:  # noqa: BLE001 - whatever a platform's own Spark raises
            return None
        return cls(jvm, SparkPath.of_text(checkpoint).absolute or checkpoint, sink, mode, trigger)

    @property
    def trigger(self) -> Mapping[str, Any]:
        """Arguments that make the trigger. Raises Unsupported for an unknown one."""
        return trigger_of(self.jvm.trigger())

    @property
    def is_function(self) -> bool:
        return self.sink.startswith(_FUNCTION)

    def frame(self, spark: Any) -> DataFrame:
        """Return the frame that the query writes."""
        from pyspark.sql import DataFrame

        datasets = spark._jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(datasets.ofRows(spark._jsparkSession, self.jvm.analyzedPlan()), spark)


def _sidecar(spark: SparkSession, seen: Query, running: Running, execution: _Execution | None, address: str) -> Rung:
    def check() -> None:
        if execution is not None:
            check_trigger(execution.trigger, function=execution.is_function)
            check_output_mode(Checked(()), execution.mode)
        for source in running.sources:
            if isinstance(source, str) and source.startswith("<"):
                kind_of(source.strip("<>"))
        if seen.checkpoint:
            _check_checkpoint(seen.checkpoint, lambda: spark)

    declared = {"checkpoint": seen.checkpoint, "inputs": None, "sources": running.sources, "promises": None}
    passed: dict[str, Any] = {"address": address}
    if execution is not None:
        passed["spark"] = spark
    paste = undeclared(seen.name, {**declared, "state": None, "output": running.output}, running, passed)
    # The call alone: the text around it is long, and the same for each query. ``track`` takes a
    # function that makes the session.
    lines = [line for line in paste.split("\n")[1:] if line.partition(":")[0] not in PROMISES]
    call = "\n".join([f'query = spark.streams.get("{running.id}")', *lines])
    call = call.replace("    spark=spark,", "    spark=lambda: spark,").replace("; what they mean is below", "")
    return _rung("track by a sidecar", "possible, exact, and its job stays as it is", check, call)


def _stages(spark: SparkSession, execution: _Execution | None, name: str, address: str) -> Sequence[Rung]:
    """Return the rungs that need the Python of a classic driver."""
    stage, drive = "track by a stage", "drive"
    try:
        check_session(spark)
    except Unsupported as failure:
        return tuple(Rung(rung, "", first_line(failure)) for rung in (stage, drive))
    if execution is None:
        return tuple(Rung(rung, "", "this platform does not show the query's plan") for rung in (stage, drive))
    return (
        _rung(stage, "possible, exact, with these lines in its job", *_stage(spark, execution, name, address)),
        _rung(drive, "possible, exact, and Spark drops no late row", *_drive(spark, execution)),
    )


def _stage(spark: SparkSession, execution: _Execution, name: str, address: str) -> tuple[Callable[[], None], str]:
    def check() -> None:
        check_trigger(execution.trigger, function=execution.is_function)
        checked = check_plan(spark, execution.frame(spark), retention=_DECLARED)
        _check_stage(spark, execution, checked)

    started = "start(<its writer, not started>"
    if execution.is_function:
        started = "foreach_batch(<its frame>, <its function, of rows and batch>"
    paste = f"""\
stage = lws.stage(spark, {_text(name)}, inputs=["<each computation whose output it reads>"],
                  key="<its key>", event_time="<its event time>", address={_text(address)})
query = stage.{started}, checkpoint="<a new directory>")"""
    return check, paste


def _drive(spark: SparkSession, execution: _Execution) -> tuple[Callable[[], None], str]:
    def check() -> None:
        check_trigger(execution.trigger, function=execution.is_function)
        checked = read_plan(spark, execution.frame(spark))
        driven = replace(checked, operators=[replace(operator, driven=True) for operator in checked.operators])
        _check_stage(spark, execution, driven)
        check_drivable(spark, checked, execution.trigger)
        if not checked.operators:
            raise ValueError("Spark keeps nothing in its state for it, so a stage alone drops nothing either")

    paste = """\
frame = stage.drive(<its frame before the windows, without withWatermark>)
query = stage.start(<the windows over that frame>, checkpoint="<a new directory>")"""
    return check, paste


def _check_stage(spark: SparkSession, execution: _Execution, checked: Checked) -> None:
    for source in checked.sources:
        source.waiting_for(frozenset({"its inputs"}))
    check_output_mode(checked, execution.mode, function=execution.is_function)
    absolute(execution.checkpoint, spark, single_driver=True)


def _rung(name: str, gives: str, check: Callable[[], None], paste: str = "") -> Rung:
    """Return a rung, refused with the reason that ``check`` raises."""
    try:
        check()
    except FileNotFoundError as failure:
        return Rung(name, gives, f"no query has begun there, as seen from this machine: {failure.filename or failure}")
    except Exception as failure:  # noqa: BLE001 - one query must not keep the report from the others
        return Rung(name, gives, first_line(failure))
    return Rung(name, gives, paste=paste)


def _store_of(checkpoint: str) -> str:
    """Return the kind of a checkpoint's file system; empty for no checkpoint."""
    path = SparkPath.of_text(checkpoint)
    if path.scheme not in ("", "file"):
        return path.scheme
    return ", ".join(sorted(mounted_at(Path(path.path))[1])) or "local" if checkpoint else ""


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
