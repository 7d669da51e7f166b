"""Completeness of an Iceberg table, by the marks in its snapshots.

Snapshots have no order by number. The content of a table follows from the current snapshot and its
ancestors alone, its *lineage*. So a mark names the snapshot that its writer had checked, and a
reader looks for it among the ancestors: if it is none of them, the table was rolled back between
the check and the commit. A snapshot that is rolled back later is no ancestor any more. A property
of the table shows it: the property names the snapshot of each writer's last batch, and a rollback
does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lowwater_spark.complete.mark import COMPLETE, History, Mark, Version
from lowwater_spark.sources.tables.iceberg_log import Snapshot, Table, Written
from lowwater_spark.sources.tables.versioned import app_id, writer_of

__all__ = ["said_of", "snapshots_of"]

_EXPIRED: Final = -1
"""Place of all snapshots before the parent of the oldest one in the lineage."""


def said_of(mark: Mark, table: Table) -> dict[str, Any]:
    """Return a mark as JSON for the next snapshot, when its writer has checked this table.

    The mark names snapshots by id. Places would change when snapshots expire.
    """
    return {**mark.to_json(), "checked": table.current, "before": -1}


def snapshots_of(table: Table) -> History:
    """Return the lineage of a table as a history. Reads nothing.

    The oldest snapshot has place 1. Place 0 is its parent, which has expired; or the empty table.
    """
    lineage = table.lineage
    before = lineage[0].parent if lineage else None
    places: dict[int | None, int] = {before: 0, **{snapshot.id: at for at, snapshot in enumerate(lineage, 1)}}
    last: dict[str, Written] = {}
    for snapshot in table.snapshots.values():
        if (app := _app(snapshot)) and (app not in last or _batch(snapshot) >= last[app].batch):
            mark = Mark.from_json({**(_mark(snapshot) or {}), "checked": 0})
            last[app] = Written(_batch(snapshot), "", 0, snapshot.id, 0 if mark is None else mark.life)
    lost: dict[str, str] = {}
    for app, text in table.properties.items():
        if writer_of(app):
            try:
                last[app] = Written.parse(text)
            except OSError as error:
                lost[app] = str(error)
    lost |= {
        app: f"snapshot {written.snapshot} with its batch {written.batch} is not in the lineage of the table: it was rolled back, or has expired"
        for app, written in last.items()
        if written.snapshot not in places
    }
    counted = {written.snapshot: app for app, written in last.items()}
    since = (_version_of(snapshot, _app(snapshot) or counted.get(snapshot.id, ""), places) for snapshot in lineage)
    versions = [Version() if before is None else None, *since]
    numbers = [before, *(snapshot.id for snapshot in lineage)]
    apps = last.keys() | lost.keys()
    lives = {app: written.life for app, written in last.items()}
    return History(len(lineage), apps, versions.__getitem__, lost, lives, "snapshot", numbers.__getitem__)


def _app(snapshot: Snapshot) -> str:
    """Return the app under which a snapshot's writer counts its batches; empty: it counts none."""
    checkpoint = snapshot.mark.get("checkpoint")
    return app_id(snapshot.writer, str(checkpoint)) if snapshot.writer and checkpoint else ""


def _batch(snapshot: Snapshot) -> int:
    batch = snapshot.mark.get("batch")
    return batch if type(batch) is int else _EXPIRED


def _mark(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return a snapshot's mark of completeness as JSON values; None: it has none."""
    content = snapshot.mark.get(COMPLETE)
    return content if isinstance(content, dict) else None


def _version_of(snapshot: Snapshot, app: str, places: Mapping[int | None, int]) -> Version:
    """Return a snapshot as a version. ``app`` counts its batch; ``places`` are the lineage's."""
    content, mark, rewinds = _mark(snapshot), None, ""
    if content is not None and type(checked := content.get("checked")) in (int, type(None)):
        place = places.get(checked, _EXPIRED)
        mark = Mark.from_json({**content, "checked": place})
        if place == _EXPIRED and None in places:
            rewinds = f"{snapshot} was made when the table had snapshot {checked}, which is not in its lineage: it was rolled back meanwhile"
    writes = {app: mark} if app else {}
    what = f"{snapshot} takes rows away"
    if snapshot.operation == "delete":
        return Version(writes, rewinds, what)
    return Version(writes, what if snapshot.ends_streams else rewinds)
