"""Promises by a real authority: read again while it serves, refused with the fix, on all shards, and never a watermark of another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import lowwater
from lowwater.cli import main
from tests.kit.eventually import eventually
from tests.process.accessing import PATIENCE, SOON
from tests.process.conftest import Refused
from tests.process.scrape import Scrape
from tests.process.serving import Serving

BILLING = """
[[promise]]
computations = "billing-*"
late = "15m"
owner = "ana"
team = "billing"
runbook = "https://wiki.example.org/{computation}"
logs = "https://logs.example.org/?q={worker}"
"""

REPORTS = '[[promise]]\ncomputations = "*"\nteam = "reports"\n'


class Promising:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "promises.toml"
        self.server = Serving(folder / "data", "--promises", str(self.path), "--log-format", "json")
        self.server.constants = SOON

    def output_of(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        assert main([*arguments, "--address", self.server.address]) == 0
        return capsys.readouterr().out


@pytest.fixture
def promising(tmp_path: Path) -> Iterator[Promising]:
    promising_ = Promising(tmp_path)
    promising_.path.write_text(BILLING)
    with promising_.server:
        yield promising_


def test_promises_follow_a_file_and_watermarks_do_not(promising: Promising, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("billing-eu", "hourly")
    with lowwater.connect(promising.server.address) as lw, lw.inputs(*names):
        for name in names:
            lw.register(name)
            lease = lw.worker(name, name="exec-7").claim()
            lease.advance(None, oldest=None, frontier=1_000_000)
            lease.flush(timeout=PATIENCE)

        def teams() -> list[str | None]:
            """Return the teams of both, as a read has them, and as one who has followed them for long."""
            assert {view.low.micros for view in lw.get().values()} == {1_000_000}
            views = [*lw.get(*names).values(), *(lw.wait(name, 1, timeout=PATIENCE) for name in names)]
            return [None if view.promise is None else view.promise.team for view in views]

        promise = lw.get("billing-eu")["billing-eu"].promise
        assert promise == lowwater.Promise(
            timedelta(minutes=15),
            "ana",
            "billing",
            "https://wiki.example.org/billing-eu",
            "https://logs.example.org/?q={worker}",
        )
        assert teams() == ["billing", None] * 2

        promising.path.write_text(BILLING + REPORTS)
        eventually(lambda: teams() == ["billing", "reports"] * 2)
        eventually(lambda: promising.server.events("promises_read"))
        scraped = Scrape(promising.server)
        assert scraped.value("promises_refused") == 0
        assert scraped.all("promise_late_seconds") == {("billing-eu",): 900}
        assert scraped.all("promise_info") == {
            ("billing-eu", "ana", "https://wiki.example.org/billing-eu", "billing"): 1,
            ("hourly", "", "", "reports"): 1,
        }
        assert scraped.all("incarnation") == {("billing-eu",): 1, ("hourly",): 1}
        assert scraped.linted() == ""
        promising.path.write_text("[[promise")
        eventually(lambda: promising.server.events("promises_refused"))
        assert Scrape(promising.server).value("promises_refused") == 1
        assert teams() == ["billing", "reports"] * 2

    assert promising.output_of(capsys, "status", "--team", "billing", "--names") == "billing-eu\n"
    [record] = json.loads(promising.output_of(capsys, "status", "--team", "billing", "--json"))["computations"]
    assert record["promise"]["late_seconds"] == 900
    assert record["late_by_seconds"] > 900


def test_a_bad_file_keeps_it_from_starting(tmp_path: Path, refused_start: Refused) -> None:
    path = tmp_path / "promises.toml"
    path.write_text('[[promise]]\ncomputations = "a"\nlat = "1m"\n')
    error = refused_start("--promises", str(path), "--data", str(tmp_path / "data"))
    assert f"lowwater serve: --promises {path}: promise[1].lat is unknown; write one of computations, late" in error
