"""Rule 11: without the authority a pipeline goes on; watermarks stop and say how stale they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater_spark.track.authority import Authority, Registration
from lowwater_spark.track.inputs import Reading
from tests.process.serving import Serving, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as one:
        yield one


class Strict(Authority):
    """Rule 11 switched off: what the authority does not answer fails the batch."""

    def _degrade(self, call: Callable[[], str]) -> str:
        return call()


def batch_without_authority(made: type[Authority], server: Serving) -> str:
    """Claim, lose the authority, and end a batch; returns why the stage holds."""
    registration = Registration("stage", [], [0.99], 4, "identity", 0, 1, b"", adopt=False)
    with lowwater.connect(server.address, timeout=2.0) as client:
        authority = made(client, registration)
        try:
            authority.register()
            authority.claim([0] * 4)
            server.kill()
            return authority.prepare(0, "00", [], Reading(0), 0, covers_all=False)
        finally:
            authority.close()


def test_rule11_a_batch_ends_without_the_authority_and_the_stage_holds(server: Serving) -> None:
    assert "UNAVAILABLE" in batch_without_authority(Authority, server)


@pytest.mark.xfail(strict=True, raises=lowwater.LowwaterError, reason="breaks when rule 11 is switched off")
def test_rule11_breaks_when_switched_off(server: Serving) -> None:
    batch_without_authority(Strict, server)
