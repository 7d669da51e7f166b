"""The completeness history of a real ``lowwater serve``: told, filtered, refused, and the same after any end of it."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

import lowwater
from lowwater import Watermark
from lowwater.cli import main
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


def test_rule2_what_was_told_is_still_there_after_a_kill_at_any_moment(server: Serving, lw: lowwater.Client) -> None:
    lw.register("flights", history_step=timedelta(seconds=1))
    lease = flights(lw)
    told: tuple[lowwater.Completion, ...] = ()
    for run in range(4):
        for second in range(60):
            # Nobody waits for these, so the kill comes between any two steps of the server.
            lease.advance(None, oldest=None, frontier=at(run, 0) + timedelta(seconds=second))
        lw.wait("flights", at(run), timeout=30)
        seen = lw.history("flights", limit=1000).completions
        assert seen[: len(told)] == told
        server.kill()
        server.start()
        after = lw.history("flights", limit=1000).completions
        assert after[: len(seen)] == seen
        told = after
    assert [each.after for each in told[1:]] == [each.through for each in told[:-1]], "nothing twice, nothing left out"


def test_the_step_is_kept_and_another_is_refused(server: Serving, lw: lowwater.Client) -> None:
    assert lw.register("flights", history_step=MINUTE).history_step == MINUTE
    assert lw.register("flights").history_step == MINUTE, "no step: as registered before"
    server.kill()
    server.start()
    assert lw.topology().computations["flights"].history_step == MINUTE
    with pytest.raises(lowwater.RegistrationConflict, match="history step 60000000 us"):
        lw.register("flights", history_step=timedelta(hours=1))
    for bad in (timedelta(seconds=0.9), timedelta(days=367)):
        with pytest.raises(lowwater.InvalidArgument) as caught:
            lw.register("other", history_step=bad)
        assert caught.value.metadata["field"] == "history_step"
        assert "366 days" in caught.value.metadata["fix"]


def test_bad_questions_are_refused_and_counted(server: Serving, lw: lowwater.Client) -> None:
    lw.register("flights")
    with pytest.raises(lowwater.UnknownComputation, match="flihgts"):
        lw.history("flihgts")
    with pytest.raises(lowwater.InvalidArgument, match="at most 10000") as caught:
        lw.history("flights", limit=10_001)
    assert (caught.value.metadata["field"], caught.value.metadata["fix"]) == ("page_size", "ask for at most 10000")
    assert lw.history("flights", limit=10_000).total == 0
    with urllib.request.urlopen(server.metrics) as page:
        text = page.read().decode()
    refused = 'lowwater_refused_calls_total{method="GetHistory",'
    counted = [line for line in text.splitlines() if line.startswith(refused)]
    assert len(counted) == 2
    assert all(line.endswith(" 1.0") for line in counted)


def test_the_command(server: Serving, lw: lowwater.Client, capsys: pytest.CaptureFixture[str]) -> None:
    lw.register("flights")

    def command(*arguments: str) -> tuple[int, str]:
        code = main(["history", *arguments, "--address", server.address])
        return code, capsys.readouterr().out

    code, out = command("flights")
    assert code == 0
    assert out.startswith("no step of flights is complete yet: it is at unknown")
    assert command("nothing")[0] == 2
    flights(lw, at(13), at(14), at(17))
    code, out = command("flights")
    lines = out.splitlines()
    assert (code, len(lines), lines[0]) == (0, 5, "flights, in steps of 1 h, UTC")
    assert lines[2].startswith("up to 2013-01-09 13:00     2")
    assert lines[4].startswith("2013-01-09 14:00 to 17:00  2")
    assert [line[-1] for line in lines[2:]] == ["#"] * 3
    assert command("flights", "--last", "1")[1].splitlines()[-1] == "and 2 before them; --last shows more"
    code, out = command("flights", "--since", "2013-01-09T14:00Z", "--json")
    record = json.loads(out)
    assert (code, record["total"], record["step_micros"]) == (0, 1, 3_600_000_000)
    [only] = record["completions"]
    assert (only["through"], only["after_micros"]) == ("2013-01-09T17:00:00Z", mark(14).micros)
    code, out = command("flights", "--since", "2013-01-09T18:00Z")
    assert out.startswith("no step that ends after 2013-01-09T18:00:00Z of flights is complete yet")
    lw.reset("flights")
    code, out = command("flights")
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == ["INCARNATION", "1, ended", "1, ended", "1, ended"]
