"""kill -9 of the authority at random moments, while a worker reports and subscribers watch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import lowwater
from tests.process.following import Following, Work
from tests.process.serving import Serving

SEED = 20130109
KILLS = 30


@pytest.mark.long
@pytest.mark.timeout(400)
def test_rules_2_3_4_hold_through_kills(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with Serving(tmp_path / "data") as server, lowwater.connect(server.address) as client, Following() as following:
        client.register("a")
        zombie = client.worker("a", name="zombie").claim()
        following.follow(server.address)
        with Work(client, ["a"]) as work:
            for _ in range(KILLS):
                following.until(work.done + rng.randint(1, 25), ["a"])
                server.kill()
                server.start()
            following.until(work.done + 1, ["a"])
            work.flush()
            assert not work.leases["a"].lost
        following.check()
        assert following.low("a") <= work.done
        assert {entry.sequencer for entry in client.ranges("a")} == {work.leases["a"].sequencer}
        zombie.advance(None, oldest=0, frontier=1)
        with pytest.raises(lowwater.StaleSequencer):
            zombie.flush(60)
        assert client.get("a")["a"].epoch == KILLS + 1
