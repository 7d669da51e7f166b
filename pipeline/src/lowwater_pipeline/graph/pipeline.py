"""Pipelines: computations declared together. Names, places and order are derived and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater.core.text import did_you_mean
from lowwater_pipeline.computation.computation import Computation, Input, Output, Weak
from lowwater_pipeline.computation.delivery import HEADER
from lowwater_pipeline.computation.once import UNDECIDABLE, UNDECIDABLE_OUTPUT
from lowwater_pipeline.computation.stage import check_list, check_whole
from lowwater_pipeline.graph.columns import columns_of
from lowwater_pipeline.graph.places import Folder, Frame, Place, Sent, Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import lowwater
    from lowwater_pipeline.graph.running import Running

__all__ = ["Pipeline", "PipelineError", "Reads", "Writes"]

_PLAIN: Final = re.compile(r"`[^`]+`|[A-Za-z_]\w*")
"""Pattern of a key that is just a column's name."""


class PipelineError(ValueError):
    """A pipeline cannot run as declared. Each of ``problems`` names the field and the fix."""

    def __init__(self, pipeline: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the pipeline {pipeline} cannot run:{lines}")


@dataclass(frozen=True)
class Writes:
    """An output of a computation, and its place."""

    computation: str
    output: str
    declared: Output
    place: Place
    sent: Sent | None = None
    """Topic into which tasks send the rows, by ``productions = Weak(...)``; None when the driver
    writes them after the batch."""

    @property
    def path(self) -> str:
        """Path below the root."""
        return self.place.path or f"outputs/{self.computation}/{self.output}"

    @property
    def stands(self) -> Place:
        """The place into which tasks or driver put the rows."""
        return self.sent or self.place

    @property
    def called(self) -> str:
        """Name of the output in the pipeline: ``COMPUTATION.OUTPUT``."""
        return f"{self.computation}.{self.output}"


@dataclass(frozen=True)
class Reads:
    """An input of a computation, and what it reads."""

    computation: str
    input: Input
    source: Writes | Place
    """An output of the pipeline, or a place that other programs write."""

    @property
    def place(self) -> Place:
        """The place of the rows."""
        return self.source.place if isinstance(self.source, Writes) else self.source

    @property
    def path(self) -> str:
        """Path of the place below the root."""
        return self.source.path if isinstance(self.source, Writes) else self.source.path or ""

    @property
    def schema(self) -> str | None:
        """Columns of the rows as DDL; None when only Spark knows them."""
        return self.source.declared.schema if isinstance(self.source, Writes) else self.source.schema

    @property
    def origin(self) -> str:
        """Name of the output that is read, or of the writers of the source."""
        return self.source.called if isinstance(self.source, Writes) else "+".join(self.input.names)


class Pipeline:
    """Computations, with the places that they read and write.

    ``pipeline = Pipeline("zeitgeist", [Counts(), Spikes()], sources={"searches": Folder(...)})``.
    An input that names a computation of the pipeline reads its output; if that one has several,
    ``output=`` of :class:`Input` says which. Any other input is a source.

    Args:
        name: Name of the pipeline.
        computations: Instances, in any order.
        sources: Places of inputs that no computation of the pipeline writes, by the input's name;
            ``"a+b"`` for an input with several writers.
        outputs: Places of outputs that are no parquet folder below the root, by
            ``"COMPUTATION.OUTPUT"``, or by the computation alone if it has one output.
        ranges: Number of key ranges of each computation. A checkpoint keeps its number.

    Raises :class:`PipelineError` with all problems; ValueError and TypeError for an incomplete
    computation. Starts nothing, and does not use Spark.
    """

    def __init__(
        self,
        name: str,
        computations: Sequence[Computation],
        *,
        sources: Mapping[str, Place] | None = None,
        outputs: Mapping[str, Place] | None = None,
        ranges: int = 64,
    ) -> None:
        self.name = name
        self.ranges = ranges
        check_list("computations", computations)
        for computation in computations:
            check_whole(computation)
        problems = [*_names(computations)]
        if problems:
            raise PipelineError(name, problems)
        self.computations: Mapping[str, Computation] = {computation.name: computation for computation in computations}
        self.writes: Sequence[Writes] = list(_writes(computations, outputs or {}, problems))
        """All outputs."""
        self.reads: Sequence[Reads] = list(_reads(computations, self.writes, sources or {}, problems))
        """All inputs."""
        for read in self.reads:
            problems += _check_columns(read)
        problems += _unused(self.reads, sources or {})
        for write in self.writes:
            problems += _check_output(write)
        problems += _shared(self.writes, self.reads)
        self.order: Sequence[str] = _ordered(self, problems)
        """Names of the computations, each behind those that it reads."""
        if problems:
            raise PipelineError(name, problems)

    def reads_of(self, computation: str) -> list[Reads]:
        """Return the inputs of a computation, in the order of its declaration."""
        return [read for read in self.reads if read.computation == computation]

    def writes_of(self, computation: str) -> list[Writes]:
        """Return the outputs of a computation."""
        return [write for write in self.writes if write.computation == computation]

    def upstream_of(self, computation: str) -> list[str]:
        """Return the computations of the pipeline that this one reads, each once."""
        sources = [read.source.computation for read in self.reads_of(computation) if isinstance(read.source, Writes)]
        return list(dict.fromkeys(sources))

    def readers_of(self, computation: str) -> list[str]:
        """Return the computations of the pipeline that read this one."""
        return [name for name in self.computations if computation in self.upstream_of(name)]

    def named(self, only: Sequence[str]) -> list[str]:
        """Return the named computations in starting order; all of them without a name.

        Raises ValueError for an unknown name.
        """
        unknown = [name for name in only if name not in self.computations]
        if unknown:
            msg = f"the pipeline {self.name} has no computation {unknown[0]}; it has {', '.join(self.computations)}"
            raise ValueError(msg)
        return [name for name in self.order if not only or name in only]

    def start(
        self,
        spark: SparkSession,
        root: str | Path,
        *,
        address: str | None = None,
        client: lowwater.Client | None = None,
        only: Sequence[str] = (),
        **options: Any,
    ) -> Running:
        """Start computations, each as a query of its own in one session, and return them.

        Args:
            spark: The session.
            root: An absolute directory that all executors see. It gets ``checkpoints/COMPUTATION``
                and ``outputs/COMPUTATION/OUTPUT``; relative paths of places are below it.
            address: See :func:`lowwater_spark.stage`.
            client: See :func:`lowwater_spark.stage`.
            only: Names of the computations to start; all of them when it is empty.
            options: Options of each query, see :func:`~lowwater_pipeline.computation.start`.

        Before the first query starts, all frames are made and compared with the declared inputs.
        Raises :class:`PipelineError` with all problems of that. A later failure, such as a name
        that another checkpoint owns, ends its computation alone.
        """
        from lowwater_pipeline.graph.running import start

        return start(self, spark, Path(root), self.named(only), {"address": address, "client": client, **options})

    def run(
        self,
        spark: SparkSession,
        root: str | Path,
        *,
        address: str | None = None,
        client: lowwater.Client | None = None,
        only: Sequence[str] = (),
        until_finished: bool = False,
        **options: Any,
    ) -> int:
        """Start as :meth:`start` does, print progress, and return when all computations have ended.

        Ctrl-C and SIGTERM end them; with ``until_finished`` also the moment when all inputs are
        finished and all rows are written. Returns 0, or 1 if a computation has failed: its reason
        is printed, and the others go on. So ``sys.exit(pipeline.run(spark, root))`` is a whole
        program for ``spark-submit``.
        """
        running = self.start(spark, root, address=address, client=client, only=only, **options)
        return running.wait(until_finished=until_finished)


def _names(computations: Sequence[Computation]) -> Iterator[str]:
    if not computations:
        yield "it has no computations: name one at least, Pipeline(NAME, [Counts(), ...])"
    by_name: dict[str, Computation] = {}
    for computation in computations:
        other = by_name.setdefault(computation.name.lower(), computation)
        if other is not computation:
            yield f"{computation.name}: two computations have the name, {type(other).__name__} and {type(computation).__name__}; give one of them another name="
        if "/" in computation.name or computation.name in (".", ".."):
            yield f"{computation.name}: name= is also that of a folder in a pipeline; take one without /"


def _sent(computation: Computation, output: str) -> Sent | None:
    """Return the topic into which tasks send an output; None for another output."""
    weak = computation.productions
    if not isinstance(weak, Weak) or output not in weak.topics:
        return None
    servers = {name.lower(): str(value) for name, value in weak.options.items()}.get("kafka.bootstrap.servers", "")
    return Sent(weak.topics[output], servers)


def _outputs(computation: Computation) -> Mapping[str, str | Output]:
    """Return the declared outputs of a computation, and the one for undecidable rows if any."""
    once = any(source.once for source in computation.inputs)
    return {**computation.outputs, **({UNDECIDABLE: UNDECIDABLE_OUTPUT} if once else {})}


def _writes(computations: Sequence[Computation], places: Mapping[str, Place], problems: list[str]) -> Iterator[Writes]:
    unused = dict(places)
    for computation in computations:
        outputs = _outputs(computation)
        for output, declaration in outputs.items():
            declared = declaration if isinstance(declaration, Output) else Output(declaration, None)
            place = unused.pop(f"{computation.name}.{output}", None)
            if place is None and len(computation.outputs) == 1:
                place = unused.pop(computation.name, None)
            sent = _sent(computation, output)
            if sent is not None:
                if place is not None and not isinstance(place, Frame):
                    problems.append(
                        f"{computation.name}: outputs[{output!r}] is sent to the topic {sent.topic} by productions = Weak(...), and written nowhere else; leave its place out, or give the Frame by which it is read"
                    )
                yield Writes(computation.name, output, declared, place or sent, sent)
                continue
            if isinstance(place, Frame):
                problems.append(
                    f"{computation.name}: outputs[{output!r}] is a Frame, which is read only; take Folder, Topic or Table"
                )
            if place is not None and place.schema is not None:
                problems.append(
                    f"{computation.name}: the place of outputs[{output!r}] has a schema= beside that of the output; leave it out"
                )
            yield Writes(computation.name, output, declared, place or Folder())
    declared_all = ", ".join(
        f"{computation.name}.{output}" for computation in computations for output in _outputs(computation)
    )
    for name in unused:
        problems.append(
            f"outputs={{{name!r}: ...}} is no output of a computation; there are {declared_all}{did_you_mean(name, declared_all.split(', '))}"
        )


def _reads(
    computations: Sequence[Computation], writes: Sequence[Writes], sources: Mapping[str, Place], problems: list[str]
) -> Iterator[Reads]:
    names = [computation.name for computation in computations]
    for computation in computations:
        for declared in computation.inputs:
            what = f"{computation.name}: the input {declared.label}"
            inside = [name for name in declared.names if name in names]
            source = sources.get("+".join(declared.names))
            if inside and (len(declared.names) > 1 or source is not None):
                why = (
                    f"names {inside[0]} of the pipeline beside others; read each by an Input of its own"
                    if len(declared.names) > 1
                    else f"is a computation of the pipeline and in sources= as well; leave sources={{{inside[0]!r}: ...}} out"
                )
                problems.append(f"{what} {why}")
            elif inside:
                source_output = _output(declared, [write for write in writes if write.computation == inside[0]])
                if isinstance(source_output, str):
                    problems.append(f"{what} {source_output}")
                else:
                    problems += _read_twice(what, declared, source_output)
                    yield Reads(computation.name, declared, source_output)
            elif source is None:
                problems.append(
                    f"{what} is no computation of the pipeline and in no sources=: say where its rows stand, sources={{{'+'.join(declared.names)!r}: Folder(SCHEMA, PATH)}}, or mend the name; "
                    f"the computations are {', '.join(names)}{did_you_mean('+'.join(declared.names), [*names, *sources])}"
                )
            elif isinstance(source, Folder) and (source.schema is None or source.path is None):
                problems.append(
                    f"{what} reads a Folder without its columns or its path: declare both, Folder(SCHEMA, PATH)"
                )
            elif isinstance(source, Topic) and source.schema is None:
                problems.append(f"{what} reads a Topic without its columns: declare them, Topic(..., schema=SCHEMA)")
            else:
                yield Reads(computation.name, declared, source)


def _output(declared: Input, outputs: Sequence[Writes]) -> Writes | str:
    """Return the output that an input reads, or the problem.

    The output of undecidable rows is only read when the input names it.
    """
    names = ", ".join(write.output for write in outputs)
    if declared.output is None:
        own = [write for write in outputs if write.declared is not UNDECIDABLE_OUTPUT]
        return own[0] if len(own) == 1 else f"does not say which output it reads: add output=, one of {names}"
    matches = [write for write in outputs if write.output == declared.output]
    return matches[0] if matches else f"reads output={declared.output!r}, which is not declared: take one of {names}"


def _read_twice(what: str, declared: Input, source: Writes) -> Iterator[str]:
    """Yield what an input needs to read rows once that may come twice."""
    if source.sent is None:
        return
    where = f"{what} reads {source.called}, which productions = Weak(...) send to the topic {source.sent.topic}, perhaps twice"
    if not isinstance(source.place, Frame):
        yield (
            f"{where}, with the id of a row in a header: say how it is read, outputs={{{source.called!r}: Frame(FUNCTION)}}, with the columns of the output and one more for the header {HEADER}; "
            "or declare Strong()"
        )
    if not declared.once:
        yield f"{where}: drop copies, Input({declared.label!r}, ..., id=COLUMN, once=True), with the column of the header {HEADER}; or declare Strong()"


def _check_columns(read: Reads) -> Iterator[str]:
    """Yield columns that an input declares and its source lacks, as far as known without Spark."""
    what, declared = f"{read.computation}: the input {read.input.label}", read.input
    written = read.source.declared if isinstance(read.source, Writes) else None
    if written is not None:
        if written.event_time is None:
            yield (
                f"{what} reads {read.origin}, which declares no event time: name the timestamp that its rows are stamped by, Output({written.schema!r}, event_time=...)"
            )
        elif written.event_time.lower() != declared.event_time.lower():
            yield (
                f"{what} has event_time={declared.event_time!r}, and the output {read.origin} is stamped by {written.event_time}: declare event_time={written.event_time!r}, or rows would come below the low watermark"
            )
    if read.schema is None:
        return
    columns = columns_of(read.schema)
    has_columns = f"{read.origin} has {', '.join(columns)}"
    kind = columns.get(declared.event_time.lower())
    if kind is None:
        yield f"{what} has event_time={declared.event_time!r}, and {has_columns}: name one of these, a timestamp{did_you_mean(declared.event_time, columns)}"
    elif kind not in ("timestamp", "timestamp_ltz"):
        yield f"{what} has event_time={declared.event_time!r}, which is of {kind} in {read.origin}: make it a timestamp there"
    # Weak productions have the row's id in the message's header, so in no column.
    named = [("id", None if isinstance(read.source, Writes) and read.source.sent else declared.id)]
    if isinstance(declared.key, str) and _PLAIN.fullmatch(declared.key):
        named.append(("key", declared.key))
    for field, column in named:
        if column is not None and column.strip("`").lower() not in columns:
            yield f"{what} has {field}={column!r}, and {has_columns}: name one of these, or write it there{did_you_mean(column, columns)}"


def _unused(reads: Sequence[Reads], sources: Mapping[str, Place]) -> Iterator[str]:
    used = {"+".join(read.input.names) for read in reads}
    for name in sources:
        if name not in used:
            yield f"sources={{{name!r}: ...}} is read by no input; leave it out, or name it in inputs={did_you_mean(name, used)}"


def _shared(writes: Sequence[Writes], reads: Sequence[Reads]) -> Iterator[str]:
    """Yield outputs in the place of another output or a source, or below it."""
    places: list[tuple[object, str]] = []
    for write in writes:
        place = write.stands.identity(write.path)
        other = next((called for occupied, called in places if _meet(place, occupied)), None)
        if other is not None:
            yield f"{write.computation}: outputs[{write.output!r}] and {other} stand in one place, {write.stands.describe(write.path)}; give each its own, none below another"
        places.append((place, write.called))
    for read in reads:
        if isinstance(read.source, Writes):
            continue
        place = read.place.identity(read.path)
        other = next((called for occupied, called in places if _meet(place, occupied)), None)
        if other is not None:
            yield f"{read.computation}: the input {read.input.label} reads {read.place.describe(read.path)}, where {other} is written; name the computation as the input, or give one another place"


def _meet(one: object, other: object) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.is_relative_to(other) or other.is_relative_to(one)
    return one == other


def _check_output(written: Writes) -> Iterator[str]:
    """Yield problems in an output's declaration, as far as they show without Spark."""
    what = f"{written.computation}: outputs[{written.output!r}]"
    if "/" in written.output or written.output in (".", ".."):
        yield f"{what} is also the name of a folder in a pipeline; take one without /"
    columns = columns_of(written.declared.schema)
    if bare := [name for name, kind in columns.items() if not kind]:
        yield f"{what} does not say of what type {bare[0]} is: write {written.declared.schema!r} as NAME TYPE, NAME TYPE"
    event_time = written.declared.event_time
    if event_time is not None and columns.get(event_time.lower()) not in ("timestamp", "timestamp_ltz"):
        yield f"{what} is stamped by {event_time}, and its timestamps are {', '.join(name for name, kind in columns.items() if kind.startswith('timestamp')) or 'none'}: name one of them as event_time="


def _ordered(pipeline: Pipeline, problems: list[str]) -> list[str]:
    """Return the computations, each behind those that it reads; add a problem for a ring."""
    remaining = {name: set(pipeline.upstream_of(name)) for name in pipeline.computations}
    order: list[str] = []
    while remaining:
        free = [name for name, others in remaining.items() if not others & remaining.keys()]
        if not free:
            problems.append(
                f"{_ring(remaining)}: each waits for the other, and none would ever go on; take one of these inputs= out"
            )
            break
        order += free
        remaining = {name: others for name, others in remaining.items() if name not in free}
    return order


def _ring(remaining: Mapping[str, set[str]]) -> str:
    """Return a ring's names for a message, each computation before its reader."""
    way = [next(iter(remaining))]
    while way[-1] not in way[:-1]:
        way.append(next(name for name in remaining if name in remaining[way[-1]]))
    return " -> ".join(reversed(way[way.index(way[-1]) :]))
