"""Rule 11: without the authority a pipeline goes on; watermarks stop and say how stale they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
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


def test_a_run_ends_while_it_has_given_up_its_lease(server: Serving) -> None:
    """A layout that nobody has granted leaves a stage without a lease, until it is claimed anew. A run may end in between."""
    registration = Registration("stage", [], [0.99], 4, "identity", 0, 1, b"", adopt=False)
    with lowwater.connect(server.address) as client, closing(Authority(client, registration)) as authority:
        authority.register()
        authority.claim([0] * 4)
        authority.renew(Reading(0), [0] * 4)
        authority.lease = None
        authority.end("it failed")


@pytest.mark.xfail(strict=True, raises=lowwater.LowwaterError, reason="breaks when rule 11 is switched off")
def test_rule11_breaks_when_switched_off(server: Serving) -> None:
    batch_without_authority(Strict, server)


def test_rule11_a_reader_keeps_the_last_value_and_says_how_stale_it_is(server: Serving) -> None:
    with lowwater.connect(server.address) as client:
        client.register("a")
        with client.worker("a") as worker:
            lease = worker.claim()
            lease.advance(None, oldest=14, frontier=20)
            lease.flush(20)
            with client.inputs("a") as reader:
                assert reader.read().low.micros == 14
                server.kill()
                stale = [seen.stale_for for seen in (reader.read() for _ in range(1000))]
                assert reader.read().low.micros == 14
                assert stale == sorted(stale)
                assert stale[-1] > stale[0]
