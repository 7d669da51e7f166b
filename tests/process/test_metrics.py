"""Real processes export figures over HTTP: against what was done to them, and against Prometheus's own linter."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from lowwater import Watermark, errors
from lowwater.prometheus import register
from lowwater.v1 import topology_pb2, watermarks_pb2
from lowwater_authority.ops.metrics import FIGURES
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.peer import Peer
from tests.process.scrape import Scrape
from tests.process.serving import Serving
from tests.process.sharding import Sharded


def test_the_linter_of_prometheus_is_silent_about_a_busy_authority(server: Serving) -> None:
    peer = Peer(server)
    peer.register("a")
    claim = peer.claim("a", b"", b"m", b"")
    down = peer.open()
    next(down)
    for number, hours in enumerate([(14, 15), (14, 10**6)], start=1):
        peer.report(number, claim, *hours)
        next(down)
    with pytest.raises(grpc.RpcError):
        peer.topology.Retire(topology_pb2.RetireRequest(computation="a"))
    watching = peer.watermarks.Watch(watermarks_pb2.WatchRequest())
    next(watching)
    peer.register("never")
    eventually(lambda: Scrape(server).value("ranges", computation="never", state="never_claimed") == 1)
    scrape = Scrape(server)
    assert scrape.all("holder_info").keys() == {("never", "", "all keys", "")}, "a moment ago the other one moved"
    assert scrape.linted() == ""
    declared = {figure.name: set(figure.labels) for figure in FIGURES}
    for family in scrape.families:
        for sample in family.samples:
            if family.name.startswith("lowwater_"):
                name = {"counter": f"{family.name.removesuffix('_total')}_total"}.get(family.type, family.name)
                assert sample.labels.keys() - {"le"} == declared[name], sample
    peer.sent.put(None)
    peer.channel.close()


def test_shards_over_redis_export_each_computation_once_with_lags_across_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        deployment = stack.enter_context(Sharded(tmp_path, 2))
        first, second = deployment.shards
        lw = stack.enter_context(deployment.connect())
        registry = CollectorRegistry()
        register(lw, registry=registry)
        lw.register("flights")
        lw.register("enriched", inputs=["flights"])
        for name, shard in (("flights", first), ("enriched", second)):
            lw.pin(name, shard.address)
        eventually(lambda: Scrape(first).value("owned_computations") == 1 == Scrape(second).value("owned_computations"))
        flights = lw.worker("flights", identity="t").claim()
        flights.advance(None, oldest=None, frontier=Watermark(15 * HOUR))
        flights.flush(20)
        worker = lw.worker("enriched", identity="t")
        eventually(lambda: worker.inputs().low == Watermark(15 * HOUR))
        enriched = worker.claim()
        enriched.advance(worker.inputs(), oldest=Watermark(13 * HOUR))
        enriched.flush(20)
        eventually(lambda: Scrape(second).value("local_lag_seconds", computation="enriched") == 2 * 3600)
        assert Scrape(second).value("global_lag_seconds", computation="enriched") == 2 * 3600
        with pytest.raises(errors.IdentityMismatch):
            lw.worker("enriched", identity="other").claim()
        scrapes = [Scrape(first), Scrape(second)]
        lows = Counter(labels for scrape in scrapes for labels in scrape.all("low_watermark_timestamp_seconds"))
        assert lows == {("flights",): 1, ("enriched",): 1}
        assert scrapes[1].value("refused_calls_total", method="Claim", reason="IDENTITY_MISMATCH") == 1
        for scrape in scrapes:
            confirmed = scrape.value("journal_confirmed_timestamp_seconds")
            assert confirmed is not None
            assert abs(confirmed - time.time()) < 30
            assert scrape.linted() == ""
        lw.pin("enriched", first.address)
        eventually(lambda: Scrape(first).value("epoch", computation="enriched") is not None)
        # The series of what is served elsewhere disappear.
        eventually(lambda: 'computation="enriched"' not in Scrape(second).text)

        def everywhere(name: str) -> float:
            return sum(Scrape(shard).value(name) or 0 for shard in (first, second))

        def total(name: str) -> float:
            return registry.get_sample_value(f"lowwater_client_{name}") or 0

        eventually(lambda: everywhere("reports_total") == total("acknowledged_reports_total") > 0)
        assert total("claims") == 2
        assert total("report_streams_total") >= 2
        assert total("watch_messages_total") > 0
        assert total("unserved_computations") == 0
