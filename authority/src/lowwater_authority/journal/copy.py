"""The copy of a journal into another store, log by log. A copy that was cut off can be continued.

    survey the source: own its logs, read and check all of it
    -> each log: take it above the source's epoch -> restore the snapshot -> append the records
                 -> read the log back and compare
    -> is the source still as it was surveyed? -> the graph, in one step

The graph is the commit of a copy. A store that has logs but no graph is an unfinished copy: each of
its logs must be the beginning of the source's log, and the rest is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lowwater.core.text import counted
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
"""Payload bytes of one append at most; a single record may be larger."""

BATCH_RECORDS: Final = 1000
"""Records of one append at most."""


class CopyRefused(Exception):
    """The copy is not made or not finished; the message says what to do.

    The target has no graph, or had it before.
    """


class TargetNotEmpty(CopyRefused):
    """The target holds something else than the beginning of this copy.

    None of its logs was changed.
    """


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The result of a survey for one log."""

    log: str
    last: int
    """Last position."""
    snapshot: int
    """Last position that the snapshot covers; 0 without one."""
    records: int
    """Records behind the snapshot."""
    bytes: int
    """Payload bytes of the snapshot and the records."""
    owner: Ownership


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of a copy that is done, by this run or by one before."""

    logs: int
    all_logs: int
    bytes: int
    all_bytes: int


async def survey(journal: Journal, *, fence: bool) -> list[LogFacts]:
    """Read all logs of an open journal, the graph first, and check each byte.

    With ``fence`` this process becomes the owner of the logs, and the owners before are refused
    from now on. In a journal of one process this is so in any case: opening it has begun an epoch.
    Raises what ``load`` and ``take`` of Journal do. Cost: one read of everything.
    """
    names = await journal.logs()
    owners = await journal.owners(names)
    facts = []
    for log in names:
        owner = owners[log]
        if log != GRAPH and (fence or not journal.shared):
            owner = await journal.take(log, view=owner.view)
        loaded = await journal.load(log, durable=False)
        records = len(loaded.records)
        facts.append(LogFacts(log, loaded.last, loaded.snapshot_position, records, loaded.size, owner))
    return facts


def is_unfinished(facts: Sequence[LogFacts]) -> bool:
    """Return whether there are logs but no graph."""
    return bool(facts) and all(log_facts.log != GRAPH for log_facts in facts)


@contextmanager
def speaking_of(place: str) -> Iterator[None]:
    """Turn an error of a journal into CopyRefused, which names the place of the journal."""
    try:
        yield
    except JournalUnknown as error:
        raise CopyRefused(f"{place}: {error}; run this command again, it goes on where it was") from error
    except JournalError as error:
        raise CopyRefused(f"{place}: {error}") from error


class Copy:
    """One copy between two open journals.

    ``facts`` is a survey of the source with ``fence``. A new target has the server token of the
    source. ``whole`` returns the last graph in the log of the graph, which is not empty; ``newest``
    says whether that graph is written with ``Entry.newest``. ``names`` are for messages.
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
        self._logs = [log_facts for log_facts in facts if log_facts.log != GRAPH]
        self._target = target
        self._whole = whole
        self._newest = newest
        self._source_name, self._target_name = names
        self._progress = progress
        self._logs_done = self._bytes_done = 0

    async def run(self) -> None:
        """Copy everything.

        Every epoch of the target is above the source's, so the target grants greater sequencers
        than the source ever did. Raises TargetNotEmpty, and CopyRefused: run the copy again to
        continue it. Cost: two reads of the source, a write and two reads of the target, and memory
        for a log twice.
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
        """Return whether the target is this copy already.

        The last write may be repeated, or was of unknown outcome. Raises TargetNotEmpty unless the
        target is this copy, an unfinished one, or empty.
        """
        with speaking_of(self._target_name):
            present = await self._target.logs()
        source_token, target_token = self._source.server_token, self._target.server_token
        count = counted(len(present), "log")
        if target_token != source_token:
            raise TargetNotEmpty(f"{self._target_name} is not empty: it holds {count} of the deployment {target_token}")
        if GRAPH in present:
            if present == [facts.log for facts in self._facts] and await self._is_equal():
                return True
            raise TargetNotEmpty(
                f"{self._target_name} is not empty: it holds {count} of this deployment in another state"
            )
        strange = sorted(set(present) - {facts.log for facts in self._logs})
        if strange:
            raise TargetNotEmpty(
                f"{self._target_name} holds an unfinished copy of something else: its log {strange[0]!r} is not in "
                f"{self._source_name}"
            )
        return False

    async def _is_equal(self) -> bool:
        for facts in self._facts:
            with speaking_of(self._source_name):
                original = await self._source.load(facts.log, durable=False)
            with speaking_of(self._target_name):
                copied = await self._target.load(facts.log, durable=False)
            if facts.log == GRAPH:
                original, copied = self._only_newest(original), self._only_newest(copied)
            if copied != original:
                return False
        return True

    async def _copy_log(self, facts: LogFacts) -> None:
        log, target = facts.log, self._target
        with speaking_of(self._source_name):
            original = await self._source.load(log, durable=False)
        with speaking_of(self._target_name):
            await target.take(log, above=facts.owner.epoch)
            copied = await target.load(log, durable=False)
            if not copied.last and original.snapshot is not None:
                await target.restore(log, original.snapshot_position, original.snapshot)
                copied = LoadedLog(original.snapshot_position, original.snapshot, [])
            count = len(copied.records)
            beginning = LoadedLog(original.snapshot_position, original.snapshot, original.records[:count])
            if copied.last and copied != beginning:
                raise TargetNotEmpty(
                    f"{self._target_name} holds an unfinished copy of an older state: {self._source_name} was written to since then, "
                    f"and log {log!r} does not continue it"
                )
            self._report(beginning.size)
            for entries in _batches(log, original.records[count:]):
                await target.append(entries)
                self._report(sum(len(entry.payload) for entry in entries))
        await self._compare(log, original)

    async def _refuse_changed_source(self, graph: LoadedLog) -> None:
        """Raise CopyRefused when a process has written to the source since the survey.

        The survey has fenced all logs but the graph.
        """
        refusal = CopyRefused(
            f"{self._source_name} is being served, it has changed meanwhile: stop every process that serves it, "
            "and run this command again"
        )
        try:
            end = await self._source.confirm([facts.log for facts in self._logs])
        except JournalFenced as error:
            raise refusal from error
        if end != graph.last or end != sum(facts.last for facts in self._facts if facts.log == GRAPH):
            raise refusal

    async def _copy_graph(self, graph: LoadedLog) -> None:
        with speaking_of(self._source_name):
            original = self._only_newest(graph)
        if original.snapshot is None:
            return
        with speaking_of(self._target_name):
            await self._target.confirm([facts.log for facts in self._logs])
            newest = self._newest(original.snapshot)
            await self._target.restore(GRAPH, original.last, original.snapshot, newest=newest)
        await self._compare(GRAPH, original)
        self._report(graph.size)

    def _only_newest(self, graph: LoadedLog) -> LoadedLog:
        """Return the same graph as a snapshot alone, so that its copy is one step."""
        return LoadedLog(graph.last, self._whole(graph) if graph.last else None, [])

    async def _compare(self, log: str, original: LoadedLog) -> None:
        with speaking_of(self._target_name):
            copied = await self._target.load(log, durable=False)
        if copied != original:
            raise CopyRefused(
                f"log {log!r} comes back from {self._target_name} other than it was written: do not serve the copy, "
                "remove it, and check the disk or server that keeps it"
            )

    def _report(self, count: int) -> None:
        self._bytes_done += count
        total = sum(facts.bytes for facts in self._facts)
        self._progress(Progress(self._logs_done, len(self._logs), self._bytes_done, total))


def _batches(log: str, records: Sequence[tuple[int, bytes]]) -> Iterator[list[Entry]]:
    """Yield appends of bounded size.

    Their entries are not strong: the graph is, and entries before a strong one survive with it.
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
