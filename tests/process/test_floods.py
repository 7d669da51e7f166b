"""What somebody without rights sends to use up a process: none of it takes the memory, and nobody else has to wait for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.process.accessing import PATIENCE
from tests.process.serving import Serving
from tests.process.stalling import flood_of_resets
from tests.process.test_access_changes import EVERYTHING, Changing

pytestmark = pytest.mark.process

RESETS = 30_000
"""Calls that are begun and reset. Each took 10 KB where nothing bounded them."""

GROWN = 100 << 20
"""Bytes by which the memory may grow: a third of what that would be."""


def peak(server: Serving) -> int:
    """Return the most bytes of memory that a process has ever had."""
    assert server.process is not None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("path", ["/lowwater.v1.WatermarkService/GetWatermarks", "/grpc.health.v1.Health/Check"])
def test_rule7_calls_that_are_reset_as_they_begin_take_no_memory(tmp_path: Path, path: str) -> None:
    changing = Changing(tmp_path)
    changing.allow(admin=EVERYTHING)
    with changing.server as server:
        before = peak(server)
        flood_of_resets(server.port, path, RESETS, PATIENCE)
        assert peak(server) - before < GROWN
        with changing.connect("admin") as lw:
            lw.register("a")
