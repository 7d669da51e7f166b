"""``make zombie``: a zombie's write is delayed while its successor scans.

What each of them sees, in each store, with a guard and without.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg

import lowwater
from examples.flights.server import serving
from examples.zombie.stores import (
    CheckedPostgres,
    CheckedRedis,
    GuardedFiles,
    GuardedPostgres,
    GuardedRedis,
    RenamedFiles,
    Store,
)
from lowwater_pipeline.guard import Claim, GuardError
from tests.contract.redis_server import RedisServer
from tests.kit.postgres import Postgres

FIRST: Final = "09:00"
SECOND: Final = "10:00"


def main(arguments: Sequence[str] | None = None) -> int:
    """Play MillWheel's figure 12 against each store.

    The exit code is 0 if every guard has held, and every store without one has failed.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.zombie", description=main.__doc__)
    parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="lowwater-zombie-") as folder,
        serving(Path(folder) / "authority") as address,
        Postgres() as postgres,
        RedisServer(Path(folder) / "redis") as server,
        lowwater.connect(address) as lw,
    ):
        server.start()
        stores: list[Store] = [
            CheckedPostgres(postgres.dsn),
            GuardedPostgres(postgres.dsn),
            CheckedRedis(server.port),
            GuardedRedis(server.port),
            RenamedFiles(Path(folder) / "renamed"),
            GuardedFiles(Path(folder) / "guarded"),
        ]
        as_expected = [play(lw, number, store) == store.guarded for number, store in enumerate(stores)]
        for store in stores:
            store.close()
    return 0 if all(as_expected) else 1


def play(lw: lowwater.Client, number: int, store: Store) -> bool:
    """Let B write, be paused and go on, and B' take over meanwhile.

    Return whether B' knows of every timer in the end.
    """
    print(f"\n{store.name}")
    computation = f"timers-{number}"
    lw.register(computation)
    paused, runs_again = threading.Event(), threading.Event()

    def pause() -> None:
        paused.set()
        runs_again.wait()

    with ThreadPoolExecutor(1) as process:
        b = store.own(claimed(lw, computation, "B "))
        b.write(0, FIRST, lambda: None)
        say("B ", f"stores the timer {FIRST}")
        delayed = process.submit(b.write, 1, SECOND, pause)
        paused.wait()
        say("B ", f"begins to store the timer {SECOND}, and is paused")
        successor = store.own(claimed(lw, computation, "B'"))
        scanned = store.scan()
        say("B'", f"{'raises its claim and ' if store.guarded else ''}scans: {', '.join(scanned)}")
        runs_again.set()
        say("B ", f"goes on: {outcome(delayed.result)}")
        if isinstance(delayed.exception(), psycopg.Error):
            say("B ", f"tries again: {outcome(lambda: b.write(1, SECOND, lambda: None))}")
    if SECOND not in store.scan():
        say("A ", f"has got no answer for {SECOND}, and sends it again, to B'")
        successor.write(1, SECOND, lambda: None)
        scanned.append(SECOND)
    stored = store.scan()
    lost = sorted(set(stored) - set(scanned))
    say(
        "  ",
        f"in the store: {', '.join(stored)}; " + (f"B' never fires {', '.join(lost)}" if lost else "B' knows of all"),
    )
    return not lost


def claimed(lw: lowwater.Client, computation: str, writer: str) -> Claim:
    """Claim all keys, and return what the stores are shown."""
    lease = lw.worker(computation, name=writer.strip()).claim()
    say(writer, f"claims, and the authority grants {lease.sequencer}")
    return Claim.of(lw, lease)


def outcome(result: Callable[[], bool]) -> str:
    """Return what came of a write, in words."""
    try:
        return "its write lands" if result() else "it is told that it does not own the timers"
    except GuardError as refused:
        return f"{type(refused).__name__}: {refused}"
    except psycopg.Error as ended:
        return f"its session was ended by B', and nothing lands ({str(ended).splitlines()[0]})"


def say(who: str, what: str) -> None:
    """Print a step."""
    print(f"  {who}  {what}")


if __name__ == "__main__":
    sys.exit(main())
