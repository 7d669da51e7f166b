"""A rolling upgrade: shards over one Redis are stopped and started again one by one, while workers report and others follow.

Releases that differ are in tests/compatibility: 0.1.0 knew no shared journal, so none of it can be a shard.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.eventually import eventually
from tests.process.following import Following, Work
from tests.process.sharding import Sharded, balanced, served, spread

DEAD_AFTER = 10.0
"""Seconds; so long that whoever waits for it is seen, and that nobody is thought dead on a busy machine."""


@pytest.mark.long  # one stop of each: test_shards_scaling.py
def test_two_shards_are_restarted_one_after_the_other(tmp_path: Path) -> None:
    with (
        Sharded(tmp_path, 2, dead_after=DEAD_AFTER) as d,
        d.connect() as lw,
        Following() as following,
    ):
        names = balanced("c", 2, *d.shards)
        for name in names:
            lw.register(name)
        following.follow(*(shard.address for shard in d.shards))
        with Work(lw, names) as work:
            eventually(lambda: spread(lw, names, *d.shards))
            following.until(1, names)
            sequencers = {name: lease.sequencer for name, lease in work.leases.items()}
            for leaving in d.shards:
                (staying,) = [shard for shard in d.shards if shard is not leaving]
                assert leaving.stop() == 0
                assert set(served(lw, staying)) == set(names), "it hands over before it ends"
                following.until(work.done, names)
                d.start(leaving)
                eventually(lambda: spread(lw, names, *d.shards), seconds=30)
                following.until(work.done, names)
            gaps = {name: following.gap(name) for name in names}
            print(f"longest gaps: {sorted(round(gap, 2) for gap in gaps.values())} s")
            assert max(gaps.values()) < DEAD_AFTER
            work.flush()
            assert not any(lease.lost for lease in work.leases.values())
            assert {name: lease.sequencer for name, lease in work.leases.items()} == sequencers
            # Each has left its shard and come back to it: by the store's count, nobody was thought dead meanwhile.
            assert {name: view.epoch for name, view in lw.get(*names).items()} == dict.fromkeys(names, 3)
        following.check()
        assert max(map(following.low, names)) <= work.done
