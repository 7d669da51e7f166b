"""Figures and traces by OTLP: a real collector gets those of a real process, and without one nothing of OpenTelemetry is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client import CollectorRegistry

import lowwater
from lowwater_authority.ops import otlp, traces
from tests.kit.eventually import eventually
from tests.kit.times import at
from tests.process.peer import Peer
from tests.process.scrape import Scrape
from tests.process.serving import serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
MOVING = re.compile(r"^(process_|lowwater_(event_loop_lag|call|journal_append|push))|_seconds_(sum|bucket)$")
STANDS = "lowwater_low_watermark_timestamp_seconds"
Series = tuple[str, frozenset[tuple[str, str]]]


class Figures(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self) -> None:
        self.points: dict[Series, Any] = {}
        self.monotonic: set[str] = set()

    def Export(self, request: Any, context: Any) -> Any:
        points: dict[Series, Any] = {}
        for metric in (metric for part in request.resource_metrics for s in part.scope_metrics for metric in s.metrics):
            kind = metric.WhichOneof("data")
            if kind == "sum" and metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2:
                self.monotonic.add(metric.name)
            for point in getattr(metric, kind).data_points:
                labels = frozenset((pair.key, pair.value.string_value) for pair in point.attributes)
                points[metric.name, labels] = point
        self.points = points
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def same(self, scrape: dict[Series, float]) -> set[Series]:
        """The series that are the same in both; none while one lacks what the other has."""
        pushed: dict[Series, float] = {}
        for (name, labels), point in self.points.items():
            counts = hasattr(point, "bucket_counts")
            pushed[f"{name}_count" if counts else name, labels] = point.count if counts else point.as_double
        sent = {series: value for series, value in pushed.items() if not MOVING.search(series[0])}
        scraped = {series: value for series, value in scrape.items() if not MOVING.search(series[0])}
        scraped = {series: value for series, value in scraped.items() if not series[0].endswith(("_bucket", "_sum"))}
        if sent.keys() != scraped.keys():
            return set()
        return {series for series, value in sent.items() if scraped[series] == value}


class Spans(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.spans += [span for part in request.resource_spans for scope in part.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def calls_of(self, method: str) -> list[Any]:
        return [span for span in self.spans if span.name.endswith(method)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Figures, Spans]]:
    figures, spans = Figures(), Spans()
    with ThreadPoolExecutor(2) as pool:
        server: Any = grpc.server(pool)
        served: list[tuple[Any, object]] = [
            (metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server, figures),
            (trace_service_pb2_grpc.add_TraceServiceServicer_to_server, spans),
        ]
        for add, servicer in served:
            add(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        for kind in ("METRICS", "TRACES"):
            monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield figures, spans
        server.stop(None)


def test_a_collector_gets_what_a_scrape_gets_and_the_spans_of_unary_calls(
    tmp_path_factory: pytest.TempPathFactory, collector: tuple[Figures, Spans]
) -> None:
    figures, spans = collector
    with serving(tmp_path_factory.mktemp("collected")) as server:
        with lowwater.connect(server.address) as lw:
            lw.register("flights")
            lease = lw.worker("flights").claim()
            lease.advance(None, oldest=None, frontier=at(14))
            lease.flush()
            with pytest.raises(lowwater.UnknownComputation):
                lw.retire("nothing", b"", b"")  # it reads the newest claim first
        peer = Peer(server)
        called: Any = peer.channel.unary_unary("/lowwater.v1.TopologyService/GetTopology")
        called(b"", metadata=(("traceparent", f"00-{TRACE}-{PARENT}-01"),))
        peer.channel.close()
        # With the clients gone nothing happens any more but what the process does by itself.
        same = eventually(lambda: figures.same(Scrape(server).samples), "a push that is as a scrape")
        assert len(same) > 50
        assert figures.points[STANDS, frozenset({("computation", "flights")})].as_double == at(14).timestamp()
        assert server.stop() == 0
    assert {"lowwater_rounds_total", "lowwater_calls_total"} <= figures.monotonic
    point = figures.points["lowwater_journal_append_seconds", frozenset()]
    assert (sum(point.bucket_counts), len(point.bucket_counts)) == (point.count, len(point.explicit_bounds) + 1)

    names = {span.name.rpartition("/")[2] for span in spans.spans}
    assert {"Register", "Claim", "GetTopology", "ListRanges"} <= names
    assert not names & {"Report", "Watch", "Check"}
    [span] = [span for span in spans.calls_of("GetTopology") if span.parent_span_id]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    [refused] = spans.calls_of("ListRanges")
    codes = {pair.key: pair.value.int_value for pair in refused.attributes}
    assert codes["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]


def test_a_dead_collector_harms_none(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 11: it degrades; the calls are answered, and the stop does not wait for it."""
    for kind in ("METRICS", "TRACES"):
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    with serving(tmp_path_factory.mktemp("away")) as server:
        with lowwater.connect(server.address) as lw:
            lw.register("flights")
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("variables", "figures", "where"),
    [
        ({}, False, ""),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:1"}, True, ""),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x:1", "OTEL_METRICS_EXPORTER": "none"}, False, ""),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False, ""),
    ],
)
def test_what_goes_where(variables: dict[str, str], figures: bool, where: str) -> None:
    assert (otlp.enabled(variables), traces.exporter_of(variables)) == (figures, where)


def test_how_often() -> None:
    assert otlp.interval({}) == 60
    assert otlp.interval({"OTEL_METRIC_EXPORT_INTERVAL": "1500"}) == 1.5
    with pytest.raises(ValueError, match="set 1 or more"):
        otlp.interval({"OTEL_METRIC_EXPORT_INTERVAL": "0"})


@pytest.mark.parametrize(
    ("variables", "missing", "says"),
    [
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_TRACES_EXPORTER": "zipkin"}, "", "is not supported"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "", "over http"),
        ({}, "opentelemetry.sdk", "pip install"),
    ],
)
def test_what_cannot_be_sent_is_said_and_nothing_stops(
    variables: dict[str, str],
    missing: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_TRACES_EXPORTER": "otlp"} | variables
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert not otlp.begin(CollectorRegistry(), "1").on
    assert traces.begin("1").interceptors == ()
    assert caplog.text.count(says) == 2


def test_without_the_variables_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import sys, lowwater_authority.serve; from lowwater_authority.ops.traces import begin; begin('1');"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'wrapt'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
