"""A query that runs elsewhere, tracked by its checkpoint: a plain query's run without the query.

The clock reads the inputs (W), lists the sources, and then reads the checkpoint
(:mod:`lowwater_spark.sidecar.evidence`). W counts, and is reported, when the committed batches have
read all that was listed, as in a query that tracks itself (:mod:`lowwater_spark.track.plain`). All
of this rests on durable files. So any number of these processes may watch one checkpoint: every
report is true, and the claim only decides which one is accepted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import lowwater
from lowwater import errors
from lowwater.core.calls import full_name
from lowwater_spark.checkpoint.location import Location, checkpoint_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import Unsupported
from lowwater_spark.settings import SparkSettings, connection
from lowwater_spark.sidecar.declaration import FILES, HISTORY, SINGLE_DRIVER, SINK, Declaration, SourceDeclared
from lowwater_spark.sidecar.evidence import Evidence, query_id
from lowwater_spark.sources.delta import DELTA, DeltaSource
from lowwater_spark.sources.delta_log import DeltaLog
from lowwater_spark.sources.files import FileSource, intruders
from lowwater_spark.sources.iceberg import ICEBERG, IcebergSource
from lowwater_spark.sources.iceberg_log import find
from lowwater_spark.sources.kafka import KAFKA, KafkaSource
from lowwater_spark.sources.kafka_admin import KafkaAdmin
from lowwater_spark.sources.sink_log import SINK_LOG, list_sink
from lowwater_spark.sources.source_log import log_offset
from lowwater_spark.track.authority import Authority, Registration
from lowwater_spark.track.batch import Keyed
from lowwater_spark.track.bounds import Stamp, Window
from lowwater_spark.track.part import Part
from lowwater_spark.track.plain import Plain
from lowwater_spark.track.plan import Checked
from lowwater_spark.track.query import INTERVAL, Tracked
from lowwater_spark.track.run import Run
from lowwater_spark.track.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lowwater_spark.sources.base import Source

__all__ = ["Sidecar", "checked", "settings_here", "track"]

_ENVIRONMENT: Final[Mapping[str, str]] = {
    "spark.lowwater.token": "LOWWATER_TOKEN",
    "spark.lowwater.tokenFile": "LOWWATER_TOKEN_FILE",
    "spark.lowwater.ca": "LOWWATER_CA",
    "spark.lowwater.certificate": "LOWWATER_CERT",
    "spark.lowwater.key": "LOWWATER_KEY",
}

_WEEK: Final = 7 * 86_400_000
"""Spark's default of maxFileAge, milliseconds."""


class Sidecar(Tracked):
    """A query of another process that is tracked by its checkpoint; :func:`track` makes it.

    It never ends by itself, since a query that commits no batch may go on later. :meth:`stop` ends
    it. So does what would make its reports untrue: a checkpoint that was begun anew or restored
    from a copy, an input that was reset, a newer sidecar. :meth:`await_termination` raises that.
    """

    def __init__(self, run: Run, *, interval: float, owned: lowwater.Client | None) -> None:
        super().__init__(run, interval=interval, owned=owned)
        self._thread.start()

    def status(self) -> Status:
        """Return the query's status, and what holds its watermark."""
        return self._run.status()


def track(
    name: str,
    *,
    checkpoint: str,
    inputs: list[str],
    sources: list[str | Mapping[str, Any]],
    promises: list[str],
    state: str | Path,
    spark: Callable[[], SparkSession] | None = None,
    address: str | None = None,
    client: lowwater.Client | None = None,
    interval: float = INTERVAL,
    step: Callable[[], None] = lambda: None,
    **declared: Any,
) -> Sidecar:
    """Track a query that runs elsewhere, by its checkpoint, and return its sidecar.

    The query is not changed, and nothing is written into its checkpoint.

    Args:
        name: Name of the computation.
        checkpoint: The query's checkpointLocation: a path, or a URI that Spark's driver in this
            process can read.
        inputs: Names of the computations whose output the query reads.
        sources: Sources in the order of the query: ``"files:/data/in"``,
            ``"kafka:flights,lowwater.brokers=3,kafka.bootstrap.servers=broker:9092"``, or tables
            with ``kind``, ``path`` or ``topics``, and ``options``.
        promises: What a checkpoint does not show: ``"sink-visible-before-commit"`` and
            ``"nothing-skipped"``, and where needed ``"history"``; ``lowwater-spark describe`` says
            what each means.
        state: Permanent local directory in which this process stores what it has seen. Each name
            gets a directory of its own in it.
        spark: Makes the session whose JVM reaches Kafka and remote file systems; called only when
            one is needed.
        address: Address of the authority; default ``LOWWATER_ADDRESS``, else ``localhost:7420``.
            The token comes from ``LOWWATER_TOKEN``, absolute paths of a token file and of
            certificates from ``LOWWATER_TOKEN_FILE``, ``LOWWATER_CA``, ``LOWWATER_CERT`` and
            ``LOWWATER_KEY``.
        client: A client of your own, instead of an address.
        interval: Longest time between two looks, seconds.
        step: Called after each step of the start; a step that lists a source may take minutes.
        declared: ``retention``, ``stamp``, ``windows``, ``windows_start``, ``output_mode``,
            ``output``, ``heuristics`` and ``adopt``, see
            :class:`~lowwater_spark.sidecar.declaration.Declaration`.

    Raises ValueError; Unsupported for a missing promise, or a query that cannot be tracked exactly;
    CheckpointMismatch; OSError (FileNotFoundError before the query's first start); and what the
    authority refuses.
    """
    settings = {
        "name": name,
        "checkpoint": checkpoint,
        "inputs": inputs,
        "sources": list(sources),
        "promises": promises,
    }
    declaration = Declaration.parse({**settings, **declared})
    home = Path(state) / quote(name, safe="").replace(".", "%2E")
    return _Beginning(declaration, home, spark, step).begin(address, client, interval)


@dataclass(slots=True)
class _Beginning:
    declared: Declaration
    home: Path
    spark: Callable[[], SparkSession] | None
    step: Callable[[], None] = lambda: None

    def begin(self, address: str | None, client: lowwater.Client | None, interval: float) -> Sidecar:
        """Check the declaration against the sources and the checkpoint, claim, and start."""
        checkpoint = self._checkpoint()
        self.step()
        used = lowwater.Client(settings_here(address)) if client is None else client
        authority: Authority | None = None
        try:
            waited_for = frozenset(full_name(used.settings.namespace, name) for name in self.declared.inputs)
            sources = [
                self._source(declared_source).waiting_for(waited_for) for declared_source in self.declared.sources
            ]
            for source in sources:
                source.check_writers()
                self.step()
            manifest = Manifest(checkpoint, home=self.home)
            registration = self._registration(checkpoint, manifest.last_run + 1)
            manifest.begin(registration.ordinal)
            evidence = Evidence(checkpoint, manifest, self.declared, sources)
            evidence.begin()
            self._recognize(checkpoint, manifest, sources)
            self.step()
            _pin(manifest, sources, self.declared)
            authority = Authority(
                used,
                registration,
                as_of_now=lambda registration: _as_committed(registration, CheckpointLog(checkpoint)),
            )
            keyed = Keyed(
                (), "", 1, injector=False, window=self.declared.stamp, window_start=self.declared.windows_start
            )
            output = None if not self.declared.output else Path(self.declared.output)
            run = Run(
                checkpoint,
                checked(self.declared, sources),
                [Part(authority, keyed, checkpoint)],
                Plain(output, witness=evidence),
                elsewhere=manifest,
            )
            run.start()
        except BaseException:
            if authority is not None:
                authority.close()
            if client is None:
                used.close()
            raise
        return Sidecar(run, interval=interval, owned=used if client is None else None)

    def _session(self, what: str) -> SparkSession:
        if self.spark is None:
            raise Unsupported(what, "it is reached through the JVM of a Spark session", "Pass spark=, which makes one.")
        return self.spark()

    def _checkpoint(self) -> Location:
        path = self.declared.checkpoint
        if path.startswith("/"):
            return Path(path)
        if "://" not in path:
            msg = f"the checkpoint of {self.declared.name} is an absolute path or a URI, not {path!r}"
            raise ValueError(msg)
        return checkpoint_of(
            self._session(f"the checkpoint {path}"),
            path,
            single_driver=SINGLE_DRIVER in self.declared.promises,
            looked_at=True,
            declare=f'add "{SINGLE_DRIVER}" to its promises',
        )

    def _source(self, declared: SourceDeclared) -> Source:
        if declared.kind == KAFKA:
            options = {**declared.options, "subscribe": ",".join(declared.topics), "startingoffsets": "earliest"}
            return KafkaSource(options, KafkaAdmin(self._session(declared.name)._jvm, options))
        if declared.kind == DELTA:
            return DeltaSource(
                declared.path, {"path": declared.path}, DeltaLog(self._session(declared.name), declared.path)
            )
        if declared.kind == ICEBERG:
            log = find(self._session(declared.name), declared.path)
            if log is None:
                raise Unsupported(
                    declared.name,
                    "the session does not know such a table of Iceberg",
                    "Name it as the catalogs of the session do, and give the session Iceberg's runtime and the settings of the catalog.",
                )
            return IcebergSource(declared.path, declared.options, log, branch=log.branch)
        assert declared.kind in (FILES, SINK)
        root = str(Path(declared.path))
        if not Path(root).is_dir():
            raise Unsupported(
                f"The path {declared.path}", "it is no directory here", "Mount it as the query's driver has it."
            )
        recursive = declared.options.get("recursivefilelookup", "false").lower() == "true"
        columns = tuple(filter(None, declared.options.get("partitions", "").split("+")))
        age = int(declared.options.get("maxfileage", _WEEK))
        sink = declared.kind == SINK
        has_log = Path(root, SINK_LOG).exists()
        if sink and not has_log:
            raise Unsupported(declared.name, "there is no log of Spark's file sink in it", f"Declare {FILES}:{root}.")
        if has_log and not sink:
            raise Unsupported(
                declared.name,
                "there is a log of Spark's file sink in it: a query that was started behind it goes by the log, and one that was started before lists all files",
                f"Declare {SINK}:{root} in the first case; in the other one start the query again, over a new checkpoint.",
            )
        source = FileSource(root, recursive, "", sink, columns=columns, max_age=age)
        if logs := [intruder.path for intruder in intruders(source) if not intruder.writer]:
            raise Unsupported(
                f"The path {root}",
                f"{logs[0]} is the log of a file sink, and Spark goes by it only when it reads that very directory",
                "Declare the directory of the sink as a source of its own.",
            )
        self.step()
        return source

    def _recognize(self, checkpoint: Location, manifest: Manifest, sources: list[Source]) -> None:
        """Check that the directories here are the ones from which the query has taken its files."""
        last = CheckpointLog(checkpoint).last_committed()
        plan = None if last is None else CheckpointLog(checkpoint).plan(last)
        for number, (source, line) in enumerate(zip(sources, () if plan is None else plan.lines, strict=False)):
            if not isinstance(source, FileSource):
                continue
            log = source.log_in(checkpoint / "sources" / str(number))
            log.read_to(log_offset(line))
            if source.sink_log and log.taken.keys() - {file.path for file in list_sink(source.root)}:
                raise Unsupported(
                    f"{SINK}:{source.root}",
                    "the query has taken files that the sink's log does not name: it lists the directory, and reads what failed attempts have left as well",
                    "Start the query again over a new checkpoint, which reads by the log.",
                )
            seen_before = source.root in (manifest["roots"] or {}) or (self.home / "lowwater" / "replaced").exists()
            if log.taken and not seen_before and not any(Path(path).exists() for path in log.taken):
                raise Unsupported(
                    f"{FILES}:{source.root}",
                    "none of the files that the query has taken from it is there: another volume may be mounted here than where the query's driver is",
                    f"Mount it as the driver has it. If they were cleaned up, say so: touch {self.home / 'lowwater' / 'replaced'}",
                )

    def _registration(self, checkpoint: Location, least: int) -> Registration:
        registration = Registration(
            name=self.declared.name,
            inputs=self.declared.inputs,
            heuristics=self.declared.heuristics,
            ranges=1,
            identity=f"sidecar:{query_id(checkpoint)}",
            generation=0,
            # Time orders runs, also when a process has lost its state. The stored number orders
            # them when the clock was put back.
            ordinal=max(time.time_ns() // 1000, least),
            digest=b"",
            adopt=self.declared.adopt,
            sidecar=True,
        )
        return _as_committed(registration, CheckpointLog(checkpoint))


def checked(declared: Declaration, sources: Sequence[Source]) -> Checked:
    """Return the query's sources and retention.

    With tumbling windows no row that is still to come ends at or before Spark's watermark.
    """
    windows = declared.windows
    stamps = () if windows is None else (Stamp("start", Window(windows, windows, declared.windows_start)),)
    return Checked(sources, retention=declared.retention, stamps=stamps, declared=windows is None)


def settings_here(address: str | None = None) -> SparkSettings:
    """Return the settings of the connection, from the variables that ``lowwater`` uses as well.

    A token is no argument, because lists of processes show arguments. Raises InvalidArgument when a
    file cannot be read.
    """
    try:
        return connection(lambda setting: os.environ.get(_ENVIRONMENT.get(setting, "")), address)
    except errors.InvalidArgument as failure:
        variable = _ENVIRONMENT.get(failure.metadata.get("setting", ""))
        if variable is None:
            raise
        fix = "give the absolute path of a file that this user may read"
        msg = f"{variable} is {failure.metadata['file']!r}, which cannot be read ({failure.__cause__}): {fix}"
        raise errors.InvalidArgument(msg, metadata={**failure.metadata, "fix": fix}) from failure


def _as_committed(registration: Registration, log: CheckpointLog) -> Registration:
    """Return a registration for the checkpoint as it is now."""
    last = log.last_committed()
    generation = 0 if last is None else last + 1
    planned = log.plan(generation)
    return replace(
        registration, generation=generation, digest=b"" if planned is None else bytes.fromhex(planned.digest)
    )


def _pin(manifest: Manifest, sources: list[Source], declared: Declaration) -> None:
    """Pin the topics and tables of a query that began before it was first watched.

    A query that has planned its first batch has fixed its sources, even if it has committed
    nothing. Raises Unsupported without the promise that they are the ones it has read.
    """
    planned = CheckpointLog(manifest.checkpoint).last_planned() is not None
    for number, source in enumerate(sources):
        begun = planned or (manifest.checkpoint / "sources" / str(number) / "0").exists()
        if (
            not begun
            or not isinstance(source, KafkaSource | DeltaSource | IcebergSource)
            or str(number) in (manifest[source.kind] or {})
        ):
            continue
        declared.require(
            HISTORY, f"its first batch is planned already, and it was not noted which {source.name} that is"
        )
        manifest.keep_entry(source.kind, str(number), [*source.pin()])
