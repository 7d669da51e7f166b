"""Every query of a panel and every alert about deduplicators, against a real Prometheus that scrapes a real one."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from lowwater_pipeline.dedup.figures import Collector
from lowwater_pipeline.dedup.job import Job
from tests.kit.eventually import eventually
from tests.kit.kafka import Kafka
from tests.monitoring.panels_asked import asked, rules, selectors
from tests.monitoring.prometheus_server import Prometheus
from tests.pipeline.case import Case

pytestmark = pytest.mark.timeout(400)


def test_every_panel_of_deduplicators_has_data(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    stopping = threading.Event()
    with Kafka(tmp_path / "kafka") as kafka:
        case = Case(kafka, "orders", tmp_path / "state", "1000")
        case.send("a", "b", "a")
        case.shut(case.drain(case.lane()))  # what it remembers stands in files now, which have filters
        numbers = itertools.count()
        exporter, serving = start_http_server(0, "127.0.0.1", registry)
        with Job(case.settings) as job:
            registry.register(Collector(job))
            working = threading.Thread(target=job.run, args=(stopping,))
            working.start()
            try:
                with Prometheus(
                    tmp_path / "prometheus", {"dedup": [f"127.0.0.1:{exporter.server_port}"]}
                ) as prometheus:
                    queries = [
                        each for each in asked("lowwater-dedup", ".+") if "lowwater_dedup_stage_" not in each.expr
                    ]
                    assert len(queries) == 14
                    missing = queries

                    def none_missing() -> bool:
                        nonlocal missing
                        case.send("a", f"fresh-{next(numbers)}")
                        missing = [query for query in missing if not prometheus.series(query.expr)]
                        return not missing

                    eventually(none_missing, seconds=120, seen=lambda: missing)
                    wanted = {
                        each
                        for rule in rules("alerts")
                        for each in selectors(rule["expr"])
                        if "lowwater_dedup_" in each
                    }
                    assert len(wanted) == 3
                    assert [each for each in wanted if not prometheus.series(each)] == []
            finally:
                stopping.set()
                working.join()
                exporter.shutdown()
                exporter.server_close()
                serving.join()
                case.close()
