"""A program that runs for ever, without Spark: it follows a log, and counts its lines by the hour.

Start `lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/follow_log.py
and in a third one, in the same folder:
    echo 2013-01-09T11:05Z GET / >> follow_log/access.log
It makes a short log, and runs until Ctrl-C. The lines are in order of time, so it promises the time
of the last line that is whole: no older line follows. An hour is complete when there is a line of a
later hour, and not when the clock says so. Start it again at any time: it counts all lines anew.
So it is for a log that is never rotated: of a new file it would count the new lines only.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import lowwater

FOLDER = Path("follow_log")
LOG = FOLDER / "access.log"
SAMPLE = "2013-01-09T09:10Z GET /\n2013-01-09T09:50Z GET /a\n2013-01-09T10:20Z GET /\n2013-01-09T11:0"


def whole_lines(log: BinaryIO) -> Iterator[str]:
    """Yield the new lines. A half-written one is left until its end is there."""
    while (line := log.readline()).endswith(b"\n"):
        yield line.decode()
    log.seek(-len(line), os.SEEK_CUR)


def write(totals: Counter[datetime], open_hour: datetime) -> None:
    """Write the total of each hour that is complete, durably, because it is promised next."""
    part = FOLDER / "totals.part"
    with part.open("w") as file:
        file.writelines(f"{hour:%Y-%m-%d %H:%M} {totals[hour]}\n" for hour in sorted(totals) if hour < open_hour)
        file.flush()
        os.fsync(file.fileno())
    part.rename(FOLDER / "totals.txt")
    folder = os.open(FOLDER, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def follow(lease: lowwater.Lease, log: BinaryIO) -> None:
    """Count, write and report, for ever."""
    totals: Counter[datetime] = Counter()
    while True:
        last = None
        for line in whole_lines(log):
            last = datetime.fromisoformat(line.split()[0])
            totals[last.replace(minute=0, second=0, microsecond=0)] += 1
        if last is not None:
            open_hour = max(totals)
            write(totals, open_hour)
            lease.advance(None, oldest=open_hour, frontier=last, waiting_for=f"a line of {LOG} after {open_hour:%H}:59")
        time.sleep(1)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    if not LOG.exists():
        LOG.write_text(SAMPLE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # it leaves the `with` in good order then
    with lowwater.connect() as lw:
        lw.register("requests")
        with lw.worker("requests") as worker, LOG.open("rb") as log:
            follow(worker.claim(), log)
