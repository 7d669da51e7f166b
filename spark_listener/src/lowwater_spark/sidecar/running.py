"""What the client of a running query knows of it, and the text that asks for the rest.

A client of Spark Connect sees no plan and no checkpoint. It knows the query's id, and what Spark
reports of each batch: the sources in the order of the query, the operators with state, and the
directory of the file sink. The checkpoint has the id as well, so a checkpoint that is found by the
id is the right one. Probed on PySpark 4.2.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sidecar.declaration import HISTORY, PROMISES, needed
from lowwater_spark.sidecar.evidence import query_id
from lowwater_spark.sidecar.stateful import AGGREGATIONS, ON_ARRIVAL
from lowwater_spark.sources.files.sink_log import SINK_LOG
from lowwater_spark.sources.files.source import FILES, SINK

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Running", "undeclared"]

_FIRST_BATCH_SECONDS: Final = 30.0
"""Longest wait for the first batch of a query, which names its sources."""

_LOOK_SECONDS: Final = 0.2

_AGES: Final = {"maxFileAge": "36500d"}
"""The greatest age of files where a query's own is not known. The sidecar then waits for each file
of the directory, also for one that the query skips as too old: the watermark holds and never
leads."""

_ROOT: Final = "spark.sql.streaming.checkpointLocation"

_BY_JVM: Final = ("kafka:", "delta:")
"""Beginnings of the sources that a sidecar reaches through the JVM of a classic session."""

_JVM: Final = [
    "Kafka and tables are reached through a JVM, which a client of Spark Connect does not have. Write these declarations into a table [[query]] of queries.toml there, and run lowwater-spark track."
]

_DESCRIPTION: Final = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)

_SUBSCRIBED: Final = re.compile(r"Subscribe\[(.*)\]")


@dataclass(frozen=True, slots=True)
class Running:
    """A query as its client sees it. Texts in ``<>`` stand for what the client cannot know."""

    id: str
    """Spark's id of the query."""
    checkpoint: str = ""
    """Its checkpointLocation, found by its id; empty: not found."""
    sources: tuple[str | Mapping[str, Any], ...] = ()
    """Its sources as a declaration has them; empty before the first batch."""
    operators: tuple[str, ...] = ()
    """Spark's names of its operators with state."""
    output: str = ""
    """Local directory of Spark's file sink; empty for another sink."""

    @classmethod
    def of(cls, query: StreamingQuery, *, wait: bool = True) -> Running:
        """Return what a query's client knows.

        With ``wait`` it waits for the first batch, half a minute at most, and raises ValueError for
        a query that failed before it.
        """
        progress = _progress(query, _FIRST_BATCH_SECONDS if wait else 0.0)
        kind, path = _described(progress.get("sink", {}).get("description", ""))
        return cls(
            str(query.id),
            _checkpoint(query),
            tuple(_source(source["description"]) for source in progress.get("sources", ())),
            tuple(operator["operatorName"] for operator in progress.get("stateOperators", ())),
            SparkPath.of_text(path).absolute if kind == "FileSink" else "",
        )

    @property
    def holding(self) -> list[str]:
        """Names of the operators from which old rows can come out."""
        return sorted({operator for operator in self.operators if operator not in ON_ARRIVAL})

    @property
    def needs_mode(self) -> bool:
        """True if the declaration needs the output mode."""
        return not AGGREGATIONS.isdisjoint(self.operators)


def _progress(query: StreamingQuery, seconds: float) -> Mapping[str, Any]:
    deadline = time.monotonic() + seconds
    while True:
        progress = query.lastProgress
        if progress is not None:
            content: Mapping[str, Any] = json.loads(progress.json)
            return content
        if not query.isActive and seconds and (failure := query.exception()) is not None:
            msg = f"the query {query.id} has failed before its first batch, and its sources are not known: {failure}"
            raise ValueError(msg)
        if not query.isActive or time.monotonic() >= deadline:
            return {}
        time.sleep(_LOOK_SECONDS)


def _described(text: str) -> tuple[str, str]:
    """Return the name and the content of Spark's description of a source or a sink.

    >>> _described("FileStreamSource[file:/data/in]")
    ('FileStreamSource', 'file:/data/in')
    """
    match = _DESCRIPTION.fullmatch(text)
    return (match[1], match[2]) if match else ("", "")


def _source(description: str) -> str | Mapping[str, Any]:
    """Return the declaration of a source by Spark's description.

    >>> _source("KafkaV2[Subscribe[b, a]]")
    'kafka:a+b,lowwater.brokers=<3>,kafka.bootstrap.servers=<broker:9092>'
    >>> _source("RateStreamV2[rowsPerSecond=1]")
    '<what RateStreamV2[rowsPerSecond=1] is>'
    """
    kind, what = _described(description)
    path = SparkPath.of_text(what).absolute
    if kind == "FileStreamSource" and path:
        word = SINK if Path(path, SINK_LOG).exists() else FILES
        return {"kind": word, "path": path, "options": _AGES}
    if kind == "KafkaV2" and (subscribed := _SUBSCRIBED.fullmatch(what)):
        topics = "+".join(sorted(topic.strip() for topic in subscribed[1].split(",")))
        return f"kafka:{topics},lowwater.brokers=<3>,kafka.bootstrap.servers=<broker:9092>"
    if kind == "DeltaSource" and path:
        return f"delta:{path}"
    return f"<what {description} is>"


def _checkpoint(query: StreamingQuery) -> str:
    """Return the checkpoint below the session's root that has the query's id; empty if none has.

    Spark gives a query with a name the folder of that name, and another one a folder of no known
    name.
    """
    session: Any = getattr(query, "_session", None)  # Spark Connect's query has one
    root = "" if session is None else SparkPath.of_text(session.conf.get(_ROOT, None) or "").absolute
    if not root or not Path(root).is_dir():
        return ""
    folders = [Path(root, query.name)] if query.name else []
    with contextlib.suppress(OSError):  # a root that this user may not list
        folders += sorted(Path(root).iterdir())
    for folder in folders:
        try:
            if query_id(folder) == str(query.id):
                return str(folder)
        except (OSError, CheckpointMismatch):
            continue
    return ""


def undeclared(
    name: str, declared: Mapping[str, Any], running: Running | None, passed: Mapping[str, Any] | None = None
) -> str:
    """Return what is still to be declared, as the call to fill in and paste; empty: nothing is.

    ``declared`` has the declarations, empty where there is none; ``passed`` the other arguments of
    the call, which are repeated in it. Options of sources are not shown, since some are passwords.
    """
    promises = (*needed(declared["checkpoint"] or "/"), HISTORY)
    blanks: dict[str, tuple[Any, str]] = {
        "checkpoint": ("<the query's checkpointLocation>", ""),
        "inputs": (["<each computation whose output it reads>"], ""),
        "sources": (["<files:/data/in>"], "in the order of the query"),
        "promises": ([f"<{promise}>" for promise in promises], "each in <> that is true; what they mean is below"),
        "state": ("<a local directory that stays>", ""),
    }
    if running is not None and running.holding:
        operators = ", ".join(running.holding)
        text = f"how far below its watermark Spark's {operators} holds rows; of windows their length"
        blanks["retention"] = ("<1h>", text)
    if running is not None and running.needs_mode:
        blanks["output_mode"] = ("<append or update>", "")
    if declared.get("windows") is not None:
        blanks.pop("retention", None)
    missing = [key for key in blanks if _is_empty(declared.get(key))]
    sources = declared.get("sources")
    # Only a source that this module has described may have blanks: a text of the caller's may have
    # "<" in a directory or a password.
    described = running.sources if running is not None and sources is running.sources else ()
    if any(isinstance(source, str) and "<" in source for source in described):
        missing = list(dict.fromkeys([*missing, "sources"]))
    if not missing:
        return ""
    lines = [f"lws.track(\n    {json.dumps(name, ensure_ascii=False)},"]
    if running is not None:
        lines.append("    query=query,")
    for key, value in (passed or {}).items():
        if not _is_empty(value):
            lines.append(f"    {key}={_text(value) if isinstance(value, str | int | float) else key},")
    for key in dict.fromkeys([*blanks, *declared]):
        value = declared.get(key)
        if _is_empty(value) and key not in missing:
            continue
        comment = blanks[key][1] if key in missing else ""
        if key == "sources" and not described and not _is_empty(value):
            value = [_without_options(source, number) for number, source in enumerate(value or ())]
        text = _text(blanks[key][0] if _is_empty(value) else value)
        lines.append(f"    {key}={text},{f'  # {comment}' if comment else ''}")
    meanings = [f"{promise}: {PROMISES[promise]}" for promise in promises] if "promises" in missing else []
    by_jvm = any(isinstance(source, str) and source.startswith(_BY_JVM) for source in described)
    jvm = _JVM if by_jvm and (passed or {}).get("spark") is None else []
    return "\n".join(
        [
            f"{name} is not tracked: {', '.join(missing)} cannot be known here. Fill in what is in <>, and paste:",
            *lines,
            ")",
            *meanings,
            *jvm,
        ]
    )


def _without_options(source: Any, number: int) -> Any:
    """Return a source of the caller's as it is, or a blank if it has options."""
    has_options = "," in source if isinstance(source, str) else isinstance(source, Mapping) and "options" in source
    return f"<source {number} as in this call>" if has_options else source


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", (), [])


def _text(value: Any) -> str:
    """Return a value as Python writes it, a duration as a declaration has it.

    >>> _text(timedelta(hours=1)), _text(timedelta(milliseconds=1)), _text(["a"])
    ('"3600s"', '"0.001s"', '["a"]')
    """
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, timedelta):
        return f'"{value // timedelta(microseconds=1) / 1_000_000:.6f}'.rstrip("0").rstrip(".") + 's"'
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    return repr(value)
