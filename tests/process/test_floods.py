"""A stranger without rights tries to use up a process: none of it takes the memory, and nobody else has to wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import lowwater
from lowwater.core.settings import OPTIONS
from lowwater.v1 import watermarks_pb2, watermarks_pb2_grpc
from tests.process.accessing import PATIENCE, bearer
from tests.process.serving import Serving
from tests.process.stalling import flood_of_resets
from tests.process.test_access_changes import EVERYTHING, FLIGHTS, Changing

pytestmark = pytest.mark.process

RESETS = 30_000
"""Calls that are begun and reset. Each took 10 KB where nothing bounded them."""

GROWN = 100 << 20
"""Bytes by which the memory may grow: a third of what that would be."""


@pytest.mark.parametrize("path", ["/lowwater.v1.WatermarkService/GetWatermarks", "/grpc.health.v1.Health/Check"])
def test_rule7_calls_that_are_reset_as_they_begin_take_no_memory(tmp_path: Path, path: str) -> None:
    changing = Changing(tmp_path)
    changing.allow(admin=EVERYTHING)
    with changing.server as server:
        before = server.memory("VmHWM")
        flood_of_resets(server.port, path, RESETS, PATIENCE)
        assert server.memory("VmHWM") - before < GROWN
        with changing.connect("admin") as lw:
            lw.register("a")


UNLIMITED = [("grpc.max_send_message_length", -1)]
"""Options of a client that sends what it likes."""

EMPTY_NAMES = b"\x12\x00" * 30_000_000
"""A request with thirty million names: 60 MB, 58 KB when it is compressed, and a gigabyte when it is parsed."""


@pytest.mark.parametrize(
    ("compression", "code"),
    [
        (grpc.Compression.Gzip, grpc.StatusCode.UNIMPLEMENTED),
        (grpc.Compression.NoCompression, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_rule7_empty_names_are_not_parsed(tmp_path: Path, compression: grpc.Compression, code: grpc.StatusCode) -> None:
    changing = Changing(tmp_path)
    changing.allow(reader=FLIGHTS)
    with changing.server as server, grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
        before = server.memory("VmHWM")
        call: Any = channel.unary_unary("/lowwater.v1.WatermarkService/GetWatermarks")
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as refused:
                call(EMPTY_NAMES, metadata=bearer(changing.tokens["reader"]), compression=compression, timeout=PATIENCE)
            assert refused.value.code() is code
        assert server.memory("VmHWM") - before < 5 * len(EMPTY_NAMES), "as it came, twice or three times in gRPC"


def test_rule7_a_subscriber_that_stalls_finds_few_old_watermarks(server: Serving) -> None:
    """GRPC's own settings would let 100 KB and more of them lie in its buffers."""
    name, last = f"{'x' * 120}/{'x' * 120}", 1_500
    with (
        lowwater.connect(server.address) as lw,
        grpc.insecure_channel(server.address, [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        lw.register(name)
        lease = lw.worker(name).claim()
        watch: Any = watermarks_pb2_grpc.WatermarkServiceStub(channel).Watch(watermarks_pb2.WatchRequest())
        next(watch)
        for number in range(1, last + 1):
            lease.advance(None, oldest=None, frontier=number)
            lease.flush(30)
        old = 0
        for message in watch:
            if any(view.low_micros == last for view in message.watermarks):
                break
            old += message.ByteSize()
        assert old < 32 << 10
