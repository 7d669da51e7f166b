"""Real processes export figures over HTTP: against what was done to them, and against Prometheus's own linter."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from lowwater import Watermark, errors
from lowwater.prometheus import register
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.scrape import Scrape
from tests.process.sharding import Sharded


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
