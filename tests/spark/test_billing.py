"""The example of bills under chaos: whatever is killed, the table is the batch answer, and each day was final when the low watermark said so."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import cast

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


DAYS, KILLS = 10, 5
"""How much is billed, and how often the driver is killed meanwhile."""


@pytest.mark.long
def test_each_bill_is_there_once_and_right(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Delta's own reader has it; and the table says of itself that it is complete. What is killed when is another in every run."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    found = run(tmp_path, DAYS, KILLS, seed)
    rows = spark.read.format("delta").load(str(driver.table(tmp_path))).collect()
    bills = sorted(Bill(row.account, int(row.day.timestamp()) * 1_000_000, row.flights, row.cents) for row in rows)
    assert bills == found.bills == by_hand(DAYS)
    assert lws.complete_through(spark, str(driver.table(tmp_path)), writers=[Bills.name]).low.micros == MAX
    assert sorted(what for what, _ in found.kills) == sorted([DRIVER] * KILLS + [AUTHORITY, BROKER])
    assert found.sent.total() > len(found.sent) == sum(bill.flights for bill in bills)
    assert report(found) == 0
    assert "every bill is there once" in capsys.readouterr().out


@cache
def by_hand(days: int) -> list[Bill]:
    """The bills, from the file of the whole year."""
    bills: dict[tuple[str, int], list[int]] = {}
    for flight in load(FIRST, FIRST + timedelta(days=days)):
        if flight.dep_delay is not None:
            day = moment(flight.sched_dep).replace(hour=0, minute=0)
            bills.setdefault((flight.carrier, micros(day)), []).append(2 * flight.distance)
    return sorted(Bill(account, day, len(cents), sum(cents)) for (account, day), cents in bills.items())


def test_a_wrong_run_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    bills = by_hand(1)
    days = {bill.day: [other for other in bills if other.day == bill.day] for bill in bills}
    found = Run(bills, seed=1, invoices=days, bills=bills)
    assert report(found) == 0
    first, *others = bills
    for wrong in (
        replace(found, bills=others),
        replace(found, bills=[first, first, *others]),
        replace(found, bills=[first._replace(cents=first.cents + 1), *others]),
        # The day was said to be final when a bill of it was not there.
        replace(found, invoices={**days, first.day: days[first.day][1:]}),
    ):
        capsys.readouterr()
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
