"""The example of bills under chaos: whatever is killed, the table is the batch answer, and each day was final when the low watermark said so."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lowwater_spark as lws
from examples.billing import driver
from examples.billing.__main__ import FIRST, report, run
from examples.billing.answer import Bill
from examples.billing.chaos import AUTHORITY, BROKER, DRIVER
from examples.billing.computation import Bills
from examples.flights.data import load, micros, moment
from lowwater.watermark import MAX

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


DAYS, KILLS = 10, 5
"""The number of days that are billed, and of the times that the driver is killed meanwhile."""


@pytest.mark.long
def test_each_bill_is_once_and_right(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    outcome = run(tmp_path, DAYS, KILLS, seed)
    rows = spark.read.format("delta").load(str(driver.table(tmp_path))).collect()
    bills = sorted(Bill(row.account, int(row.day.timestamp()) * 1_000_000, row.flights, row.cents) for row in rows)
    assert bills == outcome.bills == by_hand(DAYS)
    assert lws.complete_through(spark, str(driver.table(tmp_path)), writers=[Bills.name]).low.micros == MAX
    assert sorted(what for what, _ in outcome.kills) == sorted([DRIVER] * KILLS + [AUTHORITY, BROKER])
    assert outcome.sent.total() > len(outcome.sent) == sum(bill.flights for bill in bills)
    assert report(outcome) == 0
    assert "every bill is there once" in capsys.readouterr().out


@cache
def by_hand(days: int) -> list[Bill]:
    bills: dict[tuple[str, int], list[int]] = {}
    for flight in load(FIRST, FIRST + timedelta(days=days)):
        if flight.dep_delay is not None:
            day = moment(flight.sched_dep).replace(hour=0, minute=0)
            bills.setdefault((flight.carrier, micros(day)), []).append(2 * flight.distance)
    return sorted(Bill(account, day, len(cents), sum(cents)) for (account, day), cents in bills.items())
