"""What a lateness budget keeps: the share that comes behind its watermark, and how long that makes one wait.

Over all flights of 2013, and over records made up to hurt it: late ten times as much from one day on, a source that is silent for six
hours, bursts, days and nights, and a lateness without a mean to speak of (Pareto 1.1). No server runs: it is the core alone, a tick of some
minutes of event time after the other. What comes behind is judged by the value that was there before the tick. Figures are those of the
second half of each stream, and of the demo's four days.

The baseline is a constant delay, chosen by the first half. Waits are over the best constant: that of the second half itself, known
beforehand, with the same share behind.

``python -m benchmarks.lateness_budget PICTURE.png`` draws the year.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.result import Result, Spread
from examples.flights import data
from examples.flights.data import DAY, HOUR, MINUTE
from lowwater.core.lateness import EDGES
from lowwater_authority.core.budget import STRETCH, Budget, Pending, reached
from lowwater_authority.core.groups import Mass, RecentSlots
from lowwater_authority.core.heuristics import PPM
from lowwater_authority.core.times import MIN

Int64s = npt.NDArray[np.int64]

BUDGETS: Final = (100_000, 10_000, 1_000)
"""Budgets in parts per million: 10 %, 1 % and 0.1 %."""

_EDGES: Final = np.array(EDGES[:-1], dtype=np.int64)
_DAYS: Final = 10
_SOURCES: Final = 8
_SILENT: Final = (7 * DAY + 8 * HOUR, 7 * DAY + 14 * HOUR)


@dataclass(frozen=True)
class Stream:
    """Records in the order in which they become available; times in microseconds."""

    name: str
    times: Int64s
    available: Int64s
    sources: Int64s
    tick: int
    silent: tuple[int, int] | None = None
    """When source 0 says nothing: what it has then comes at the end, and its frontier with it."""


class Tick(NamedTuple):
    """What comes at once."""

    clock: int
    records: slice
    frontiers: Sequence[int]
    """Newest frontier of each source that has reported one."""


class Run(NamedTuple):
    """What a budget did, by tick."""

    clocks: Int64s
    records: Int64s
    behind: Int64s
    values: Int64s
    """Before the tick: what its records were judged by."""
    excused: Int64s
    """Number of excused records until each tick."""


def run(folder: Path, *, quick: bool = False) -> list[Result]:
    """Return the share behind of each stream and budget, against a constant delay that the first half chose."""
    found: list[Result] = []
    for stream in streams(quick=quick):
        for ppm in BUDGETS:
            found += _results(stream, "budget", ppm, budgeted(stream, ppm))
            if stream.name == "flights":
                found += _results(stream, "pending", ppm, pending(stream, ppm))
                found += _results(stream, "heuristic", ppm, heuristic(stream, ppm))
    return found


def streams(*, quick: bool = False) -> Iterator[Stream]:
    """Yield the flights, and what is made up."""
    yield flights(quick=quick)
    for name in ("steady", "shift", "silent", "bursts", "diurnal", "pareto"):
        yield made_up(name, quick=quick)


def flights(*, quick: bool = False) -> Stream:
    """Return the year: an injector for each origin, a tick each fifteen minutes."""
    known = data.load()
    origins = {origin: number for number, origin in enumerate(sorted({flight.origin for flight in known}))}
    columns = [(flight.sched_dep, flight.available, origins[flight.origin]) for flight in known]
    times, available, sources = np.array(columns, dtype=np.int64).T
    return _ordered("flights", times, available, sources, 15 * MINUTE, most=20_000 if quick else None)


def made_up(name: str, *, quick: bool = False) -> Stream:
    """Return ten days of eight sources, 40 records a minute, a tick each minute.

    The same each time.
    """
    random = np.random.default_rng(2013)
    count = 30_000 if quick else 40 * 60 * 24 * _DAYS
    times = random.uniform(0, _DAYS * DAY, count)
    late = random.lognormal(np.log(2 * MINUTE), 1.0, count)
    match name:
        case "shift":
            late[times >= 7 * DAY] *= 10
        case "bursts":
            # A third of all records comes within ten minutes of each six hours, and three times as
            # late.
            some = random.random(count) < 1 / 3
            times[some] = times[some] // (6 * HOUR) * 6 * HOUR + random.uniform(0, 10 * MINUTE, int(some.sum()))
            late[some] *= 3
        case "diurnal":
            day = 2 * np.pi * times / DAY
            kept = random.random(count) < 0.5 + 0.45 * np.sin(day)
            times, late = times[kept], (late * np.exp(np.sin(day)))[kept]
        case "pareto":
            late = MINUTE * (1 + random.pareto(1.1, count))
        case _:
            pass
    starts = times.astype(np.int64)
    available = starts + np.minimum(late, 10 * _DAYS * DAY).astype(np.int64)
    sources = random.integers(0, _SOURCES, len(starts))
    silent = None
    if name == "silent":
        silent = _SILENT
        held = (sources == 0) & (silent[0] <= available) & (available < silent[1])
        available[held] = silent[1]
    kept = available < _DAYS * DAY
    return _ordered(name, starts[kept], available[kept], sources[kept], HOUR if quick else MINUTE, silent=silent)


def _ordered(
    name: str,
    times: Int64s,
    available: Int64s,
    sources: Int64s,
    tick: int,
    *,
    silent: tuple[int, int] | None = None,
    most: int | None = None,
) -> Stream:
    order = np.argsort(available, kind="stable")[:most]
    return Stream(name, times[order], available[order], sources[order], tick, silent)


def ticks(stream: Stream) -> Iterator[Tick]:
    """Yield what comes at once. A source is as far as the clock, unless it is silent."""
    first, last = int(stream.available[0]), int(stream.available[-1])
    clocks = np.arange(first // stream.tick + 1, last // stream.tick + 2) * stream.tick
    ends = np.searchsorted(stream.available, clocks)
    count = int(stream.sources.max()) + 1
    begin = 0
    for clock, end in zip(clocks.tolist(), ends.tolist(), strict=True):
        silent = stream.silent is not None and stream.silent[0] <= clock <= stream.silent[1]
        frontiers = [stream.silent[0] if silent and stream.silent and not source else clock for source in range(count)]
        yield Tick(clock, slice(begin, end), frontiers)
        begin = end


def budgeted(stream: Stream, ppm: int) -> Run:
    """Let a budget run over a stream. The low watermark is unknown: nobody knows what will come."""
    budget = Budget(ppm)
    recent = [RecentSlots() for _ in range(int(stream.sources.max()) + 1)]
    rows = []
    for tick in ticks(stream):
        times = stream.times[tick.records]
        finished = np.bincount(stream.sources[tick.records], minlength=len(recent)).tolist()
        for slots, count in zip(recent, finished, strict=True):
            slots.add(tick.clock, count)
        told = [(frontier, slots.total) for frontier, slots in zip(tick.frontiers, recent, strict=True)]
        reference = max(reached(told, ppm), budget.reference)
        found, counts = np.unique(np.searchsorted(_EDGES, reference - times), return_counts=True)
        behind = int((times < budget.value).sum()) if budget.value > MIN else 0
        value = budget.value
        budget.tick(dict(zip(found.tolist(), counts.tolist(), strict=True)), behind, reference, MIN)
        rows.append((tick.clock, len(times), behind, value, budget.excused))
    return Run(*np.array(rows, dtype=np.int64).T)


def pending(stream: Stream, ppm: int) -> Run:
    """Let a budget run over a stream where all that will come is known to be pending, as the flights are by their boards."""
    budget = Budget(ppm)
    rows = []
    for tick in ticks(stream):
        times, value = stream.times[tick.records], budget.value
        behind = int((times < value).sum()) if value > MIN else 0
        left = _pending(stream, tick)
        board = Pending.of([Mass(left, np.ones(len(left), dtype=np.int64), 0, {ppm: tick.clock})])
        budget.tick({0: len(times)} if len(times) else {}, behind, tick.clock, MIN, board)
        rows.append((tick.clock, len(times), behind, value, budget.excused))
    return Run(*np.array(rows, dtype=np.int64).T)


def _pending(stream: Stream, tick: Tick) -> Int64s:
    """Return the times of what has not come, up to the clock, ascending.

    No flight's record comes more than some days after its time.
    """
    near = slice(tick.records.stop, int(np.searchsorted(stream.available, tick.clock + 3 * DAY)))
    return np.sort(stream.times[near][stream.times[near] <= tick.clock])


def constant(stream: Stream, chosen: tuple[int, int], ppm: int) -> int:
    """Return the least delay behind the clock that leaves a share of the records behind which become available between two times."""
    clocks = stream.available // stream.tick * stream.tick
    some = (chosen[0] <= stream.available) & (stream.available < chosen[1])
    return int(np.quantile((clocks - stream.times)[some], 1 - ppm / PPM, method="higher"))


def worst(records: Int64s, behind: Int64s) -> float | None:
    """Return the greatest share of 10,000 records in a row, in whole ticks; None where there are fewer."""
    after, missed = np.append(0, np.cumsum(records)), np.append(0, np.cumsum(behind))
    ends = np.searchsorted(after, after + STRETCH)
    whole = ends < len(after)
    starts, ends = np.flatnonzero(whole), ends[whole]
    shares = (missed[ends] - missed[starts]) / (after[ends] - after[starts])
    return float(shares.max()) if len(shares) else None


def heuristic(stream: Stream, ppm: int) -> Run:
    """Let a heuristic watermark run over a stream where all that will come is known to be pending, as the flights are by their boards."""
    recent = RecentSlots()
    value, rows = MIN, []
    for tick in ticks(stream):
        times = stream.times[tick.records]
        recent.add(tick.clock, len(times))
        rows.append((tick.clock, len(times), int((times < value).sum()) if value > MIN else 0, value, 0))
        left = _pending(stream, tick)[::-1]
        needed = -(-(PPM - ppm) * (len(left) + recent.total) // PPM) - recent.total
        value = max(value, tick.clock if needed <= 0 else int(left[needed - 1]))
    return Run(*np.array(rows, dtype=np.int64).T)


def _results(stream: Stream, name: str, ppm: int, found: Run) -> Iterator[Result]:
    half = int(np.median(stream.available))
    parts = {"": (half, int(stream.available[-1]) + 1)}
    if stream.name == "flights":
        parts["_demo"] = data.micros(data.SLICE_START), data.micros(data.SLICE_END)
    clocks = stream.available // stream.tick * stream.tick
    for part, (start, end) in parts.items():
        seen = (found.clocks >= start) & (found.clocks < end) & (found.values > MIN)
        records, behind = found.records[seen], found.behind[seen]
        if not records.sum():
            continue
        best = constant(stream, (start, end), ppm)
        fixed = constant(stream, (int(stream.available[0]), start), ppm)
        some = (start <= stream.available) & (stream.available < end)
        late = float(((clocks - stream.times)[some] > fixed).mean())
        # A record waits for the value that was there when it came, as of the clock of that value.
        waits = np.repeat(found.clocks[seen] - found.values[seen] - stream.tick, records)
        excused = found.excused[seen]
        most = worst(records, behind)
        yield Result(
            "lateness_budget",
            f"{stream.name}{part}_{name}_{ppm / PPM:g}",
            Spread((max(float(behind.sum() / records.sum()), 1e-9) / (ppm / PPM),)),
            "budgets",
            "a constant delay chosen by what came before",
            Spread((max(late, 1e-9) / (ppm / PPM),)),
            {
                "n": int(records.sum()),
                "ranges": len(np.unique(stream.sources)),
                "worst_10000": None if most is None else round(most / (ppm / PPM), 3),
                "excused": int(excused[-1] - excused[0]),
                "wait_median": round(float(np.median(waits)) / best, 3),
                "wait_p95": round(float(np.quantile(waits, 0.95)) / best, 3),
                "wait_median_s": round(float(np.median(waits)) / 1e6),
                "best_constant_s": round(best / 1e6),
            },
        )


def draw(path: Path) -> None:
    """Draw the year with a budget of 1 % into a PNG file: how far three watermarks are behind the clock, and what came behind them."""
    from matplotlib.figure import Figure  # a benchmark that draws nothing does without

    ppm, stream = 10_000, flights()
    half = int(np.median(stream.available))
    fixed = constant(stream, (int(stream.available[0]), half), ppm)
    ours, theirs = budgeted(stream, ppm), heuristic(stream, ppm)
    missed = np.cumsum(stream.available // stream.tick * stream.tick - stream.times > fixed)
    came = np.cumsum(ours.records)
    third = Run(
        ours.clocks,
        ours.records,
        np.diff(np.append(0, missed[came - 1])),
        ours.clocks - stream.tick - fixed,
        ours.excused,
    )
    figure = Figure(figsize=(13, 8), dpi=120, layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True)
    styles = {
        "lateness budget of 1 %": (ours, "#0072B2"),
        "99 % lately seen": (theirs, "#009E73"),
        f"constant delay of {fixed / HOUR:.1f} h, chosen by the first half": (third, "#E69F00"),
    }
    for name, (found, colour) in styles.items():
        seen = found.values > MIN
        dates = np.array([data.moment(int(clock)) for clock in found.clocks[seen][::24]])
        waits = (found.clocks[seen] - found.values[seen] - stream.tick)[::24] / HOUR
        above.plot(dates, waits, color=colour, linewidth=1, label=name, zorder=2 if found is theirs else 3)
        at = np.searchsorted(came, came + STRETCH)
        whole = np.flatnonzero(seen & (at < len(came)))
        ends, total = at[whole], np.cumsum(found.behind)
        shares = (total[ends] - total[whole]) / (came[ends] - came[whole]) * 100
        below.plot([data.moment(int(clock)) for clock in found.clocks[ends]], shares, color=colour, linewidth=1.6)
    ink: dict[str, Any] = {"fontsize": 12, "color": "#1F2328"}
    above.set_title("Hours that each watermark is behind the clock", loc="left", fontweight="bold", **ink)
    below.set_title("Per cent of the last 10,000 flights that came behind it", loc="left", fontweight="bold", **ink)
    above.set_ylim(0, 18)
    below.set_yscale("log")
    below.set_yticks([0.3, 1, 3, 6], ["0.3", "1", "3", "6"])
    below.axhline(1, color="#8A8F98", linewidth=1, linestyle=":")
    for axes in (above, below):
        axes.grid(color="#E2E5EA", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    above.legend(loc="upper right", frameon=False, fontsize=11)
    figure.savefig(path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
