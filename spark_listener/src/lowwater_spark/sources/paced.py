"""Kafka's partitions at one pace: none is read further ahead in time of the slowest than a limit.

Needs no PySpark.

A window over several partitions waits for the slowest, and holds what the others have given
meanwhile. So if one is hours behind, hours are held. Here it is the topic that holds them: each
partition is read up to the first row that is the limit or more ahead of the slowest (MillWheel
8.4). What is left is read when that one has come further.

How far each partition stands the injector knows, by the same rule by which it tells its frontier,
and says it through a file that is replaced whole. Of a partition that it knows nothing of yet the
next row that is to be read says it, and a row is read of it in any case. One without any row holds
nobody back. Times are those of Kafka's records.

Where a partition ends is never a matter of exactness, as any end will do: a batch's plan names it,
and the frontier is told from what was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from lowwater_spark.checkpoint.durable import make_directory, write_over
from lowwater_spark.sources.kafka import Partition, Vector

__all__ = ["CHUNK", "FORMAT", "LIMIT", "Pace", "paced"]

FORMAT: Final = "lowwater_kafka"
"""The name of the source's format."""

LIMIT: Final = "lowwater.skew"
"""Its option: how far ahead a partition may be, milliseconds."""

CHUNK: Final = 1000
"""Rows that the slowest partition is read further when the limit lets it read none: over a gap in
its times, and past a row whose time is wrong."""


def paced(
    start: Vector,
    latest: Vector,
    standing: Mapping[Partition, int],
    limit: int,
    until: Callable[[int], Vector],
    fresh: Collection[Partition] = (),
) -> dict[Partition, int]:
    """Return how far each partition is to be read. Never below ``start``, nor beyond ``latest``.

    Args:
        start: How far each was read.
        latest: Where each ends.
        standing: The least time that can still come from each, milliseconds; those of which nothing
            is known are left out.
        limit: Milliseconds.
        until: Tells, of all partitions, the offset of the first row at or after a time. Those that
            have none are left out.
        fresh: Those of which no row has counted yet. They hold the frontier, so a row of each is
            read in any case: it may be one whose time is wrong.

    >>> fast, slow = Partition("t", 0), Partition("t", 1)
    >>> found = paced({fast: 0, slow: 0}, {fast: 50, slow: 2}, {fast: 9, slow: 4}, 10, lambda time: {fast: time})
    >>> found[fast], found[slow]
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
    """Where the injector says how far the partitions stand, and the source reads it."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / "standing"

    def tell(self, standing: Mapping[str, int], *, idle: bool) -> None:
        """Say of each partition, by its name in words, the least time that can still come from it, microseconds.

        ``idle``: whether those that have nothing left to read hold the others back as well. Where what is read of the others moves them (``across``), none would ever go on.
        Raises OSError, naming the file and what to do.
        """
        said = json.dumps({"standing": dict(standing), "idle": idle}).encode()
        try:
            make_directory(self._path.parent)
            write_over(self._path, said, durable=False)
        except OSError as failure:
            msg = (
                f"{self._path} cannot be written, which tells the source how far the partitions stand (skew_limit): {failure}. The query ends before its batch "
                "writes anything, and loses nothing. Make room, or let the driver write there, and start the query again: it goes on where it was."
            )
            raise OSError(msg) from failure

    def told(self) -> tuple[dict[str, int], bool]:
        """Return what was said last; nothing before the first time."""
        try:
            content = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}, True
        return content["standing"], content["idle"]
