"""``make demo-billing``: exact bills while driver, authority and broker are killed.

Airlines are billed by the day, and every bill is in the table once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import lowwater
from examples.billing import chaos, driver
from examples.billing.answer import Bill, billed, expected
from examples.billing.chaos import AUTHORITY, BROKER, DRIVER
from examples.billing.computation import UNIQUE, Bills
from examples.billing.meters import Meters, flown
from examples.flights.data import moment
from examples.session import clear
from lowwater.watermark import MIN
from tests.kit.kafka import Kafka

FIRST: Final = datetime(2013, 1, 2, tzinfo=UTC)
PATIENCE: Final = 600.0
"""Seconds after which a step of the run gives up."""
EVERY: Final = 0.1
"""Seconds between two checks of processes and bills."""


@dataclass(slots=True)
class Run:
    """Record of a run."""

    expected: list[Bill]
    seed: int
    kills: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Killed processes, each with whether a query was within a batch at that time."""
    invoices: dict[int, list[Bill]] = field(default_factory=dict[int, list[Bill]])
    """The bills of each day, as the table had them when the low watermark said that the day was
    final."""
    bills: list[Bill] = field(default_factory=list[Bill])
    """The table at the end."""
    sent: Counter[int] = field(default_factory=Counter[int])
    """Records, by how often they were sent."""
    ended: int = 0
    """Number of times that the driver ended by itself."""
    seconds: float = 0.0


@dataclass(slots=True)
class Watch:
    """Keeps the processes running, and reads the bills of each day once they are final.

    The low watermark tells when they are.
    """

    lw: lowwater.Client
    job: chaos.Driver
    meters: Meters
    folder: Path
    run: Run
    low: lowwater.Watermark = field(default_factory=lambda: lowwater.Watermark(MIN))
    """Last low watermark read of the bills."""

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait. Raises TimeoutError, and what has ended the senders."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.look()
            if time.monotonic() > deadline:
                msg = f"not after {PATIENCE:.0f} s: {what}. {self.lw.why(Bills.name)}"
                raise TimeoutError(msg)
            time.sleep(EVERY)

    def look(self) -> None:
        """Look once."""
        if self.meters.failure is not None:
            raise self.meters.failure
        self.job.keep()
        with contextlib.suppress(lowwater.LowwaterError):  # it may be dead
            self.low = self.lw.get(Bills.name)[Bills.name].low
        new = {bill.day for bill in self.run.expected if bill.day < self.low.micros} - self.run.invoices.keys()
        if new:
            rows = billed(driver.table(self.folder))
            self.run.invoices |= {day: [bill for bill in rows if bill.day == day] for day in new}


@contextlib.contextmanager
def sending(lw: lowwater.Client, meters: Meters) -> Iterator[None]:
    """The senders, on a thread."""
    with contextlib.ExitStack() as stack:
        leases = {}
        for meter in driver.METERS:
            lw.register(meter)
            leases[meter] = stack.enter_context(lw.worker(meter, name=meter)).claim()
        thread = threading.Thread(target=meters.run, args=(leases,))
        thread.start()
        try:
            yield
        finally:
            meters.stop()
            thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Bill some days, kill what can be killed meanwhile, and compare every bill."""
    parser = argparse.ArgumentParser(prog="python -m examples.billing", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/billing"), help="table and files of the run")
    parser.add_argument("--days", type=int, default=10, help="to bill (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="of the driver (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="of what is killed when, and of what is sent twice; at random without")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "billing", parser)
    seed = options.seed if options.seed is not None else time.time_ns() % 1_000_000
    print(f"seed {seed}; {options.days} days, starting a broker of Kafka ...", flush=True)
    return report(run(out, options.days, options.kills, seed))


def run(out: Path, days: int, kills: int, seed: int) -> Run:
    """Bill some days under chaos. Raises TimeoutError when it does not go on."""
    chance, began = Random(seed), time.monotonic()
    flights = flown(FIRST, days)
    run_record = Run(expected(flights), seed)
    plan = [DRIVER] * kills + [AUTHORITY, BROKER]
    chance.shuffle(plan)
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(Kafka(out / "kafka"))
        kafka.create(driver.TOPIC, len(driver.METERS))
        authority = stack.enter_context(chaos.Authority(out / "authority")).start()
        lw = stack.enter_context(lowwater.connect(authority.address))
        job = chaos.Driver(out, authority.address, str(out), kafka.address)
        stack.callback(job.kill)
        meters = Meters(kafka, flights, Random(f"{seed} meters"))
        watch = Watch(lw, job, meters, out, run_record)
        stack.enter_context(sending(lw, meters))
        job.start()
        for number, what in enumerate(plan, start=1):
            watch.until(lambda: job.runs, "the driver runs")
            query = chance.choice((UNIQUE, Bills.name))
            before = chaos.planned(out, query)
            meters.let(number / (len(plan) + 1))
            watch.until(lambda: chaos.planned(out, query) > before, f"{query} has planned a batch")  # noqa: B023
            strike = time.monotonic() + chance.uniform(0, chaos.MOST)
            watch.until(lambda: time.monotonic() >= strike, "it is time")  # noqa: B023
            run_record.kills.append((what, any(chaos.within_a_batch(out, name) for name in (UNIQUE, Bills.name))))
            print(f"{time.monotonic() - began:5.0f} s  kill -9 of the {what}", flush=True)
            if what == DRIVER:
                job.kill()
                watch.look()  # what is final now is read while nobody writes
                job.start()
            elif what == AUTHORITY:
                authority.kill()
                authority.start()
            else:
                kafka.brokers[0].kill()
                kafka.brokers[0].start()
        meters.let(1.0)
        watch.until(lambda: watch.low.finished, "all days are billed")
    run_record.bills, run_record.sent, run_record.ended = billed(driver.table(out)), meters.sent, job.ended
    run_record.seconds = time.monotonic() - began
    return run_record


def report(run_record: Run) -> int:
    """Say what was billed, exactly; return the exit code."""
    rows = Counter((bill.account, bill.day) for bill in run_record.bills)
    expected_keys = {(bill.account, bill.day) for bill in run_record.expected}
    doubled = sum(count - 1 for count in rows.values())
    lost = len(expected_keys - rows.keys())
    print("\nday          bills  expected   flights  expected        cents     expected  final")
    for day in sorted({day for _, day in expected_keys}):
        have, want = ([bill for bill in bills if bill.day == day] for bills in (run_record.bills, run_record.expected))
        final = "yes" if run_record.invoices.get(day) == have else "CHANGED"
        flights = [sum(bill.flights for bill in bills) for bills in (have, want)]
        cents = [sum(bill.cents for bill in bills) for bills in (have, want)]
        print(
            f"{moment(day):%Y-%m-%d} {len(have):7} {len(want):9} {flights[0]:9,} {flights[1]:9,} {cents[0]:12,} {cents[1]:12,}  {final}"
        )
    killed = Counter(what for what, _ in run_record.kills)
    lines = [
        ("seed", run_record.seed),
        ("messages sent", run_record.sent.total()),
        ("of these copies", run_record.sent.total() - len(run_record.sent)),
        ("kill -9 of the driver", killed[DRIVER]),
        ("kill -9 of the authority", killed[AUTHORITY]),
        ("kill -9 of the broker", killed[BROKER]),
        ("of these within a batch", sum(within for _, within in run_record.kills)),
        ("driver ended by itself", run_record.ended),
        ("bills", len(run_record.bills)),
        ("expected", len(run_record.expected)),
        ("doubled", doubled),
        ("lost", lost),
        ("wrong", len(set(run_record.bills) - set(run_record.expected))),
    ]
    print()
    for name, value in lines:
        print(f"{name:26} {value:10,}")
    days = {bill.day for bill in run_record.expected}
    early = [
        day for day in days if run_record.invoices.get(day) != [bill for bill in run_record.expected if bill.day == day]
    ]
    if run_record.bills != run_record.expected or early:
        print(
            f"WRONG: each bill has to be there once, as it should be; {len(early)} days were not final when they were said to be"
        )
        return 1
    print(
        f"every bill is there once, and each day was complete when the low watermark said so; {run_record.seconds:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
