"""Rule 11: without the authority a pipeline goes on; watermarks stop and say how stale they are."""

from __future__ import annotations

from contextlib import closing

import lowwater
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.run.authority import Authority, Registration
from tests.process.serving import Serving


def test_rule11_a_batch_ends_without_the_authority_and_the_stage_holds(server: Serving) -> None:
    registration = Registration("stage", [], [0.99], 4, "identity", 0, 1, b"", adopt=False)
    with lowwater.connect(server.address, timeout=2.0) as client, closing(Authority(client, registration)) as authority:
        authority.register()
        authority.claim([0] * 4)
        server.kill()
        assert "UNAVAILABLE" in authority.prepare(0, "00", [], Reading(0), 0, covers_all=False)
