"""``lowwater why`` of a stage of Spark that runs ahead of the clock."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lowwater
import lowwater.aio
from lowwater.watermark import MIN
from lowwater_spark.track.run.authority import WIDEN_INTERVAL, Authority, Registration
from tests.kit.eventually import eventually
from tests.process.serving import serving


def test_a_stage_goes_as_far_ahead_of_the_clock_as_its_inputs(tmp_path: Path) -> None:
    """Bookings are rightly in the future. The stage was registered before its input, whose values it is refused at first: why says so."""
    ahead = lowwater.Watermark.of(datetime.now(UTC) + timedelta(days=10))
    registration = Registration("stage", ["forecast"], [0.99], 1, "here", 0, 1, b"", adopt=False)
    now = 0.0
    with serving(tmp_path) as server, lowwater.connect(server.address) as lw:
        stage = Authority(lw, registration, clock=lambda: now)
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
            text = f"has not moved yet: it waits for the clock: {ahead} is ahead of it by more than its max_skew of 1 d"
            eventually(lambda: text in lw.why("stage").sentence)
            eventually(lambda: stage.lease is not None and stage.lease.refused is not None)
            stage.registration = replace(registration, inputs=["forecast", "other"])
            stage.widen()
            assert (stage.problem, lw.get("stage")["stage"].inputs) == ("", ("forecast",)), "a conflict ends nothing"
            stage.registration, now = registration, now + WIDEN_INTERVAL
            server.freeze()
            stage.widen()
            assert stage.problem == "", "a call that nobody answers does not mark the stage away"
            server.signal(signal.SIGCONT)
            now += WIDEN_INTERVAL
            stage.widen()
            eventually(lambda: lw.get("stage")["stage"].low == ahead)
        finally:
            stage.close()
