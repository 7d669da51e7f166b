"""The committer of a region: takes closed hours to the sink while the region owns the reference.

It reports them as ``hourly``.

python -m examples.regions.committer SETUP REGION

A new owner raises its number in the sink, reads what is there, and goes on behind it. One that
stands by has nothing to do but to say that the state of the last batch is here, as far as it is: of
that a planned move makes the next owner.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow.parquet as pq

import lowwater
from examples.flights.data import HOUR, micros
from examples.regions.pipeline import closed
from examples.regions.setup import CLICKS, HOURLY, READY, REFERENCE, WINDOWS, Setup
from examples.regions.sink import TABLE, Commit, Fenced, Hour, Sink
from lowwater import errors
from lowwater.regions import Adoption, Position, Token
from lowwater.watermark import MAX, MIN
from lowwater_spark.sources.files.sink_log import SINK_LOG, list_sink

EVERY: Final = 0.1


class Closed(NamedTuple):
    """An hour as Spark closed it, and where its sources are read on, by their home region."""

    hour: Hour
    behind: Mapping[str, int]


class Folder:
    """Hours that Spark has closed in a region; each file is read once."""

    def __init__(self, folder: Path, own: str, other: str) -> None:
        self._folder, self._columns = folder, {own: "own", other: "others"}
        self._read: set[Path] = set()
        self.hours: dict[int, Closed] = {}

    def look(self) -> None:
        """Read new hours, by the log of Spark's sink, which leaves out files of failed attempts."""
        if not (self._folder / SINK_LOG).exists():
            return
        for path in {Path(entry.path) for entry in list_sink(str(self._folder))} - self._read:
            for row in pq.ParquetFile(path).read().to_pylist():
                start = micros(row["start"].replace(tzinfo=UTC))  # Spark writes it in UTC
                behind = {column_home: row[column] or 0 for column_home, column in self._columns.items()}
                self.hours[start] = Closed(Hour(start, tuple(row["ids"])), behind)
            self._read.add(path)


def ready(hours: Iterable[Closed], since: int, until: int) -> list[Closed]:
    """Return the hours to commit: they end by ``until``, and start at ``since`` or later."""
    return sorted(hour for hour in hours if hour.hour.start >= since and ends(hour.hour) <= until)


def read_on(hours: Iterable[Closed], until: int, home: str) -> int:
    """Return the offset from which a region's clicks rebuild the hours that end after ``until``.

    Clicks come in order of time, hour by hour.

    It is of what was read *here*. What the last owner has closed may have clicks that never came
    here, and that are written off: whoever took over its positions would say that it has read them.
    """
    return max((hour.behind[home] for hour in hours if ends(hour.hour) <= until), default=0)


def ends(hour: Hour) -> int:
    """Return the end of an hour."""
    return hour.start + HOUR


@dataclass(slots=True)
class Owning:
    """A reference while this region owns it."""

    adoption: Adoption
    lease: lowwater.Lease
    worker: lowwater.Worker
    last: Commit | None
    """Last commit in the sink, of any owner."""
    batch: int = -1


class Committer:
    """The running committer."""

    def __init__(self, setup: Setup, region: str) -> None:
        place = setup.regions[region]
        self._region, self._clusters = region, {name: home.cluster for name, home in setup.regions.items()}
        self._sink, self._token = Sink(setup.sink), Token(REFERENCE, place.agent)
        self._folder = Folder(closed(place.folder), region, setup.other(region))
        self._lw = lowwater.connect(place.authority, timeout=60)
        self._lw.register(HOURLY, inputs=[WINDOWS])
        self._owning: Owning | None = None
        self._refused = ""

    def run(self) -> None:
        """Work until somebody ends it."""
        print(READY, flush=True)
        while True:
            try:
                self._once()
            except (errors.LowwaterError, Fenced) as error:
                self._stand_by(error)
            time.sleep(EVERY)

    def _once(self) -> None:
        adoption = self._token.read()
        if self._owning is None or self._owning.adoption.number != adoption.number:
            self._owning = self._begin(adoption)
            self._refused = ""
        self._owning.adoption = adoption
        if adoption.stop and self._owning.batch >= 0:
            self._tell(self._owning, stopped=True)
        else:
            self._commit(self._owning)

    def _begin(self, adoption: Adoption) -> Owning:
        """Raise the number, and read only then what is there."""
        last = self._sink.raise_(adoption.number)
        self._token.raised(adoption, TABLE)
        worker = self._lw.worker(HOURLY, name=f"committer {self._region}")
        print(f"number {adoption.number} is raised", flush=True)
        return Owning(adoption, worker.claim(), worker, last)

    def _commit(self, owning: Owning) -> None:
        inputs = owning.worker.inputs()  # first the watermark, then what is there
        self._folder.look()
        since = MIN if owning.last is None else owning.last.until
        low = inputs.low.micros
        until = max(since, low if low in (MIN, MAX) else low // HOUR * HOUR)
        if until > since or owning.batch < 0:
            closable = ready(self._folder.hours.values(), since, until)
            behind = self._positions(until)
            self._sink.commit(
                owning.adoption.number, owning.batch + 1, until, [closed.hour for closed in closable], behind
            )
            owning.batch += 1
            owning.last = self._sink.last()
        owning.lease.advance(inputs, oldest=None)
        self._tell(owning)

    def _tell(self, owning: Owning, *, stopped: bool = False) -> None:
        last = owning.last
        if last is not None:
            self._token.committed(owning.adoption, last.batch, last.digest, last.positions, stopped=stopped)

    def _positions(self, until: int) -> Iterator[Position]:
        hours = self._folder.hours.values()
        for name, cluster in self._clusters.items():
            yield cluster, CLICKS, 0, read_on(hours, until, name)

    def _stand_by(self, error: Exception) -> None:
        reason = getattr(error, "reason", type(error).__name__)
        if reason != self._refused:
            print(f"stands by: {reason}: {error}", flush=True)
        self._refused = reason
        if isinstance(error, errors.StaleAdoption | errors.StaleSequencer | Fenced):
            self._owning = None
        if isinstance(error, errors.StaleAdoption):
            self._arrive()

    def _arrive(self) -> None:
        """Report that the state of the last batch is here, once its hours are closed here too."""
        self._folder.look()  # so that a take-over need not
        try:
            low = self._lw.get(WINDOWS)[WINDOWS].low.micros
            last = self._sink.last()
            if last is not None and low >= last.until:
                self._token.arrived(last.batch, last.digest, last.positions)
        except errors.LowwaterError:
            pass  # said again with the next look


if __name__ == "__main__":
    Committer(Setup.read(Path(sys.argv[1])), sys.argv[2]).run()
