"""The client against a real ``lowwater serve``."""

from __future__ import annotations

import sys
import textwrap

import pytest

import lowwater
from lowwater import Watermark
from tests.kit.eventually import eventually
from tests.kit.program import run_program
from tests.kit.times import at, mark
from tests.process.serving import Serving

BOUNDS = [b"", b"\x40", b"\x80", b""]


def pipeline(lw: lowwater.Client) -> tuple[lowwater.Lease, lowwater.Worker, lowwater.Lease]:
    lw.register("flights")
    lw.register("enriched", inputs=["flights"], heuristics=[0.5, 0.99])
    flights = lw.worker("flights", name="injector").claim()
    worker = lw.worker("enriched", name="exec-7")
    return flights, worker, worker.claim(bounds=BOUNDS)


def inputs_at(worker: lowwater.Worker, low: Watermark) -> lowwater.Inputs:
    eventually(lambda: worker.inputs().low >= low)
    return worker.inputs()


def test_values_keep_across_kill_and_restart_while_a_worker_reports(server: Serving, lw: lowwater.Client) -> None:
    flights, worker, enriched = pipeline(lw)
    flights.advance(None, oldest=None, frontier=at(14))
    enriched.advance(inputs_at(worker, mark(14)), oldest=at(13))
    enriched.flush()
    server.kill()

    # Without the authority the pipeline goes on; watermarks stop.
    flights.advance(None, oldest=None, frontier=at(16))
    assert worker.inputs().low == mark(14)
    enriched.advance(worker.inputs(), oldest=None)
    with pytest.raises(lowwater.Timeout, match="stays staged"):
        enriched.flush(timeout=0.05)
    eventually(lambda: worker.inputs().stale_for > 0.3)

    server.start()
    assert lw.wait("flights", at(16), timeout=30).low == mark(16)
    assert lw.wait("enriched", at(14), timeout=30).low == mark(14)
    enriched.advance(inputs_at(worker, mark(16)), oldest=None)
    enriched.flush(timeout=30)
    assert lw.get("enriched")["enriched"].low == mark(16)
    assert lw.statistics().reporter.streams > 1
    assert worker.inputs().stale_for < 10


def test_a_source_that_starts_again_before_its_promise_is_warned(
    lw: lowwater.Client, caplog: pytest.LogCaptureFixture
) -> None:
    lw.register("flights")
    warning = "flights starts again at 2013-01-09T13:00:00Z, but was promised until 2013-01-09T14:00:00Z"
    for hour, warnings in ((14, 0), (14, 0), (13, 1)):
        lease = lw.worker("flights").claim()
        lease.advance(None, oldest=None, frontier=at(hour))
        lease.flush()
        assert caplog.text.count(warning) == caplog.text.count("starts again") == warnings
    assert lw.get("flights")["flights"].low == mark(14)


def test_leaving_a_client_does_so_for_all_its_workers(server: Serving, lw: lowwater.Client) -> None:
    with lowwater.connect(server.address) as leaving:
        leaving.register("flights")
        leaving.worker("flights").claim().advance(None, oldest=None, frontier=at(14))
    assert lw.get("flights")["flights"].low == mark(14)


def run(program: str, *arguments: str) -> str:
    done = run_program([sys.executable, "-c", textwrap.dedent(program), *arguments], timeout=60)
    # gRPC notes in its own log that it leaves the threads of a forking process alone.
    complaints = [line for line in done.stderr.splitlines() if "skipping fork() handlers" not in line]
    assert (done.returncode, complaints) == (0, [])
    return done.stdout


def test_a_program_that_just_ends_ends_at_once_and_quietly(server: Serving) -> None:
    program = """
        import sys, lowwater
        lw = lowwater.connect(sys.argv[1])
        lw.register("flights")
        lease = lw.worker("flights").claim()
        lease.advance(None, oldest=None, frontier=5)
        lease.flush()
        print(lw.inputs("flights").read().low)
    """
    assert run(program, server.address) == "1970-01-01T00:00:00.000005Z\n"
