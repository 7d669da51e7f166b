"""Guarded writes into a real PostgreSQL: transactions that overlap, answers that are lost, servers that die or are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lowwater_pipeline.guard import (
    Blocked,
    Claim,
    Damaged,
    Fenced,
    GuardError,
    InDoubt,
    Rewound,
    StoreReplaced,
    Unfit,
    WrongOwner,
)
from lowwater_pipeline.guard.postgres import PostgresGuard, PostgresWriter
from tests.guard.stores import PostgresStore, claim
from tests.kit.eventually import eventually
from tests.kit.postgres import Postgres

ROOT = Path(__file__).parents[2]


class Paused:
    """A write in a thread of its own, which stops at a point of its transaction until it is let go."""

    def __init__(self, store: PostgresStore, writer: PostgresWriter, batch: int, value: int, point: str) -> None:
        self.arrived, self.go = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)

        def probe(reached: str) -> None:
            if reached == point and not self.arrived.is_set():
                self.arrived.set()
                self.go.wait()

        writer.guard.probe = probe
        self._done = self._pool.submit(store.write, writer, batch, f"digest {batch} of {value}", [value])
        self.arrived.wait()

    def outcome(self) -> object:
        """Let it go on, and return what it came to: an error, or whether it has written."""
        self.go.set()
        self._pool.shutdown()
        return self._done.exception() or self._done.result()


def raised_by_itself(store: PostgresStore, token: int) -> PostgresWriter:
    return store.guard().raise_(claim(token))


def test_figure_12_the_delayed_transaction_of_a_zombie_never_lands_after_the_scan(in_postgres: PostgresStore) -> None:
    """The zombie's transaction has been checked, and is delayed. Its successor raises and scans. Then the transaction goes on."""
    zombie = Paused(in_postgres, raised_by_itself(in_postgres, 5), 0, 1, "checked")
    successor = raised_by_itself(in_postgres, 6)
    scanned = in_postgres.values()
    outcome = zombie.outcome()
    assert in_postgres.values() == scanned == []
    assert isinstance(outcome, psycopg.Error | Fenced)
    assert in_postgres.write(successor, 0, "a", [2])
    assert in_postgres.values() == [2]


def test_a_zombie_that_commits_before_the_raise_is_read_by_its_successor(in_postgres: PostgresStore) -> None:
    in_postgres.patience = 60
    zombie = Paused(in_postgres, raised_by_itself(in_postgres, 5), 0, 1, "filled")
    with ThreadPoolExecutor(1) as pool:
        raising = pool.submit(raised_by_itself, in_postgres, 6)
        eventually(lambda: in_postgres.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        assert not raising.done()
        assert zombie.outcome() is True
        successor = raising.result()
    assert in_postgres.values() == [1]
    assert successor.found[0].batch == 0


def test_whoever_holds_the_row_is_ended_by_a_raise_that_is_accepted(in_postgres: PostgresStore) -> None:
    raised_by_itself(in_postgres, 5)
    with psycopg.connect(in_postgres.dsn) as holding:
        holding.execute("SELECT * FROM lowwater_guard FOR UPDATE")
        assert in_postgres.write(raised_by_itself(in_postgres, 6), 0, "a", [1])
        with pytest.raises(psycopg.OperationalError):
            holding.execute("SELECT 1")


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        pytest.param(Fenced, lambda guard: guard.raise_(claim(8)), id="older raise"),
        pytest.param(WrongOwner, lambda guard: guard.raise_(claim(10, computation="a/b")), id="stranger's raise"),
        pytest.param(WrongOwner, lambda guard: write_empty(guard, claim(9, computation="a/b")), id="stranger's write"),
        pytest.param(Damaged, lambda guard: of_two_slots(guard).raise_(claim(10)), id="slots"),
        pytest.param(Blocked, lambda guard: write_empty(guard, claim(9, configuration=2)), id="own write"),
    ],
)
def test_an_owner_in_a_long_batch_is_not_ended_by_who_is_refused(
    in_postgres: PostgresStore, kind: type[GuardError], refused: Callable[[PostgresGuard], object]
) -> None:
    """A zombie, and a stranger, wait, are refused, and come again as a supervisor starts them: the owner commits all the same."""
    owner = in_postgres.guard().raise_(claim(9, configuration=2))
    long = Paused(in_postgres, owner, 0, 1, "filled")
    for _ in range(2):
        with pytest.raises(kind):
            refused(in_postgres.guard())
    assert long.outcome() is True
    assert in_postgres.values() == [1]


def write_empty(guard: PostgresGuard, by: Claim) -> bool:
    return PostgresWriter(guard, by, range(1), {}).write(0, "b", lambda cursor: None)


def of_two_slots(guard: PostgresGuard) -> PostgresGuard:
    guard.slots = 2
    return guard


def test_who_may_not_be_ended_is_named(postgres: Postgres, in_postgres: PostgresStore) -> None:
    in_postgres.ask("GRANT CREATE, USAGE ON SCHEMA public TO PUBLIC")
    role = f"role_{os.urandom(4).hex()}"
    in_postgres.ask(f"CREATE ROLE {role} LOGIN")
    guard = PostgresGuard(f"{in_postgres.dsn} user={role}", "hourly", patience=0.2)
    with guard, psycopg.connect(in_postgres.dsn) as holding:
        writer = guard.raise_(claim(5))
        holding.execute("SELECT * FROM lowwater_guard FOR UPDATE")
        pid = str(holding.info.backend_pid)
        with pytest.raises(Blocked, match=f"{pid}.* a write ends no session"):
            writer.write(0, "a", lambda cursor: None)
        with pytest.raises(Blocked, match=f"{pid}.* could not end them"):
            guard.raise_(claim(6))
        holding.rollback()
        assert writer.write(0, "a", lambda cursor: None)


def test_who_holds_what_the_batch_writes_is_not_ended(in_postgres: PostgresStore) -> None:
    writer = raised_by_itself(in_postgres, 5)
    in_postgres.ask("CREATE TABLE other (value integer)")
    writer.guard.dsn = f"{in_postgres.dsn} options='-c lock_timeout=100ms'"
    writer.guard.close()
    with psycopg.connect(in_postgres.dsn) as holding:
        holding.execute("LOCK TABLE other")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            writer.write(0, "a", lambda cursor: cursor.execute("INSERT INTO other VALUES (1)"))
        assert holding.execute("SELECT 1").fetchall() == [(1,)]


def test_a_writer_that_notes_its_last_batch_may_leave_some_out(in_postgres: PostgresStore) -> None:
    writer = raised_by_itself(in_postgres, 5)
    assert in_postgres.write(writer, 0, "a", [1])
    assert writer.write(3, "d", lambda cursor: None, after=0)
    assert not writer.write(3, "d", lambda cursor: None, after=0)
    for after in (2, 4, 0):
        with pytest.raises(Rewound, match=f"follows {after}"):
            writer.write(5, "f", lambda cursor: None, after=after)
    assert writer.write(5, "f", lambda cursor: None, after=3)


def test_the_lock_sees_what_was_committed_whatever_isolation_the_role_has(in_postgres: PostgresStore) -> None:
    dsn = f"{in_postgres.dsn} options='-c default_transaction_isolation=serializable -c synchronous_commit=off'"
    with PostgresGuard(dsn, "hourly") as guard:
        zombie, settings = guard.raise_(claim(5)), []

        def fill(cursor: psycopg.Cursor[Any]) -> None:
            for setting in ("transaction_isolation", "synchronous_commit"):
                settings.extend(cursor.execute(f"SHOW {setting}").fetchall())

        assert zombie.write(0, "a", fill)
        assert settings == [("read committed",), ("on",)]


@contextmanager
def no_standby_answers(postgres: Postgres) -> Iterator[None]:
    """COMMIT waits for a standby that there is not, and what is committed is not seen meanwhile."""
    postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    postgres.execute("SELECT pg_reload_conf()")
    eventually(lambda: postgres.execute("SHOW synchronous_standby_names") == [("nobody",)])
    yield
    postgres.execute("ALTER SYSTEM RESET synchronous_standby_names")
    postgres.execute("SELECT pg_reload_conf()")


def test_a_look_waits_for_a_commit_that_is_under_way(postgres: Postgres, in_postgres: PostgresStore) -> None:
    in_postgres.patience = 60
    writer = raised_by_itself(in_postgres, 5)
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with ThreadPoolExecutor(2) as pool:
        with no_standby_answers(postgres):
            written = pool.submit(in_postgres.write, writer, 0, "a", [1])
            eventually(lambda: in_postgres.ask(waiting))
            # Another connection of the same claim, as after the first was lost.
            again = in_postgres.guard()
            look = pool.submit(again.write, claim(5), {0: 0}, "a", lambda cursor: None)
            eventually(
                lambda: look.done() or in_postgres.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            )
            for [pid] in in_postgres.ask(waiting):
                in_postgres.ask("SELECT pg_terminate_backend(%s)", pid)
        written.exception()
        assert look.result() is False, "the batch counts as not written, though its COMMIT is under way"


def ended_at(store: PostgresStore, writer: PostgresWriter, point: str, times: int = 1) -> None:
    remaining = [times]

    def probe(reached: str) -> None:
        if reached == point and remaining[0]:
            remaining[0] -= 1
            store.end_others()

    writer.guard.probe = probe


def test_who_gets_no_answer_twice_is_told_so_and_the_same_write_is_made_once(in_postgres: PostgresStore) -> None:
    writer = raised_by_itself(in_postgres, 5)
    ended_at(in_postgres, writer, "before commit", times=2)
    with pytest.raises(InDoubt, match="same write again"):
        in_postgres.write(writer, 0, "a", [1])
    assert in_postgres.write(writer, 0, "a", [1])
    assert in_postgres.values() == [1]


def test_what_the_caller_raises_is_raised_and_nothing_is_written(in_postgres: PostgresStore) -> None:
    writer = raised_by_itself(in_postgres, 5)

    def fill(cursor: psycopg.Cursor[Any]) -> None:
        cursor.execute("INSERT INTO written (guard, value) VALUES ('hourly', 1)")
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="own"):
        writer.write(0, "a", fill)
    assert in_postgres.values() == []
    assert in_postgres.write(writer, 0, "a", [2])


def test_who_ends_the_transaction_himself_is_refused(in_postgres: PostgresStore) -> None:
    writer = raised_by_itself(in_postgres, 5)

    def fill(cursor: psycopg.Cursor[Any]) -> None:
        cursor.execute("INSERT INTO written (guard, value) VALUES ('hourly', 1)")
        cursor.execute(b"COMMIT")

    with pytest.raises(Unfit, match="leave COMMIT and ROLLBACK to the guard"):
        writer.write(0, "a", fill)
    row = in_postgres.rows()[0]
    assert row is not None
    assert row.batch == -1


def test_a_standby_that_takes_over_is_another_life() -> None:
    """A standby may lack the last raise. So every writer claims anew."""
    with Postgres() as primary, Postgres() as standby:
        store = PostgresStore(primary, "own")
        writer = raised_by_itself(store, 5)
        assert store.write(writer, 0, "a", [1])
        standby.follow(primary)
        standby.execute("SELECT pg_promote()")
        promoted = PostgresStore.again(standby, "own")
        writer.guard.dsn = promoted.dsn
        writer.guard.close()
        with pytest.raises(StoreReplaced):
            promoted.write(writer, 1, "b", [2])
        newer = promoted.guard().raise_(claim(6))
        assert not promoted.write(newer, 0, "a", [1])
        assert promoted.write(newer, 1, "b", [2])
        assert promoted.values() == [1, 2]
        promoted.close()
        store.close()


WORKER = """
import os, signal, sys
from lowwater_pipeline.guard import Claim
from lowwater_pipeline.guard.postgres import PostgresGuard
dsn, point, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
guard = PostgresGuard(dsn, "hourly")
batch = -1
def probe(reached):
    if (reached, batch) == (point, at):
        os.kill(os.getpid(), signal.SIGKILL)
guard.probe = probe
writer = guard.raise_(Claim("deployment", "default/hourly", 1, 5, "of 5"))
for batch in range(10):
    writer.write(batch, f"digest {batch}", lambda cursor: cursor.execute("INSERT INTO written (guard, value) VALUES ('hourly', %s)", (batch,)))
"""


@pytest.mark.parametrize(
    ("point", "batch", "written"),
    [("raise checked", -1, 0), ("checked", 4, 4), ("filled", 4, 4), ("before commit", 4, 4), ("committed", 4, 5)],
)
def test_kill_9_loses_and_doubles_nothing(in_postgres: PostgresStore, point: str, batch: int, written: int) -> None:
    """Its successor raises, reads how far the store is, and makes the last batch once more."""
    in_postgres.patience = 60  # a killed session ends by itself
    command = [sys.executable, "-c", WORKER, in_postgres.dsn, point, str(batch)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    successor = raised_by_itself(in_postgres, 6)
    assert successor.found[0].batch == written - 1
    for number in range(max(0, written - 1), 10):
        assert in_postgres.write(successor, number, f"digest {number}", [number]) is (number >= written)
    assert in_postgres.values() == list(range(10))
