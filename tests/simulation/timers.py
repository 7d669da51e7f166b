"""A computation with state and timers, whose key ranges are split, merged and moved while it runs, is killed and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import shutil
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pyspark
from greenlet import GreenletExit, getcurrent, greenlet
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from lowwater import Layout, errors
from lowwater.aio import Batches, Lease, Worker
from lowwater.v1 import workers_pb2
from lowwater_pipeline.computation.codec import Codec
from lowwater_pipeline.computation.computation import Computation, Input, Output, Record, Timer, floor
from lowwater_pipeline.computation.productions import OUTPUT, Outputs
from lowwater_pipeline.computation.stage import ComputationUpdate
from lowwater_pipeline.computation.turn import Context
from lowwater_spark.checkpoint.durable import make_directory, write_once
from lowwater_spark.checkpoint.identity import identity, new_ordinal
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch, StateLost
from lowwater_spark.sources.base import NONE
from lowwater_spark.track.plan.checked import Checked
from lowwater_spark.track.rows.cut import Cut
from lowwater_spark.track.rows.keyed import Keyed
from lowwater_spark.track.run import batch as batch_module
from lowwater_spark.track.run import hook as hook_module
from lowwater_spark.track.run.authority import Authority, Registration
from lowwater_spark.track.run.batch import Batch
from lowwater_spark.track.run.hook import Hook
from lowwater_spark.track.run.run import Run
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.state import receipt as receipt_module
from lowwater_spark.track.state import update as update_module
from lowwater_spark.track.state.receipt import Receipt, receipt_of
from lowwater_spark.track.state.update import arrow_schema
from tests.kit.planting import instead

if TYPE_CHECKING:
    from lowwater.aio import Client
    from tests.simulation.kernel import Process, Simulation, Tap
    from tests.simulation.oracle import Oracle
    from tests.simulation.programs import Place, Share
    from tests.simulation.truth import Pipeline

TIMED: Final = "counts"

READ: Final = "enriched"

CELLS: Final = 8
HOUR: Final = 3_600_000_000
SIGN: Final = 1 << 63
RANGES: Final = 2

ECHO: Final = 7_000_000
"""After so many microseconds of the clock some records are told again."""

KINDS: Final = ("first", "one", "other", "last")
"""Keys of a cell: at its first place and at its last, and two that have one place."""


def is_timed(seed: int) -> bool:
    return seed % 9 in (5, 8)


def key_of(cell: int, number: int) -> tuple[str, int]:
    kind, size = KINDS[number % len(KINDS)], (1 << 64) // CELLS
    place = cell * size + {"first": 0, "one": size // 3, "other": size // 3, "last": size - 1}[kind]
    return f"{cell}-{kind}", place - SIGN


def echoes(number: int) -> bool:
    return number % 5 == 0


class Counts(Computation):
    name = TIMED
    inputs: ClassVar[Sequence[Input]] = [Input(READ, key="key", event_time="t", id="number")]
    outputs: ClassVar[Mapping[str, str | Output]] = {
        "windows": "key string, start long, numbers array<bigint>, met long",
        "echoes": "key string, number long",
    }
    state = Codec(tuple[int, dict[int, list[int]]], initial=lambda: (0, {}))
    stamp = timedelta(hours=1)

    def process_record(self, ctx: Context, record: Record) -> None:
        met, hours = ctx.state
        start = floor(record.timestamp, HOUR)
        hours.setdefault(start, []).append(record["number"])
        ctx.set_timer("end", start + HOUR, hold=start)
        if echoes(record["number"]):
            ctx.set_wall_timer(str(record["number"]), ctx.now + ECHO)
        ctx.state = met + 1, hours

    def process_timer(self, ctx: Context, timer: Timer) -> None:
        met, hours = ctx.state
        if timer.wall:
            ctx.produce("echoes", {"key": ctx.key, "number": int(timer.tag)})
            return
        start = timer.at - HOUR
        row = {"key": ctx.key, "start": start, "numbers": hours.pop(start, []), "met": met}
        ctx.produce("windows", row, timestamp=start)


COLUMNS: Final = {"windows": ["key", "start", "numbers", "met"], "echoes": ["key", "number"]}
SCHEMA: Final = (
    StructType()
    .add(OUTPUT, StringType())
    .add("windows/key", StringType())
    .add("windows/start", LongType())
    .add("windows/numbers", ArrayType(LongType()))
    .add("windows/met", LongType())
    .add("echoes/key", StringType())
    .add("echoes/number", LongType())
)
OUT: Final = Outputs(TIMED, COLUMNS, arrow_schema(SCHEMA))
ROWS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("number", pa.int64()),
        ("lowwater_key", pa.string()),
        ("lowwater_place", pa.int64()),
        ("lowwater_micros", pa.int64()),
        ("lowwater_id", pa.int64()),
    ]
)

Produced = tuple[Any, ...]


@dataclass
class Key:
    """One key. Before each step it looks for what comes next, among all there is."""

    name: str
    met: int = 0
    hours: dict[int, list[int]] = field(default_factory=dict)
    rings: list[tuple[int, str]] = field(default_factory=list)
    out: list[Produced] = field(default_factory=list)

    def turn(self, records: Sequence[tuple[int, int]], low: int, now: int) -> None:
        remaining = sorted(records)
        while True:
            due = sorted(start for start in self.hours if start + HOUR <= low)
            if remaining:
                due = [start for start in due if start + HOUR <= remaining[0][0]]
            rings = sorted(ring for ring in self.rings if ring[0] <= now)
            if due:
                self.out.append(("windows", self.name, due[0], tuple(self.hours.pop(due[0])), self.met))
            elif remaining:
                time, number = remaining.pop(0)
                self.met += 1
                self.hours.setdefault(time // HOUR * HOUR, []).append(number)
                if echoes(number):
                    self.rings.append((now + ECHO, str(number)))
            elif rings:
                self.rings.remove(rings[0])
                self.out.append(("echoes", self.name, int(rings[0][1])))
            else:
                return


class Timers:
    def __init__(self, sim: Simulation, pipeline: Pipeline, oracle: Oracle, *, weak: bool) -> None:
        self.feed: list[tuple[int, Any]] = []
        """All records that were ever handed to the computation, each with its cell."""
        pipeline.nodes[TIMED].feed = self.feed
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.checkpoint = self.folder / "ck"
        make_directory(self.checkpoint / "lowwater")
        (self.checkpoint / "lowwater" / "identity").write_text("checkpoint of counts")
        for log in ("offsets", "commits"):
            make_directory(self.checkpoint / log)
        self.drivers: list[Driver] = []
        self.over = False
        self._sim, self._pipeline, self._oracle, self._weak = sim, pipeline, oracle, weak
        self._keys = {name: Key(name) for cell in range(CELLS) for name in (f"{cell}-{kind}" for kind in KINDS)}
        self._done = 0
        self._offset = 0
        self._layout: Any = None
        self._now = 0
        self._rows: list[list[Produced]] = []
        self._owed: dict[int, int] = {}
        self._ordinals: dict[int, int] = {}
        self._newest = 0

    # -- what is sent ------------------------------------------------------------------------------------------------

    def sent(self, tap: Tap) -> None:
        match tap.message:
            case workers_pb2.ClaimRequest() as message if message.computation == TIMED:
                self._ordinals[tap.call] = message.ordinal
            case workers_pb2.ClaimResponse() if tap.call in self._ordinals:
                ordinal = self._ordinals[tap.call]
                self._oracle.expect(
                    ordinal >= self._newest or self._weak,
                    f"run {ordinal} of {TIMED} is granted its ranges, and run {self._newest} has been",
                )
                self._newest = max(self._newest, ordinal)
            case _:
                pass

    # -- what is written ---------------------------------------------------------------------------------------------

    def written(self, number: int) -> None:
        table = pyarrow.parquet.read_table(self.folder / "out" / f"batch={number}") if self._has_rows(number) else None
        rows = [_plain(row) for row in ([] if table is None else table.to_pylist())]
        if number < self._done:
            self._oracle.expect(rows == self._rows[number], f"batch {number} of {TIMED} has other rows than it had")
            return
        self._oracle.expect(number == self._done, f"batch {number} of {TIMED} is written after {self._done - 1}")
        logged = json.loads((self.checkpoint / "lowwater" / "batches" / f"{number}.json").read_bytes())
        manifest = json.loads((self.checkpoint / "lowwater" / "state" / str(number) / "manifest.json").read_bytes())
        [layout] = [*logged.get("layouts", {}).values()] or [None]  # of the only stage
        if layout != self._layout:
            self._layout = layout
            self._sim.reach("timers: a batch began with another layout")
        about = f"batch {number} of {TIMED}, with {logged['low']},"
        self._oracle.expect(logged["now"] >= self._now, f"{about} begins at {logged['now']}, after {self._now}")
        self._now = logged["now"]
        self._oracle.expect(
            manifest.get("layout") == layout, f"{about} began with {layout}, and has {manifest.get('layout')}"
        )
        upto = int(CheckpointLog(self.checkpoint).plan(number).lines[0])  # type: ignore[union-attr]
        records, self._offset = self.feed[self._offset : upto], upto
        by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for cell, record in records:
            by_key[key_of(cell, record.number)[0]].append((record.time, record.number))
            self._owed[record.number] = 1 + echoes(record.number)
        for name, key in self._keys.items():
            key.out.clear()
            key.turn(by_key[name], logged["low"], logged["now"])
            mine = [row for row in rows if row[1] == name]
            for output in COLUMNS:
                actual = [row for row in mine if row[0] == output]
                expected = [row for row in key.out if row[0] == output]
                self._oracle.expect(actual == expected, f"{about} has {actual} of {name}, and {expected} comes of it")
        self._oracle.expect(
            sum(len(key.out) for key in self._keys.values()) == len(rows), f"{about} has rows of nobody: {rows}"
        )
        self._rows.append(rows)
        self._done += 1
        self._finish(rows, logged["low"])

    def _has_rows(self, number: int) -> bool:
        return any((self.folder / "out" / f"batch={number}").glob("*.parquet"))

    def _finish(self, rows: Sequence[Produced], low: int) -> None:
        finished = set()
        for row in rows:
            for number in row[3] if row[0] == "windows" else [row[2]]:
                self._owed[number] = self._owed.get(number, 0) - 1
                self._oracle.expect(self._owed[number] >= 0, f"{TIMED} tells of record {number} once too often")
                if not self._owed[number]:
                    finished.add(number)
        for index, cell in enumerate(self._pipeline.nodes[TIMED].cells):
            done = [record for number, record in cell.pending.items() if number in finished]
            self._pipeline.finish(TIMED, index, done, [], low)

    def audit(self) -> None:
        windows: dict[tuple[str, int], list[int]] = defaultdict(list)
        for cell, record in self.feed:
            windows[key_of(cell, record.number)[0], floor(record.time, HOUR)].append(record.number)
        rows = [row for batch in self._rows for row in batch]
        produced = sorted((row[1], row[2], sorted(row[3])) for row in rows if row[0] == "windows")
        self._oracle.expect(
            produced == sorted((*window, sorted(numbers)) for window, numbers in windows.items()),
            f"the windows of {TIMED} are not those of its records",
        )
        again = sorted(row[2] for row in rows if row[0] == "echoes")
        expected = sorted(record.number for _, record in self.feed if echoes(record.number))
        self._oracle.expect(again == expected, f"{TIMED} has told other records again than it was to: {again}")

    def close(self) -> None:
        self.over = True
        for driver in self.drivers:
            with contextlib.suppress(BaseException):
                driver.body.throw(GreenletExit)
        shutil.rmtree(self.folder, ignore_errors=True)


def _plain(row: Mapping[str, Any]) -> Produced:
    values = [row[f"{row[OUTPUT]}/{name}"] for name in COLUMNS[row[OUTPUT]]]
    return row[OUTPUT], *(tuple(value) if isinstance(value, list) else value for value in values)


class Frame:
    def __init__(self, table: pa.Table, session: Session) -> None:
        self.table, self.sparkSession = table, session

    @property
    def columns(self) -> list[str]:
        return [*self.table.column_names]

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.table.schema)

    @property
    def write(self) -> Frame:
        return self

    def format(self, _: str) -> Frame:
        return self

    def options(self, **_: str) -> Frame:
        return self

    def save(self, uri: str) -> None:
        folder = Path(uri.removeprefix("file://"))
        folder.mkdir()
        pyarrow.parquet.write_table(self.table, folder / "part-0.parquet")


@dataclass
class Session:
    driver: Driver
    conf: Any = field(default_factory=lambda: {"spark.sql.shuffle.partitions": "3"})
    sparkContext: Any = field(default_factory=lambda: SimpleNamespace(defaultParallelism=2))  # noqa: N815 - Spark's

    @property
    def read(self) -> Any:
        def parquet(*files: str) -> Frame:
            tables = [pyarrow.parquet.read_table(file.removeprefix("file://")) for file in files]
            return Frame(pa.concat_tables(tables), self)

        return SimpleNamespace(schema=lambda _: SimpleNamespace(parquet=parquet))

    def range(self, *_: int) -> Any:
        seed = pa.RecordBatch.from_pydict({"id": [0]})

        def collect(function: Callable[[Any], Any]) -> list[Any]:
            return self.driver.task(1, 0, lambda: [*function(iter([seed]))])

        return SimpleNamespace(mapInArrow=lambda function, _: SimpleNamespace(collect=lambda: collect(function)))


def run_tasks(job: Any, frame: Frame, keyed: Keyed) -> list[Receipt]:
    table, driver, cut = frame.table, frame.sparkSession.driver, keyed.cut
    places = [place + SIGN for place in table["lowwater_place"].to_pylist()]
    handles = [bisect_right(cut.places, place) - 1 for place in places]
    spread: dict[int, list[int]] = defaultdict(list)
    for handle in range(len(cut)):
        pinned = cut.layout.tasks[handle] if cut.layout.tasks else 0
        spread[(pinned - 1 if pinned else handle) % 3].append(handle)
    own = {
        "__lowwater_time": table["lowwater_micros"],
        "__lowwater_place": table["lowwater_place"],
        "__lowwater_seed": pa.array(np.zeros(len(places), np.bool_)),
    }
    table = table.drop_columns(["lowwater_micros", "lowwater_place"])
    for name, column in own.items():
        table = table.append_column(name, column)
    receipts = []
    for number, mine in sorted(spread.items()):
        seeds = [dict.fromkeys(table.column_names) | {"__lowwater_place": h, "__lowwater_seed": True} for h in mine]
        rows = table.filter(pa.array([handle in mine for handle in handles], pa.bool_()))
        rows = pa.concat_tables([rows, pa.Table.from_pylist(seeds, table.schema)])
        batches = rows.combine_chunks().to_batches()

        def attempt(batches: Sequence[pa.RecordBatch] = batches) -> list[Any]:
            return [*update_module._update_ranges(job, iter(batches))]

        if driver.random.random() < 0.05:
            driver.task(0, number, attempt)  # a speculative one, that does not count
        receipts += [receipt_of(row) for row in driver.task(0, number, attempt)]
    return receipts


class Feed:
    kind = "feed"
    outputs: ClassVar[Mapping[str, Any]] = {}
    remembered = 0
    planned_is_read = True

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def open(self, *_: Any) -> Feed:
        return self

    def head(self, _: str) -> int:
        return len(self._timers.feed)

    def wait(self, listed: int, _: str | None) -> int:
        return listed

    def renewed(self, head: int, *_: Any) -> int:
        return head

    def reached(self, head: int, offset: str | None) -> bool:
        return offset_of(offset) >= head

    def same(self, one: int, other: int) -> bool:
        return one == other

    def look(self, _: int) -> None:
        """Log nothing."""

    def missing(self, head: int, _: int) -> list[str]:
        del head
        return []

    read_to = knock = confirm = check = lambda self, line: None

    def evidence(self, _: str) -> list[Path]:
        return []

    def close(self) -> None:
        """End the run."""


def offset_of(line: str | None) -> int:
    return 0 if line in (None, NONE) else int(line)


class Ticks:
    def __init__(self) -> None:
        self.requested = False

    def force(self, _: Any) -> bool:
        new, self.requested = not self.requested, True
        return new

    def clean(self, _: Any) -> None:
        """Leave nothing behind."""


class TickingHook(Hook):
    def open(self, run: Run) -> Sequence[Any]:
        self.run, self.ticks = run, Ticks()  # type: ignore[assignment]
        return []


class Rows:
    """Rows that nobody counts: a stage with state counts what its tasks see."""

    def __init__(self, frame: Frame, *_: Any) -> None:
        self._frame = frame

    def observed(self) -> Frame:
        return self._frame


class QuickAuthority(Authority):
    def __post_init__(self) -> None:
        self.cut = Cut(self.registration.ranges)
        self._quick = self.client


class Sync:
    """A client that blocks where the asynchronous one waits, as the client on threads does."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        return self._call(attribute) if callable(attribute) else _sync(attribute)

    def _call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            result = function(*arguments, **more)
            return _sync(wait(result) if inspect.isawaitable(result) else result)

        return call


class SyncClient(Sync):
    def __init__(self, client: Client) -> None:
        super().__init__(client)
        settings = client.settings
        self.settings = SimpleNamespace(namespace=settings.namespace, timeout=settings.timeout, client=self)

    def close(self) -> None:
        """The process closes it."""


def _sync(value: Any) -> Any:
    return Sync(value) if isinstance(value, Batches | Lease | Worker) else value


def wait(awaitable: Any) -> Any:
    parent = getcurrent().parent
    assert parent is not None
    return parent.switch(awaitable)


class Concurrent(Exception):
    """Spark's: another query writes into the checkpoint."""


_TASKS: WeakKeyDictionary[greenlet, SimpleNamespace] = WeakKeyDictionary()
"""The attempt of a task that a driver is in the middle of. Others go on meanwhile, and a driver may die there."""


def _task() -> SimpleNamespace | None:
    return _TASKS.get(getcurrent())


class Driver:
    def __init__(self, place: Place, timers: Timers, process: Process, client: Client) -> None:
        self.place, self.timers, self.process = place, timers, process
        self.random = place.random(process)
        self.client = SyncClient(client)
        self.session = Session(self)
        self.attempts = 0
        self.body = greenlet(self.live)
        self.rivals = any(driver.process.alive for driver in timers.drivers)
        """True if another run works beside it: the slower one of the two may find what the other has made, and ends."""
        for driver in timers.drivers:
            driver.rivals = True
        timers.drivers.append(self)

    def live(self) -> None:
        checkpoint, sim = self.timers.checkpoint, self.place.sim
        log = CheckpointLog(checkpoint)
        last = log.last_committed()
        number = 0 if last is None else last + 1
        planned = log.plan(number)
        digest = b"" if planned is None else bytes.fromhex(planned.digest)
        ordinal = new_ordinal(checkpoint)
        registration = Registration(
            TIMED, [READ], (), RANGES, identity(checkpoint), number, ordinal, digest, adopt=False
        )
        if not self.place.calm and self.random.random() < 0.3:
            wait(asyncio.sleep(self.random.uniform(0, 5)))  # a slow start: another run may be quicker
        part = StageRun(
            QuickAuthority(self.client, registration, clock=lambda: sim.now),  # type: ignore[arg-type]
            Keyed("key", "t", RANGES, injector=False, window=timedelta(hours=1)),
            checkpoint,
        )
        skew = 0 if self.place.calm else self.random.choice([0, 0, -20, 20])  # another host
        hook = TickingHook(
            self.write,  # type: ignore[arg-type]
            self.step,
            wall=lambda: self.process.clock() / 1_000_000 + skew,
            elapsed=lambda: sim.now,
        )
        run = Run(checkpoint, Checked([Feed(self.timers)]), [part], hook, clock=lambda: sim.now)  # type: ignore[list-item]
        run.start()
        # Spark starts behind the claim: only now it looks how far its checkpoint is.
        last = log.last_committed()
        number = 0 if last is None else last + 1
        while True:
            if log.plan(number) is not None:
                sim.reach("timers: a batch was replayed")
            elif not self.plan(log, number, hook):
                wait(asyncio.sleep(self.random.uniform(0.1, 0.7)))
                run.look()
                continue
            self.step("planned", number)
            hook.run_batch(self.rows(log, number), number)  # type: ignore[arg-type]
            self.step("run", number)
            if not write_once(checkpoint / "commits" / str(number), b"v1\n{}"):
                raise Concurrent
            self.step("done", number)
            run.look()
            wait(asyncio.sleep(self.random.uniform(0.1, 1.0)))
            number += 1

    def plan(self, log: CheckpointLog, number: int, hook: TickingHook) -> bool:
        before = log.plan(number - 1)
        offset = 0 if before is None else offset_of(before.lines[0])
        available = len(self.timers.feed)
        if available == offset and not hook.ticks.requested:  # type: ignore[attr-defined]
            return False
        hook.ticks.requested = False  # type: ignore[attr-defined]
        upto = min(available, offset + self.random.choice([2, 8, 50])) if not self.place.calm else available
        if not write_once(self.timers.checkpoint / "offsets" / str(number), f'v1\n{{"n": {number}}}\n{upto}'.encode()):
            raise Concurrent
        return True

    def rows(self, log: CheckpointLog, number: int) -> Frame:
        plan, before = log.plan(number), log.plan(number - 1)
        assert plan is not None
        records = self.timers.feed[0 if before is None else offset_of(before.lines[0]) : offset_of(plan.lines[0])]
        self.random.shuffle(records)
        rows = []
        for cell, record in records:
            key, place = key_of(cell, record.number)
            rows.append((key, record.number, key, place, record.time, record.number))
        columns = [*zip(*rows, strict=True)] if rows else [()] * len(ROWS)
        return Frame(
            pa.table(
                [pa.array(column, schema_field.type) for column, schema_field in zip(columns, ROWS, strict=True)], ROWS
            ),
            self.session,
        )

    def write(self, frame: Frame, batch: Batch) -> None:
        update = ComputationUpdate(Counts(), OUT, batch.now, batch.promised.micros)
        emitted: Any = batch.stateful(frame, update, SCHEMA)  # type: ignore[arg-type]
        batch.write(emitted, self.timers.folder / "out")
        self.timers.written(batch.id)

    def step(self, name: str, _: int) -> None:
        if not self.place.calm and self.random.random() < 0.01:
            self.place.sim.reach("timers: a driver died between two steps")
            self.place.sim.reach(f"timers: died at {name}")
            self.process.crash()
        wait(asyncio.sleep(self.random.uniform(0.001, 0.05)))

    def task(self, stage: int, partition: int, body: Callable[[], list[Any]]) -> list[Any]:
        self.attempts += 1
        context = SimpleNamespace(
            stageId=lambda: stage, partitionId=lambda: partition, taskAttemptId=lambda: self.attempts
        )
        _TASKS[getcurrent()] = context
        try:
            batches = body()
        finally:
            del _TASKS[getcurrent()]
        return [SimpleNamespace(**row) for batch in batches for row in batch.to_pylist()]


async def run(place: Place, process: Process, name: str, share: Share) -> None:
    del name, share
    timers = place.timers
    assert timers is not None
    async with place.client(process) as client:
        driver = Driver(place, timers, process, client)
        body = driver.body
        try:
            waits = body.switch()
            while not body.dead:
                try:
                    result = await waits
                except BaseException as failure:  # noqa: BLE001 - it is raised in the driver
                    waits = body.throw(failure)
                else:
                    waits = body.switch(result)
        except Concurrent:
            place.sim.reach("timers: Spark refused a zombie")
        except (CheckpointMismatch, StateLost, FileNotFoundError) as failure:
            if not driver.rivals:
                raise
            place.sim.reach(f"timers: {type(failure).__name__} beside another run")


_AWAY: Final = (
    *(errors.Timeout, errors.Unavailable, errors.ShuttingDown, errors.JournalFailed, errors.UnknownComputation),
    *(errors.LayoutConflict, errors.IncarnationChanged, errors.Overloaded),
)


async def lay_out(place: Place, process: Process) -> None:
    random = place.random(process)
    slots = 65_536 // CELLS
    async with place.client(process) as lw:
        while True:
            await asyncio.sleep(random.uniform(1, 6))
            if place.calm:
                continue
            try:
                view = await lw.layout(TIMED)
                if not view.wanted.starts and view.current is None:
                    continue
                base = view.base
                layout = _changed(base, random.randrange(3), random.choice(range(CELLS)) * slots, random.randrange(4))
                if layout is not None:
                    await lw.change_layout(TIMED, view.incarnation, layout)
                    place.sim.reach("timers: another layout was wanted")
            except _AWAY as error:
                place.sim.reach(f"layout: {error.reason}")


def _changed(base: Layout, kind: int, slot: int, task: int) -> Layout | None:
    at = bisect_right(base.starts, slot) - 1
    start = base.starts[at]
    if kind == 0:
        return None if slot == start else base.split(start, [slot])
    if kind == 1:
        return base.merge(start, base.starts[at + 1]) if at + 1 < len(base) else None
    return base.move(start, task)


@contextmanager
def spark_away(sim: Simulation) -> Iterator[None]:
    clock = SimpleNamespace(
        time=lambda: sim.god.clock() / 1_000_000, monotonic=lambda: sim.now, sleep=lambda s: wait(asyncio.sleep(s))
    )
    nothing = OUT.schema.empty_table()
    with instead(
        *((module, "time", clock) for module in (hook_module, update_module, batch_module)),
        (hook_module, "Rows", Rows),
        (batch_module, "key_text", lambda *_: "key"),
        (batch_module, "key_zone", lambda *_: ""),
        (batch_module, "check_windows", lambda *_, **__: None),  # a plan of Spark's
        (update_module, "_run", run_tasks),
        (update_module, "_no_rows", lambda session, _: Frame(nothing, session)),
        (receipt_module, "_client", lambda settings: settings.client),
        (pyspark.TaskContext, "get", _task),
    ):
        yield
