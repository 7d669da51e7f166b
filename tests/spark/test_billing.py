"""The example of bills under chaos, in small: whatever is killed, the table is the batch answer, and each day was final when the low watermark said so."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from pyspark.sql import SparkSession

import lowwater
import lowwater_spark as lws
from examples.billing import driver
from examples.billing.__main__ import FIRST, Run, report, run
from examples.billing.answer import Bill
from examples.billing.chaos import AUTHORITY, BROKER, DRIVER
from examples.billing.computation import Bills
from examples.billing.meters import Meters, flown
from examples.flights.data import load, micros, moment
from lowwater.watermark import MAX
from lowwater_pipeline.computation import Record
from lowwater_pipeline.computation.turn import Kept, Turns
from tests.kit.kafka import Kafka, Row
from tests.spark.test_delta import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Size(NamedTuple):
    """How much is billed, and how often the driver is killed meanwhile."""

    days: int
    kills: int


class Finished(NamedTuple):
    """A run, its size, and the folder that it has left."""

    found: Run
    size: Size
    out: Path


@pytest.fixture(
    scope="module",
    params=[Size(2, 1), pytest.param(Size(10, 5), marks=pytest.mark.long)],
    ids=["in small", "as shown"],
)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One run for all tests; what is killed when is another in every run."""
    out, seed = tmp_path_factory.mktemp("billing"), random.randrange(1_000_000)
    print(f"seed {seed}")
    size: Size = request.param
    return Finished(run(out, size.days, size.kills, seed), size, out)


def test_each_bill_is_there_once_and_right(
    finished: Finished, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Delta's own reader has it; and the table says of itself that it is complete."""
    found, size, out = finished
    rows = spark.read.format("delta").load(str(driver.table(out))).collect()
    bills = sorted(Bill(row.account, int(row.day.timestamp()) * 1_000_000, row.flights, row.cents) for row in rows)
    assert bills == found.bills == by_hand(size.days)
    assert lws.complete_through(spark, str(driver.table(out)), writers=[Bills.name]).low.micros == MAX
    assert sorted(what for what, _ in found.kills) == sorted([DRIVER] * size.kills + [AUTHORITY, BROKER])
    assert found.sent.total() > len(found.sent) == sum(bill.flights for bill in bills)
    assert report(found) == 0
    assert "every bill is there once" in capsys.readouterr().out


def by_hand(days: int) -> list[Bill]:
    """The bills, from the file of the whole year."""
    bills: dict[tuple[str, int], list[int]] = {}
    for flight in load(FIRST, FIRST + timedelta(days=days)):
        if flight.dep_delay is not None:
            day = moment(flight.sched_dep).replace(hour=0, minute=0)
            bills.setdefault((flight.carrier, micros(day)), []).append(2 * flight.distance)
    return sorted(Bill(account, day, len(cents), sum(cents)) for (account, day), cents in bills.items())


@pytest.mark.parametrize("how", ["lost", "doubled", "wrong", "early"])
def test_a_wrong_run_ends_with_one(how: str, finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    found = finished.found
    first, *others = found.bills
    wrong = {
        "lost": replace(found, bills=others),
        "doubled": replace(found, bills=[first, first, *others]),
        "wrong": replace(found, bills=[first._replace(cents=first.cents + 1), *others]),
        # The day was said to be final when a bill of it was not there.
        "early": replace(found, invoices={**found.invoices, first.day: found.invoices[first.day][1:]}),
    }[how]
    assert report(wrong) == 1
    assert "WRONG" in capsys.readouterr().out


class Sent:
    """Stands for Kafka, and for the lease of each meter: what is sent is never below what its meter has promised."""

    def __init__(self) -> None:
        self.promised = [0] * len(driver.METERS)
        self.records: list[Record] = []

    def put(self, topic: str, rows: Sequence[Row]) -> None:
        assert topic == driver.TOPIC
        for row in rows:
            said = json.loads(row.value)
            at = micros(datetime.fromisoformat(said["sched_dep"]))
            assert at >= self.promised[row.partition]
            self.records.append(Record(at, said["id"], said))


class Lease:
    """The lease of one of them."""

    def __init__(self, sent: Sent, meter: int) -> None:
        self.sent, self.meter = sent, meter

    def advance(self, _seen: None, *, oldest: None, frontier: int) -> None:
        assert oldest is None
        self.sent.promised[self.meter] = frontier

    def finish(self) -> None:
        self.sent.promised[self.meter] = MAX

    def flush(self, _timeout: float) -> None:
        pass


@pytest.fixture(scope="module")
def sent() -> Sent:
    """All flights of a day, as the meters send them."""
    found = Sent()
    meters = Meters(cast(Kafka, found), flown(FIRST, 1), random.Random(1))
    meters.let(1.0)
    leases = {meter: Lease(found, number) for number, meter in enumerate(driver.METERS)}
    meters.run(cast(Mapping[str, lowwater.Lease], leases))
    assert meters.failure is None
    return found


def test_a_meter_promises_nothing_that_it_may_send_again(sent: Sent) -> None:
    assert sent.promised == [MAX, MAX]
    assert set(Counter(record.id for record in sent.records).values()) == {1, 2}


def test_copies_that_are_not_dropped_are_billed(sent: Sent) -> None:
    """Why there is a deduplication; without copies the computation alone is right."""
    once = {record.id: record for record in sent.records}.values()
    assert computed(once) == by_hand(1)
    assert sum(bill.flights for bill in computed(sent.records)) == len(sent.records) > len(once)


def computed(records: Iterable[Record]) -> list[Bill]:
    """What the computation makes of records, all in one batch."""
    turns = Turns(Bills(), {"bills": frozenset(Bill._fields)}, MAX, 0)
    by_account: dict[str, list[Record]] = {}
    for record in records:
        by_account.setdefault(record["carrier"], []).append(record)
    for account, ours in by_account.items():
        assert not turns.take(account, Kept(), ours)
    return sorted(Bill(**row) for _, row, _ in turns.productions)
