"""``lowwater why`` against real shards: a staged incident, and a store that hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import lowwater
import lowwater.aio
from lowwater.cli import main
from lowwater.watermark import MIN
from lowwater_spark.track.authority import WIDEN_INTERVAL, Authority, Registration
from tests.kit.eventually import eventually
from tests.process.serving import serving
from tests.process.sharding import Sharded

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command; returns its exit code, and what it writes to its output and of errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_why_blames_no_worker_while_the_store_hangs(tmp_path: Path, command: Command) -> None:
    """What cannot be confirmed is not said: the command exits with 3 and the reason (rule 11: it says so)."""
    with Sharded(tmp_path, 1) as there, there.connect() as lw:
        lw.register("flights")
        lw.worker("flights", name="exec-7").claim()
        asked = ("why", "flights", "--address", there.addresses, "--answer-within", "2s")
        code, said, _ = command(*asked)
        assert code == 0
        assert "exec-7" in said
        there.redis.pause()
        code, said, complaint = command(*asked)
        there.redis.resume()
        assert (code, said) == (3, "")
        assert complaint.startswith("lowwater why: ")
        assert "exec-7" not in complaint


def test_a_stage_goes_as_far_ahead_of_the_clock_as_its_inputs(tmp_path: Path) -> None:
    """Bookings are rightly in the future. The stage was registered before its input, whose values it is refused at first: why says so."""
    ahead = lowwater.Watermark.of(datetime.now(UTC) + timedelta(days=10))
    asked = Registration("stage", ["forecast"], [0.99], 1, "here", 0, 1, b"", adopt=False)
    now = 0.0
    with serving(tmp_path) as server, lowwater.connect(server.address) as lw:
        stage = Authority(lw, asked, clock=lambda: now)
        stage.register()
        lw.register("forecast", max_skew=timedelta(days=400))
        lease = lw.worker("forecast").claim()
        lease.advance(None, oldest=None, frontier=ahead)
        lease.flush(20)
        stage.claim([MIN])
        try:
            eventually(lambda: (reading := stage.read()) is not None and reading.low == ahead.micros)
            reading = stage.read()
            assert reading is not None
            stage.renew(reading, [reading.low])
            held = f"has not moved yet: it waits for the clock: {ahead} is ahead of it by more than its max_skew of 1 d"
            eventually(lambda: held in lw.why("stage").sentence)
            eventually(lambda: stage.lease is not None and stage.lease.refused is not None)
            stage.registration = replace(asked, inputs=["forecast", "other"])
            stage.widen()
            assert (stage.problem, lw.get("stage")["stage"].inputs) == ("", ("forecast",)), "a conflict ends nothing"
            stage.registration, now = asked, now + WIDEN_INTERVAL
            server.freeze()
            stage.widen()
            assert stage.problem == "", "a call that nobody answers does not mark the stage away"
            server.signal(signal.SIGCONT)
            now += WIDEN_INTERVAL
            stage.widen()
            eventually(lambda: lw.get("stage")["stage"].low == ahead)
        finally:
            stage.close()
