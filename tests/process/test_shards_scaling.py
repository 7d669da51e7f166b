"""Shards come and go while workers report and subscribers follow: nothing stands still for long, nothing goes back."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

from lowwater_authority.cluster.membership import View
from tests.kit.eventually import eventually
from tests.process.following import Following, Work
from tests.process.sharding import Sharded, balanced, spread, view_of

DEAD_AFTER = 5.0
"""Seconds; so long that whoever waits for it is seen."""


def moves(names: list[str], views: list[View]) -> dict[str, int]:
    shards = {name: [view.shard_of(name) for view in views] for name in names}
    return {name: sum(a != b for a, b in pairwise(at)) for name, at in shards.items()}


def test_rule3_from_one_shard_to_three_and_back(tmp_path: Path) -> None:
    with Sharded(tmp_path, 1, dead_after=DEAD_AFTER) as d, d.connect() as lw, Following() as following:
        one, two, three = d.shards[0], d.more(), d.more()
        names = balanced("c", 4, one, two, three)
        for name in names:
            lw.register(name)
        following.follow(one.address)
        with Work(lw, names) as work:
            following.until(1, names)
            d.start(two, three)
            following.follow(two.address, three.address)
            eventually(lambda: spread(lw, names, one, two, three))
            joined = work.done
            following.until(joined + 1, names)
            epochs = {name: view.epoch for name, view in lw.get(*names).items()}
            paths = [[view_of(one), view_of(one, other), view_of(one, two, three)] for other in (two, three)]
            for name in names:
                most = max(moves(names, path)[name] for path in paths)
                assert epochs[name] - 1 <= most, (
                    f"{name} was taken {epochs[name] - 1} times by views that moved it {most} times"
                )

            for leaving, staying in ((three, (one, two)), (two, (one,))):
                before = {name: view.epoch for name, view in lw.get(*names).items()}
                moved = moves(names, [view_of(*staying, leaving), view_of(*staying)])
                began = time.monotonic()
                assert leaving.stop() == 0
                assert time.monotonic() - began < DEAD_AFTER
                assert [shard.address for shard in lw.shards()] == sorted(shard.address for shard in staying)
                assert spread(lw, names, *staying), "it hands over before it ends"
                after = {name: view.epoch for name, view in lw.get(*names).items()}
                assert {name: after[name] - before[name] for name in names} == moved
                following.until(work.done, names)
            gaps = {name: following.gap(name) for name in names}
            print(f"longest gaps: {sorted(round(gap, 2) for gap in gaps.values())} s")
            assert max(gaps.values()) < DEAD_AFTER
            work.flush()
            assert not any(lease.lost for lease in work.leases.values())
        following.check()
        assert max(map(following.low, names)) <= work.done
