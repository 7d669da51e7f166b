"""The client against a real ``lowwater serve``."""

from __future__ import annotations

import sys
import textwrap

import pytest

import lowwater
from tests.kit.program import run_program
from tests.kit.times import at, mark
from tests.process.serving import Serving


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
