"""A daily close: when all receipts of a day have arrived, one of several closers adds the day up.

Start `lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/daily_close.py
It delivers receipts of three days, closes the two that are complete, and ends. Each day is closed
once, also when you run several closers, kill one, or start one again. With `take(..., wait=3600)`
a closer runs on, and waits an hour for the next day.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lowwater

FOLDER = Path("daily_close")
RECEIPTS = {"2013-01-07": [300, 250], "2013-01-08": [120, 80, 990], "2013-01-09": [40]}


def deliver(lw: lowwater.Client) -> None:
    """Write a file for each day, then promise that nothing before noon of the last follows."""
    lw.register("receipts")
    with lw.worker("receipts") as worker:
        lease = worker.claim()
        for day, cents in RECEIPTS.items():
            (FOLDER / f"{day}.txt").write_text("\n".join(map(str, cents)))
        lease.advance(None, oldest=None, frontier="2013-01-09T12:00Z")
        lease.flush()


def close_days(lw: lowwater.Client) -> None:
    """Take one day after the other, until none is left that is complete."""
    tasks = lw.tasks("receipts")
    tasks.create_group("daily", every=timedelta(days=1), start=datetime(2013, 1, 7, tzinfo=UTC))
    while (lease := tasks.take("daily")) is not None:
        day = f"{lease.task.at.datetime():%Y-%m-%d}"
        total = sum(map(int, (FOLDER / f"{day}.txt").read_text().split()))
        name = lease.output("close.txt")  # a name that no other closer writes to
        (FOLDER / name).parent.mkdir(parents=True)
        (FOLDER / name).write_text(f"{total}\n")
        try:
            lease.commit([name])
        except lowwater.StaleLease as late:  # this closer took too long, and another one has the day
            print(late)
    for task in tasks.list("daily").tasks:
        print(f"{task.at.datetime():%Y-%m-%d} {(FOLDER / task.outputs[0]).read_text().strip():>5}")
    print(f"every day until {tasks.list('daily').group.closed} is closed")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with lowwater.connect() as lw:
        deliver(lw)
        close_days(lw)
