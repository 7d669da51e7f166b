"""Traces: a real collector gets the spans of a real process, and without one nothing of OpenTelemetry is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

import lowwater
from lowwater._pb.lowwater.v1 import topology_pb2, topology_pb2_grpc
from lowwater_authority.ops.traces import begin, wanted
from tests.kit.eventually import eventually
from tests.process.serving import Serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        """One batch of spans."""
        for each in request.resource_spans:
            self.services |= {
                pair.value.string_value for pair in each.resource.attributes if pair.key == "service.name"
            }
            for scope in each.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def names(self) -> list[str]:
        """The names of the spans so far."""
        return [span.name for span in self.spans]


@pytest.fixture(name="collector")
def _collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add(made, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield made
        server.stop(None)


def test_unary_calls_are_spans_of_their_callers_traces_and_streams_are_none(
    tmp_path: Path, collector: Collector
) -> None:
    (tmp_path / "one").mkdir()
    with Serving(tmp_path / "one" / "data", "--http", "off") as server:
        with lowwater.connect(server.address) as lw:
            lw.register("flights")
            lease = lw.worker("flights").claim()
            lease.advance(None, oldest=None, frontier=datetime(2013, 1, 9, tzinfo=UTC))
            lease.flush()
            with lw.inputs("flights") as reader:
                reader.read()
            with pytest.raises(lowwater.UnknownComputation):
                lw.retire("nothing", b"", b"")  # it reads the newest claim first
        with server.channel() as channel:
            context = (("traceparent", f"00-{TRACE}-{PARENT}-01"),)
            topology_pb2_grpc.TopologyServiceStub(channel).GetTopology(
                topology_pb2.GetTopologyRequest(), metadata=context
            )
        service = "lowwater.v1"
        eventually(lambda: any(name.endswith("GetTopology") for name in collector.names()))
        assert server.stop() == 0
    names = {name.rpartition("/")[2] for name in collector.names()}
    assert {"Register", "Claim", "GetTopology", "ListRanges"} <= names
    assert not names & {"Report", "Watch", "Check"}
    assert all(service in name for name in collector.names())
    assert collector.services == {"lowwater-authority"}
    [span] = [span for span in collector.spans if span.name.endswith("GetTopology") and span.parent_span_id]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    [refused] = [span for span in collector.spans if span.name.endswith("ListRanges")]
    codes = {pair.key: pair.value.int_value for pair in refused.attributes}
    assert codes["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({}, ""),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:1"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:1", "OTEL_TRACES_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:1", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin"),
    ],
)
def test_where_traces_go(variables: dict[str, str], where: str) -> None:
    assert wanted(variables) == where


@pytest.mark.parametrize(
    ("variables", "missing", "says"),
    [
        pytest.param({"OTEL_TRACES_EXPORTER": "zipkin"}, "", "zipkin is not supported", id="unknown"),
        pytest.param({}, "opentelemetry.sdk", "pip install opentelemetry-sdk ", id="extra missing"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_COMPRESSION": "brotli"}, "", "brotli", id="a setting that the SDK cannot follow"
        ),
    ],
)
def test_traces_that_cannot_be_sent_are_said_and_nothing_stops(
    variables: dict[str, str],
    missing: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in ({"OTEL_TRACES_EXPORTER": "otlp"} | variables).items():
        monkeypatch.setenv(name, value)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    assert begin("1").interceptors == ()
    assert says in caplog.text


def test_without_the_variables_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start costs what it did."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import sys, lowwater_authority.serve; from lowwater_authority.ops.traces import begin; begin('1');"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'wrapt'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
