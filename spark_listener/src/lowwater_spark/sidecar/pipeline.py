"""A declarative pipeline of Spark's, as its storage shows it: the flows, and what each one reads.

Layout, probed on PySpark 4.2: ``STORAGE/_checkpoints/CATALOG/DATABASE/TABLE/FLOW/N`` is the
checkpoint of a flow, and a full refresh begins the next N. A materialized view is computed anew in
each run and has no checkpoint. The tables of Spark's own catalog are outputs of the file sink, in
``WAREHOUSE/TABLE`` or ``WAREHOUSE/DATABASE.db/TABLE``.

No checkpoint names what the query reads. A file source's log has the paths of the files that were
read, and an offset of Kafka its topics. So a flow is known from its first rows on: a file of a
table makes the flows of that table its inputs. Paths and topics do not tell the directory that the
query names, nor the cluster. So these are declared, and count only for a flow that names them: with
the wrong one its watermark could lead.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from lowwater.core.checks import is_name
from lowwater.core.text import did_you_mean
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import HISTORY, PROMISES, Declaration, needed, source_of
from lowwater_spark.sidecar.evidence import CHECKPOINTS
from lowwater_spark.sidecar.stateful import AGGREGATIONS, ON_ARRIVAL, operators, word_of
from lowwater_spark.sources.base import Line, SourceDeclared
from lowwater_spark.sources.files.sink_log import SINK_LOG
from lowwater_spark.sources.files.source import FILES, SINK
from lowwater_spark.sources.files.source_log import NOTHING, SourceLog, log_offset
from lowwater_spark.sources.kafka.source import KAFKA, vector_of

__all__ = ["Flow", "Folders", "Looked", "Pipeline", "describe_pipeline"]

_CATALOG: Final = "spark_catalog"
"""Name of Spark's own catalog."""

_DEFAULT: Final = "default"
"""Name of Spark's default database."""

_SOURCES: Final = "sources"
"""Key of a flow with its sources outside of the pipeline."""

_NAME_FIX: Final = "1 to 128 of A-Z a-z 0-9 _ . -"
"""Characters of a computation's name."""

_DELTA_LOG: Final = "_delta_log"
"""Directory in a Delta table, whose transactions keep the batches of several flows apart."""

_PER_FLOW: Final = ("retention", "stamp", "windows", "windows_start", "output_mode", "heuristics", "adopt")
"""Keys of a query that a flow may declare."""

_BLANK: Final = re.compile(r"\A<|=<[^<>]*>(,|\Z)")
"""A key of ``[pipeline.inputs]`` as ``describe`` prints it, before it is filled in."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A streaming flow with a checkpoint."""

    catalog: str
    database: str
    table: str
    flow: str
    """Name that Spark gives the flow."""
    checkpoint: Path
    """The newest of its checkpoints, an absolute path; their directory where ``problem`` is set."""
    problem: OSError | None = None
    """Reason why its checkpoints cannot be listed."""

    @property
    def name(self) -> str:
        """Name of the flow in declarations: of its table, and its own if that is another.

        >>> Flow("spark_catalog", "default", "hourly", "hourly", Path("/")).name
        'hourly'
        >>> Flow("spark_catalog", "eu", "both", "left", Path("/")).name
        'eu.both.left'
        >>> Flow("ice", "default", "hourly", "hourly", Path("/")).name
        'ice.default.hourly'
        """
        place: tuple[str, ...] = (self.catalog, self.database)
        if self.catalog == _CATALOG:
            place = () if self.database == _DEFAULT else (self.database,)
        return ".".join((*place, self.table, *(() if self.flow == self.table else (self.flow,))))

    def directory(self, warehouse: Path) -> Path | None:
        """Return the directory of its table in Spark's own catalog; None: in another catalog.

        A catalog may write the names in lower case, where the checkpoint has them as the pipeline
        does. So the directory in lower case counts where the other one does not exist.
        """
        if self.catalog != _CATALOG:
            return None
        names = (self.table,) if self.database == _DEFAULT else (f"{self.database}.db", self.table)
        written = warehouse.joinpath(*names)
        lowered = warehouse.joinpath(*(name.lower() for name in names))
        return lowered if _is_directory(lowered) and not _is_directory(written) else written


def flows_in(storage: Path) -> tuple[list[Flow], dict[str, OSError]]:
    """Return the flows with a checkpoint, ordered by place, and the folders that cannot be listed.

    The newest checkpoint is the greatest directory, also before Spark has written into it: a full
    refresh makes the directory and empties the table. A flow whose own directory cannot be listed
    is among the flows, because it may write into the table of another one. Raises OSError if the
    storage itself cannot be listed.
    """
    if not storage.is_dir():
        msg = f"the storage {storage} is no directory here: run the pipeline once, or write the storage of its specification"
        raise FileNotFoundError(msg)
    top = storage / CHECKPOINTS
    _entries(top)
    flows: list[Flow] = []
    unread: dict[str, OSError] = {}
    for folder in _folders(top, 4, unread):
        catalog, database, table, name = folder.parts[-4:]
        try:
            newest = max((int(entry.name) for entry in _entries(folder) if entry.name.isdecimal()), default=None)
        except OSError as failure:
            flows.append(Flow(catalog, database, table, name, folder, failure))
        else:
            if newest is not None:
                flows.append(Flow(catalog, database, table, name, folder / str(newest)))
    return flows, {str(Path(folder).relative_to(top)): failure for folder, failure in unread.items()}


def _folders(above: Path, depth: int, unread: dict[str, OSError]) -> Iterator[Path]:
    """Yield the directories at a depth below another one, in order; note those that fail."""
    if not depth:
        yield above
        return
    try:
        below = [entry for entry in _entries(above) if entry.is_dir()]
    except OSError as failure:
        unread[str(above)] = failure
        return
    for entry in below:
        yield from _folders(entry, depth - 1, unread)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_directory(path: Path) -> bool:
    """Return False also for a path that cannot be reached."""
    try:
        return path.is_dir()
    except OSError:
        return False


class NotYet(OSError):
    """A flow does not show yet what it reads."""


class Looked(NamedTuple):
    """The flows of a pipeline at one look, by their names."""

    queries: dict[str, dict[str, Any]]
    """Declarations of the flows that can be tracked."""
    refused: dict[str, Exception]
    """Reasons of the flows that are not tracked."""
    checkpoints: dict[str, Path]
    """Newest checkpoint of each flow whose name no other one has."""


Folders = dict[tuple[Path, int], frozenset[str]]
"""Directories of the files that the sources have read, by checkpoint and number of the source."""


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
    """What no checkpoint shows of a flow, by the flow's name: retention, sources and the like."""

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
        prefix = table.get("prefix", "")
        if not isinstance(prefix, str):
            msg = f'prefix of a pipeline is a text, like "flights.", not {prefix!r}'
            raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not the caller's type
        if not is_name(f"{prefix}a"):
            msg = f"prefix of a pipeline has {_NAME_FIX}, not {prefix!r}"
            raise ValueError(msg)
        inputs = _inputs(table.get("inputs", {}))
        promises, flows = _promises(table, storage), _flow_tables(table.get("flows", {}), inputs)
        for name, flow in flows.items():
            # The values of a flow are those of a query: the query's rules find a wrong one here.
            some = {"name": prefix + name, "checkpoint": "/", "inputs": ["any"], "sources": ["files:/any"]}
            own = {key: value for key, value in flow.items() if key != _SOURCES}
            Declaration.parse({**some, "promises": list(promises), **own})
        return cls(storage, warehouse, prefix, promises, inputs, flows)

    def look(self, folders: Folders | None = None) -> Looked:
        """Return the queries of the flows that are there now, and why the others are not tracked.

        ``folders`` is a cache for later looks. Costs a listing and an entry of the offset log for
        each flow, and once a read of each file source's log. Raises OSError.
        """
        flows, unread = flows_in(self.storage)
        graph = Graph(flows, self.warehouse, self.inputs, self.flows, {} if folders is None else folders)
        looked = Looked({}, {**unread}, {})
        names = {flow.name for flow in flows}
        for name in self.flows.keys() - names:
            reason = f"[pipeline.flows.{name}] is of no flow in {self.storage}{did_you_mean(name, names)}"
            looked.refused[name] = NotYet(reason)
        for flow in flows:
            try:
                graph.check_name(flow)
                if flow.problem is None:
                    looked.checkpoints[flow.name] = flow.checkpoint
                looked.queries[flow.name] = self._query(graph, flow, unread)
            except Exception as failure:  # noqa: BLE001 - a damaged file of one flow; the others go on
                looked.refused[flow.name] = failure
        return looked

    def _query(self, graph: Graph, flow: Flow, unread: Mapping[str, OSError]) -> dict[str, Any]:
        if flow.catalog == _CATALOG and not self.warehouse.is_dir():
            msg = f"the warehouse {self.warehouse} is no directory here: write the directory of the tables, spark.sql.warehouse.dir"
            raise FileNotFoundError(msg)
        graph.check_table(flow)
        sources: list[str | Mapping[str, str]] = []
        inputs: list[str] = []
        for number, origin in enumerate(graph.reads(flow)):
            if isinstance(origin, Undeclared):
                for problem in unread.values():
                    raise problem  # a flow that writes the files may be in that folder
                raise Unsupported(
                    f"the flow {flow.name}",
                    f"it reads {origin.what} as source {number}, and nothing says which computation writes that",
                    origin.fix,
                )
            if isinstance(origin, str):
                sources.append(origin)
                inputs += self.inputs[origin]
            else:
                inputs += [self._computation(writer) for writer in graph.writers_of(origin)]
                sources.append({"kind": SINK, "path": str(origin)})
        directory = flow.directory(self.warehouse)
        if directory is not None and not directory.is_dir():
            # Elsewhere a second flow into the table would not be seen, and the sink not be synced.
            msg = (
                f"the table of the flow {flow.name} is not in {directory}, though the flow has committed a batch: write spark.sql.warehouse.dir "
                "into warehouse of the pipeline; a table or database with a LOCATION of its own cannot be tracked"
            )
            raise FileNotFoundError(msg)
        is_sink = directory is not None and (directory / SINK_LOG).is_dir()
        return {
            "name": self._computation(flow),
            "checkpoint": str(flow.checkpoint),
            "inputs": list(dict.fromkeys(inputs)),
            "sources": sources,
            "promises": list(self.promises),
            "output": str(directory) if is_sink else "",
            "writers": sorted(str(writer.checkpoint) for writer in graph.upstream(flow)),
            **{key: value for key, value in self.flows.get(flow.name, {}).items() if key != _SOURCES},
        }

    def _computation(self, flow: Flow) -> str:
        """Return the name of a flow's computation. Raises Unsupported."""
        name = self.prefix + flow.name
        if not is_name(name):
            raise Unsupported(
                f"the flow {flow.name}",
                f"{name!r} cannot be the name of a computation, which has {_NAME_FIX}",
                "Give the flow or its table a name of these, which begins a new checkpoint.",
            )
        return name


def _inputs(inputs: Any) -> dict[str, list[str]]:
    if not isinstance(inputs, Mapping) or not all(
        names and isinstance(names, list) and all(isinstance(name, str) and name for name in names)
        for names in inputs.values()
    ):
        msg = f'inputs of a pipeline is a table of sources, each with a list of computations, like "files:/data/in" = ["flights"], not {inputs!r}'
        raise ValueError(msg)
    for text in inputs:
        if _BLANK.search(text):
            msg = f"{text!r} in inputs of a pipeline is not filled in: write what stands in <>"
            raise ValueError(msg)
        source_of(text)
    return dict(inputs)


def _flow_tables(flows: Any, inputs: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    if not isinstance(flows, Mapping) or not all(isinstance(flow, Mapping) for flow in flows.values()):
        msg = f"flows of a pipeline is a table with one for each flow, like [pipeline.flows.hourly], not {flows!r}"
        raise ValueError(msg)
    keys = (*_PER_FLOW, _SOURCES)
    for name, flow in flows.items():
        if wrong := sorted(flow.keys() - set(keys)):
            msg = f"{wrong[0]} is no key of the flow {name}; there are {', '.join(keys)}{did_you_mean(wrong[0], keys)}"
            raise ValueError(msg)
        sources = flow.get(_SOURCES, [])
        if not isinstance(sources, list) or not all(isinstance(text, str) and text in inputs for text in sources):
            msg = f"sources of the flow {name} is a list of keys of [pipeline.inputs], each written as there, not {sources!r}"
            raise ValueError(msg)
    return dict(flows)


def _promises(table: Mapping[str, Any], storage: Path) -> tuple[str, ...]:
    promises = table.get("promises", [])
    if not isinstance(promises, list) or not all(isinstance(promise, str) for promise in promises):
        msg = f'promises of a pipeline is a list of texts, like ["nothing-skipped"], not {promises!r}'
        raise ValueError(msg)
    if wrong := sorted(set(promises) - PROMISES.keys()):
        msg = f"the pipeline promises {wrong[0]}, which is none of {', '.join(PROMISES)}{did_you_mean(wrong[0], PROMISES)}"
        raise ValueError(msg)
    for promise in (*needed("/"), HISTORY):
        if promise not in promises:
            raise Unsupported(
                f"the pipeline in {storage}",
                f"no checkpoint says whether {PROMISES[promise]}",
                f'If that is so of all its flows, add "{promise}" to its promises.',
            )
    return tuple(promises)


class Undeclared(NamedTuple):
    """A source outside of the pipeline that no declaration names for sure."""

    what: str
    """What the checkpoint shows of the source."""
    key: str
    """Key of ``[pipeline.inputs]`` to fill in; empty: the source cannot be a key."""
    fix: str
    """Sentence that says what to declare."""


Origin = Path | str | Undeclared
"""What a source is: the directory of a table of the pipeline, a declared text, or undeclared."""


@dataclass(frozen=True)
class Graph:
    """The flows of a pipeline, and what they read."""

    flows: Sequence[Flow]
    warehouse: Path
    inputs: Mapping[str, Sequence[str]]
    """The declared sources outside of the pipeline, as texts, with their computations."""
    declared: Mapping[str, Mapping[str, Any]]
    """Declarations of single flows, by name."""
    folders: Folders = field(default_factory=dict)
    origins: dict[Flow, list[Origin]] = field(default_factory=dict)
    """What the flows read, as far as :meth:`reads` has found it."""

    @cached_property
    def writers(self) -> dict[Path, list[Flow]]:
        """The flows of each table, by the table's directory."""
        tables: dict[Path, list[Flow]] = {}
        for flow in self.flows:
            if (directory := flow.directory(self.warehouse)) is not None:
                tables.setdefault(directory, []).append(flow)
        return tables

    @cached_property
    def outside(self) -> dict[str, SourceDeclared]:
        """The declared sources outside of the pipeline, by their texts."""
        return {text: source_of(text) for text in self.inputs}

    def check_name(self, flow: Flow) -> None:
        """Raise Unsupported for a flow whose name another flow has as well.

        A dot may be in each part of a name, or between two. If one of the flows stood for both,
        readers of the other one would follow the wrong checkpoint.
        """
        if len(twins := [twin for twin in self.flows if twin.name == flow.name]) > 1:
            raise Unsupported(
                f"the flow {flow.name}",
                f"{' and '.join(str(twin.checkpoint) for twin in twins)} are checkpoints of flows of that name",
                "Rename one of them; if one is of a flow that is gone, delete its checkpoint.",
            )

    def check_table(self, flow: Flow) -> None:
        """Raise Unsupported for a table of files into which several flows write.

        Spark's file sink numbers the batches of a table, and each flow numbers its own from 0. So
        the sink takes a batch of the second flow for one that it has, and its rows are lost. Names
        that differ in case only may be one table.
        """
        directory = flow.directory(self.warehouse)
        if directory is None:
            return
        alike = {other: flows for other, flows in self.writers.items() if str(other).lower() == str(directory).lower()}
        names = [writer.name for writers in alike.values() for writer in writers]
        # The log of the sink is no sign: it is not where the directory is a wrong one.
        if len(names) > 1 and not any((other / _DELTA_LOG).exists() for other in alike):
            raise Unsupported(
                f"the table {directory}",
                f"{', '.join(names)} write into it, and Spark's file sink drops batches of one whose number another has taken: rows are lost",
                "Write a table of its own by each flow and unite them, or write a Delta table, or one of another catalog. If one of these flows is gone, delete its checkpoint.",
            )

    def writers_of(self, directory: Path) -> list[Flow]:
        """Return the flows that write a table which another flow reads.

        Raises NotYet while the table has no log, Unsupported, OSError.
        """
        writers = self.writers[directory]
        for writer in writers:
            self.check_name(writer)
            if writer.problem is not None:
                raise writer.problem
        self.check_table(writers[0])
        if not (directory / SINK_LOG).is_dir():
            msg = f"the table {directory} has no log of Spark's file sink at the moment, as while a full refresh writes it anew"
            raise NotYet(msg)
        return writers

    def upstream(self, flow: Flow) -> set[Flow]:
        """Return the flows that write what a flow reads, directly or through others.

        Raises OSError, and NotYet while one of them has committed no batch: it was begun anew, and
        what it reads is not known.
        """
        found: set[Flow] = set()
        waiting = [flow]
        while waiting:
            try:
                origins = self.reads(waiting.pop())
            except (CheckpointMismatch, Unsupported):
                continue  # it holds by itself
            for origin in origins:
                writers = set(self.writers[origin]) if isinstance(origin, Path) else set[Flow]()
                waiting += writers - found
                found |= writers
        return found

    def reads(self, flow: Flow) -> list[Origin]:
        """Return what the sources of a flow are, in order.

        Raises NotYet before a source's first rows; Unsupported, CheckpointMismatch, OSError.
        """
        if flow.problem is not None:
            raise flow.problem
        if flow not in self.origins:
            plan = CheckpointLog(flow.checkpoint).newest_committed()
            if plan is None:
                msg = f"the flow {flow.name} has committed no batch yet: what it reads is not known"
                raise NotYet(msg)
            self.origins[flow] = [self._origin(flow, number, line) for number, line in enumerate(plan.lines)]
        return self.origins[flow]

    def _origin(self, flow: Flow, number: int, line: Line) -> Origin:
        try:
            last = log_offset(line)
        except CheckpointMismatch:
            return self._topics(flow, number, line)
        folders = self._folders_of(flow, number, last)
        if remote := [folder for folder in folders if not folder.startswith("/")]:
            raise Unsupported(
                f"the flow {flow.name}",
                f"its source {number} reads {remote[0]}, which is no local directory",
                "Read local directories or tables of the pipeline.",
            )
        fitting = [
            text
            for text, source in self.outside.items()
            if (source.kind == FILES or (source.kind == SINK and Path(source.path) not in self.writers))
            and all(_is_below(Path(folder), Path(source.path)) for folder in folders)
        ]
        # What the flow names comes first: it may read a directory of tables, of which only one has
        # rows so far.
        if (named := self._named(flow, fitting)) is not None:
            return named
        for directory, writers in self.writers.items():
            if all(_is_below(Path(folder), directory) for folder in folders):
                if flow in writers:
                    raise Unsupported(
                        f"the flow {flow.name}",
                        f"it reads files of {directory}, which would be its own table",
                        "Correct the warehouse of the pipeline, or read another directory.",
                    )
                return directory
        return _directory_to_declare(flow, folders, fitting)

    def _folders_of(self, flow: Flow, number: int, last: int) -> frozenset[str]:
        """Return directories from which a file source has read, once it has.

        Those of later files are not added: the source of the sidecar refuses a file elsewhere.
        """
        folders = self.folders.get((flow.checkpoint, number))
        if folders is None and last != NOTHING:
            log = SourceLog(flow.checkpoint / "sources" / str(number), None)
            log.read_to(last)
            folders = frozenset(path.rpartition("/")[0] for path in log.taken)
        if not folders:
            msg = f"the flow {flow.name} has read no rows of its source {number} yet: what that source is, is not known"
            raise NotYet(msg)
        self.folders[flow.checkpoint, number] = folders
        return folders

    def _topics(self, flow: Flow, number: int, line: Line) -> Origin:
        try:
            topics = sorted({partition.topic for partition in vector_of(line)})
        except CheckpointMismatch:
            topics = []
        if not topics:
            raise Unsupported(
                f"the flow {flow.name}",
                f"the checkpoint does not show what its source {number} is, which is at {line[:200]}",
                f"Declare it as a [[query]] of its own, with the checkpoint {flow.checkpoint}.",
            )
        fitting = [
            text for text, source in self.outside.items() if source.kind == KAFKA and list(source.topics) == topics
        ]
        key = f"{KAFKA}:{'+'.join(topics)},lowwater.brokers=<3>,kafka.bootstrap.servers=<broker of {flow.name}:9092>"
        declared = Undeclared(f"{KAFKA}:{'+'.join(topics)} of some cluster", key, _to_paste(flow, key, fitting))
        return self._named(flow, fitting) or declared

    def _named(self, flow: Flow, fitting: Sequence[str]) -> str | None:
        """Return the declared source that fits and that the flow names; None: it names none.

        Topics of one name in two clusters look alike, and so do a directory and a part of it. Only
        a person knows which one the query reads. Raises Unsupported for several.
        """
        named = self.declared.get(flow.name, {}).get(_SOURCES, ())
        fitting = [text for text in fitting if text in named]
        if len(fitting) > 1:
            raise Unsupported(
                f"the flow {flow.name}",
                f"{' and '.join(fitting)} are among its sources, and it may read either",
                f"Leave only those that it reads in sources of [pipeline.flows.{_quoted(flow.name)}].",
            )
        return fitting[0] if fitting else None


def _directory_to_declare(flow: Flow, folders: frozenset[str], fitting: Sequence[str]) -> Undeclared:
    """Return the source of files for which a person must say which directory the query names.

    The files that were read do not tell: the query may read partitions or whole trees. ``fitting``
    are the declared sources which have those files, and which the flow does not name.
    """
    common = Path(os.path.commonpath(folders))
    above = next((folder for folder in (common, *common.parents) if (folder / SINK_LOG).exists()), None)
    while above is None and "=" in common.name:
        common = common.parent  # a partition
    place = str(above or common)
    if "," in place and not fitting:
        fix = "Declare the flow as a [[query]] of its own, with the source as a table: a comma cannot be in a key of [pipeline.inputs]."
        return Undeclared(f"files in {place}", "", fix)
    key = f"<{FILES if above is None else SINK}:{place}>"
    fix = (
        f"{_to_paste(flow, key, fitting)} In <> comes the directory that the flow names in load(), "
        "with partitions= or recursiveFileLookup=true where it reads directories below that."
    )
    return Undeclared(f"files in {place}", key, fix)


def _to_paste(flow: Flow, key: str, fitting: Sequence[str]) -> str:
    """Return the sentences that say how a flow names a source; ``fitting`` are declared already."""
    flow_table = f"[pipeline.flows.{_quoted(flow.name)}]"
    declare = f'Declare it in [pipeline.inputs]: {_quoted(key)} = ["<the computation>"], and write the same text into sources of {flow_table}: sources = [{_quoted(key)}].'
    if not fitting:
        return declare
    either = " or ".join(_quoted(text) for text in fitting)
    return f"If that is {either}, write the text into sources of {flow_table}: sources = [{_quoted(fitting[0])}]. Else: {declare}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_below(folder: Path, above: Path) -> bool:
    return above in (folder, *folder.parents)


def _directory(table: Mapping[str, Any], key: str) -> Path:
    value = table.get(key)
    path = SparkPath.of_text(value).absolute if isinstance(value, str) else ""
    if not path:
        msg = f"{key} of a pipeline is a local directory, an absolute path or file:///..., not {value!r}; declare flows of another storage as [[query]]"
        raise ValueError(msg)
    return Path(path)


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

    ``warehouse`` is the directory of the tables; None: guessed by what the flows have read, and
    printed in ``<>``. Raises ValueError, OSError.
    """
    content = specification(file)
    storage = _directory(content, "storage")
    flows, unread = flows_in(storage)
    if not flows and not unread:
        msg = f"{storage} has no checkpoint of a flow: run the pipeline once"
        raise ValueError(msg)
    folders: Folders = {}
    if warehouse is not None:
        warehouse = Path(SparkPath.of_text(str(warehouse)).absolute or warehouse.absolute())
        where = str(warehouse)
    else:
        warehouse = _warehouse(flows, folders)
        where = f"<{warehouse or 'directory of the tables'}: spark.sql.warehouse.dir>"
    graph = Graph(flows, warehouse or Path("/<directory of the tables>"), {}, {}, folders)
    outside: dict[str, list[str]] = {}
    lines, tables = [], []
    for flow in flows:
        reads: list[str] = []
        keys: list[str] = []
        try:
            graph.check_name(flow)
            graph.check_table(flow)
            for origin in graph.reads(flow):
                if isinstance(origin, Path):
                    reads.append(f"the table of {', '.join(writer.name for writer in graph.writers[origin])}")
                elif isinstance(origin, Undeclared):
                    reads.append(origin.what if origin.key else f"{origin.what} ({origin.fix})")
                    keys.append(origin.key)
            tables += _flow_table(flow, list(filter(None, keys)))
        except Exception as failure:  # noqa: BLE001 - a damaged file of one flow; the others are described
            reads.append(f"(not tracked: {' '.join(str(failure).split())})")
        for key in filter(None, keys):
            outside.setdefault(key, []).append(flow.name)
        lines.append(f"# {flow.name}: {flow.checkpoint}, reads {'; '.join(reads)}")
    lines += [f"# {folder}: (cannot be read: {failure})" for folder, failure in unread.items()]
    name = content.get("name")
    # A computation may not have all characters that a pipeline's name has.
    prefix = re.sub(r"[^A-Za-z0-9_.-]", "-", name) + "." if isinstance(name, str) and name else "pipeline."
    return "\n".join(
        [
            "# What stays in <> is to be filled in. The flows, which need no declaration of their own:",
            *lines,
            "[[pipeline]]",
            f"storage = {_quoted(str(storage))}",
            f"warehouse = {_quoted(where)}",
            f"prefix = {_quoted(prefix)}",
            "promises = [",
            *(f'    # {PROMISES[name]}\n    # "{name}",' for name in (*needed("/"), HISTORY)),
            "]",
            "",
            "# Each source outside of the pipeline, with the computations that write it. The directory is",
            "# the one that the flow names in load(), with partitions= or recursiveFileLookup=true where",
            "# it reads directories below. Of two lines that become alike keep one. A flow counts a source",
            "# only if its own table below names it: write the text there as here.",
            "[pipeline.inputs]",
            *(f'{_quoted(text)} = ["<computation>"]  # read by {", ".join(names)}' for text, names in outside.items()),
            *tables,
            "",
        ]
    )


def _warehouse(flows: Sequence[Flow], folders: Folders) -> Path | None:
    """Return a guess at the directory of the tables, by flows that have read another one's table.

    None if there is no guess, or more than one; and where a table is missing in the directory, or
    a flow would read its own table: a directory of another job may have the name of a table.
    """
    guesses: set[Path] = set()
    graph = Graph(flows, Path("/<directory of the tables>"), {}, {}, folders)
    for flow in flows:
        try:
            graph.reads(flow)
        except Exception:  # noqa: BLE001 - the flow is described with the reason
            continue
    readers = [(flow, Path(folder)) for flow in flows for folder in _folders_read(flow, folders)]
    own = [flow for flow in flows if flow.catalog == _CATALOG]
    for _, folder in readers:
        for writer in own:
            warehouse = folder.parent if writer.database == _DEFAULT else folder.parent.parent
            if (folder / SINK_LOG).exists() and writer.directory(warehouse) == folder:
                guesses.add(warehouse)
    fitting = [
        guess
        for guess in guesses
        if all((place := flow.directory(guess)) is not None and place.is_dir() for flow in own)
        and not any(flow.directory(guess) == folder for flow, folder in readers)
    ]
    return fitting[0] if len(fitting) == len(guesses) == 1 else None


def _folders_read(flow: Flow, folders: Folders) -> list[str]:
    return [folder for (checkpoint, _), some in folders.items() if checkpoint == flow.checkpoint for folder in some]


def _flow_table(flow: Flow, sources: Sequence[str]) -> list[str]:
    """Return the table of what a flow's checkpoint does not show; empty if it shows all."""
    plan = CheckpointLog(flow.checkpoint).newest_committed()
    kinds = {operator.name for operator in operators(flow.checkpoint, plan)} - ON_ARRIVAL
    if not kinds and not sources:
        return []
    lines = ["", f"[pipeline.flows.{_quoted(flow.name)}]"]
    if sources:
        lines.append(f"sources = [{', '.join(_quoted(source) for source in sources)}]  # as in [pipeline.inputs]")
    if kinds:
        lines += [
            f"# In Spark's state: {', '.join(sorted(word_of(kind) or 'an operator that is not known' for kind in kinds))}.",
            'retention = "<1h>"',
            '# stamp = "<1h>"  # or windows, for both',
        ]
    return [*lines, *(['output_mode = "append"'] if kinds & AGGREGATIONS else [])]
