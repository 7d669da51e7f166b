"""What the client of a running query knows of it, and the text that asks for the rest.

A client of Spark Connect sees no plan and no checkpoint. It knows the query's id, and what Spark
reports of each batch: the sources in the order of the query, the operators with state, and the
directory of the file sink. The checkpoint has the id as well, so a checkpoint that is found by the
id is the right one. Probed on PySpark 4.2.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sidecar.declaration import HISTORY, PROMISES, needed
from lowwater_spark.sidecar.evidence import AGGREGATIONS, ON_ARRIVAL, query_id
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
    def of(cls, query: StreamingQuery) -> Running:
        """Return what a query's client knows. Waits for the first batch, half a minute at most."""
        progress = _progress(query)
        kind, path = _described(progress.get("sink", {}).get("description", ""))
        return cls(
            str(query.id),
            _checkpoint(query),
            tuple(_source(source["description"]) for source in progress.get("sources", ())),
            tuple(operator["operatorName"] for operator in progress.get("stateOperators", ())),
            _local(path) if kind == "FileSink" else "",
        )

    @property
    def holding(self) -> list[str]:
        """Names of the operators from which old rows can come out."""
        return sorted({operator for operator in self.operators if operator not in ON_ARRIVAL})

    @property
    def modes(self) -> bool:
        """True if the declaration needs the output mode."""
        return not AGGREGATIONS.isdisjoint(self.operators)


def _progress(query: StreamingQuery) -> Mapping[str, Any]:
    deadline = time.monotonic() + _FIRST_BATCH_SECONDS
    while True:
        progress = query.lastProgress
        if progress is not None:
            content: Mapping[str, Any] = json.loads(progress.json)
            return content
        if not query.isActive or time.monotonic() > deadline:
            return {}
        time.sleep(_LOOK_SECONDS)


def _described(text: str) -> tuple[str, str]:
    """Return the name and the content of Spark's description of a source or a sink.

    >>> _described("FileStreamSource[file:/data/in]")
    ('FileStreamSource', 'file:/data/in')
    """
    match = _DESCRIPTION.fullmatch(text)
    return (match[1], match[2]) if match else ("", "")


def _local(path: str) -> str:
    """Return the path of a local directory; empty for another one.

    >>> _local("file:/data/in"), _local("hdfs://name/in")
    ('/data/in', '')
    """
    for scheme in ("file://", "file:", ""):
        local = path.removeprefix(scheme)
        if local != path or not scheme:
            return local if local.startswith("/") else ""
    return ""


def _source(description: str) -> str | Mapping[str, Any]:
    """Return the declaration of a source by Spark's description.

    >>> _source("KafkaV2[Subscribe[b, a]]")
    'kafka:a+b,lowwater.brokers=<3>,kafka.bootstrap.servers=<broker:9092>'
    >>> _source("RateStreamV2[rowsPerSecond=1]")
    '<what RateStreamV2[rowsPerSecond=1] is>'
    """
    kind, what = _described(description)
    path = _local(what)
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
    root = "" if session is None else _local(session.conf.get(_ROOT, None) or "")
    if not root or not Path(root).is_dir():
        return ""
    named = [Path(root, query.name)] if query.name else []
    for folder in (*named, *sorted(Path(root).iterdir())):
        try:
            if query_id(folder) == str(query.id):
                return str(folder)
        except (OSError, CheckpointMismatch):
            continue
    return ""


def undeclared(name: str, declared: Mapping[str, Any], running: Running | None) -> str:
    """Return what is still to be declared, as the call to fill in and paste; empty: nothing is.

    ``declared`` has the declarations, empty where there is none.
    """
    blanks: dict[str, tuple[Any, str]] = {
        "checkpoint": ("<the query's checkpointLocation>", ""),
        "inputs": (["<each computation whose output it reads>"], ""),
        "sources": (["<files:/data/in>"], "in the order of the query"),
        "promises": ([*needed(declared["checkpoint"] or "/"), HISTORY], "if each is true; what they mean is below"),
        "state": ("<a local directory that stays>", ""),
    }
    if running is not None and running.holding:
        operators = ", ".join(running.holding)
        text = f"how far below its watermark Spark's {operators} holds rows; of windows their length"
        blanks["retention"] = ("<1h>", text)
    if running is not None and running.modes:
        blanks["output_mode"] = ("<append or update>", "")
    if declared.get("windows") is not None:
        blanks.pop("retention", None)
    values = {key: value for key, (value, _) in blanks.items()}
    values |= {key: value for key, value in declared.items() if value not in (None, "", (), [])}
    missing = [key for key, (value, _) in blanks.items() if values[key] is value]
    if "<" in _text(values["sources"]):
        missing = [*dict.fromkeys([*missing, "sources"])]
    if not missing:
        return ""
    lines = [f"lws.track(\n    {json.dumps(name)},"]
    if running is not None:
        lines.append("    query=query,")
    for key, value in values.items():
        comment = blanks[key][1] if key in missing else ""
        lines.append(f"    {key}={_text(value)},{f'  # {comment}' if comment else ''}")
    meanings = [f"{promise}: {PROMISES[promise]}" for promise in blanks["promises"][0]] if "promises" in missing else []
    return "\n".join(
        [
            f"{name} is not tracked: {', '.join(missing)} cannot be known here. Fill in what is in <>, and paste:",
            *lines,
            ")",
            *meanings,
        ]
    )


def _text(value: Any) -> str:
    """Return a value as Python writes it."""
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    return repr(value)
