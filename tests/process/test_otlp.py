"""Figures by OTLP: a real collector gets those of a real process, and they are the ones of /metrics."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import lowwater
from lowwater_authority.ops.otlp import begin, interval, wanted
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.serving import Serving

Series = tuple[str, frozenset[tuple[str, str]]]


class Collector(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps what it was given last, by name and attributes."""

    def __init__(self) -> None:
        self.points: dict[Series, Any] = {}
        self.kinds: dict[str, str] = {}
        self.monotonic: set[str] = set()
        self.services: set[str] = set()
        self.pushes = 0

    def Export(self, request: Any, context: Any) -> Any:
        points: dict[Series, Any] = {}
        for each in request.resource_metrics:
            self.services |= {
                pair.value.string_value for pair in each.resource.attributes if pair.key == "service.name"
            }
            for scope in each.scope_metrics:
                for metric in scope.metrics:
                    kind = metric.WhichOneof("data")
                    self.kinds[metric.name] = kind
                    if kind == "sum" and metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2:
                        self.monotonic.add(metric.name)
                    for point in getattr(metric, kind).data_points:
                        labels = frozenset((pair.key, pair.value.string_value) for pair in point.attributes)
                        points[metric.name, labels] = point
        self.points = points
        self.pushes += 1
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def value(self, name: str, **labels: str) -> float | None:
        point = self.points.get((name, frozenset(labels.items())))
        return None if point is None else point.as_double


@pytest.fixture(name="collector")
def _collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        add: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
        add(made, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        yield made
        server.stop(None)


def scraped(server: Serving) -> dict[Series, float]:
    with urllib.request.urlopen(server.metrics) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_collector_gets_what_a_scrape_gets(tmp_path: Path, collector: Collector) -> None:
    (tmp_path / "one").mkdir()
    with Serving(tmp_path / "one" / "data", "--http", "127.0.0.1:0") as server:
        with lowwater.connect(server.address) as lw:
            lw.register("flights")
            lease = lw.worker("flights").claim()
            lease.advance(None, oldest=None, frontier=at(14))
            lease.flush()
            stands = "lowwater_low_watermark_timestamp_seconds"
            eventually(lambda: collector.value(stands, computation="flights") == at(14).timestamp())
            for hour in (15, 16):
                lease.advance(None, oldest=None, frontier=at(hour))
                lease.flush()
        # With the client gone nothing happens any more but what the process does by itself.
        there = eventually(lambda: _same(collector, scraped(server)), "a push that is as a scrape")
        assert len(there) > 50
        assert server.stop() == 0
    assert collector.services == {"lowwater-authority"}
    assert collector.kinds["lowwater_rounds_total"] == "sum"
    assert {"lowwater_rounds_total", "lowwater_calls_total"} <= collector.monotonic
    assert (collector.kinds[stands], collector.kinds["lowwater_build_info"]) == ("gauge", "gauge")
    point = collector.points["lowwater_journal_append_seconds", frozenset()]
    assert (sum(point.bucket_counts), len(point.bucket_counts)) == (point.count, len(point.explicit_bounds) + 1)
    assert point.count >= 4
    assert point.start_time_unix_nano < point.time_unix_nano


def _same(collector: Collector, scrape: dict[Series, float]) -> set[Series]:
    """The series that are the same in both; none while one lacks what the other has."""
    moving = re.compile(r"^(process_|lowwater_(event_loop_lag|call|journal_append|push))|_seconds_(sum|bucket)$")
    pushed: dict[Series, float] = {}
    for (name, labels), point in collector.points.items():
        if hasattr(point, "bucket_counts"):
            pushed[f"{name}_count", labels] = point.count
        else:
            pushed[name, labels] = point.as_double
    found = {series: value for series, value in pushed.items() if not moving.search(series[0])}
    asked = {
        series: value
        for series, value in scrape.items()
        if not moving.search(series[0]) and not series[0].endswith(("_bucket", "_sum"))
    }
    if found.keys() != asked.keys():
        return set()
    return {series for series, value in found.items() if asked[series] == value}


def test_a_collector_that_is_away_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of traces. Rule 11: it degrades; the calls are answered, and the stop does not wait for it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    (tmp_path / "one").mkdir()
    with Serving(tmp_path / "one" / "data") as server:
        with lowwater.connect(server.address) as lw:
            lw.register("flights")
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:1"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:1", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_when_figures_are_pushed(variables: dict[str, str], asked: bool) -> None:
    assert wanted(variables) is asked


def test_how_often() -> None:
    assert interval({}) == 60
    assert interval({"OTEL_METRIC_EXPORT_INTERVAL": "1500"}) == 1.5
    for text in ("0", "-1", "soon"):
        with pytest.raises(ValueError, match="set 1 or more"):
            interval({"OTEL_METRIC_EXPORT_INTERVAL": text})


@pytest.mark.parametrize(
    ("variables", "missing", "says"),
    [
        pytest.param({"OTEL_METRICS_EXPORTER": "prometheus"}, "", "prometheus is not supported", id="unknown"),
        pytest.param({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "", "over http", id="http"),
        pytest.param({}, "opentelemetry.sdk", "pip install", id="extra"),
    ],
)
def test_figures_that_cannot_be_pushed_are_said_and_nothing_stops(
    variables: dict[str, str],
    missing: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in ({"OTEL_METRICS_EXPORTER": "otlp"} | variables).items():
        monkeypatch.setenv(name, value)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert not begin(CollectorRegistry(), "1").on
    assert says in caplog.text
