"""How attachments and tracked queries look: one line in Python, tables in a notebook.

:func:`lowwater.notebook.install` gives these looks to the types. No function here asks the
authority.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lowwater import Watermark
from lowwater.core.text import counted, duration, lag
from lowwater.notebook import now_micros
from lowwater.notebook.markup import facts, fixed, table, time_of, titled, words
from lowwater_spark.attach.attachment import Attachment, AttachStatus, QueryStatus
from lowwater_spark.stages import Stage
from lowwater_spark.track.query import TrackedQuery
from lowwater_spark.track.run.status import Status

__all__ = ["HTML", "LINES"]


def _at(watermark: Watermark) -> str:
    timeless = watermark.unknown or watermark.finished
    return str(watermark) if timeless else f"{watermark}, {lag(watermark, now_micros())} behind"


def _query_line(query: QueryStatus) -> str:
    problem = f", {query.problem}" if query.problem else ""
    rows = f"{counted(query.rows, 'row')}, {query.late_rows:,} late"
    return f"{query.computation}: {query.state}, {rows}, {_at(query.published)}{problem}"


def _attached_line(status: AttachStatus) -> str:
    if not status.enabled:
        return "not attached"
    problem = f": {status.problem}" if status.problem else ""
    names = ", ".join(query.computation for query in status.queries) or "no query yet"
    return f"{status.address} {status.authority}{problem}; {names}"


def _status_line(status: Status) -> str:
    batch = "no batch yet" if status.batch is None else f"batch {status.batch}"
    waits = status.holding or next(iter(status.waiting_for), "")
    return f"{batch}, at {_at(status.reported)}{f', waiting for {waits}' if waits else ''}"


def _tracked_line(query: TrackedQuery) -> str:
    return "; ".join(f"{name}: {_status_line(query.stage_status(name))}" for name in query.stages)


def _stage_line(stage: Stage) -> str:
    reads = f"reads {', '.join(stage.inputs)}" if stage.inputs else "an injector"
    return f"{stage.name}: {reads}"


def attached(status: AttachStatus, page: str = "") -> str:
    """Return the HTML of an attachment: its queries, and what is wrong."""
    if not status.enabled:
        return titled("not attached", "it was stopped, or is switched off")
    now = now_micros()
    rows = [
        (
            f"<b>{words(query.name or query.query)}</b>",
            words(f"{query.state}: {query.failure}" if query.failure else query.state),
            str(query.batches),
            f"{query.rows:,}",
            f"{query.late_rows:,}",
            time_of(query.published),
            fixed(_lag(query.published, now)),
            words(query.problem),
        )
        for query in status.queries
    ]
    headings = ("query", "state", "batches", "rows", "late rows", "published watermark", "lag", "problem")
    parts = [table(headings, rows)] if rows else [f"<div>{words('No query has started since.')}</div>"]
    if status.problem:
        parts.insert(0, f"<div>{words(status.problem)}</div>")
    if page:
        parts.append(f"<div>status page: {words(page)}</div>")
    return titled(f"attached to {status.address}", f"it {_AUTHORITY.get(status.authority, status.authority)}", *parts)


_AUTHORITY: Final = {"answers": "answers", "away": "does not answer", "left alone": "is tried again later"}
"""Words for the states of the authority."""


def _lag(watermark: Watermark, now: int) -> str:
    return "" if watermark.unknown or watermark.finished else lag(watermark, now)


def tracked(name: str, status: Status) -> str:
    """Return the HTML of one stage of a tracked query."""
    now = now_micros()
    counts = [
        ("late rows", status.late_rows, status.late_example),
        ("rows without a time", status.untimed_rows, ""),
        ("rows too far ahead", status.ahead_rows, status.ahead_example),
        ("rows dropped by Spark", status.dropped_rows, status.dropped_example),
        ("rows not sent yet", status.unsent_rows, ""),
    ]
    lines = [
        ("batch", "none yet" if status.batch is None else str(status.batch)),
        ("inputs are at", time_of(status.low)),
        ("reports", time_of(status.reported)),
        ("lag", fixed(_lag(status.reported, now))),
        ("holds", words(status.holding)),
        ("waits for", "<br>".join(map(words, status.waiting_for))),
        *((what, f"{count:,} {words(example)}".rstrip()) for what, count, example in counts if count),
        ("removal held back", duration(status.removal_held_back) if status.removal_held_back else ""),
    ]
    return titled(name, "", facts(lines))


LINES: Final[dict[type, Callable[[Any], str]]] = {
    AttachStatus: _attached_line,
    Attachment: lambda attachment: _attached_line(attachment.status()),
    QueryStatus: _query_line,
    Stage: _stage_line,
    Status: _status_line,
    TrackedQuery: _tracked_line,
}
"""The line of each type, which its ``repr`` shows."""

HTML: Final[dict[type, Callable[[Any], str]]] = {
    AttachStatus: attached,
    Attachment: lambda attachment: attached(attachment.status(), attachment.page),
    Status: lambda status: tracked("tracked stage", status),
    TrackedQuery: lambda query: "".join(tracked(name, query.stage_status(name)) for name in query.stages),
}
"""The HTML of each type, which a notebook shows."""
