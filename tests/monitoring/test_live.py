"""Every query of a panel and every rule, against a real Prometheus that scrapes a real authority under a real pipeline."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from lowwater.prometheus import register
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.monitoring.panels_asked import Asked, panel_queries, rules, selectors
from tests.monitoring.pipeline import Pipeline
from tests.monitoring.prometheus_server import Prometheus
from tests.process.regions import Process, Site
from tests.process.serving import serving

pytestmark = pytest.mark.timeout(400)

NOT_HERE: Final = {
    "lowwater_spark_": "needs a driver: tests/spark/test_prometheus.py",
    "lowwater_dedup_": "needs a deduplicator: tests/pipeline/test_job.py and test_stage_figures.py",
    "lowwater_certificate_": "needs TLS, which this authority has not: tests/process/test_tls.py reads it",
    "lowwater_memory_limit_": "needs a control group with a limit: tests/unit/test_health.py",
    'lowwater_holder_state{state="stopped"}': "needs workers that all were stopped: tests/unit/test_metrics.py",
    "lowwater_token_expires_": "needs a token with a date: tests/unit/test_access_guard.py",
}
"""Metrics that this pipeline has not, and why."""


PROMISES: Final = """
[[promise]]
computations = "enriched"
late = "1s"
owner = "ana"
team = "billing"
runbook = "https://wiki.example.org/{computation}"

[[promise]]
computations = "[fh]*"
late = "366d"
team = "reports"
"""
"""Promises for most computations here; the one of 366 days is never broken."""

LASTING: Final = "5s"
"""For how long an expression has to hold here until its alert fires, instead of minutes. After which second each fires in truth is shown in
promtool's time, in test_pipeline_alerts.py and its neighbours."""


class Watched(NamedTuple):
    prometheus: Prometheus
    pipeline: Pipeline
    killed: float
    """When exec-7 was killed, by the wall clock."""


@contextmanager
def regions(folder: Path) -> Iterator[str]:
    """A global authority and a region with a reference, an authority of its own and an agent; where the global one is scraped."""
    address, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    data = str(folder / "global" / "data")
    above = Process(folder / "global", "global", "--data", data, "--listen", address, "--http", http).start()
    try:
        region = Site("A", folder, address)
        try:
            region.agent.start()
            yield http
        finally:
            region.close()
    finally:
        above.kill()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder: Path = tmp_path_factory.mktemp("live")
    promises = folder / "promises.toml"
    promises.write_text(PROMISES)
    with (
        serving(folder, "--promises", str(promises)) as server,
        Pipeline(server.address) as pipeline,
        regions(folder / "regions") as above,
    ):
        registry = CollectorRegistry()
        register(pipeline.client, registry=registry)
        exporter, thread = start_http_server(0, "127.0.0.1", registry)
        targets = {
            "lowwater": [server.endpoint.removeprefix("http://").rstrip("/")],
            "workers": [f"127.0.0.1:{exporter.server_port}"],
            "global": [above],
        }
        try:
            with Prometheus(folder / "prometheus", targets, lasting=LASTING) as prometheus:
                eventually(lambda: prometheus.now('computation:lowwater_local_lag_seconds:max{computation="hourly"}'))
                assert pipeline.child.poll() is None
                pipeline.kill()
                yield Watched(prometheus, pipeline, time.time())
        finally:
            exporter.shutdown()
            exporter.server_close()
            thread.join()


def without_data(prometheus: Prometheus, queries: list[Asked]) -> list[Asked]:
    return [query for query in queries if not prometheus.series(query.expr)]


@pytest.mark.parametrize("board", ["lowwater-lag", "lowwater-promises", "lowwater-authority"])
def test_every_panel_of_the_authority_has_data(watched: Watched, board: str) -> None:
    queries = [query for query in panel_queries(board) if "lowwater_memory_limit_" not in query.expr]
    assert len(queries) >= 8
    missing = queries

    def none_missing() -> bool:
        nonlocal missing
        missing = without_data(watched.prometheus, missing)
        return not missing

    eventually(none_missing, seconds=120, seen=lambda: missing)


def test_every_panel_of_the_clients_has_data(watched: Watched) -> None:
    queries = [query for query in panel_queries("lowwater-workloads", ".+") if "lowwater_client_" in query.expr]
    assert len(queries) == 12
    eventually(lambda: not without_data(watched.prometheus, queries), seconds=60)


def test_every_rule_is_evaluated_and_reads_what_is_exported(watched: Watched) -> None:
    names = {rule["name"] for rule in watched.prometheus.rules()}
    assert names == {rule.get("alert") or rule["record"] for name in ("alerts", "recording") for rule in rules(name)}
    eventually(
        lambda: all(rule["health"] == "ok" for rule in watched.prometheus.rules()),
        seconds=30,
        seen=watched.prometheus.rules,
    )
    used = set[str]().union(*(selectors(rule["expr"]) for name in ("alerts", "recording") for rule in rules(name)))
    assert len(used) > 30
    here = {selector for selector in used if not any(word in selector for word in NOT_HERE)}
    empty: set[str] = set()

    def all_read() -> bool:
        nonlocal empty
        empty = {selector for selector in here if not watched.prometheus.series(selector)}
        return not empty

    eventually(all_read, seconds=90, seen=lambda: empty)


def test_the_worker_that_was_killed_is_named_by_the_alert(watched: Watched) -> None:
    prometheus = watched.prometheus

    def named() -> list[dict[str, Any]]:
        silent = prometheus.alerts("LowwaterHolderSilent")
        return [item for item in silent if item["labels"].get("worker") == "exec-7" and item["state"] == "firing"]

    eventually(named, seconds=240, seen=lambda: prometheus.alerts("LowwaterHolderSilent"))
    print(f"the alert fired {time.time() - watched.killed:.0f} s after the worker was killed")
    (alert,) = named()
    silent = {silent_alert["labels"]["computation"] for silent_alert in prometheus.alerts("LowwaterHolderSilent")}
    assert silent <= {"enriched", "left", "crooked"}, "neither who waits for windows nor who is idle is silent"
    assert not {"idle", "hourly", "flights"} & {
        labels["computation"] for labels, _ in prometheus.series('ALERTS{alertname="LowwaterHolderSilent"}')
    }
    assert alert["labels"]["computation"] == "enriched"
    assert alert["labels"]["host"] == socket.gethostname()
    assert alert["labels"]["range"] == "[0x80, ..)"
    assert (alert["labels"]["owner"], alert["labels"]["team"]) == ("ana", "billing")
    assert alert["annotations"]["owner_runbook_url"] == "https://wiki.example.org/enriched"
    assert f"The key range is [0x80, ..), of exec-7 on {socket.gethostname()}." in alert["annotations"]["description"]
