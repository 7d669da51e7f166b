"""The truth: a pipeline whose durable state lives here, cell by cell, outside of everything that is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

MIN = -(2**63)
MAX = 2**63 - 1


class Record(NamedTuple):
    number: int
    time: int
    again: bool = False
    """True if it was finished before: an owner that starts from an older state does it once more, and nothing new comes of it."""
    origin: str = ""
    forgotten: bool = False
    """True if only its owner can know of it: the place where it was announced is lost for good."""


@dataclass
class Source:
    times: Sequence[int]
    end: int
    offset: int = 0
    finished: bool = False
    least: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.least = [*reversed(list(accumulate(reversed(self.times), min, initial=self.end)))]

    @property
    def frontier(self) -> int:
        return MAX if self.finished else self.least[self.offset]


@dataclass
class Cell:
    pending: dict[int, Record] = field(default_factory=dict)
    source: Source | None = None
    fence: int = 0
    """The highest sequencer that has opened it; writes under a lower one are refused."""
    retired: bool = False
    """True if an operator has retired it, and nobody has claimed it since: nobody waits for its records, nor for those that came meanwhile."""
    closed: int = MIN
    """The greatest input low watermark by which a window was closed here: an older record would be lost."""


@dataclass
class Node:
    name: str
    inputs: list[str]
    window: int
    """Results are stamped with the start of a window of this length, in microseconds; 0: with the record's own time."""
    cells: list[Cell]
    feed: list[tuple[int, Record]] | None = None
    """All records that were ever handed to it, each with its cell; None: nobody reads them in order."""
    cuts: tuple[int, ...] = ()
    """The cells that the slices of it begin with, but for the first slice; empty: it is not cut."""

    later: tuple[int, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    """The number of each slice, in the order of their keys, and its first cell, once one was cut in two; empty: as ``cuts`` says."""

    @property
    def slices(self) -> dict[str, range]:
        parts = self.parts or tuple(enumerate((0, *self.cuts)))
        edges = pairwise((*(first for _, first in parts), len(self.cells)))
        names = [f"{self.name}~{number}" for number, _ in parts]
        return {name: range(*ends) for name, ends in zip(names, edges, strict=True)} if self.cuts else {}

    def stamp(self, time: int) -> int:
        return time if not self.window or time in (MIN, MAX) else time - time % self.window

    def edge(self, index: int) -> bytes:
        return bytes([256 // len(self.cells) * index]) if 0 < index < len(self.cells) else b""

    def covered(self, start: bytes, end: bytes) -> range:
        first = start[0] * len(self.cells) // 256 if start else 0
        last = end[0] * len(self.cells) // 256 if end else len(self.cells)
        return range(first, last)


class LateRecord(AssertionError):
    """A record arrived behind a watermark by which its window had been closed: the watermark led."""


class Pipeline:
    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.guests: dict[str, Node] = {}
        """Computations that are registered for a while and have no records, so that any value of them is true."""
        self.own: dict[str, range] = {}
        """Cells that each slice has by its own log. For a while the graph may give it others: those of a cut that it has not followed."""
        self.look_again: Callable[[], None] = lambda: None
        """Callback that brings the slices up to date with the graph in the store: its writer may have died before it heard of that."""
        self._numbers = 0
        self._lows: dict[tuple[str, bool], int] = {}
        self._least: dict[tuple[str, int, bool], int] = {}
        """The least event time that cells hold, of those that have not changed since somebody asked."""

    @property
    def cut(self) -> dict[str, range]:
        return {name: cells for node in self.nodes.values() for name, cells in node.slices.items()}

    def whole(self, name: str) -> Node:
        root = name.partition("~")[0]
        return self.guests.get(root) or self.nodes[root]

    def cells_of(self, name: str) -> range:
        node = self.whole(name)
        if name == node.name:
            return range(len(node.cells))
        if name in self.own:
            return self.own[name]
        if name not in node.slices:
            self.look_again()
        if name not in node.slices:
            msg = f"somebody serves the slice {name}, which the graph in the store does not name"
            raise AssertionError(msg)
        return node.slices[name]

    def changed(self) -> None:
        self._lows.clear()

    def _touch(self, name: str, index: int) -> dict[int, Record]:
        for fresh in (False, True):
            self._least.pop((name, index, fresh), None)
        return self.nodes[name].cells[index].pending

    def low(self, name: str, *, fresh: bool = False) -> int:
        """The true low watermark: the least event time that is not finished, here or upstream.

        ``fresh``: that anything can come out of; work that is only done again is left out.
        """
        if (name, fresh) not in self._lows:
            node, cells = self.whole(name), self.cells_of(name)
            if all(node.cells[index].retired for index in cells):
                # Nobody is left to say that nothing will come.
                self._lows[name, fresh] = node.stamp(min(self.low(upstream, fresh=True) for upstream in node.inputs))
            else:
                self._lows[name, fresh] = min(self.low_of(name, index, fresh=fresh) for index in cells)
        return self._lows[name, fresh]

    def low_of(self, name: str, index: int, *, fresh: bool = False) -> int:
        node = self.whole(name)
        name = node.name
        cell = node.cells[index]
        if cell.source is not None:
            return cell.source.frontier
        if cell.retired:
            return MAX
        least = self._least.get((name, index, fresh))
        if least is None:
            times = [r.time for r in cell.pending.values() if not ((fresh and r.again) or r.forgotten)]
            least = self._least[name, index, fresh] = min(times, default=MAX)
        return node.stamp(min(least, *[self.low(upstream, fresh=True) for upstream in node.inputs]))

    def least_of(self, name: str, cells: Iterable[int]) -> int:
        return min(self.low_of(name, index) for index in cells)

    @property
    def unfinished(self) -> int:
        return sum(
            len(cell.pending) + (len(cell.source.times) - cell.source.offset if cell.source else 0)
            for node in self.nodes.values()
            for cell in node.cells
        )

    def restore(self, name: str, cells: Iterable[int], time: int) -> None:
        name = self.whole(name).name
        for index in cells:
            cell = self.nodes[name].cells[index]
            if cell.source is None and time != MIN:
                self._numbers += 1
                self._touch(name, index)[self._numbers] = Record(self._numbers, time, again=True)
        self.changed()

    def forget(self, name: str, cells: Iterable[int], value: int) -> None:
        node = self.whole(name)
        name = node.name
        for index in cells:
            pending = self._touch(name, index)
            for number, record in pending.items():
                if record.again and node.stamp(record.time) < value:
                    pending[number] = record._replace(forgotten=True)
        self.changed()

    def retire(self, name: str, cells: Iterable[int]) -> None:
        node = self.whole(name)
        for index in cells:
            node.cells[index].retired = True
            pending = self._touch(node.name, index)
            pending.update({number: record._replace(forgotten=True) for number, record in pending.items()})
        self.changed()

    def revive(self, name: str, cells: Iterable[int]) -> None:
        node = self.whole(name)
        for index in cells:
            if node.cells[index].retired:
                node.cells[index].retired = False
                self._touch(node.name, index)
        self.changed()

    def forget_input(self, name: str, lost: str) -> None:
        node = self.nodes[name]
        node.inputs = [upstream for upstream in node.inputs if upstream != lost]
        for index in range(len(node.cells)):
            pending = self._touch(name, index)
            for number, record in pending.items():
                if record.origin == lost:
                    pending[number] = record._replace(again=True, forgotten=True)
        self.changed()

    def emit(self, name: str, times: Iterable[int]) -> None:
        for time in times:
            self._numbers += 1
            for reader in self.nodes.values():
                if name not in reader.inputs:
                    continue
                index = hash((self._numbers, reader.name.encode()[0])) % len(reader.cells)
                cell = reader.cells[index]
                if reader.window and reader.stamp(time) + reader.window <= cell.closed:
                    msg = f"{name} hands {time} to {reader.name}, which has closed windows up to {cell.closed}"
                    raise LateRecord(msg)
                record = Record(self._numbers, time, origin=name, forgotten=cell.retired)
                self._touch(reader.name, index)[self._numbers] = record
                if reader.feed is not None:
                    reader.feed.append((index, record))
        self.changed()

    def inject(self, name: str, index: int, count: int) -> None:
        source = self.nodes[name].cells[index].source
        assert source is not None
        times = source.times[source.offset : source.offset + count]
        source.offset += len(times)
        self.emit(name, times)

    def finish(self, name: str, index: int, records: Iterable[Record], outputs: Iterable[int], closed: int) -> None:
        cell, pending = self.nodes[name].cells[index], self._touch(name, index)
        for record in records:
            del pending[record.number]
        cell.closed = max(cell.closed, closed)
        self.emit(name, outputs)
