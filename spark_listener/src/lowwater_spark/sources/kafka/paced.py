"""Kafka's partitions at one pace: none is read further ahead in time of the slowest than a limit.

Needs no PySpark.

A window over several partitions waits for the slowest, and its state holds the rows of the others
meanwhile: hours of them when one partition is hours behind. With a limit, the topic holds them: a
batch reads each partition up to the first row that is the limit or more ahead of the slowest
(MillWheel 8.4). Later batches read the rest when the slowest has caught up.

The injector knows how far each partition is, by the rule of its frontier, and writes that into a
file that it replaces whole. For a partition that the injector does not know yet, the next row to
read tells it, and a batch reads at least one row of it. A partition without rows holds no other
back. Times are those of Kafka's records.

The end up to which a batch reads need not be exact: the batch's plan names it, and the frontier
follows from the rows that were read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.durable import make_directory, write_over
from lowwater_spark.sources.base import Partition, Vector

__all__ = ["CHUNK", "FORMAT", "LIMIT", "PACE", "Pace", "paced"]

FORMAT: Final = "lowwater_kafka"
"""Format of the source, as Spark names it."""

PACE: Final = "lowwater.pace"
"""Option of ``read_kafka()``: the directory in which the injector writes how far the partitions
are."""

LIMIT: Final = "lowwater.skew"
"""Option of the source: how far a partition may be ahead of the slowest, milliseconds."""

CHUNK: Final = 1000
"""Number of rows by which the slowest partition advances when the limit allows it none: over a gap
in its times, or past a row with a wrong time."""


def paced(
    start: Vector,
    latest: Vector,
    standing: Mapping[Partition, int],
    limit: int,
    until: Callable[[int], Vector],
    fresh: Collection[Partition] = (),
) -> dict[Partition, int]:
    """Return the offset up to which to read each partition, between ``start`` and ``latest``.

    Args:
        start: Offset up to which each partition was read.
        latest: End of each partition.
        standing: Least time that can still come from each partition, milliseconds; partitions of
            which nothing is known are left out.
        limit: Greatest distance ahead of the slowest partition, milliseconds.
        until: Function that returns, by partition, the offset of the first row at or after a time;
            partitions without such a row are left out.
        fresh: Partitions of which no row has counted yet. They hold the frontier, so at least one
            row of each is read: the row's time may be wrong, and would hold it for ever.

    >>> fast, slow = Partition("t", 0), Partition("t", 1)
    >>> start, latest, standing = {fast: 0, slow: 0}, {fast: 50, slow: 2}, {fast: 9, slow: 4}
    >>> ends = paced(start, latest, standing, 10, lambda time: {fast: time})
    >>> ends[fast], ends[slow]
    (14, 2)
    """
    behind = [place for place, end in latest.items() if end > start.get(place, 0)]
    least = min(standing.values(), default=None)
    if least is None or not behind:
        return {**start, **{place: latest[place] for place in behind}}
    first = until(least + limit)
    ends = dict(start)
    for place in behind:
        begin, end = start.get(place, 0), min(first.get(place, latest[place]), latest[place])
        if end <= begin:
            step = CHUNK if standing.get(place) == least else int(place in fresh)
            end = min(begin + step, latest[place])
        ends[place] = end
    return ends


class Pace:
    """The file in which the injector writes how far the partitions are, for the source to read."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / "standing"

    def tell(self, standing: Mapping[str, int], *, idle: bool) -> None:
        """Write the least time that can still come from each partition, microseconds.

        Partitions are named in words. ``idle``: partitions with nothing left to read hold the
        others back as well. ``idle`` is False where the rows of the others move an idle one
        (``across``), because all would wait for each other. Raises OSError, naming the file and the
        fix.
        """
        content = json.dumps({"standing": dict(standing), "idle": idle}).encode()
        try:
            make_directory(self._path.parent)
            write_over(self._path, content, durable=False)
        except OSError as failure:
            msg = (
                f"{self._path} cannot be written, which tells the source how far the partitions are (skew_limit): {failure}. The query ends before its batch "
                "writes anything, and loses nothing. Make room, or let the driver write there, and start the query again: it continues from its checkpoint."
            )
            raise OSError(msg) from failure

    def told(self) -> tuple[dict[str, int], bool]:
        """Return the last times written, in microseconds, and ``idle``; at first no times."""
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}, True
        return content["standing"], content["idle"]
