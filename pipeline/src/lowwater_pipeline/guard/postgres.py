"""Guarded writes into PostgreSQL: one transaction checks the guard's row and writes the rows.

The guard's rows are in the table ``lowwater_guard`` of the connection's first schema, which the
first raise creates. A write is

    BEGIN; SELECT ... FROM lowwater_guard ... ORDER BY slot FOR UPDATE      -- now no raise can pass
    (the judgement, and what the caller writes)
    UPDATE lowwater_guard SET batch = N, digest = ...; COMMIT

Only ``FOR UPDATE`` will do. Without it, or with ``FOR KEY SHARE``, a raise passes between a
zombie's check and its COMMIT, at every isolation level. The zombie's rows then land after its
successor has read the state (MillWheel's figure 12). When the answer to COMMIT is lost, the row is
read under the same lock: a plain read shows the old row while the COMMIT may still be under way.

Needs the extra ``lowwater-pipeline[postgres]``, and PostgreSQL 13 or newer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import astuple
from functools import partial
from types import TracebackType
from typing import Any, Final, LiteralString, NamedTuple, Self, TypeVar

import psycopg
from psycopg import errors as sql_errors
from psycopg.rows import tuple_row

from lowwater_pipeline.guard.claim import Claim, slot_bounds, slots_between
from lowwater_pipeline.guard.errors import Blocked, GuardError, InDoubt, Rewound, Unfit
from lowwater_pipeline.guard.row import FIELDS, Row, check_begin, check_steps, damaged, judge, raised

__all__ = ["PostgresGuard", "PostgresWriter"]

logger = logging.getLogger("lowwater.pipeline")

T = TypeVar("T")

_Connection = psycopg.Connection[tuple[Any, ...]]
_Cursor = psycopg.Cursor[tuple[Any, ...]]
_Check = Callable[[Mapping[int, Row | None], str], None]
"""Raises the refusal, if any, given the committed rows and the store's life."""

PATIENCE: Final = 10.0
"""Seconds that a transaction waits for the guard's row before it looks for the sessions that hold
it; a raise then ends those."""

GRACE: Final = 5.0
"""Shortest time that sessions have to be gone after they were ended, seconds."""

_LOCK: Final = "FOR UPDATE"

_COLUMNS: Final = "server_token, computation, identity, incarnation, token, nonce, configuration, life, batch, digest"

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS lowwater_guard (
    guard text NOT NULL,
    slot integer NOT NULL,
    slots integer NOT NULL,
    server_token text,
    computation text,
    identity text,
    incarnation numeric(20),
    token numeric(20),
    nonce text,
    configuration numeric(20),
    life text,
    batch bigint,
    digest text,
    PRIMARY KEY (guard, slot)
)
"""

_BEGIN: Final = """
SELECT set_config('lock_timeout', %s, true),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
                                        ELSE current_setting('synchronous_commit') END, true),
       system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8),
       txid_current()
FROM pg_control_system()
"""
"""First statement of a transaction. It makes an acknowledged COMMIT durable, whatever the session's
default is. The timeline is that of the log being written, because after a failover the timeline of
the last checkpoint is out of date for a while."""

_UPDATE: Final = """
UPDATE lowwater_guard SET batch = new.batch, digest = %(digest)s
FROM unnest(%(slots)s::integer[], %(batches)s::bigint[]) AS new(slot, batch)
WHERE guard = %(guard)s AND lowwater_guard.slot = new.slot AND txid_current() = %(transaction)s
"""


_INSERT: Final = """
INSERT INTO lowwater_guard (guard, slot, slots)
SELECT %s, slot, %s FROM unnest(%s::integer[]) AS slot ORDER BY slot
ON CONFLICT DO NOTHING
"""


class _Begun(NamedTuple):
    """The store and the number of a transaction, read at its beginning."""

    life: str
    """Life of the store: database system and timeline. It changes when a backup is restored to a
    point in time, and when a standby takes over."""
    transaction: int


class PostgresGuard:
    """One guard in one database. Several guards of one database are independent.

    ``dsn`` is the connection string of libpq. ``name`` is the guard's, for one output of one
    computation. ``slots``: 1 for a writer that owns the whole key space, as a Spark query does;
    more, a fixed number, for workers that own parts of it
    (:func:`lowwater_pipeline.guard.slot_bounds`). ``patience`` is the time in seconds that a
    transaction waits for the row. Then a raise ends the sessions that hold the row, unless the
    committed rows refuse the raise; a write waits once more as long, and ends none.

    It has one connection, made when it is needed. Not thread-safe.
    """

    def __init__(self, dsn: str, name: str, *, slots: int = 1, patience: float = PATIENCE) -> None:
        slot_bounds(slots)
        if not name or "\0" in name:
            msg = f"name={name!r}: it is a text that is not empty"
            raise Unfit(msg)
        if not patience > 0:
            msg = f"patience={patience!r}: seconds, more than 0"
            raise Unfit(msg)
        self.dsn = dsn
        self.name = name
        self.slots = slots
        self.patience = patience
        self.probe: Callable[[str], None] = lambda point: None
        """Called at the named points of a transaction; for tests."""
        self._connection: _Connection | None = None
        self._holders: _Holders | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def raise_(self, claim: Claim, *, bounds: Iterable[bytes] = (b"", b""), begin: int = 0) -> PostgresWriter:
        """Raise a claim that the authority has acknowledged, and return its writer.

        From now on no older claim writes, and all that older claims wrote can be read. Read the
        state only after this. ``bounds`` are the claim's (``lease.bounds``). ``begin`` is the
        number of the first batch, for slots that have no row yet or counted under another identity.
        A session that holds the row for longer than ``patience`` is ended: its writer is a zombie.
        A raise that the committed rows refuse ends none.

        Costs a transaction, and one row for each slot. A repeat with the same claim changes
        nothing. Raises Fenced when a newer claim was raised, another GuardError, Unaligned for
        bounds that are not those of slots, and what psycopg raises.
        """
        slots = slots_between(bounds, self.slots)
        check_begin(begin)

        def work(cursor: _Cursor, begun: _Begun) -> dict[int, Row]:
            self._make(cursor, slots)
            rows = self._lock(cursor, slots)
            new_rows = {slot: raised(row, claim, begun.life, begin, self._where(slot)) for slot, row in rows.items()}
            self.probe("raise checked")
            cursor.executemany(
                f"UPDATE lowwater_guard SET ({_COLUMNS}) = (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) WHERE guard = %s AND slot = %s",
                [(*astuple(row), self.name, slot) for slot, row in new_rows.items() if row != rows[slot]],
            )
            return new_rows

        def check(rows: Mapping[int, Row | None], life: str) -> None:
            for slot, row in rows.items():
                raised(row, claim, life, begin, self._where(slot))

        return PostgresWriter(self, claim, slots, self.transact(work, slots, check, ends=True))

    def rows(self) -> dict[int, Row | None]:
        """Return each slot's row, read without a lock, for people. Raises Damaged."""
        with self._connected().transaction(), self._connected().cursor(row_factory=tuple_row) as cursor:
            cursor.execute("SELECT to_regclass('lowwater_guard') IS NOT NULL")
            if not _one(cursor)[0]:
                return {}
            cursor.execute(f"SELECT slot, {_COLUMNS} FROM lowwater_guard WHERE guard = %s ORDER BY slot", (self.name,))
            return {row[0]: self._row(row) for row in cursor}

    # -- for its writers ---------------------------------------------------------------------------

    def transact(
        self, work: Callable[[_Cursor, _Begun], T], slots: Iterable[int], check: _Check, *, ends: bool = False
    ) -> T:
        """Run ``work``, which locks the guard's rows first, and commit.

        If the answer to COMMIT is lost, runs it once more, which the locked read makes safe.
        ``check`` raises the refusal, given the committed rows of ``slots``. ``ends`` ends sessions
        that hold the rows too long, if ``check`` passes.
        """
        patiently = partial(self._patiently, work, tuple(slots), check, ends)
        try:
            return patiently()
        except _Unknown as unknown:
            logger.warning("guard %s: the answer to COMMIT is lost, looking again: %s", self.name, unknown)
        try:
            return patiently()
        except (_Unknown, psycopg.OperationalError) as again:
            msg = (
                f"the guard {self.name}: PostgreSQL did not answer to COMMIT, nor when it was asked again: {again}. The write may or may not have been made. Make the same "
                "write again: it is made once."
            )
            raise InDoubt(msg) from again

    def write(
        self,
        claim: Claim,
        steps: Mapping[int, int],
        digest: str,
        fill: Callable[[_Cursor], object],
        after: int | None = None,
    ) -> bool:
        """See :meth:`PostgresWriter.write`."""

        def work(cursor: _Cursor, begun: _Begun) -> bool:
            if not self._judged(cursor, claim, begun, steps, digest, after):
                return False
            self.probe("checked")
            cursor.execute("SET LOCAL lock_timeout TO DEFAULT")
            fill(cursor)
            self.probe("filled")
            cursor.execute(
                _UPDATE,
                {
                    "digest": digest,
                    "slots": list(steps),
                    "batches": list(steps.values()),
                    "guard": self.name,
                    "transaction": begun.transaction,
                },
            )
            if cursor.rowcount != len(steps):
                msg = "what fills the batch has ended the transaction: leave COMMIT and ROLLBACK to the guard, so that the rows and the guard's row stand or fall together"
                raise Unfit(msg)
            return True

        def check(rows: Mapping[int, Row | None], life: str) -> None:
            # This check reads without the lock, and the batch before may not be committed yet. So a
            # rewound row counts for nothing here; the read under the lock decides.
            with suppress(Rewound):
                judge(rows, claim, life, steps, digest, self.name)

        return self.transact(work, sorted(steps), check)

    def _judged(
        self,
        cursor: _Cursor,
        claim: Claim,
        begun: _Begun,
        steps: Mapping[int, int],
        digest: str,
        after: int | None,
    ) -> bool:
        cursor.execute("SELECT to_regclass('lowwater_guard') IS NOT NULL")
        rows = self._lock(cursor, sorted(steps)) if _one(cursor)[0] else dict.fromkeys(steps)
        return judge(rows, claim, begun.life, steps, digest, self.name, after)

    # -- transactions ------------------------------------------------------------------------------

    def _patiently(self, work: Callable[[_Cursor, _Begun], T], slots: tuple[int, ...], check: _Check, ends: bool) -> T:
        """Run a transaction with ``patience``, and once more if the row stays locked.

        Before the second run, raises the refusal if there is one. During it, names or ends the
        sessions that hold the row.
        """

        def look(connection: _Connection) -> None:
            check(*self._committed(connection, slots))

        self._holders = None
        try:
            return self._once(work)
        except _Held:
            logger.warning("guard %s: its row is held for more than %g s", self.name, self.patience)
        # look() raises for a writer that is refused anyway, such as a zombie: that one must not end
        # the session of the owner.
        look(self._connected())
        self._holders = holders = _Holders(self.dsn, look if ends else None)
        try:
            return self._once(work)
        except _Held as held:
            look(self._connected())
            why = (
                f"this role could not end them: {holders.problem or 'they hold on'}"
                if ends
                else "a write ends no session"
            )
            msg = (
                f"the guard {self.name} is held by the sessions {sorted(holders.pids)} of PostgreSQL, and {why}. End them with pg_terminate_backend(), or stop the old "
                "writer; then do the same again."
            )
            raise Blocked(msg) from held
        finally:
            self._holders = None

    def _committed(self, connection: _Connection, slots: tuple[int, ...]) -> tuple[dict[int, Row | None], str]:
        """Return the committed rows of slots, without a lock, and the store's life; or Damaged."""
        with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
            _, _, life, _ = self._begin(cursor)
            cursor.execute("SELECT to_regclass('lowwater_guard') IS NOT NULL")
            if not _one(cursor)[0]:
                return dict.fromkeys(slots), life
            self._check_slots(cursor)
            return self._read(cursor, slots), life

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Surround waits for the guard's rows, and no others: only their holders may be ended."""
        holders = nullcontext() if self._holders is None else self._holders.of(self._connected().info.backend_pid)
        with holders:
            try:
                yield
            except sql_errors.LockNotAvailable as held:
                raise _Held from held

    def _once(self, work: Callable[[_Cursor, _Begun], T]) -> T:
        connection, committing = self._connected(), False
        try:
            with connection.transaction():
                with connection.cursor(row_factory=tuple_row) as cursor:
                    _, _, life, transaction = self._begin(cursor)
                    result = work(cursor, _Begun(life, transaction))
                self.probe("before commit")
                committing = True
            self.probe("committed")
            return result
        except psycopg.Error as failure:
            if connection.closed:
                self._connection = None
                if committing:
                    raise _Unknown(str(failure)) from failure
            raise

    def _begin(self, cursor: _Cursor) -> tuple[Any, ...]:
        ends = self._holders is not None and self._holders.ends
        wait = max(self.patience, GRACE) if ends else self.patience
        cursor.execute(_BEGIN, (f"{max(1, round(wait * 1000))}ms",))
        return _one(cursor)

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.closed:
            connection = psycopg.connect(self.dsn)
            # The transaction must see what was committed before it got the lock, whatever the
            # role's default is.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.read_only = False
            self._connection = connection
        return self._connection

    # -- rows --------------------------------------------------------------------------------------

    def _make(self, cursor: _Cursor, slots: range) -> None:
        """Insert the guard's missing rows, empty. Slot 0's row has the guard's number of slots."""
        cursor.execute("SELECT to_regclass('lowwater_guard') IS NOT NULL")
        if not _one(cursor)[0]:
            # If two sessions created the table at once, one of them would fail.
            with self._waiting():
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext('lowwater_guard'))")
            cursor.execute(_CREATE)
        with self._waiting():
            cursor.execute(_INSERT, (self.name, self.slots, [0]))
        self._check_slots(cursor)
        with self._waiting():
            cursor.execute(_INSERT, (self.name, self.slots, list(slots)))

    def _check_slots(self, cursor: _Cursor) -> None:
        """Raise Damaged for a guard that was made with another number of slots."""
        cursor.execute("SELECT slots FROM lowwater_guard WHERE guard = %s AND slot = 0", (self.name,))
        for [stored] in cursor.fetchall():
            if stored != self.slots:
                msg = f"it was made with {stored} slots and is opened with {self.slots}: their number stays for good"
                raise damaged(f"the guard {self.name}", msg)

    def _lock(self, cursor: _Cursor, slots: Iterable[int]) -> dict[int, Row | None]:
        """Lock the rows of slots, always in the same order, and return them."""
        with self._waiting():
            return self._read(cursor, slots, _LOCK)

    def _read(self, cursor: _Cursor, slots: Iterable[int], lock: LiteralString = "") -> dict[int, Row | None]:
        wanted_slots = list(slots)
        cursor.execute(
            f"SELECT slot, {_COLUMNS} FROM lowwater_guard WHERE guard = %s AND slot = ANY(%s) ORDER BY slot {lock}",
            (self.name, wanted_slots),
        )
        rows = {row[0]: self._row(row) for row in cursor.fetchall()}
        return {slot: rows.get(slot) for slot in wanted_slots}

    def _row(self, record: Sequence[Any]) -> Row | None:
        slot, *values = record
        if all(value is None for value in values):
            return None
        if any(value is None for value in values):
            raise damaged(self._where(slot), "some of its columns are NULL")
        return Row.of(dict(zip(FIELDS, values, strict=True)))

    def _where(self, slot: int) -> str:
        return f"slot {slot} of the guard {self.name}"


class PostgresWriter:
    """The owner of some slots until the next raise; :meth:`PostgresGuard.raise_` returns it."""

    def __init__(self, guard: PostgresGuard, claim: Claim, slots: range, rows: Mapping[int, Row]) -> None:
        self.guard = guard
        self.claim = claim
        self.slots = slots
        self.found = dict(rows)
        """Row of each slot after the raise; its batch is the last one that the store has."""

    def write(
        self,
        batch: int | Mapping[int, int],
        digest: str,
        fill: Callable[[psycopg.Cursor[Any]], object],
        *,
        after: int | None = None,
    ) -> bool:
        """Write a batch once; return False if the store has it already. Durable when it returns.

        ``fill(cursor)`` writes the rows. It runs under the lock, and runs again when the answer to
        its COMMIT was lost and the rows are not there. If it raises, nothing is written. ``batch``
        is the number in all slots of the writer, or a mapping by slot. In each slot it follows the
        last one by one, so write batches without rows, too. A writer that skips batches, and
        durably notes the last one written, passes that number as ``after``. ``digest`` tells the
        content of one batch from another's under the same number, such as the digest of its plan.

        Raises Fenced when a newer claim was raised, another GuardError, and what psycopg raises.
        Costs four round trips beside those of ``fill``. Durable as far as the database keeps what
        it has acknowledged.
        """
        steps = check_steps(self.slots, batch, digest, self.guard.name)
        return self.guard.write(self.claim, steps, digest, fill, after)


class _Unknown(Exception):
    """The connection was lost between COMMIT and its answer."""


class _Held(Exception):
    """A session holds a row of the guard for longer than patience lasts."""


class _Holders:
    """Finds the sessions that a waiting session waits for, and ends them if it may.

    ``check`` raises a GuardError when the committed rows refuse the waiting writer. It runs again
    before each end, since the rows may have changed. None: no session is ended.
    """

    PAUSE: Final = 0.2
    """Seconds between two searches for blocking sessions."""

    def __init__(self, dsn: str, check: Callable[[_Connection], None] | None) -> None:
        self.pids: set[int] = set()
        self.problem = ""
        self.ends = check is not None
        self._dsn = dsn
        self._check = check

    @contextmanager
    def of(self, waiting: int) -> Iterator[None]:
        """Look for holders while this context is open; ``waiting`` is the waiting session's pid."""
        over = threading.Event()
        thread = threading.Thread(target=self._run, args=(waiting, over), name="lowwater-guard-holders", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _run(self, waiting: int, over: threading.Event) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                while not over.is_set():
                    self._look(connection, waiting)
                    over.wait(self.PAUSE)
        except psycopg.Error as failure:
            self.problem = str(failure)
        except GuardError as refused:
            # No raise here: the waiting writer raises the same refusal when its wait is over.
            self.problem = str(refused)

    def _look(self, connection: _Connection, waiting: int) -> None:
        holding = connection.execute(
            "SELECT DISTINCT pid FROM unnest(pg_blocking_pids(%s)) AS pid", (waiting,)
        ).fetchall()
        for [pid] in holding:
            self.pids.add(pid)
            if self._check is None:
                continue
            self._check(connection)
            try:
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                logger.warning("ended the session %d of PostgreSQL, which held a guard's row", pid)
            except psycopg.Error as failure:
                self.problem = str(failure)


def _one(cursor: _Cursor) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None
    return row
