"""Worth of a lateness budget: the share of records behind its watermark, and the wait for it.

Over all flights of 2013, and over records made up to hurt it: late ten times as much from one day
on, a source that is silent for six hours, bursts, days and nights, and a lateness without a mean to
speak of (Pareto 1.1). No server runs: it is the core alone, a tick of some minutes of event time
after the other. What comes behind is judged by the value that was there before the tick. Figures
are those of the second half of each stream, and of the demo's four days.

The baseline is a constant delay, chosen by the first half. Waits are over the best constant: that
of the second half itself, known beforehand, with the same share behind.

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
    """Records that arrive together."""

    clock: int
    records: slice
    frontiers: Sequence[int]
    """Newest frontier of each source that has reported one."""


class Run(NamedTuple):
    """Result of a budget, by tick."""

    clocks: Int64s
    records: Int64s
    behind: Int64s
    values: Int64s
    """Before the tick: what its records were judged by."""
    excused: Int64s
    """Number of excused records until each tick."""


def run(folder: Path, *, quick: bool = False) -> list[Result]:
    """Return the late share of each stream and budget, beside a constant delay.

    The first half of the stream chooses that delay.
    """
    results: list[Result] = []
    for stream in streams(quick=quick):
        for ppm in BUDGETS:
            results += _results(stream, "budget", ppm, budgeted(stream, ppm))
            if stream.name == "flights":
                results += _results(stream, "pending", ppm, pending(stream, ppm))
                results += _results(stream, "heuristic", ppm, heuristic(stream, ppm))
    return results


def streams(*, quick: bool = False) -> Iterator[Stream]:
    """Yield the flights, and what is made up."""
    yield flights(quick=quick)
    for name in ("steady", "shift", "silent", "bursts", "diurnal", "pareto"):
        yield made_up(name, quick=quick)


def flights(*, quick: bool = False) -> Stream:
    """Return the year: an injector for each origin, a tick each fifteen minutes."""
    flights_ = data.load()
    origins = {origin: number for number, origin in enumerate(sorted({flight.origin for flight in flights_}))}
    columns = [(flight.sched_dep, flight.available, origins[flight.origin]) for flight in flights_]
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
            open_ = random.random(count) < 0.5 + 0.45 * np.sin(day)
            times, late = times[open_], (late * np.exp(np.sin(day)))[open_]
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
        silent_now = (sources == 0) & (silent[0] <= available) & (available < silent[1])
        available[silent_now] = silent[1]
    open_ = available < _DAYS * DAY
    return _ordered(name, starts[open_], available[open_], sources[open_], HOUR if quick else MINUTE, silent=silent)


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
        totals = [(frontier, slots.total) for frontier, slots in zip(tick.frontiers, recent, strict=True)]
        reference = max(reached(totals, ppm), budget.reference)
        slots_hit, counts = np.unique(np.searchsorted(_EDGES, reference - times), return_counts=True)
        behind = int((times < budget.value).sum()) if budget.value > MIN else 0
        value = budget.value
        budget.tick(dict(zip(slots_hit.tolist(), counts.tolist(), strict=True)), behind, reference, MIN)
        rows.append((tick.clock, len(times), behind, value, budget.excused))
    return Run(*np.array(rows, dtype=np.int64).T)


def pending(stream: Stream, ppm: int) -> Run:
    """Run a budget over a stream whose future records are all known to be pending.

    Departure boards do that for the flights.
    """
    budget = Budget(ppm)
    rows = []
    for tick in ticks(stream):
        times, value = stream.times[tick.records], budget.value
        behind = int((times < value).sum()) if value > MIN else 0
        pending = _pending(stream, tick)
        board = Pending.of([Mass(pending, np.ones(len(pending), dtype=np.int64), 0, {ppm: tick.clock})])
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
    """Return the least delay behind the clock that leaves only a share of the records behind.

    The records are those that become available between two times.
    """
    clocks = stream.available // stream.tick * stream.tick
    some = (chosen[0] <= stream.available) & (stream.available < chosen[1])
    return int(np.quantile((clocks - stream.times)[some], 1 - ppm / PPM, method="higher"))


def worst(records: Int64s, behind: Int64s) -> float | None:
    """Return the greatest share in 10,000 successive records, by whole ticks; None for fewer."""
    after, missed = np.append(0, np.cumsum(records)), np.append(0, np.cumsum(behind))
    ends = np.searchsorted(after, after + STRETCH)
    whole = ends < len(after)
    starts, ends = np.flatnonzero(whole), ends[whole]
    shares = (missed[ends] - missed[starts]) / (after[ends] - after[starts])
    return float(shares.max()) if len(shares) else None


def heuristic(stream: Stream, ppm: int) -> Run:
    """Run a heuristic watermark over a stream whose future records are all known to be pending.

    Departure boards do that for the flights.
    """
    recent = RecentSlots()
    value, rows = MIN, []
    for tick in ticks(stream):
        times = stream.times[tick.records]
        recent.add(tick.clock, len(times))
        rows.append((tick.clock, len(times), int((times < value).sum()) if value > MIN else 0, value, 0))
        pending = _pending(stream, tick)[::-1]
        needed = -(-(PPM - ppm) * (len(pending) + recent.total) // PPM) - recent.total
        value = max(value, tick.clock if needed <= 0 else int(pending[needed - 1]))
    return Run(*np.array(rows, dtype=np.int64).T)


def _results(stream: Stream, name: str, ppm: int, outcome: Run) -> Iterator[Result]:
    half = int(np.median(stream.available))
    parts = {"": (half, int(stream.available[-1]) + 1)}
    if stream.name == "flights":
        parts["_demo"] = data.micros(data.SLICE_START), data.micros(data.SLICE_END)
    clocks = stream.available // stream.tick * stream.tick
    for part, (start, end) in parts.items():
        within = (outcome.clocks >= start) & (outcome.clocks < end) & (outcome.values > MIN)
        records, behind = outcome.records[within], outcome.behind[within]
        if not records.sum():
            continue
        best = constant(stream, (start, end), ppm)
        fixed = constant(stream, (int(stream.available[0]), start), ppm)
        some = (start <= stream.available) & (stream.available < end)
        late = float(((clocks - stream.times)[some] > fixed).mean())
        # A record waits for the value that was there when it came, as of the clock of that value.
        waits = np.repeat(outcome.clocks[within] - outcome.values[within] - stream.tick, records)
        excused = outcome.excused[within]
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
    """Draw the year with a budget of 1 % into a PNG file.

    The picture has the lags of three watermarks behind the clock, and the records behind each.
    """
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
    for name, (outcome, colour) in styles.items():
        published = outcome.values > MIN
        dates = np.array([data.moment(int(clock)) for clock in outcome.clocks[published][::24]])
        waits = (outcome.clocks[published] - outcome.values[published] - stream.tick)[::24] / HOUR
        above.plot(dates, waits, color=colour, linewidth=1, label=name, zorder=2 if outcome is theirs else 3)
        at = np.searchsorted(came, came + STRETCH)
        whole = np.flatnonzero(published & (at < len(came)))
        ends, total = at[whole], np.cumsum(outcome.behind)
        shares = (total[ends] - total[whole]) / (came[ends] - came[whole]) * 100
        below.plot([data.moment(int(clock)) for clock in outcome.clocks[ends]], shares, color=colour, linewidth=1.6)
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
