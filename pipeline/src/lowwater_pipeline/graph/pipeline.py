"""Computations that read from one another, declared once: what each is called, where it reads, where it writes and where it keeps its checkpoint is derived, and checked whole before anything starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_pipeline.computation.computation import Computation, Input, Output, Weak
from lowwater_pipeline.computation.delivery import HEADER
from lowwater_pipeline.computation.once import UNDECIDABLE, UNDECIDABLE_OUTPUT
from lowwater_pipeline.computation.stage import check_whole
from lowwater_pipeline.graph.columns import columns_of
from lowwater_pipeline.graph.places import Folder, Frame, Place, Sent, Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import lowwater
    from lowwater_pipeline.graph.running import Running

__all__ = ["Pipeline", "PipelineError", "Reads", "Writes"]

_PLAIN: Final = re.compile(r"`[^`]+`|[A-Za-z_]\w*")
"""A key that is the name of a column."""


class PipelineError(ValueError):
    """A pipeline that cannot run as it is declared.

    Each of ``problems`` names the computation and the field, and how to mend it.
    """

    def __init__(self, pipeline: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in problems)
        super().__init__(f"the pipeline {pipeline} cannot run:{lines}")


@dataclass(frozen=True)
class Writes:
    """An output of a computation, and where it stands."""

    computation: str
    output: str
    declared: Output
    place: Place
    sent: Sent | None = None
    """The topic that tasks send it to by themselves, by ``productions = Weak(...)``; None: it is
    written when its batch is done."""

    @property
    def path(self) -> str:
        """Its path below the root."""
        return self.place.path or f"outputs/{self.computation}/{self.output}"

    @property
    def stands(self) -> Place:
        """Where its rows are put, by whomever."""
        return self.sent or self.place

    @property
    def called(self) -> str:
        """Its name in the pipeline."""
        return f"{self.computation}.{self.output}"


@dataclass(frozen=True)
class Reads:
    """An input of a computation, and what it reads."""

    computation: str
    input: Input
    source: Writes | Place
    """An output of the pipeline, or a place that others write."""

    @property
    def place(self) -> Place:
        """Where the rows stand."""
        return self.source.place if isinstance(self.source, Writes) else self.source

    @property
    def path(self) -> str:
        """Its path below the root."""
        return self.source.path if isinstance(self.source, Writes) else self.source.path or ""

    @property
    def schema(self) -> str | None:
        """The columns; None where only Spark knows them."""
        return self.source.declared.schema if isinstance(self.source, Writes) else self.source.schema

    @property
    def origin(self) -> str:
        """What it reads, by its name: the output, or who writes the source."""
        return self.source.called if isinstance(self.source, Writes) else "+".join(self.input.names)


class Pipeline:
    """Computations, where they read and where they write: ``pipeline = Pipeline("zeitgeist", [Counts(), Spikes()], sources={"searches": Folder(...)})``.

    An input that names a computation of the pipeline reads the output of that one, ``output=`` of :class:`Input` says which of several. Any other input is a source.

    Args:
        name: Of the pipeline.
        computations: Instances, in any order.
        sources: Where an input reads that no computation of the pipeline writes, by the input's name; ``"a+b"`` for several writers.
        outputs: Where outputs stand that are no parquet folder below the root, by ``"COMPUTATION.OUTPUT"``, or the computation alone if it has one.
        ranges: Key ranges of each computation; a checkpoint keeps its number.

    Raises :class:`PipelineError` with all that is wrong; ValueError and TypeError for a computation that is not whole. Nothing is started, and Spark not asked.
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
        for each in computations:
            check_whole(each)
        problems = [*_names(computations)]
        if problems:
            raise PipelineError(name, problems)
        self.computations: Mapping[str, Computation] = {each.name: each for each in computations}
        self.writes: Sequence[Writes] = list(_writes(computations, outputs or {}, problems))
        """All outputs."""
        self.reads: Sequence[Reads] = list(_reads(computations, self.writes, sources or {}, problems))
        """All inputs."""
        for read in self.reads:
            problems += _check_columns(read)
        problems += _unused(self.reads, sources or {})
        for written in self.writes:
            problems += _check_output(written)
        problems += _shared(self.writes, self.reads)
        self.order: Sequence[str] = _ordered(self, problems)
        """The computations by name, each after those that it reads."""
        if problems:
            raise PipelineError(name, problems)

    def reads_of(self, computation: str) -> list[Reads]:
        """Return the inputs of a computation, in its order."""
        return [each for each in self.reads if each.computation == computation]

    def writes_of(self, computation: str) -> list[Writes]:
        """Return the outputs of a computation."""
        return [each for each in self.writes if each.computation == computation]

    def upstream_of(self, computation: str) -> list[str]:
        """Return the computations of the pipeline that one reads, each once."""
        found = [each.source.computation for each in self.reads_of(computation) if isinstance(each.source, Writes)]
        return list(dict.fromkeys(found))

    def readers_of(self, computation: str) -> list[str]:
        """Return the computations of the pipeline that read one."""
        return [name for name in self.computations if computation in self.upstream_of(name)]

    def named(self, only: Sequence[str]) -> list[str]:
        """Return computations in the order in which they start; all, if none is named.

        Raises ValueError for a name that is none.
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
        """Start the computations, or those that are named, each as a query of one session, and return them.

        Args:
            spark: The session.
            root: An absolute directory that all executors see, with ``checkpoints/COMPUTATION`` and ``outputs/COMPUTATION/OUTPUT``; relative paths of places are below it.
            address: As for :func:`lowwater_spark.stage`.
            client: The same.
            only: Names.
            options: Of each query, as for :func:`~lowwater_pipeline.computation.start`.

        All frames are made, and compared with what the inputs declare, before the first query starts. Raises :class:`PipelineError` with all that is wrong then. What fails later, as a name that another checkpoint
        has, ends that computation alone.
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
        """Start as :meth:`start` does, tell how it goes on standard output, and return when all have ended, or were stopped by Ctrl-C or SIGTERM.

        With ``until_finished`` also when all inputs are finished and all that comes of them is written. Returns 0, or 1 if a computation has failed: it tells the reason, and the others go on. So
        ``sys.exit(pipeline.run(spark, root))`` is a whole program for ``spark-submit``.
        """
        running = self.start(spark, root, address=address, client=client, only=only, **options)
        return running.wait(until_finished=until_finished)


def _names(computations: Sequence[Computation]) -> Iterator[str]:
    if not computations:
        yield "it has no computations: name one at least, Pipeline(NAME, [Counts(), ...])"
    seen: dict[str, Computation] = {}
    for each in computations:
        other = seen.setdefault(each.name.lower(), each)
        if other is not each:
            yield f"{each.name}: two computations have the name, {type(other).__name__} and {type(each).__name__}; give one of them another name="
        if "/" in each.name or each.name in (".", ".."):
            yield f"{each.name}: name= is also that of a folder in a pipeline; take one without /"


def _sent(computation: Computation, output: str) -> Sent | None:
    """Return the topic that an output is sent to by its tasks; None: it is not."""
    weak = computation.productions
    if not isinstance(weak, Weak) or output not in weak.topics:
        return None
    servers = {name.lower(): str(told) for name, told in weak.options.items()}.get("kafka.bootstrap.servers", "")
    return Sent(weak.topics[output], servers)


def _outputs(computation: Computation) -> Mapping[str, str | Output]:
    """Return the outputs that a computation declares, and that of the rows of which it cannot be said whether they are copies."""
    once = any(each.once for each in computation.inputs)
    return {**computation.outputs, **({UNDECIDABLE: UNDECIDABLE_OUTPUT} if once else {})}


def _writes(computations: Sequence[Computation], places: Mapping[str, Place], problems: list[str]) -> Iterator[Writes]:
    left = dict(places)
    for each in computations:
        outputs = _outputs(each)
        for output, given in outputs.items():
            declared = given if isinstance(given, Output) else Output(given, None)
            place = left.pop(f"{each.name}.{output}", None)
            if place is None and len(each.outputs) == 1:
                place = left.pop(each.name, None)
            sent = _sent(each, output)
            if sent is not None:
                if place is not None and not isinstance(place, Frame):
                    problems.append(
                        f"{each.name}: outputs[{output!r}] is sent to the topic {sent.topic} by productions = Weak(...), and written nowhere else; leave its place out, or give the Frame by which it is read"
                    )
                yield Writes(each.name, output, declared, place or sent, sent)
                continue
            if isinstance(place, Frame):
                problems.append(
                    f"{each.name}: outputs[{output!r}] is a Frame, which is read only; take Folder, Topic or Table"
                )
            if place is not None and place.schema is not None:
                problems.append(
                    f"{each.name}: the place of outputs[{output!r}] has a schema= beside that of the output; leave it out"
                )
            yield Writes(each.name, output, declared, place or Folder())
    declared_all = ", ".join(f"{each.name}.{output}" for each in computations for output in _outputs(each))
    for name in left:
        problems.append(f"outputs={{{name!r}: ...}} is no output of a computation; there are {declared_all}")


def _reads(
    computations: Sequence[Computation], writes: Sequence[Writes], sources: Mapping[str, Place], problems: list[str]
) -> Iterator[Reads]:
    names = [each.name for each in computations]
    for each in computations:
        for declared in each.inputs:
            what = f"{each.name}: the input {declared.label}"
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
                found = _output(declared, [write for write in writes if write.computation == inside[0]])
                if isinstance(found, str):
                    problems.append(f"{what} {found}")
                else:
                    problems += _read_twice(what, declared, found)
                    yield Reads(each.name, declared, found)
            elif source is None:
                problems.append(
                    f"{what} is no computation of the pipeline and in no sources=: say where its rows stand, sources={{{'+'.join(declared.names)!r}: Folder(SCHEMA, PATH)}}, or mend the name; "
                    f"the computations are {', '.join(names)}"
                )
            elif isinstance(source, Folder) and (source.schema is None or source.path is None):
                problems.append(
                    f"{what} reads a Folder without its columns or its path: declare both, Folder(SCHEMA, PATH)"
                )
            elif isinstance(source, Topic) and source.schema is None:
                problems.append(f"{what} reads a Topic without its columns: declare them, Topic(..., schema=SCHEMA)")
            else:
                yield Reads(each.name, declared, source)


def _output(declared: Input, outputs: Sequence[Writes]) -> Writes | str:
    """Return the output that an input reads, or what is wrong.

    The undecidable rows are read only by name.
    """
    names = ", ".join(each.output for each in outputs)
    if declared.output is None:
        own = [each for each in outputs if each.declared is not UNDECIDABLE_OUTPUT]
        return own[0] if len(own) == 1 else f"does not say which output it reads: add output=, one of {names}"
    found = [each for each in outputs if each.output == declared.output]
    return found[0] if found else f"reads output={declared.output!r}, which nobody declares: take one of {names}"


def _read_twice(what: str, declared: Input, source: Writes) -> Iterator[str]:
    """Yield what is missing to read rows once that may come twice."""
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
    """Yield what an input declares that is not in what it reads, as far as it can be known without Spark."""
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
    there = f"{read.origin} has {', '.join(columns)}"
    kind = columns.get(declared.event_time.lower())
    if kind is None:
        yield f"{what} has event_time={declared.event_time!r}, and {there}: name one of these, a timestamp"
    elif kind not in ("timestamp", "timestamp_ltz"):
        yield f"{what} has event_time={declared.event_time!r}, which is of {kind} in {read.origin}: make it a timestamp there"
    # The id of a row that is sent is in the header of its message, and so in no column of the
    # output.
    named = [("id", None if isinstance(read.source, Writes) and read.source.sent else declared.id)]
    if isinstance(declared.key, str) and _PLAIN.fullmatch(declared.key):
        named.append(("key", declared.key))
    for field, column in named:
        if column is not None and column.strip("`").lower() not in columns:
            yield f"{what} has {field}={column!r}, and {there}: name one of these, or write it there"


def _unused(reads: Sequence[Reads], sources: Mapping[str, Place]) -> Iterator[str]:
    used = {"+".join(each.input.names) for each in reads}
    for name in sources:
        if name not in used:
            yield f"sources={{{name!r}: ...}} is read by no input; leave it out, or name it in inputs="


def _shared(writes: Sequence[Writes], reads: Sequence[Reads]) -> Iterator[str]:
    """Yield outputs that stand where another one stands, or a source.

    Of a folder all that is below it is read.
    """
    seen: list[tuple[object, str]] = []
    for each in writes:
        place = each.stands.identity(each.path)
        other = next((called for known, called in seen if _meet(place, known)), None)
        if other is not None:
            yield f"{each.computation}: outputs[{each.output!r}] and {other} stand in one place, {each.stands.told(each.path)}; give each its own, none below another"
        seen.append((place, each.called))
    for read in reads:
        if isinstance(read.source, Writes):
            continue
        place = read.place.identity(read.path)
        other = next((called for known, called in seen if _meet(place, known)), None)
        if other is not None:
            yield f"{read.computation}: the input {read.input.label} reads {read.place.told(read.path)}, where {other} is written; name the computation as the input, or give one another place"


def _meet(one: object, other: object) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.is_relative_to(other) or other.is_relative_to(one)
    return one == other


def _check_output(written: Writes) -> Iterator[str]:
    """Yield what is wrong in the declaration of an output, as far as it can be known without Spark."""
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
    """Return the computations, each after those that it reads; tell a ring."""
    left = {name: set(pipeline.upstream_of(name)) for name in pipeline.computations}
    order: list[str] = []
    while left:
        free = [name for name, others in left.items() if not others & left.keys()]
        if not free:
            problems.append(
                f"{_ring(left)}: each waits for the other, and none would ever go on; take one of these inputs= out"
            )
            break
        order += free
        left = {name: others for name, others in left.items() if name not in free}
    return order


def _ring(left: Mapping[str, set[str]]) -> str:
    """Return a ring in words, each computation before its reader."""
    way = [next(iter(left))]
    while way[-1] not in way[:-1]:
        way.append(next(name for name in left if name in left[way[-1]]))
    return " -> ".join(reversed(way[way.index(way[-1]) :]))
