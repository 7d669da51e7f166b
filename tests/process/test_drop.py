"""A job is dropped: by command and by the clients, on one authority and on shards, and what everybody sees of it."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
import lowwater.aio
from lowwater import errors
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.browsing import Viewer
from tests.process.serving import Serving

NOON = 1_767_268_800_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """An authority with its status page."""
    with Serving(tmp_path / "data", page="127.0.0.1:0") as one:
        yield one


def reported(lw: lowwater.Client, name: str, hour: int) -> lowwater.Lease:
    """A worker that has said how far it is."""
    lw.register(name)
    lease = lw.worker(name, name="exec-7").claim()
    lease.advance(None, oldest=None, frontier=NOON + hour * HOUR)
    lease.flush(30)
    return lease


def series(server: Serving, name: str) -> list[str]:
    """The samples of a computation in a scrape."""
    with urllib.request.urlopen(server.metrics, timeout=30) as answer:
        return [line for line in answer.read().decode().splitlines() if f'computation="{name}"' in line]


def test_everything_of_a_dropped_job_ends_and_a_new_incarnation_begins_above(
    server: Serving, lw: lowwater.Client
) -> None:
    lease, neighbour = reported(lw, "old", 2), reported(lw, "beside", 1)
    told: list[lowwater.WatermarkView] = []
    with lowwater.connect(server.address) as reader, Viewer(server.page) as viewer:
        thread = threading.Thread(
            target=lambda: told.extend(view for view in reader.watch() if view.computation == "old")
        )
        thread.start()
        waited = _Waits(server.address)
        eventually(lambda: [view.low.micros for view in told] == [NOON + 2 * HOUR])
        viewer.until(lambda page: page.low("old") == NOON + 2 * HOUR)
        waited.begun()
        assert series(server, "old")

        with pytest.raises(errors.OwnedRanges, match=r"exec-7 owns key ranges of old, last heard of \d+ m?s ago"):
            lw.drop("old")
        assert lw.drop("old", force=True) == 1

        eventually(lambda: told[-1].dropped)
        assert isinstance(waited.ended(), errors.IncarnationChanged)
        viewer.until(lambda page: "old" not in page.shown)
        assert not series(server, "old")
        assert [*lw.get()] == ["beside"]
        assert lw.get("old")["old"].dropped
        with pytest.raises(errors.StaleSequencer, match="its computation was dropped"):
            _until_refused(lease)
        with pytest.raises(errors.UnknownComputation, match="old was dropped"):
            lw.worker("old").claim()
        assert [*lw.topology().computations] == ["beside"]

        neighbour.advance(None, oldest=None, frontier=NOON + 3 * HOUR)
        neighbour.flush(30)

        reported(lw, "old", 1)
        eventually(lambda: (told[-1].incarnation, told[-1].low.micros) == (2, NOON + HOUR))
        viewer.until(lambda page: page.low("old") == NOON + HOUR)
    thread.join()
    server.kill()
    server.start()
    eventually(lambda: lw.get("old")["old"].low.micros == NOON + HOUR)
    assert lw.get("old")["old"].incarnation == 2


class _Waits:
    """Somebody who waits for what will not come."""

    def __init__(self, address: str) -> None:
        self._client = lowwater.connect(address)
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._client.wait("old", NOON + 9 * HOUR, timeout=60)
        except errors.LowwaterError as error:
            self._failed.append(error)

    def begun(self) -> None:
        eventually(lambda: self._client.statistics().watcher.messages > 0)

    def ended(self) -> Exception:
        self._thread.join(60)
        self._client.close()
        [error] = self._failed
        return error


def _until_refused(lease: lowwater.Lease) -> None:
    def refused() -> bool:
        lease.advance(None, oldest=None, frontier=NOON + 5 * HOUR)
        return False

    eventually(refused)
