"""The completeness history of a real ``lowwater serve``: told, filtered, refused, and the same after any end of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import lowwater
from lowwater import Watermark
from tests.kit.times import at, mark
from tests.process.serving import Serving

MINUTE = timedelta(minutes=1)
BOUNDS = [b"", b"\x80", b""]


def flights(lw: lowwater.Client, *times: datetime, name: str = "flights") -> lowwater.Lease:
    """An injector in two ranges that was at these times, each of them durable before the next."""
    lease = lw.worker(name, name="injector").claim(bounds=BOUNDS)
    for time in times:
        lease.advance(None, oldest=[time, time + MINUTE], frontier=time + MINUTE)
        lease.flush(30)
    return lease


def test_when_each_hour_became_complete(lw: lowwater.Client) -> None:
    assert lw.register("flights").history_step == timedelta(hours=1)
    assert lw.history("flights") == lowwater.History("flights", timedelta(hours=1), (), 0)
    before = datetime.now(UTC)
    lease = flights(lw, at(13, 10), at(13, 50), at(14), at(17, 20))
    lease.finish()
    found = lw.history("flights")
    assert [(each.incarnation, each.after, each.through) for each in found] == [
        (1, Watermark.UNKNOWN, mark(13)),
        (1, mark(13), mark(14)),
        (1, mark(14), mark(17)),
        (1, mark(17), Watermark.FINISHED),
    ]
    times = [each.time for each in found]
    assert times == sorted(times)
    assert before <= times[0] + timedelta(milliseconds=1)
    assert times[-1] <= datetime.now(UTC)
    assert found.completions[1].behind == times[1] - at(14)
    # The newest of those that match, and how many there are.
    assert lw.history("flights", at(13)).completions == found.completions[1:]
    assert lw.history("flights", at(14), limit=1) == lowwater.History(
        "flights", timedelta(hours=1), found.completions[3:], 2
    )


def test_the_same_history_after_kills_stops_and_resets(server: Serving, lw: lowwater.Client) -> None:
    lw.register("flights", history_step=MINUTE)
    lw.register("counted", inputs=["flights"])
    flights(lw, *(at(1, minute) for minute in range(5)))
    totals = []
    for end in (server.kill, server.stop, server.kill):
        before = lw.history("flights")
        assert before.step == MINUTE
        totals.append(before.total)
        end()
        server.start()
        assert lw.history("flights") == before, f"after {end.__name__}"
        lw.reset("flights")
        assert lw.history("flights") == before, "a reset completes nothing and forgets nothing"
        flights(lw, *(at(2, minute) for minute in range(0, 9, 3)))
    assert totals == [5, 8, 11]
    found = lw.history("flights")
    server.kill()
    server.start()
    assert lw.history("flights") == found
    assert [each.incarnation for each in found] == [1] * 5 + [2] * 3 + [3] * 3 + [4] * 3
    assert [each.after.unknown for each in found].count(True) == 4, "each incarnation starts with nothing"
    assert lw.history("counted").total == 0
