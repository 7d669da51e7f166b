"""Expected content of the sink, by plain Python over the clicks, and the faults of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from examples.flights.data import HOUR, moment
from examples.regions.clients import Click
from examples.regions.sink import Commit, Written
from lowwater.watermark import MAX

WRITE_OFF: Final = "written off"
ARRIVED: Final = "arrived"
MOVE: Final = "moved"


class Seen(NamedTuple):
    """A watermark as a reader in a region has seen it."""

    at: float
    """Seconds since the epoch."""
    region: str
    name: str
    incarnation: int
    low: int
    until: int = MAX
    """Event time up to which the sink was complete then; read for global names only."""


@dataclass(slots=True)
class Take:
    """A take-over."""

    how: str
    owner: str
    """The region that is killed, or moved from."""
    to: str
    number: int
    """Adoption number with which the next owner commits."""
    hold: int = MAX
    """R of the region that took over, which what is published may not pass before somebody has
    decided."""
    cut: int = 0
    """First offset of the lost region that the other one lacked at that time."""
    times: dict[str, float] = field(default_factory=dict[str, float])
    """Times of its steps, in seconds since the epoch."""
    tries: int = 0
    """Commits that the returned region tried with its old number; each was refused."""


@dataclass(slots=True)
class Run:
    """Record of a world."""

    seed: int
    clicks: Sequence[Click]
    takes: list[Take]
    accepted: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """Region that acknowledged each click, and its offset there."""
    hours: dict[int, Written] = field(default_factory=dict[int, Written])
    commits: list[Commit] = field(default_factory=list[Commit])
    readings: list[Seen] = field(default_factory=list[Seen])
    wrong: list[str] = field(default_factory=list[str])
    """Faults seen while the world ran: a number handed out or a commit accepted by mistake."""
    written_off: bool = False
    """True if the global record says at the end that rows are written off."""

    def lost(self, take: Take) -> set[int]:
        """Clicks that only the lost region had acknowledged, and that were given up."""
        if take.how != WRITE_OFF:
            return set()
        return {click for click, (region, at) in self.accepted.items() if region == take.owner and at >= take.cut}

    def closed_before(self, take: Take) -> set[int]:
        """Lost clicks in hours that the lost region had closed before."""
        before = (written for written in self.hours.values() if written.number < take.number)
        return self.lost(take) & {click for written in before for click in written.hour.ids}


def batch(clicks: Iterable[Click]) -> dict[int, tuple[int, ...]]:
    """Return the answer over all clicks at once: their ids by hour.

    >>> batch([Click(3, 0, "A"), Click(4, HOUR - 1, "B"), Click(5, HOUR, "A")])
    {0: (3, 4), 3600000000: (5,)}
    """
    ids_by_hour: dict[int, list[int]] = {}
    for click in clicks:
        ids_by_hour.setdefault(click.at // HOUR * HOUR, []).append(click.id)
    return {start: tuple(sorted(ids)) for start, ids in sorted(ids_by_hour.items())}


def wrong(run: Run) -> list[str]:
    """Return everything that is wrong with a run; nothing is what was promised."""
    return [*run.wrong, *_hours(run), *_watermarks(run), *_numbers(run)]


def _hours(run: Run) -> Iterator[str]:
    """Check that each closed hour is the batch answer over all accepted clicks.

    Clicks that were written off are left out.
    """
    missing = {click.id for click in run.clicks} - run.accepted.keys()
    if missing:
        yield f"{len(missing)} clicks were acknowledged by nobody"
    expected = everything = batch(run.clicks)
    for take in run.takes:
        for click in run.clicks:
            region, offset = run.accepted.get(click.id, ("", 0))
            if region == take.owner and offset >= take.cut and click.at < take.hold < MAX:
                yield f"R led: click {click.id} of {moment(click.at)} was not in {take.to}, whose R was {moment(take.hold)}"
        survived = batch(click for click in run.clicks if click.id not in run.lost(take))
        # What was closed before has all that the lost region had.
        expected = {
            start: ids if start in run.hours and run.hours[start].number < take.number else survived.get(start, ())
            for start, ids in expected.items()
        }
    for start in sorted(everything.keys() | run.hours.keys()):
        want, have = expected.get(start, ()), run.hours[start].hour.ids if start in run.hours else ()
        if want != have:
            who = f" by {run.hours[start].number}" if start in run.hours else ""
            lacks, more = sorted(set(want) - set(have)), sorted(set(have) - set(want))
            yield f"hour {moment(start)}{who}: {len(have)} clicks, {len(want)} expected; lacks {lacks}, has besides {more}"


def _watermarks(run: Run) -> Iterator[str]:
    """Check that no watermark goes back, and that global ones lead neither the sink nor a hold."""
    readers = {(reading.region, reading.name) for reading in run.readings}
    for region, name in sorted(readers):
        readings = [reading for reading in run.readings if (reading.region, reading.name) == (region, name)]
        for before, after in pairwise(readings):
            if (after.incarnation, after.low) < (before.incarnation, before.low):
                yield f"{name} in {region} went back from {before} to {after}"
    shown = [reading for reading in run.readings if reading.name.startswith("global/")]
    for reading in shown:
        if reading.low > reading.until:
            yield f"{reading.name} in {reading.region} led the sink: {reading}"
        for take in run.takes:
            if reading.at < take.times.get("decided", 0.0) and reading.low > take.hold:
                yield f"{reading.name} in {reading.region} passed the hold before anybody had decided: {reading}"
    for region in ("A", "B"):
        ends = [reading.low for reading in shown if reading.region == region]
        if not ends or ends[-1] != MAX:
            yield f"a reader in {region} was not told that all is complete"


def _numbers(run: Run) -> Iterator[str]:
    numbers = [commit.number for commit in run.commits]
    if numbers != sorted(numbers):
        yield f"an older number has committed behind a newer one: {numbers}"
    for take in run.takes:
        if take.number not in numbers:
            yield f"{take.to} has committed nothing by {take.number}"
    expected = any(take.how == WRITE_OFF for take in run.takes)
    if run.written_off != expected:
        yield f"the record says that rows are{'' if run.written_off else ' not'} written off, and that is not what was decided"
