"""``make daily-close``: three workers close four days of flights, and one pauses over its first."""

from __future__ import annotations

import argparse
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

import lowwater
from examples.daily_close import closer, spark_closer
from examples.daily_close.closer import GROUP, Row, Work
from examples.daily_close.injector import FLIGHTS, inject
from examples.flights import data
from examples.flights.data import DAY, SLICE_END, SLICE_START, Flight
from examples.flights.server import serving
from examples.session import clear, spark_session
from lowwater import TaskState, TaskView

WORKERS = ("closer-1", "closer-2", "sleeper")
LEASE = timedelta(seconds=1)


class Sleep:
    """A closer that pauses over its first day until another one has closed that day."""

    def __init__(self, lw: lowwater.Client) -> None:
        self._tasks = lw.tasks(FLIGHTS)
        self.over = threading.Event()
        """Set once it has slept, so that the others do not close all days before it gets one."""
        self.day: TaskView | None = None

    def __call__(self, lease: lowwater.TaskLease) -> None:
        """Return when another closer has done the task of the lease, the first time only."""
        if self.day is not None:
            return
        self.day = lease.task
        self.over.set()
        while not any(task.at == lease.task.at for task in self._tasks.list(GROUP, state=TaskState.DONE)):
            threading.Event().wait(0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Close each day once, and compare the closes with the batch answer."""
    parser = argparse.ArgumentParser(prog="python -m examples.daily_close", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/daily-close"), help="files of the run")
    parser.add_argument("--days", type=int, choices=range(1, 5), default=4, help="how many days (default: 4)")
    parser.add_argument("--spark", action="store_true", help="add each day up with a batch of Spark")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    clear(out, "daily-close", parser)
    end = SLICE_START + timedelta(days=options.days)
    flights = data.load(SLICE_START, min(end, SLICE_END))
    landing = out / "landing"
    with ExitStack() as open_:
        if options.spark:
            session = open_.enter_context(spark_session("daily close", out, {}))
            work = partial(spark_closer.close_day, session, landing)
        else:
            work = partial(closer.close_day, landing)
        tasks = run(open_.enter_context(serving(out / "authority")), flights, out, work)
    wrong = differences(tasks, flights, out / "closes")
    for task in tasks:
        rows = closer.read(out / "closes" / task.outputs[0])
        print(
            f"{str(task.at)[:10]}  {sum(row[1] for row in rows):5} flights  closed by {task.worker}, version {task.version}"
        )
    print("each day is closed once, as the batch answer has it" if not wrong else "\n".join(["WRONG:", *wrong]))
    return int(bool(wrong))


def run(address: str, flights: Sequence[Flight], out: Path, work: Work) -> list[TaskView]:
    """Inject the flights while three workers close their days; return the tasks, all done."""
    clients = [lowwater.connect(address) for _ in (*WORKERS, "injector")]
    try:
        lw = clients[-1]
        lw.register(FLIGHTS)
        lw.tasks(FLIGHTS).create_group(GROUP, every=timedelta(days=1), start=SLICE_START, lease=LEASE)
        sleep = Sleep(clients[2])
        with ThreadPoolExecutor(len(clients)) as pool:
            closes = out / "closes"
            closing = [pool.submit(closer.close, clients[2], WORKERS[2], closes, work, sleep)]
            injecting = pool.submit(inject, lw, flights, out / "landing")
            sleep.over.wait(60)
            closing += [
                pool.submit(closer.close, client, name, closes, work, lambda _: None)
                for client, name in zip(clients[:2], WORKERS[:2], strict=True)
            ]
            injecting.result()
            for future in closing:
                future.result()
        return list(lw.tasks(FLIGHTS).list(GROUP))
    finally:
        for client in clients:
            client.close()


def differences(tasks: Sequence[TaskView], flights: Sequence[Flight], closes: Path) -> list[str]:
    """Return the differences from the batch answer, which is counted here from all flights."""
    answer: dict[int, dict[str, list[int]]] = defaultdict(dict)
    for flight in flights:
        sums = answer[flight.sched_dep // DAY * DAY].setdefault(flight.origin, [0, 0, 0])
        sums[0], sums[1], sums[2] = sums[0] + 1, sums[1] + flight.cancelled, sums[2] + (flight.dep_delay or 0)
    wrong = []
    days = [day.micros for day in (task.at for task in tasks)]
    first = data.micros(SLICE_START)
    if days != [first + place * DAY for place in range(len(days))] or not set(answer) <= set(days):
        wrong.append(f"these days have a task: {days}")
    for task in tasks:
        expected: list[Row] = [(origin, *map(int, sums)) for origin, sums in sorted(answer[task.at.micros].items())]  # type: ignore[misc]
        rows = closer.read(closes / task.outputs[0])
        if task.state is not TaskState.DONE or rows != expected:
            wrong.append(f"{task.at}: {task.state.value}, {rows}, not {expected}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
