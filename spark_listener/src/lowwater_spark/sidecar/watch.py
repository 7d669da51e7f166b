"""A query that runs elsewhere, tracked by its checkpoint.

The clock reads the inputs (W), lists the sources, and then reads the checkpoint
(:mod:`lowwater_spark.sidecar.evidence`). W counts, and is reported, when the committed batches have
read all that was listed, as in a query that tracks itself (:mod:`lowwater_spark.track.run.plain`).
All of this rests on durable files. So any number of these processes may watch one checkpoint: every
report is true, and the claim only decides which one is accepted.
"""

from __future__ import annotations

import functools
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
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.settings import SparkSettings, connection
from lowwater_spark.sidecar.declaration import HISTORY, SINGLE_DRIVER, Declaration
from lowwater_spark.sidecar.evidence import Evidence, query_id
from lowwater_spark.sidecar.recount import Recount
from lowwater_spark.sidecar.running import Running, undeclared
from lowwater_spark.sources.kinds import kind_of
from lowwater_spark.track.plan.bounds import Stamp, Window
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.query import INTERVAL, Tracked
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.plain import Plain
from lowwater_spark.track.run.run import Run
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.run.status import Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lowwater_spark.sources.base import Line, Source

__all__ = ["Sidecar", "checked", "settings_here", "track"]

_ENVIRONMENT: Final[Mapping[str, str]] = {
    "spark.lowwater.token": "LOWWATER_TOKEN",
    "spark.lowwater.tokenFile": "LOWWATER_TOKEN_FILE",
    "spark.lowwater.ca": "LOWWATER_CA",
    "spark.lowwater.certificate": "LOWWATER_CERT",
    "spark.lowwater.key": "LOWWATER_KEY",
}


_UNCOUNTED: Final = "dropped is not declared, so the rows that Spark drops are not counted"


class Sidecar(Tracked):
    """A query of another process that is tracked by its checkpoint; :func:`track` makes it.

    A sidecar tracks until :meth:`stop`, since a query that commits no batch may go on later. It
    ends by itself when its reports could become untrue: when the checkpoint was begun anew or
    restored from a copy, an input was reset, or a newer sidecar began. :meth:`await_termination`
    raises the reason.
    """

    def __init__(
        self, run: Run, *, interval: float, owned: lowwater.Client | None, recount: Recount | None = None
    ) -> None:
        super().__init__(run, interval=interval, owned=owned)
        self._recount = recount
        self._thread.start()

    def status(self) -> Status:
        """Return the query's status, what holds its watermark, and which rows Spark has dropped."""
        shown = {"dropped_uncounted": _UNCOUNTED} if self._recount is None else self._recount.shown()
        return replace(self._run.status(), **shown)

    def stop(self) -> None:
        """Report what is committed, and stop; the ranges hold their values."""
        super().stop()
        if self._recount is not None:
            self._recount.stop()

    def _look_back(self) -> None:
        if self._recount is not None:
            self._recount.follow(self._run.progress.committed.batch)


def track(
    name: str,
    *,
    query: StreamingQuery | None = None,
    checkpoint: str | None = None,
    inputs: list[str] | None = None,
    sources: Sequence[str | Mapping[str, Any]] | None = None,
    promises: list[str] | None = None,
    state: str | Path | None = None,
    spark: Callable[[], SparkSession] | None = None,
    address: str | None = None,
    client: lowwater.Client | None = None,
    interval: float = INTERVAL,
    step: Callable[[], None] = lambda: None,
    **declared: Any,
) -> Sidecar:
    """Track a query that runs elsewhere, by its checkpoint, and return its sidecar.

    The query is not changed, and nothing is written into its checkpoint. What is not passed, and
    what the client of ``query`` does not know, is asked for in one error with the call to paste.

    Args:
        name: Name of the computation.
        query: A query that this process has started or found, as in a notebook of Spark Connect.
            Its sources and the output of Spark's file sink are then known, and its checkpoint, if
            it is below the session's ``spark.sql.streaming.checkpointLocation``. A checkpoint of
            another query is refused.
        checkpoint: The query's checkpointLocation: a path, or a URI that Spark's driver in this
            process can read.
        inputs: Names of the computations whose output the query reads.
        sources: Sources in the order of the query: ``"files:/data/in"``,
            ``"kafka:flights,lowwater.brokers=3,kafka.bootstrap.servers=broker:9092"``, or tables
            with ``kind``, ``path`` or ``topics``, and ``options``.
        promises: What a checkpoint does not show: ``"sink-visible-before-commit"`` and
            ``"nothing-skipped"``, and where needed ``"history"``, ``"single-driver"`` and
            ``"same-operators"``; ``lowwater-spark describe`` says what each means.
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
            ``output``, ``operators``, ``heuristics``, ``adopt``, ``dropped`` and ``writers``, see
            :class:`~lowwater_spark.sidecar.declaration.Declaration`.

    Raises ValueError, also for what is not declared; Unsupported for a missing promise, or a query
    that cannot be tracked exactly; CheckpointMismatch; OSError (FileNotFoundError before the
    query's first start); and what the authority refuses.
    """
    passed: dict[str, Any] = {"address": address, "client": client, "spark": spark}
    if interval != INTERVAL:
        passed["interval"] = interval
    running = None if query is None else Running.of(query, wait=not sources)
    if running is not None:
        checkpoint = checkpoint or running.checkpoint
        sources = sources or running.sources
        declared = {"output": running.output, **declared}
    declared |= {"checkpoint": checkpoint, "inputs": inputs, "sources": sources, "promises": promises}
    message = undeclared(name, {**declared, "state": state}, running, passed)
    if message or state is None:
        raise ValueError(message)
    declaration = Declaration.parse({**declared, "name": name, "sources": list(sources or ())})
    home = Path(state) / quote(name, safe="").replace(".", "%2E")
    return _Beginning(declaration, home, spark, step, "" if running is None else running.id).begin(
        address, client, interval
    )


@dataclass(slots=True)
class _Beginning:
    declared: Declaration
    home: Path
    spark: Callable[[], SparkSession] | None
    step: Callable[[], None] = lambda: None
    query: str = ""
    """Spark's id of the query that the caller has; empty: any query's checkpoint is right."""

    def begin(self, address: str | None, client: lowwater.Client | None, interval: float) -> Sidecar:
        """Check the declaration against the sources and the checkpoint, claim, and start."""
        checkpoint = self._checkpoint()
        self._check_query(checkpoint)
        self.step()
        used = lowwater.Client(settings_here(address)) if client is None else client
        authority: Authority | None = None
        try:
            waited_for = frozenset(full_name(used.settings.namespace, name) for name in self.declared.inputs)
            sources: list[Source] = []
            for declared in self.declared.sources:
                session = functools.partial(self._session, declared.name)
                sources.append(kind_of(declared.kind).declared(declared, session).waiting_for(waited_for))
                self.step()
            for source in sources:
                source.check_writers()
                self.step()
            manifest = Manifest(checkpoint, home=self.home)
            registration = self._registration(checkpoint, manifest.last_run + 1)
            manifest.begin(registration.ordinal)
            evidence = Evidence(checkpoint, manifest, self.declared, sources)
            evidence.begin()
            for number, (source, line) in enumerate(zip(sources, _lines(checkpoint), strict=False)):
                source.recognize(manifest, number, line)
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
                [StageRun(authority, keyed, checkpoint)],
                Plain(output, witness=evidence),
                elsewhere=manifest,
            )
            run.start()
            recount = self._recount(run, sources, manifest) if self.declared.dropped else None
        except BaseException:
            if authority is not None:
                authority.close()
            if client is None:
                used.close()
            raise
        return Sidecar(
            run,
            interval=interval,
            owned=used if client is None else None,
            recount=recount,
        )

    def _recount(self, run: Run, sources: Sequence[Source], manifest: Manifest) -> Recount:
        session = functools.partial(self._session, f"{self.declared.name} with dropped")
        committed = run.progress.committed.batch
        return Recount(self.declared.name, self.declared.dropped, sources, manifest, session, committed)

    def _check_query(self, checkpoint: Location) -> None:
        """Raise CheckpointMismatch for the checkpoint of another query than the caller's."""
        if not self.query:
            return
        try:
            current = query_id(checkpoint)
        except FileNotFoundError as failure:
            msg = (
                f"{checkpoint} has no query here: run lowwater-spark track with these declarations on a machine that has it, and the "
                "sources, at the paths of the query's driver"
            )
            raise FileNotFoundError(msg) from failure
        if current != self.query:
            msg = f"{checkpoint} is of the query {current}, and not of {self.query}: pass the checkpointLocation of that one"
            raise CheckpointMismatch(msg)

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

    def _registration(self, checkpoint: Location, least: int) -> Registration:
        registration = Registration(
            name=self.declared.name,
            inputs=self.declared.inputs,
            heuristics=self.declared.heuristics,
            ranges=1,
            identity=f"sidecar:{query_id(checkpoint)}",
            generation=0,
            # Of two runs at one batch the authority refuses that with the lower ordinal, so each
            # run needs a higher one. The time gives that when the state directory was lost, and the
            # stored number (``least``) when the clock was put back.
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
    generation, planned = log.next()
    return replace(
        registration, generation=generation, digest=b"" if planned is None else bytes.fromhex(planned.digest)
    )


def _lines(checkpoint: Location) -> Sequence[Line]:
    """Return the lines of the newest committed batch; none before the first."""
    plan = CheckpointLog(checkpoint).newest_committed()
    return () if plan is None else plan.lines


def _pin(manifest: Manifest, sources: list[Source], declared: Declaration) -> None:
    """Pin the topics and tables of a query that began before it was first watched.

    A query that has planned its first batch has fixed its sources, even if it has committed
    nothing. Raises Unsupported without the promise that they are the ones it has read.
    """
    planned = CheckpointLog(manifest.checkpoint).last_planned() is not None
    for number, source in enumerate(sources):
        begun = planned or (manifest.checkpoint / "sources" / str(number) / "0").exists()
        if begun and manifest.pin(source.kind, number) is None and (pin := source.pin()) is not None:
            declared.require(
                HISTORY, f"its first batch is planned already, and it was not noted which {source.name} that is"
            )
            manifest.keep_pin(source.kind, number, pin)
