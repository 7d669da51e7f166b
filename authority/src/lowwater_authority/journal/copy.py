"""Copies a journal into another store, log by log, and goes on with a copy that was cut off.

    survey the source: own its logs, read and check all of it -> each log: take it above the
    source's epoch -> restore the snapshot -> append what is behind -> read it back and compare ->
    is the source still as it was surveyed? -> the graph, in one step

The graph is the commit of a copy. A store that has logs but no graph is an unfinished one; whatever
it holds of a log must be the beginning of what the source has, and the rest is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lowwater_authority.journal.contract import (
    GRAPH,
    Entry,
    Journal,
    JournalError,
    JournalFenced,
    JournalUnknown,
    LoadedLog,
    Ownership,
)

BATCH_BYTES: Final = 1 << 20
"""Payload of one append; a single record may be larger."""

BATCH_RECORDS: Final = 1000


class CopyRefused(Exception):
    """The copy is not made or not finished; the message says what to do.

    The target has no graph, or had it before.
    """


class TargetNotEmpty(CopyRefused):
    """The target holds something that is not the beginning of this copy.

    No log of it was changed.
    """


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a survey finds of one log."""

    log: str
    last: int
    """The last position."""
    snapshot: int
    """Position up to which the snapshot speaks; 0 without one."""
    records: int
    """Records behind the snapshot."""
    bytes: int
    """Payload of the snapshot and the records."""
    owner: Ownership


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of the logs is copied, or was found copied."""

    logs: int
    of_logs: int
    bytes: int
    of_bytes: int


async def survey(journal: Journal, *, fence: bool) -> list[LogFacts]:
    """Read all logs of an open journal, the graph first, and check each byte.

    Costs one read of everything.

    With ``fence`` this process becomes the owner of the logs, and whoever wrote them before is
    refused from now on. In a journal of one process it is so in any case: opening it has begun the
    epoch. Raises what ``load`` and ``take`` of Journal do.
    """
    names = await journal.logs()
    owners = await journal.owners(names)
    facts = []
    for log in names:
        owner = owners[log]
        if log != GRAPH and (fence or not journal.shared):
            owner = await journal.take(log, view=owner.view)
        loaded = await journal.load(log, durable=False)
        size = _size(loaded)
        facts.append(LogFacts(log, loaded.last, loaded.snapshot_position, len(loaded.records), size, owner))
    return facts


def is_unfinished(facts: Sequence[LogFacts]) -> bool:
    """Whether there are logs but no graph."""
    return bool(facts) and all(each.log != GRAPH for each in facts)


@contextmanager
def speaking_of(place: str) -> Iterator[None]:
    """What a journal refuses becomes CopyRefused, with the place that it is about."""
    try:
        yield
    except JournalUnknown as error:
        raise CopyRefused(f"{place}: {error}; run this command again, it goes on where it was") from error
    except JournalError as error:
        raise CopyRefused(f"{place}: {error}") from error


class Copy:
    """One copy between two open journals, whose texts are for messages.

    ``facts`` is a survey of the source with ``fence``. The target has the server token of the
    source if it is new. ``whole`` makes of the log of the graph, which is not empty, the graph that
    it ends with; ``newest`` says whether that is written as Entry.newest has it.
    """

    def __init__(
        self,
        source: Journal,
        facts: Sequence[LogFacts],
        target: Journal,
        *,
        whole: Callable[[LoadedLog], bytes],
        newest: Callable[[bytes], bool] = lambda _: False,
        names: tuple[str, str] = ("the source", "the target"),
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._facts = facts
        self._logs = [each for each in facts if each.log != GRAPH]
        self._target = target
        self._whole = whole
        self._newest = newest
        self._source_name, self._target_name = names
        self._progress = progress
        self._logs_done = self._bytes_done = 0

    async def run(self) -> None:
        """Copy everything.

        Costs two reads of the source, and a write and two reads of the target; memory for a log
        twice.

        Every epoch of the target is above the source's, so it grants greater sequencers than the
        source ever did. Raises TargetNotEmpty, and CopyRefused: run it again, and it goes on.
        """
        if is_unfinished(self._facts):
            raise CopyRefused(f"{self._source_name} is itself an unfinished copy: finish that one first")
        if await self._is_done():
            return
        for facts in self._logs:
            await self._copy_log(facts)
            self._logs_done += 1
            self._report(0)
        with speaking_of(self._source_name):
            graph = await self._source.load(GRAPH, durable=False)
            await self._refuse_changed_source(graph)
        await self._copy_graph(graph)

    async def _is_done(self) -> bool:
        """Whether the target is this copy already: its last write may have been of unknown outcome, or is repeated.

        Raises TargetNotEmpty unless it is that, or empty, or an unfinished copy of this deployment.
        """
        with speaking_of(self._target_name):
            present = await self._target.logs()
        mine, found = self._source.server_token, self._target.server_token
        count = f"{len(present)} log{'' if len(present) == 1 else 's'}"
        if found != mine:
            raise TargetNotEmpty(f"{self._target_name} is not empty: it holds {count} of the deployment {found}")
        if GRAPH in present:
            if present == [each.log for each in self._facts] and await self._is_equal():
                return True
            raise TargetNotEmpty(
                f"{self._target_name} is not empty: it holds {count} of this deployment in another state"
            )
        strange = sorted(set(present) - {each.log for each in self._logs})
        if strange:
            raise TargetNotEmpty(
                f"{self._target_name} holds an unfinished copy of something else: of {strange[0]!r} there is no log in "
                f"{self._source_name}"
            )
        return False

    async def _is_equal(self) -> bool:
        for facts in self._facts:
            with speaking_of(self._source_name):
                wanted = await self._source.load(facts.log, durable=False)
            with speaking_of(self._target_name):
                found = await self._target.load(facts.log, durable=False)
            if facts.log == GRAPH:
                wanted, found = self._only_newest(wanted), self._only_newest(found)
            if found != wanted:
                return False
        return True

    async def _copy_log(self, facts: LogFacts) -> None:
        log, target = facts.log, self._target
        with speaking_of(self._source_name):
            wanted = await self._source.load(log, durable=False)
        with speaking_of(self._target_name):
            await target.take(log, above=facts.owner.epoch)
            found = await target.load(log, durable=False)
            if not found.last and wanted.snapshot is not None:
                await target.restore(log, wanted.snapshot_position, wanted.snapshot)
                found = LoadedLog(wanted.snapshot_position, wanted.snapshot, [])
            there = len(found.records)
            begun = LoadedLog(wanted.snapshot_position, wanted.snapshot, wanted.records[:there])
            if found.last and found != begun:
                raise TargetNotEmpty(
                    f"{self._target_name} holds an unfinished copy of an older state: {self._source_name} was written to since then, "
                    f"and log {log!r} does not continue it"
                )
            self._report(_size(begun))
            for entries in _batches(log, wanted.records[there:]):
                await target.append(entries)
                self._report(sum(len(entry.payload) for entry in entries))
        await self._compare(log, wanted)

    async def _refuse_changed_source(self, graph: LoadedLog) -> None:
        """The logs were fenced by the survey, the graph belongs to all: whoever wrote either serves the source."""
        try:
            end = await self._source.confirm([each.log for each in self._logs])
        except JournalFenced as error:
            raise CopyRefused(self._served()) from error
        if end != graph.last or end != sum(each.last for each in self._facts if each.log == GRAPH):
            raise CopyRefused(self._served())

    def _served(self) -> str:
        return (
            f"{self._source_name} is being served, it has changed meanwhile: stop every process that serves it, and run this command "
            "again"
        )

    async def _copy_graph(self, graph: LoadedLog) -> None:
        """In one step."""
        with speaking_of(self._source_name):
            wanted = self._only_newest(graph)
        if wanted.snapshot is None:
            return
        with speaking_of(self._target_name):
            await self._target.confirm([each.log for each in self._logs])
            newest = self._newest(wanted.snapshot)
            await self._target.restore(GRAPH, wanted.last, wanted.snapshot, newest=newest)
        await self._compare(GRAPH, wanted)
        self._report(_size(graph))

    def _only_newest(self, graph: LoadedLog) -> LoadedLog:
        """The same graph as a snapshot alone, for a copy of it is one step."""
        return LoadedLog(graph.last, self._whole(graph) if graph.last else None, [])

    async def _compare(self, log: str, wanted: LoadedLog) -> None:
        with speaking_of(self._target_name):
            found = await self._target.load(log, durable=False)
        if found != wanted:
            raise CopyRefused(
                f"log {log!r} comes back from {self._target_name} other than it was written: do not serve it, remove it, and look "
                "at what keeps it"
            )

    def _report(self, count: int) -> None:
        self._bytes_done += count
        total = sum(each.bytes for each in self._facts)
        self._progress(Progress(self._logs_done, len(self._logs), self._bytes_done, total))


def _size(loaded: LoadedLog) -> int:
    """Payload bytes of the snapshot and the records."""
    return len(loaded.snapshot or b"") + sum(len(payload) for _, payload in loaded.records)


def _batches(log: str, records: Sequence[tuple[int, bytes]]) -> Iterator[list[Entry]]:
    """Appends of bounded size.

    None is strong: the graph is, and what is in front of a strong entry survives with it.
    """
    batch: list[Entry] = []
    size = 0
    for position, payload in records:
        if batch and (size + len(payload) > BATCH_BYTES or len(batch) == BATCH_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(Entry(log, position, payload, strong=False))
        size += len(payload)
    if batch:
        yield batch
