"""A declarative pipeline of Spark's, as its storage shows it: the flows, and what each one reads.

Layout, probed on PySpark 4.2: ``STORAGE/_checkpoints/CATALOG/DATABASE/TABLE/FLOW/N`` is the
checkpoint of a flow, and a full refresh begins the next N. A materialized view is computed anew in
each run and has no checkpoint. The tables of Spark's own catalog are outputs of the file sink, in
``WAREHOUSE/TABLE`` or ``WAREHOUSE/DATABASE.db/TABLE``.

No checkpoint names what the query reads. A file source's log has the paths of the files that were
read, and an offset of Kafka its topics. So a flow is known from its first rows on: a file of a
table makes the flows of that table its inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lowwater.core.text import did_you_mean
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import HISTORY, PROMISES, needed, source_of
from lowwater_spark.sidecar.evidence import AGGREGATIONS, ON_ARRIVAL, operators
from lowwater_spark.sources.base import Line
from lowwater_spark.sources.files.sink_log import SINK_LOG
from lowwater_spark.sources.files.source import FILES, SINK
from lowwater_spark.sources.files.source_log import NOTHING, SourceLog, log_offset
from lowwater_spark.sources.kafka.source import KAFKA, vector_of

__all__ = ["Flow", "Pipeline", "describe_pipeline"]

_CHECKPOINTS: Final = "_checkpoints"

_DEFAULT: Final = "default"
"""Name of Spark's default database."""

_PER_FLOW: Final = ("retention", "stamp", "windows", "windows_start", "output_mode", "heuristics", "adopt")
"""Keys of a query that a flow may declare."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A streaming flow with a checkpoint."""

    database: str
    table: str
    flow: str
    checkpoint: Path
    """The newest of its checkpoints, an absolute path."""

    @property
    def name(self) -> str:
        """Name of the flow in declarations: of its table, and its own if that is another.

        >>> Flow("default", "hourly", "hourly", Path("/")).name
        'hourly'
        >>> Flow("eu", "both", "left", Path("/")).name
        'eu.both.left'
        """
        parts = (*(() if self.database == _DEFAULT else (self.database,)), self.table)
        return ".".join(parts if self.flow == self.table else (*parts, self.flow))

    def directory(self, warehouse: Path) -> Path:
        """Return the directory of its table in Spark's own catalog."""
        return (warehouse if self.database == _DEFAULT else warehouse / f"{self.database}.db") / self.table


def flows_in(storage: Path) -> list[Flow]:
    """Return the flows with a checkpoint, ordered by name. Raises OSError."""
    newest: dict[tuple[str, str, str], Path] = {}
    for metadata in (storage / _CHECKPOINTS).glob("*/*/*/*/*/metadata"):
        checkpoint = metadata.parent
        if not checkpoint.name.isdecimal():
            continue
        database, table, flow = checkpoint.parts[-4:-1]
        before = newest.get((database, table, flow))
        if before is None or int(before.name) < int(checkpoint.name):
            newest[database, table, flow] = checkpoint
    return [Flow(*key, checkpoint) for key, checkpoint in sorted(newest.items())]


class NotYet(OSError):
    """A flow does not show yet what it reads."""


@dataclass(frozen=True)
class Pipeline:
    """A declared pipeline. :meth:`parse` makes it, and refuses a wrong declaration."""

    storage: Path
    """Local directory, the ``storage`` of the pipeline's specification."""
    warehouse: Path
    """Local directory of the tables: Spark's ``spark.sql.warehouse.dir``."""
    prefix: str = ""
    """Text before the name of a flow, which makes the name of its computation."""
    promises: tuple[str, ...] = ()
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The sources outside of the pipeline, as texts, with the computations that write them."""
    flows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What no checkpoint shows of a flow, by the flow's name: retention, stamp and the like."""
    origins: dict[Path, list[Path | str]] = field(default_factory=dict, compare=False)
    """What each checkpoint reads, as far as it was found: see :meth:`Graph.reads`."""

    @classmethod
    def parse(cls, table: Any) -> Pipeline:
        """Return the pipeline in a table of a file. Raises ValueError, naming the key."""
        if not isinstance(table, Mapping):
            msg = f"a pipeline is a table [[pipeline]] with its keys, not {table!r}"
            raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
        keys = {"storage", "warehouse", "prefix", "promises", "inputs", "flows"}
        if unknown := sorted(table.keys() - keys):
            msg = f"{unknown[0]} is no key of a pipeline; there are {', '.join(sorted(keys))}{did_you_mean(unknown[0], keys)}"
            raise ValueError(msg)
        storage, warehouse = _directory(table, "storage"), _directory(table, "warehouse")
        inputs, flows, promises = (table.get(key, {}) for key in ("inputs", "flows", "promises"))
        if not isinstance(inputs, Mapping) or not all(
            names and isinstance(names, list) and all(isinstance(name, str) and name for name in names)
            for names in inputs.values()
        ):
            msg = f'inputs of a pipeline is a table of sources, each with a list of computations, like "files:/data/in" = ["flights"], not {inputs!r}'
            raise ValueError(msg)
        for text in inputs:
            source_of(text)
        if not isinstance(flows, Mapping) or not all(isinstance(flow, Mapping) for flow in flows.values()):
            msg = f"flows of a pipeline is a table with one for each flow, like [pipeline.flows.hourly], not {flows!r}"
            raise ValueError(msg)
        for name, flow in flows.items():
            if wrong := sorted(flow.keys() - set(_PER_FLOW)):
                msg = f"{wrong[0]} is no key of the flow {name}; there are {', '.join(_PER_FLOW)}{did_you_mean(wrong[0], _PER_FLOW)}"
                raise ValueError(msg)
        promised = tuple(promises or ())
        for promise in (*needed("/"), HISTORY):
            if promise not in promised:
                raise Unsupported(
                    f"the pipeline in {storage}",
                    f"no checkpoint says whether {PROMISES[promise]}",
                    f'If that is so of all its flows, add "{promise}" to its promises.',
                )
        return cls(storage, warehouse, str(table.get("prefix", "")), promised, dict(inputs), dict(flows))

    def look(self) -> tuple[dict[str, dict[str, Any]], dict[str, Exception]]:
        """Return the queries of the flows that are there now, and why the others are not tracked.

        Both by the name of the flow. Costs a listing, and once a read of each flow's source logs.
        Raises OSError.
        """
        graph = Graph(flows_in(self.storage), self.warehouse, [*self.inputs], self.origins)
        queries: dict[str, dict[str, Any]] = {}
        refused: dict[str, Exception] = {}
        for flow in graph.flows:
            try:
                queries[flow.name] = self._query(graph, flow)
            except (Unsupported, CheckpointMismatch, OSError) as failure:
                refused[flow.name] = failure
        return queries, refused

    def _query(self, graph: Graph, flow: Flow) -> dict[str, Any]:
        graph.check_table(flow)
        sources: list[str | Mapping[str, str]] = []
        inputs: list[str] = []
        for number, origin in enumerate(graph.reads(flow)):
            if isinstance(origin, str) and origin in self.inputs:
                sources.append(origin)
                inputs += self.inputs[origin]
            elif isinstance(origin, str):
                raise Unsupported(
                    f"the flow {flow.name}",
                    f"it reads {origin} as source {number}, and nothing says which computation writes that",
                    f'Add to [pipeline.inputs]: "{origin}" = ["<the computation>"]',
                )
            else:
                writers = graph.writers[origin]
                graph.check_table(writers[0])
                sources.append({"kind": SINK, "path": str(origin)})
                inputs += [self.prefix + writer.name for writer in writers]
        directory = flow.directory(self.warehouse)
        return {
            "name": self.prefix + flow.name,
            "checkpoint": str(flow.checkpoint),
            "inputs": list(dict.fromkeys(inputs)),
            "sources": sources,
            "promises": list(self.promises),
            "output": str(directory) if (directory / SINK_LOG).is_dir() else "",
            **self.flows.get(flow.name, {}),
        }


@dataclass(frozen=True)
class Graph:
    """The flows of a pipeline, and what they read."""

    flows: Sequence[Flow]
    warehouse: Path
    outside: Sequence[str]
    """The sources outside of the pipeline that are declared, as texts."""
    origins: dict[Path, list[Path | str]] = field(default_factory=dict)
    """What each checkpoint reads, as far as it was found."""

    @cached_property
    def writers(self) -> dict[Path, list[Flow]]:
        """The flows of each table, by the table's directory."""
        tables: dict[Path, list[Flow]] = {}
        for flow in self.flows:
            tables.setdefault(flow.directory(self.warehouse), []).append(flow)
        return tables

    def check_table(self, flow: Flow) -> None:
        """Raise Unsupported for a table of files into which several flows write.

        Spark's file sink numbers the batches of a table, and each flow numbers its own from 0. So
        the sink takes a batch of the second flow for one that it has, and its rows are lost.
        """
        directory = flow.directory(self.warehouse)
        writers = self.writers.get(directory, [])
        if len(writers) > 1 and (directory / SINK_LOG).exists():
            names = ", ".join(writer.name for writer in writers)
            raise Unsupported(
                f"the table {directory}",
                f"{names} write into it, and Spark's file sink drops batches of one whose number another has taken: rows are lost",
                "Write a table of its own by each flow and unite them, or use a table format with transactions.",
            )

    def reads(self, flow: Flow) -> list[Path | str]:
        """Return what the sources of a flow are, in order.

        Each is the directory of a table of the pipeline, or the text of a source outside of it.
        Raises NotYet before a source's first rows; Unsupported, CheckpointMismatch, OSError.
        """
        if flow.checkpoint not in self.origins:
            self.origins[flow.checkpoint] = self._reads(flow)
        return self.origins[flow.checkpoint]

    def _reads(self, flow: Flow) -> list[Path | str]:
        plan = CheckpointLog(flow.checkpoint).newest_committed()
        if plan is None:
            msg = f"the flow {flow.name} has committed no batch yet: what it reads is not known"
            raise NotYet(msg)
        reads: list[Path | str] = []
        for number, line in enumerate(plan.lines):
            origin = self._files(flow, number, line) or self._topics(line)
            if origin is None:
                raise Unsupported(
                    f"the flow {flow.name}",
                    f"the checkpoint does not show what its source {number} is, which is at {line[:200]}",
                    f"Declare it as a [[query]] of its own, with the checkpoint {flow.checkpoint}.",
                )
            reads.append(origin)
        return reads

    def _files(self, flow: Flow, number: int, line: Line) -> Path | str | None:
        try:
            last = log_offset(line)
        except CheckpointMismatch:
            return None
        log = SourceLog(flow.checkpoint / "sources" / str(number))
        log.read_to(last)
        folders = {Path(path).parent for path in log.taken}
        if last == NOTHING or not folders:
            msg = f"the flow {flow.name} has read no rows of its source {number} yet: what that is is not known"
            raise NotYet(msg)
        for directory in self.writers:
            if all(_is_below(folder, directory) for folder in folders):
                return directory
        for text in self.outside:
            source = source_of(text)
            if source.kind in (FILES, SINK) and all(_is_below(folder, Path(source.path)) for folder in folders):
                return text
        folder = min(folders)
        return f"{SINK if (folder / SINK_LOG).exists() else FILES}:{folder}"

    def _topics(self, line: Line) -> str | None:
        try:
            topics = sorted({partition.topic for partition in vector_of(line)})
        except CheckpointMismatch:
            return None
        for text in self.outside:
            source = source_of(text)
            if source.kind == KAFKA and list(source.topics) == topics:
                return text
        return (
            f"{KAFKA}:{'+'.join(topics)},lowwater.brokers=<3>,kafka.bootstrap.servers=<broker:9092>" if topics else None
        )


def _is_below(folder: Path, above: Path) -> bool:
    return above in (folder, *folder.parents)


def _directory(table: Mapping[str, Any], key: str) -> Path:
    value = table.get(key)
    path = local_path(value) if isinstance(value, str) else ""
    if not path:
        msg = f"{key} of a pipeline is a local directory, an absolute path or file:///..., not {value!r}; declare flows of another storage as [[query]]"
        raise ValueError(msg)
    return Path(path)


def local_path(text: str) -> str:
    """Return a local path or URI as an absolute path; empty for another one.

    >>> local_path("file:///data/storage"), local_path("s3a://bucket/storage")
    ('/data/storage', '')
    """
    path = text.removeprefix("file://") if text.startswith("file:///") else text.removeprefix("file:")
    return path if path.startswith("/") else ""


def specification(file: Path) -> Mapping[str, Any]:
    """Return the content of a pipeline's specification. Raises ValueError, OSError."""
    try:
        import yaml
    except ModuleNotFoundError as failure:
        msg = "a specification is read by PyYAML, which spark-pipelines needs as well: pip install pyyaml"
        raise ValueError(msg) from failure
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as failure:
        msg = f"{file} is no YAML: {failure}"
        raise ValueError(msg) from failure
    if not isinstance(content, Mapping) or not isinstance(content.get("storage"), str):
        msg = f"{file} is no specification of a pipeline: it has no storage"
        raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
    return content


def describe_pipeline(file: Path, warehouse: Path | None) -> str:
    """Return declarations for a pipeline, filled in as far as its storage shows.

    ``warehouse`` is the directory of the tables; None: found by what the flows have read. Raises
    ValueError, OSError, Unsupported, CheckpointMismatch.
    """
    content = specification(file)
    storage = _directory(content, "storage")
    flows = flows_in(storage)
    if not flows:
        msg = f"{storage} has no checkpoint of a flow: run the pipeline once"
        raise ValueError(msg)
    warehouse = warehouse or _warehouse(flows)
    graph = Graph(flows, warehouse or Path("/<directory of the tables>"), ())
    outside: dict[str, list[str]] = {}
    lines, tables = [], []
    for flow in flows:
        reads = []
        try:
            graph.check_table(flow)
            for origin in graph.reads(flow):
                if isinstance(origin, Path):
                    reads.append(f"the table of {', '.join(writer.name for writer in graph.writers[origin])}")
                else:
                    reads.append(origin)
                    outside.setdefault(origin, []).append(flow.name)
        except (Unsupported, OSError) as failure:
            reads.append(f"(not tracked: {failure})")
        lines.append(f"# {flow.name}: {flow.checkpoint}, reads {'; '.join(reads)}")
        tables += _flow_table(flow)
    where = json.dumps(str(warehouse or "<directory of the tables: spark.sql.warehouse.dir>"), ensure_ascii=False)
    return "\n".join(
        [
            "# What stays in <> is to be filled in. The flows, which need no declaration of their own:",
            *lines,
            "[[pipeline]]",
            f"storage = {json.dumps(str(storage), ensure_ascii=False)}",
            f"warehouse = {where}",
            f"prefix = {json.dumps(str(content.get('name', 'pipeline')) + '.', ensure_ascii=False)}",
            "promises = [",
            *(f'    # {PROMISES[name]}\n    # "{name}",' for name in (*needed("/"), HISTORY)),
            "]",
            "",
            "# Each source outside of the pipeline, with the computations that write it.",
            "[pipeline.inputs]",
            *(
                f'{json.dumps(text, ensure_ascii=False)} = ["<computation>"]  # read by {", ".join(names)}'
                for text, names in outside.items()
            ),
            *tables,
            "",
        ]
    )


def _warehouse(flows: Sequence[Flow]) -> Path | None:
    """Return the directory of the tables, by a flow that has read another one's table."""
    for flow in flows:
        for log in sorted((flow.checkpoint / "sources").glob("*")):
            source = SourceLog(log)
            plan = CheckpointLog(flow.checkpoint).newest_committed()
            try:
                source.read_to(log_offset(plan.lines[int(log.name)]) if plan is not None else NOTHING)
            except (CheckpointMismatch, IndexError, ValueError):
                continue
            for folder in {Path(path).parent for path in source.taken}:
                for writer in flows:
                    warehouse = folder.parents[0 if writer.database == _DEFAULT else 1]
                    if (folder / SINK_LOG).exists() and writer.directory(warehouse) == folder:
                        return warehouse
    return None


def _flow_table(flow: Flow) -> list[str]:
    """Return the table of what a flow's checkpoint does not show; empty if it shows all."""
    kinds = set(operators(flow.checkpoint).values()) - ON_ARRIVAL
    if not kinds:
        return []
    lines = ["", f"# In Spark's state: {', '.join(sorted(kind or 'an operator without a name' for kind in kinds))}."]
    lines += [
        f"[pipeline.flows.{json.dumps(flow.name)}]",
        'retention = "<1h>"',
        '# stamp = "<1h>"  # or windows, for both',
    ]
    return [*lines, *(['output_mode = "append"'] if kinds & AGGREGATIONS else [])]
