"""A record's whole life, cut off at every point of it: what comes out equals the batch answer, and what is late is somewhere.

Senders send until they are acknowledged, which is when the authority has counted the batch. The function that answers a record never makes the same row twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

import lowwater
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka, Row
from tests.kit.times import at, mark
from tests.spark.flow import Flow
from tests.spark.life import POINTS, Doom, Killed, Place, doomed, start
from tests.spark.support import Upstream, low

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
RECORDS = 8
"""New ones in a round."""
SEEDS = range(1, 4)
"""The seeds of the orders in which drivers are killed."""
SHOWN = ["delivery published", "told"]
"""Points at which `make test` cuts a life off: in the delivery, and between commit and acknowledgement."""
AGES = 5
"""Minutes that are longer than the slack."""


class Outcome(NamedTuple):
    lost: int
    doubled: int
    wrong: int
    """Rows with a value that is not theirs, and records in an output that is not theirs."""


class Senders:
    """Send each record until it is acknowledged, and now and then again after that."""

    def __init__(self, kafka: Kafka, place: Place, upstream: Upstream, seed: int) -> None:
        self.kafka, self.place, self.upstream = kafka, place, upstream
        self.chance = random.Random(seed)
        self.minute = 0
        self.records: dict[str, dict[str, Any]] = {}
        self.offsets = [0] * PARTITIONS
        self.waiting: dict[str, tuple[int, int]] = {}
        """Where the last copy of each is that is not acknowledged."""
        self.late: Counter[str] = Counter()
        self.undecidable: Counter[str] = Counter()

    def round(self) -> None:
        self._listen()
        oldest = min([self.minute, *(self.records[name]["minute"] for name in self.waiting)])
        self.upstream.at(10, oldest)
        self.minute += 1
        again = [name for name in self.waiting if not self.undecidable[name]]
        fresh = [self._made(self.minute - 1) for _ in range(RECORDS)]
        self._send(
            self.chance.sample(
                [*again, *fresh, *self.chance.sample(fresh, RECORDS // 2)], len(again) + RECORDS * 3 // 2
            )
        )

    def stray(self) -> None:
        """Send a record that comes too late, twice, and a copy of one that is forgotten, once: nobody could drop another one. All before is acknowledged."""
        assert not self.waiting
        late = self._made(self.minute - 2, ahead=False)
        self.late[late] = 1
        old = [record["id"] for record in self.records.values() if record["minute"] < self.minute - AGES]
        forgotten = self.chance.choice([name for name in old if not self.late[name] and not self.undecidable[name]])
        self.undecidable[forgotten] = 1
        self._send([late, forgotten, late])

    def acknowledged(self) -> bool:
        self._listen()
        if not self.waiting:
            self.upstream.at(10, self.minute)
        return not self.waiting

    def _made(self, minute: int, *, ahead: bool = True) -> str:
        number = len(self.records)
        name = f"record-{number}"
        second = self.chance.randrange(60)
        self.records[name] = {"id": name, "n": number, "t": at(10, minute, second).isoformat(), "minute": minute}
        return name

    def _send(self, names: list[str]) -> None:
        rows = []
        for name in names:
            partition = self.records[name]["n"] % PARTITIONS
            value = json.dumps({key: self.records[name][key] for key in ("id", "n", "t")})
            rows.append(Row(value.encode(), name.encode(), partition))
            self.waiting[name] = partition, self.offsets[partition]
            self.offsets[partition] += 1
        self.kafka.put(self.place.incoming, rows)

    def _listen(self) -> None:
        """Take the acknowledgements. A driver may have died in the middle of the last one."""
        with contextlib.suppress(FileNotFoundError):
            for line in self.place.acknowledged.read_text().splitlines():
                reached = json.loads(line)
                self.waiting = {
                    name: (partition, offset)
                    for name, (partition, offset) in self.waiting.items()
                    if offset >= reached.get(str(partition), 0)
                }


class Life:
    def __init__(self, kafka: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, seed: int = 0) -> None:
        self.kafka, self.flow, self.lw = kafka, flow, lw
        name = f"life-{flow.folder.name}-{seed}"
        folder = flow.folder / name
        folder.mkdir()
        self.place = Place(flow.address, str(folder), kafka.address, f"{name}-in", f"{name}-out")
        for topic in (self.place.incoming, self.place.outgoing):
            kafka.create(topic, PARTITIONS)
        self.doom = Doom(folder / "doom")
        self.senders = Senders(kafka, self.place, upstream, seed)
        self.died: Counter[str] = Counter()

    def run(self, points: list[str], driver: Thread | Process) -> None:
        """Cut off one life after the other, each at the next point, with records in it that are new, late and undecidable. In between all comes to rest."""
        driver.start()
        for _ in range(AGES + 2):
            self.senders.round()
        self.settled(driver)
        for point in points:
            self.doom.plan(point)
            self.senders.stray()
            self.senders.round()
            driver.died(point)
            self.died[point] += 1
            self.kept()
            self.doom.forgive()
            driver.start()
            self.settled(driver)
        driver.stop()

    def kept(self) -> None:
        """Fail if the low watermark has passed a record that is on time and has no answer."""
        reached = low(self.lw, "stage")
        answered = {row["id"] for row in self.answers()}
        senders = self.senders
        below = {
            name
            for name, record in senders.records.items()
            if lowwater.Watermark.of(datetime.fromisoformat(record["t"])) < reached and not senders.late[name]
        }
        assert below <= answered, f"{reached} is published, and {sorted(below - answered)} have no answer"

    def settled(self, driver: Thread | Process) -> None:
        eventually(self.senders.acknowledged, "all is acknowledged", seconds=300, check=driver.check)
        reached = mark(10, self.senders.minute)
        eventually(lambda: low(self.lw, "stage") == reached, "it has passed", seconds=300, check=driver.check)

    def outcome(self) -> Outcome:
        """Compare the outputs with what a look at all that was sent says at once: each record that was not late, once; and the others, beside."""
        senders = self.senders
        expected = {
            "main": Counter({name: 1 for name in senders.records if not senders.late[name]}),
            "late": senders.late,
            "undecidable": senders.undecidable,
        }
        rows = self.answers()
        actual = {
            "main": Counter(row["id"] for row in rows),
            **{name: self._beside(name) for name in ("late", "undecidable")},
        }
        lost = sum((expected[name] - actual[name]).total() for name in expected)
        doubled = sum(sum(count - 1 for count in actual[name].values() if count > 1) for name in expected)
        strange = sum(len(actual[name].keys() - expected[name].keys()) for name in expected)
        wrong = sum(row["square"] != senders.records[row["id"]]["n"] ** 2 for row in rows)
        return Outcome(lost, doubled, wrong + strange)

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(row.value) for row in self.kafka.rows(self.place.outgoing)]

    def _beside(self, name: str) -> Counter[str]:
        files = Path(self.place.folder, name).glob("batch=*/*.parquet")
        return Counter(row["id"] for file in files for row in pq.read_table(file).to_pylist())


class Thread:
    def __init__(self, life: Life) -> None:
        self.life = life

    def start(self) -> None:
        life = self.life
        life.flow.queries.append(start(life.flow.spark, life.place, life.doom))

    def died(self, point: str) -> None:
        [query] = self.life.flow.queries
        with pytest.raises(Exception, match=f"{Killed.__name__}.*{point}|^{point}$"):
            assert not query.await_termination(180), f"it ended by itself, and not at: {point}"
        self.life.flow.queries.clear()

    def check(self) -> None:
        self.life.flow.check()

    def stop(self) -> None:
        self.life.flow.stop()


class Process:
    """A driver in a process of its own, and one more that is ready to take its place."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.log = Path(life.place.folder, "driver.log")
        self.running: subprocess.Popen[bytes] | None = None
        self.spare = self._spare()

    def _spare(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.life_driver", *self.life.place, str(self.life.doom.file)]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    def start(self) -> None:
        self.running, self.spare = self.spare, self._spare()
        assert self.running.stdin is not None
        with self.running.stdin as stdin:
            stdin.write(b"\n")

    def died(self, point: str) -> None:
        assert self.running is not None
        assert self.running.wait(300) == -signal.SIGKILL, f"{point}: {self.log.read_text()[-3000:]}"

    def check(self) -> None:
        assert self.running is not None
        assert self.running.poll() is None, self.log.read_text()[-3000:]

    def stop(self) -> None:
        for process in (self.running, self.spare):
            if process is not None:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
                assert process.stdin is not None
                process.stdin.close()


@pytest.fixture
def life(kafka: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream) -> Life:
    return Life(kafka, flow, lw, upstream)


@pytest.mark.parametrize("points", [SHOWN, pytest.param([*POINTS], marks=pytest.mark.long)], ids=["shown", "all"])
def test_a_life_that_is_cut_off_at_any_point_of_it_ends_as_it_would_have(life: Life, points: list[str]) -> None:
    with doomed(life.doom):
        life.run(points, Thread(life))
    exact(life, points)


def exact(life: Life, points: Sequence[str]) -> None:
    """Each life was cut off once, and nothing is lost, doubled or in a wrong place."""
    assert life.outcome() == Outcome(0, 0, 0)
    assert life.died == Counter(points)
    assert life.senders.late.total() == life.senders.undecidable.total() == len(points)


def test_the_page_has_every_point() -> None:
    rows = re.findall(
        rf"^\| (.*?) \| {len(SEEDS)} \| 0 \| 0 \| 0 \|$",
        (ROOT / "docs/concepts/exactly-once.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [*POINTS.values()]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_drivers_killed_anywhere(kafka: Kafka, flow: Flow, lw: lowwater.Client, upstream: Upstream, seed: int) -> None:
    life = Life(kafka, flow, lw, upstream, seed)
    driver = Process(life)
    try:
        life.run(random.Random(seed).sample([*POINTS], len(POINTS)), driver)
    finally:
        driver.stop()
    exact(life, [*POINTS])
