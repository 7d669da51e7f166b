"""Random histories of appends, retries, snapshots, restores, crashes and take-overs, against a dict of lists."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lowwater_authority.journal import GRAPH, Entry, JournalFenced, JournalPosition, LoadedLog
from tests.contract.journal_stores import MemorySubject, RedisSubject, SqliteSubject, StoreSubject

T = TypeVar("T")

OWN = st.sampled_from(["a", "b"])
LOGS = st.sampled_from([GRAPH, "a", "b"])
PAYLOADS = st.binary(max_size=20)


class JournalMachine(RuleBasedStateMachine):
    """The content that the store must hold: every acknowledged payload of each log, and where its snapshot stands."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.payloads: dict[str, list[bytes]] = {}
        self.snapshots: dict[str, tuple[int, bytes]] = {}
        self.epochs = {"a": 0, "b": 0}
        self.last_call: list[Entry] = []
        self.loaded: dict[str, LoadedLog] = {}

    def make_store(self) -> StoreSubject:
        raise NotImplementedError

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    @initialize()
    def begin(self) -> None:
        self.store = self.make_store()
        self.take_over()

    def take_over(self) -> None:
        self.journal = self.run(self.store.connect())
        for log in self.epochs:
            self.take(log)

    @rule(log=OWN)
    def take(self, log: str) -> None:
        before, self.epochs[log] = self.epochs[log], self.run(self.journal.take(log)).epoch
        assert self.epochs[log] > before
        self.last_call = []

    @rule(call=st.lists(st.tuples(LOGS, PAYLOADS), max_size=5))
    def append(self, call: list[tuple[str, bytes]]) -> None:
        entries = []
        for log, payload in call:
            stored = self.payloads.setdefault(log, [])
            stored.append(payload)
            entries.append(Entry(log, len(stored), payload, strong=True))
        self.run(self.journal.append(entries))
        self.last_call = entries or self.last_call

    @rule()
    def repeat(self) -> None:
        self.run(self.journal.append(self.last_call))

    @rule(log=LOGS, offset=st.sampled_from([-1, 0, 2]), other=LOGS)
    def misplace(self, log: str, offset: int, other: str) -> None:
        last = len(self.payloads.get(log, []))
        entries = [Entry(log, last + offset, b"in a wrong place", strong=True)]
        if other != log:
            entries.insert(0, Entry(other, len(self.payloads.get(other, [])) + 1, b"right, but in vain", strong=True))
        with pytest.raises(JournalPosition):
            self.run(self.journal.append(entries))

    @rule(log=LOGS, share=st.floats(0, 1), payload=PAYLOADS)
    def snapshot(self, log: str, share: float, payload: bytes) -> None:
        last = len(self.payloads.get(log, []))
        position = round(share * last)
        if position == 0:
            return
        if log == GRAPH and self.snapshots.get(log, (0, b""))[0] < position < last:
            with pytest.raises(JournalPosition):
                self.run(self.journal.snapshot(log, position, b"of a record that is not the last one known"))
            return
        self.run(self.journal.snapshot(log, position, payload))
        if position > self.snapshots.get(log, (0, b""))[0]:
            self.snapshots[log] = position, payload

    @rule(log=LOGS, ahead=st.integers(1, 3), payload=PAYLOADS)
    def restore(self, log: str, ahead: int, payload: bytes) -> None:
        stored = self.payloads.setdefault(log, [])
        with pytest.raises(JournalPosition):
            self.run(self.journal.restore(log, len(stored), b"nothing is lost, so this is refused"))
        stored.extend(ahead * [b""])
        self.snapshots[log] = len(stored), payload
        owner = self.run(self.journal.restore(log, len(stored), payload))
        if log != GRAPH:
            assert owner.epoch > self.epochs[log]
            self.epochs[log] = owner.epoch
        self.last_call = []

    @rule()
    def crash(self) -> None:
        self.store.crash()
        self.take_over()

    @rule()
    def usurp(self) -> None:
        old = self.journal
        self.store.break_lock()
        self.take_over()
        with pytest.raises(JournalFenced):
            self.run(old.append([Entry("a", len(self.payloads.get("a", [])) + 1, b"old", strong=True)]))

    @rule()
    def restart(self) -> None:
        self.run(self.journal.close())
        self.take_over()

    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        if not hasattr(self, "journal"):
            return
        assert self.run(self.journal.confirm(self.epochs)) == len(self.payloads.get(GRAPH, []))
        assert self.run(self.journal.logs()) == sorted(log for log, payloads in self.payloads.items() if payloads)
        for log, payloads in self.payloads.items():
            stored = self.run(self.journal.load(log))
            position, snapshot = self.snapshots.get(log, (0, None))
            assert (stored.snapshot_position, stored.snapshot) == (position, snapshot)
            assert stored.records == list(enumerate(payloads, 1))[position:]
            assert self.run(self.journal.load(log, before=self.loaded.get(log))) == stored
            self.loaded[log] = stored

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.runner.close()


class MemoryMachine(JournalMachine):
    def make_store(self) -> StoreSubject:
        return MemorySubject()


class SqliteMachine(JournalMachine):
    kind: type[SqliteSubject | RedisSubject] = SqliteSubject

    def make_store(self) -> StoreSubject:
        self.directory = tempfile.TemporaryDirectory()
        return self.kind(Path(self.directory.name))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "directory"):
            self.directory.cleanup()


class RedisMachine(SqliteMachine):
    kind = RedisSubject


TestMemoryModel = MemoryMachine.TestCase
TestMemoryModel.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
TestSqliteModel = SqliteMachine.TestCase
TestSqliteModel.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestRedisModel = RedisMachine.TestCase
TestRedisModel.settings = TestSqliteModel.settings
