"""Guarded writes into PostgreSQL: the check and the rows are one transaction, under a lock on the guard's row.

The rows stand in the table ``lowwater_guard`` of the connection's first schema, which the first raise makes. A write is

    BEGIN; SELECT ... FROM lowwater_guard ... ORDER BY slot FOR UPDATE      -- from here on nobody raises
    (the judgement, and what the caller writes)
    UPDATE lowwater_guard SET batch = N, digest = ...; COMMIT

Only ``FOR UPDATE`` will do: without it, or with ``FOR KEY SHARE``, a raise passes between the check and the COMMIT of a zombie, whose rows then land after its successor
has read the state (MillWheel's figure 12), at every isolation level. When the answer to COMMIT is lost, the row is looked at under the same lock: a plain look sees
what was before, while the COMMIT may still be under way.

Needs the extra ``lowwater-pipeline[postgres]``. PostgreSQL 13 or newer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, LiteralString, NamedTuple, Self, TypeVar

import psycopg
from psycopg import errors as sql_errors
from psycopg.rows import tuple_row

from lowwater_pipeline.guard.claim import Claim, slot_bounds, slots_between
from lowwater_pipeline.guard.errors import Blocked, GuardError, InDoubt, Rewound, Unfit
from lowwater_pipeline.guard.row import MAX_BATCH, Row, check_steps, damaged, judge, raised

__all__ = ["PostgresGuard", "PostgresWriter"]

logger = logging.getLogger("lowwater.pipeline")

T = TypeVar("T")

_Connection = psycopg.Connection[tuple[Any, ...]]
_Cursor = psycopg.Cursor[tuple[Any, ...]]
_Check = Callable[[Mapping[int, Row | None], str], None]
"""Raises why something is refused, given the rows that are committed, and the store's life."""

PATIENCE: Final = 10.0
"""Seconds that a transaction waits for the guard's row, before it looks who holds it, and a raise
ends them."""

GRACE: Final = 5.0
"""Seconds that sessions that are ended have, at the least, to be gone."""

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
"""What a transaction begins with. A COMMIT that is acknowledged must be durable, whatever the
session's default is. The timeline is that of the log that is written: what the last checkpoint says
is older for a while after another server has taken over."""

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
    """What a transaction knows of itself."""

    life: str
    """Of the store: the database system and its timeline. It changes when a backup is restored to a
    point in time, and when a standby takes over."""
    transaction: int


class PostgresGuard:
    """One guard in one database. Several may stand in one database, and know nothing of each other.

    ``dsn`` says how to connect, as libpq understands it. ``name`` is the guard's, of one output of
    one computation. ``slots``: one for a writer that owns the whole key space, as a Spark query
    does; as many as stay for good, where workers own parts of it
    (:func:`lowwater_pipeline.guard.slot_bounds`). ``patience`` is how many seconds a transaction
    waits for the row. Then a raise ends those who hold it, if what is committed lets it pass; a
    write waits once more as long, and ends nobody.

    It has one connection, made when it is needed. Not for several threads at a time.
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
        """Let the connection go. The next call makes another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def raise_(self, claim: Claim, *, bounds: Iterable[bytes] = (b"", b""), begin: int = 0) -> PostgresWriter:
        """Raise a claim that the authority has acknowledged, and return its writer.

        From now on no older claim writes, and all that one wrote is there to be read.

        ``bounds`` are the claim's (``lease.bounds``); ``begin`` is the number of the first batch,
        where none was written yet, or another identity has counted before. Read the state only
        after this. Whoever holds the row longer than ``patience`` is ended: a writer that is raised
        over is a zombie. A raise that is refused by what is committed ends nobody.

        Costs a transaction, and one row for each slot. A repeat with the same claim changes
        nothing. Raises Fenced when a newer claim was raised, another GuardError, Unaligned for
        bounds that are not those of slots, and what psycopg raises.
        """
        slots = slots_between(bounds, self.slots)
        if type(begin) is not int or not 0 <= begin <= MAX_BATCH:
            msg = f"begin={begin!r}: the number of the first batch is a whole number from 0 on"
            raise Unfit(msg)

        def work(cursor: _Cursor, begun: _Begun) -> dict[int, Row]:
            self._make(cursor, slots)
            found = self._lock(cursor, slots)
            made = {slot: raised(row, claim, begun.life, begin, self._where(slot)) for slot, row in found.items()}
            self.probe("raise checked")
            cursor.executemany(
                f"UPDATE lowwater_guard SET ({_COLUMNS}) = (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) WHERE guard = %s AND slot = %s",
                [(*_values(row), self.name, slot) for slot, row in made.items() if row != found[slot]],
            )
            return made

        def check(found: Mapping[int, Row | None], life: str) -> None:
            for slot, row in found.items():
                raised(row, claim, life, begin, self._where(slot))

        return PostgresWriter(self, claim, slots, self.transact(work, slots, check, ends=True))

    def rows(self) -> dict[int, Row | None]:
        """Return what stands in each slot now, for people: nothing is locked, and it may be older than what is committed next. Raises Damaged."""
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
        """Run what locks the guard's rows first, and commit; once more when the answer to COMMIT was lost, since it begins with a locked look.

        ``check`` raises what is refused by the rows of ``slots`` as they are committed. ``ends``: end those who hold the rows too long, unless it is.
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
                f"the guard {self.name}: PostgreSQL did not answer to COMMIT, nor when it was asked again: {again}. Nobody knows whether the write was made. Make the same "
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
        """Do what :meth:`PostgresWriter.write` says."""

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

        def check(found: Mapping[int, Row | None], life: str) -> None:
            # A batch before may be under way yet: only the locked look tells what follows.
            with suppress(Rewound):
                judge(found, claim, life, steps, digest, self.name)

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
        found = self._lock(cursor, sorted(steps)) if _one(cursor)[0] else dict.fromkeys(steps)
        return judge(found, claim, begun.life, steps, digest, self.name, after)

    # -- transactions ------------------------------------------------------------------------------

    def _patiently(self, work: Callable[[_Cursor, _Begun], T], slots: tuple[int, ...], check: _Check, ends: bool) -> T:
        """Wait for the row as long as patience lasts.

        Then say what is refused anyway, or wait once more, while those who hold it are named, or
        ended.
        """

        def look(connection: _Connection) -> None:
            check(*self._committed(connection, slots))

        self._holders = None
        try:
            return self._once(work)
        except _Held:
            logger.warning("guard %s: its row is held for more than %g s", self.name, self.patience)
        # Who is refused anyway, a zombie or a stranger, must not end the session of the owner.
        look(self._connected())
        self._holders = holders = _Holders(self.dsn, look if ends else None)
        try:
            return self._once(work)
        except _Held as held:
            look(self._connected())
            why = (
                f"this role could not end them: {holders.problem or 'they hold on'}" if ends else "a write ends nobody"
            )
            msg = (
                f"the guard {self.name} is held by the sessions {sorted(holders.found)} of PostgreSQL, and {why}. End them with pg_terminate_backend(), or stop the old "
                "writer; then do the same again."
            )
            raise Blocked(msg) from held
        finally:
            self._holders = None

    def _committed(self, connection: _Connection, slots: tuple[int, ...]) -> tuple[dict[int, Row | None], str]:
        """Return the rows of slots as they are committed, without a lock, and the life of the store. Raises Damaged."""
        with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
            _, _, life, _ = self._begin(cursor)
            cursor.execute("SELECT to_regclass('lowwater_guard') IS NOT NULL")
            if not _one(cursor)[0]:
                return dict.fromkeys(slots), life
            self._check_slots(cursor)
            return self._read(cursor, slots), life

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Around what waits for the guard's rows, and nothing else: who holds what the caller writes is nobody's to end."""
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
            # What was committed before the lock was got must be seen, whatever the role's default
            # is.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.read_only = False
            self._connection = connection
        return self._connection

    # -- rows --------------------------------------------------------------------------------------

    def _make(self, cursor: _Cursor, slots: range) -> None:
        """Make what is missing of the guard's rows, empty.

        The row of slot 0 tells of all guards of this name how many slots they have.
        """
        cursor.execute("SELECT to_regclass('lowwater_guard') IS NOT NULL")
        if not _one(cursor)[0]:
            # Of two who make a table at a time, one would fail.
            with self._waiting():
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext('lowwater_guard'))")
            cursor.execute(_CREATE)
        with self._waiting():
            cursor.execute(_INSERT, (self.name, self.slots, [0]))
        self._check_slots(cursor)
        with self._waiting():
            cursor.execute(_INSERT, (self.name, self.slots, list(slots)))

    def _check_slots(self, cursor: _Cursor) -> None:
        """Raises Damaged for a guard that was made with other slots."""
        cursor.execute("SELECT slots FROM lowwater_guard WHERE guard = %s AND slot = 0", (self.name,))
        for [made] in cursor.fetchall():
            if made != self.slots:
                msg = f"it was made with {made} slots and is opened with {self.slots}: their number stays for good"
                raise damaged(f"the guard {self.name}", msg)

    def _lock(self, cursor: _Cursor, slots: Iterable[int]) -> dict[int, Row | None]:
        """Lock the rows of slots, always in the same order, and return them."""
        with self._waiting():
            return self._read(cursor, slots, _LOCK)

    def _read(self, cursor: _Cursor, slots: Iterable[int], lock: LiteralString = "") -> dict[int, Row | None]:
        asked = list(slots)
        cursor.execute(
            f"SELECT slot, {_COLUMNS} FROM lowwater_guard WHERE guard = %s AND slot = ANY(%s) ORDER BY slot {lock}",
            (self.name, asked),
        )
        found = {row[0]: self._row(row) for row in cursor.fetchall()}
        return {slot: found.get(slot) for slot in asked}

    def _row(self, said: Sequence[Any]) -> Row | None:
        slot, *values = said
        if all(value is None for value in values):
            return None
        if any(value is None for value in values):
            raise damaged(self._where(slot), "some of its columns are NULL")
        server_token, computation, identity, incarnation, token, nonce, configuration, life, batch, digest = values
        return Row(
            server_token,
            computation,
            identity,
            int(incarnation),
            int(token),
            nonce,
            int(configuration),
            life,
            batch,
            digest,
        )

    def _where(self, slot: int) -> str:
        return f"slot {slot} of the guard {self.name}"


class PostgresWriter:
    """The owner of some slots, from its raise until the next one: what :meth:`PostgresGuard.raise_` returns."""

    def __init__(self, guard: PostgresGuard, claim: Claim, slots: range, rows: Mapping[int, Row]) -> None:
        self.guard = guard
        self.claim = claim
        self.slots = slots
        self.found = dict(rows)
        """The row of each slot as the raise has left it: up to which batch the store is written."""

    def write(
        self,
        batch: int | Mapping[int, int],
        digest: str,
        fill: Callable[[psycopg.Cursor[Any]], object],
        *,
        after: int | None = None,
    ) -> bool:
        """Write a batch once; False when it stands there already.

        Durable when it returns, as far as the database keeps what it has acknowledged.

        ``fill(cursor)`` writes the rows. It is called under the lock, and again when the answer to
        its COMMIT was lost and the rows are not there. What it raises is raised, and nothing is
        written. ``batch`` is the number in all slots of the writer, or by slot those that it
        touches: each follows the last one of its slot by one, so write a batch without rows, too. A
        writer that leaves batches out, and durably notes which one it has written last, says that
        number by ``after``. ``digest`` tells the content of one batch from another's under the same
        number, such as the digest of its plan.

        Raises Fenced when a newer claim was raised, another GuardError, and what psycopg raises.
        Costs four round trips beside those of ``fill``.
        """
        steps = dict.fromkeys(self.slots, batch) if isinstance(batch, int) else dict(batch)
        check_steps(self.slots, steps, digest, self.guard.name)
        return self.guard.write(self.claim, steps, digest, fill, after)


class _Unknown(Exception):
    """The connection was lost between COMMIT and its answer."""


class _Held(Exception):
    """Somebody holds a row of the guard for longer than patience lasts."""


class _Holders:
    """Looks, while a session waits for a lock, for the sessions that it waits for; and ends them, if it may.

    ``check`` raises a GuardError when what is committed refuses who waits; it is asked again before each end, since the rows may have changed. None: end nobody.
    """

    PAUSE: Final = 0.2
    """Seconds between two looks."""

    def __init__(self, dsn: str, check: Callable[[_Connection], None] | None) -> None:
        self.found: set[int] = set()
        self.problem = ""
        self.ends = check is not None
        self._dsn = dsn
        self._check = check

    @contextmanager
    def of(self, waiting: int) -> Iterator[None]:
        """Look as long as this is open."""
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
            # Who waits says so itself, when its wait is over.
            self.problem = str(refused)

    def _look(self, connection: _Connection, waiting: int) -> None:
        holding = connection.execute(
            "SELECT DISTINCT pid FROM unnest(pg_blocking_pids(%s)) AS pid", (waiting,)
        ).fetchall()
        for [pid] in holding:
            self.found.add(pid)
            if self._check is None:
                continue
            self._check(connection)
            try:
                connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                logger.warning("ended the session %d of PostgreSQL, which held a guard's row", pid)
            except psycopg.Error as failure:
                self.problem = str(failure)


def _values(row: Row) -> tuple[object, ...]:
    return (
        row.server_token,
        row.computation,
        row.identity,
        row.incarnation,
        row.token,
        row.nonce,
        row.configuration,
        row.life,
        row.batch,
        row.digest,
    )


def _one(cursor: _Cursor) -> tuple[Any, ...]:
    found = cursor.fetchone()
    assert found is not None
    return found
