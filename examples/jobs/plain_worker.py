"""A worker in plain Python, without Spark: it adds up the sales of two shops by the hour.

Start `lowwater serve --data lowwater-data`, then in another terminal:
    python examples/jobs/plain_worker.py
It delivers two sample files, adds up what is there, and ends. You will see the hours that are
complete. The hour from eleven on is open, because paris has not passed its end. By cron it is the
same: between two runs its workers have left in good order, and `why` calls them stopped.
"""

from collections import Counter
from datetime import datetime
from pathlib import Path

import lowwater

FOLDER = Path("plain_worker")
SHOPS = ["paris", "rome"]


def deliver(lw: lowwater.Client, shop: str, sales: str, until: str) -> None:
    """Write a file as a shop does, then promise that no sale before ``until`` will follow."""
    lw.register(shop)
    with lw.worker(shop) as worker:
        lease = worker.claim()
        part = FOLDER / f"{shop}.part"
        part.write_text(sales)  # a real shop also syncs the file, so that a power cut cannot take it
        part.rename(FOLDER / "in" / f"{shop}-{until}.csv")
        lease.advance(None, oldest=None, frontier=until)
        lease.flush()


def add_up(lw: lowwater.Client) -> str:
    """Write the total of each hour that is complete, and report how far the totals are."""
    lw.register("totals", inputs=SHOPS)
    with lw.worker("totals") as worker:
        lease = worker.claim()
        seen = worker.inputs()  # 1. first how far all shops are,
        totals: Counter[datetime] = Counter()
        for file in (FOLDER / "in").glob("*.csv"):  # 2. then everything that is there,
            for sale in file.read_text().splitlines():
                time, cents = sale.split(",")
                totals[datetime.fromisoformat(time).replace(minute=0)] += int(cents)
        if seen.low.unknown:
            return ""  # a shop has promised nothing yet
        open_hour = None  # when all shops have finished, every hour is complete
        if not seen.low.finished:
            open_hour = seen.low.datetime().replace(minute=0, second=0, microsecond=0)
        hours = [hour for hour in sorted(totals) if open_hour is None or hour < open_hour]
        closed = [f"{hour:%Y-%m-%d %H:%M} {totals[hour]:5}\n" for hour in hours]
        (FOLDER / "totals.txt").write_text("".join(closed))  # 3. then write the result,
        lease.advance(seen, oldest=open_hour)  # 4. and then say how far it is complete
        lease.flush()
    return "".join(closed)


if __name__ == "__main__":
    (FOLDER / "in").mkdir(parents=True, exist_ok=True)
    with lowwater.connect() as lw:
        deliver(lw, "rome", "2013-01-09T09:05Z,250\n2013-01-09T10:40Z,120\n2013-01-09T13:40Z,80\n", "2013-01-09T13:40Z")
        deliver(lw, "paris", "2013-01-09T09:50Z,300\n2013-01-09T11:20Z,990\n", "2013-01-09T11:20Z")
        print(add_up(lw), end="")
        for name in ["totals", *SHOPS]:
            print(f"{name} is complete until {lw.get(name)[name].low}")
