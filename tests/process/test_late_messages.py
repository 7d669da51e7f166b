"""Messages that arrive after their sender's connection broke: over real processes, by a proxy that delivers late."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lowwater
from lowwater import RangeState
from tests.kit.eventually import PATIENCE, eventually
from tests.kit.times import at, mark
from tests.process.late_proxy import LateProxy
from tests.process.serving import Serving
from tests.process.sharding import Shard, Sharded, served

KEY = b"\x80"


class Behind(Shard):
    """A shard that advertises the address of a proxy."""

    advertised = ""

    def journal(self) -> list[str]:
        """See Serving."""
        return ["--store", self.store, "--advertise", self.advertised, "--dead-after", str(self.dead_after)]


def test_rule8_a_late_retirement_of_a_slice_does_not_take_out_what_a_worker_has_revived(tmp_path: Path) -> None:
    with Sharded(tmp_path, 1) as deployment:
        [below] = deployment.shards
        top = Behind(tmp_path / "top", deployment.redis.url)
        with LateProxy(top.port) as proxy, lowwater.connect(below.address) as lw:
            top.advertised = proxy.address
            deployment.shards.append(top)
            top.start()
            eventually(lambda: len(lw.shards()) == 2)
            lw.register("a", slices=[KEY])
            for name, address in (("a", proxy.address), ("a~0", below.address), ("a~1", below.address)):
                lw.pin(name, address)
            eventually(lambda: set(served(lw, below)) == {"a~0", "a~1"} and not _unserved(lw))
            worker = lw.worker("a")
            for keys, hour in (((b"", KEY), 10), ((KEY, b""), 12)):
                lease = worker.claim(*keys)
                lease.advance(None, oldest=None, frontier=at(hour))
                lease.flush()
            eventually(lambda: lw.get("a")["a"].low == mark(10))

            proxy.hold(b"TopologyService/Retire")
            lw.retire("a~0", b"", KEY, force=True)
            assert proxy.is_held.wait(PATIENCE)
            with ThreadPoolExecutor() as pool:
                revival = pool.submit(lw.worker("a~0").claim, b"", KEY, bound=at(9))
                eventually(lambda: [each.state for each in lw.ranges("a~0")] == [RangeState.OWNED])
                proxy.connect()
                lease = revival.result()
            lease.advance(None, oldest=at(9), frontier=at(9))
            lease.flush()

            proxy.deliver()
            assert proxy.is_answered.wait(PATIENCE)
            [low] = [each for each in lw.ranges("a") if not each.start]
            assert (low.state, low.watermark) == (RangeState.OWNED, mark(9))
            assert lw.get("a")["a"].low == mark(10)


def _unserved(lw: lowwater.Client) -> set[str]:
    return {"a", "a~0", "a~1"} - {name for each in lw.shards() for name in each.computations}


def test_rule8_a_late_reset_ends_no_newer_incarnation(server: Serving) -> None:
    with LateProxy(server.port) as proxy, lowwater.connect(server.address) as lw:
        lw.register("late")
        with lowwater.connect(proxy.address) as sender:
            sender.get("late")
            proxy.hold(b"TopologyService/Reset")
            with pytest.raises(lowwater.Unavailable):
                sender.reset("late")
        lw.reset("late")
        proxy.deliver()
        assert proxy.is_answered.wait(PATIENCE)
        assert lw.get("late")["late"].incarnation == 2
