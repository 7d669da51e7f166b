"""A notebook that a kernel executes against a real authority: what its cells show, as HTML and as text."""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import lowwater
from tests.kit.eventually import eventually
from tests.process.serving import Serving
from tests.process.test_watch_terminal import Terminal

CELLS = {
    "connect": "import lowwater\nlw = lowwater.connect(ADDRESS)",
    "status": "lw.get()",
    "view": "lw.get('hourly')['hourly']",
    "why": "lw.why('hourly')",
    "history": "lw.history('orders')",
    "topology": "lw.topology()",
    "ranges": "lw.ranges('orders')",
    "complete": "lw.complete('hourly', UNTIL)",
    "absent": "lw.get('nope')['nope']",
    "wait": "try:\n    lw.wait('hourly', until=UNTIL, timeout=3)\nexcept lowwater.Timeout:\n    pass",
    "quiet": "lw.wait('orders', until='2013-01-01T00:00+01:00')\nNone",
    "no zone": "lw.wait('orders', until='2013-01-01T00:00')",
    "close": "lw.close()",
}
HOSTILE = "<script>alert(1)</script>"


def story(lw: lowwater.Client) -> datetime:
    """Let a source go on by hours, and a stage stay behind; returns the last full hour."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    lw.register("orders")
    lw.register("hourly", inputs=["orders"])
    orders = lw.worker("orders", name=HOSTILE).claim()
    for hours in (3, 2, 1):
        orders.advance(None, frontier=hour - timedelta(hours=hours), oldest=None)
        orders.flush()
    lw.worker("hourly").claim()
    return hour


def execute(folder: Path, address: str, until: datetime) -> dict[str, list[Any]]:
    """Return the outputs of each cell."""
    head = f"ADDRESS, UNTIL = {address!r}, {until.isoformat()!r}\n"
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(head + CELLS["connect"])]
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in list(CELLS.values())[1:]]
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


@pytest.fixture
def outputs(
    server: Serving, lw: lowwater.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[Any]]:
    # Nothing of this user's Jupyter, and no locale or colours of his.
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return execute(tmp_path, server.address, story(lw))


def html_of(outputs: list[Any]) -> str:
    assert [output.output_type for output in outputs] in (["execute_result"], ["display_data"]), outputs
    return str(outputs[0].data["text/html"])


def test_a_notebook_shows_tables_graphs_and_who_holds_a_wait(outputs: dict[str, list[Any]]) -> None:
    status = html_of(outputs["status"])
    assert "2 computations" in status
    assert "<svg" in status
    for name in ("status", "view", "why", "history", "topology", "ranges", "complete", "absent", "wait"):
        html = html_of(outputs[name])
        assert "<script" not in html
        assert outputs[name][0].data["text/plain"].startswith(("<", "{", "waiting for"))
    assert all("&lt;script&gt;" in html_of(outputs[name]) for name in ("status", "ranges"))
    assert re.search(r"hourly.* is (at|unknown).*held by", html_of(outputs["why"]))
    assert (
        outputs["why"][0].data["text/plain"].startswith("<Why hourly: hourly is unknown: held by hourly all keys on ")
    )
    assert html_of(outputs["history"]).count("<tr") == 1 + 3
    assert "<svg" in html_of(outputs["topology"])
    assert "hourly is not complete yet" in html_of(outputs["complete"])
    assert "is not registered" in html_of(outputs["absent"])
    # The wait wrote its one place anew, up to its end.
    assert "waiting for hourly until" in html_of(outputs["wait"])
    assert "ended after 3 s; hourly is unknown: held by hourly all keys on" in html_of(outputs["wait"])
    assert outputs["quiet"] == [], "a short wait shows nothing"
    assert [output.evalue for output in outputs["no zone"]] == [
        "'2013-01-01T00:00' has no time zone; write 2013-01-01T00:00Z for UTC"
    ]


def test_publish_says_on_a_terminal_who_holds_the_next_interval(
    server: Serving, lw: lowwater.Client, tmp_path: Path
) -> None:
    story(lw)
    to = ["--from", "2013-01-09T10:00Z", "--cursor", str(tmp_path / "cursor"), "--to", f"file:{tmp_path}/%Y%m%d%H"]
    publish = ["-m", "lowwater.cli", "publish", "hourly", "--every", "1h", *to, "--address", server.address]
    terminal = Terminal(sys.executable, *publish)
    line = "waiting for hourly until 2013-01-09T11:00:00Z: hourly is unknown: held by hourly"
    try:
        eventually(lambda: terminal.read(0.2) and line in terminal.raw, "it is said", seen=lambda: terminal.raw)
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
