"""What the snapshots of an Iceberg table say of how far it is complete.

Snapshots have no order by number. What is in a table follows from the current one and its ancestors
alone, its *lineage*. So a mark names the snapshot that its writer had looked at, and a reader looks
for that among the ancestors. If it is none of them, the table was rolled back between the look and
the commit. What is rolled back later is no ancestor any more; but the table counts the batches of
each writer in a property, which stays as it was, and names the snapshot of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lowwater_spark.complete.mark import COMPLETE, History, Mark, Version
from lowwater_spark.sources.delta import app_id, writer_of
from lowwater_spark.sources.iceberg import Snapshot, Table, Written

__all__ = ["said_of", "snapshots_of"]

_EXPIRED: Final = -1
"""The place of what has expired before the oldest snapshot that is known by name."""


def said_of(mark: Mark, table: Table) -> dict[str, Any]:
    """Return what a snapshot says whose writer has looked at a table.

    The snapshot before it is known by the lineage, and not by a place, which is another when some
    have expired.
    """
    return {**mark.to_json(), "checked": table.current, "before": -1}


def snapshots_of(table: Table) -> History:
    """Return the lineage of a table as a history.

    Its oldest snapshot has place 1. What was before has 0: nothing, or what has expired.

    Costs no reading.
    """
    lineage = table.lineage
    before = lineage[0].parent if lineage else None
    places: dict[int | None, int] = {before: 0, **{snapshot.id: at for at, snapshot in enumerate(lineage, 1)}}
    last: dict[str, Written] = {}
    for each in table.snapshots.values():
        if (app := _app(each)) and (app not in last or _batch(each) >= last[app].batch):
            mark = Mark.from_json({**(_said(each) or {}), "checked": 0})
            last[app] = Written(_batch(each), "", 0, each.id, 0 if mark is None else mark.life)
    lost: dict[str, str] = {}
    for app, said in table.properties.items():
        if writer_of(app):
            try:
                last[app] = Written.parse(said)
            except OSError as error:
                lost[app] = str(error)
    lost |= {
        app: f"snapshot {written.snapshot} of it, which has its batch {written.batch}, is not in the lineage of the table: it was rolled back, or has expired"
        for app, written in last.items()
        if written.snapshot not in places
    }
    counted = {written.snapshot: app for app, written in last.items()}
    since = (_version_of(each, _app(each) or counted.get(each.id, ""), places) for each in lineage)
    versions = [Version() if before is None else None, *since]
    numbers = [before, *(each.id for each in lineage)]
    apps = last.keys() | lost.keys()
    lives = {app: written.life for app, written in last.items()}
    return History(len(lineage), apps, versions.__getitem__, lost, lives, "snapshot", numbers.__getitem__)


def _app(snapshot: Snapshot) -> str:
    """Return under which name a snapshot's writer counts its batches; empty: it counts none."""
    checkpoint = snapshot.mark.get("checkpoint")
    return app_id(snapshot.writer, str(checkpoint)) if snapshot.writer and checkpoint else ""


def _batch(snapshot: Snapshot) -> int:
    batch = snapshot.mark.get("batch")
    return batch if type(batch) is int else _EXPIRED


def _said(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return what a snapshot says of how far the table is complete, None for nothing."""
    said = snapshot.mark.get(COMPLETE)
    return said if isinstance(said, dict) else None


def _version_of(snapshot: Snapshot, app: str, places: Mapping[int | None, int]) -> Version:
    """Return what a snapshot says, whose writer counts its batches under a name, in a lineage with these places."""
    said, mark, rewinds = _said(snapshot), None, ""
    if said is not None and type(looked := said.get("checked")) in (int, type(None)):
        place = places.get(looked, _EXPIRED)
        mark = Mark.from_json({**said, "checked": place})
        if place == _EXPIRED and None in places:
            rewinds = f"{snapshot} was made when the table had snapshot {looked}, which is not in its lineage: it was rolled back meanwhile"
    writes = {app: mark} if app else {}
    what = f"{snapshot} takes rows away"
    if snapshot.operation == "delete":
        return Version(writes, rewinds, what)
    return Version(writes, what if snapshot.ends_streams else rewinds)
