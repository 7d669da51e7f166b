"""Promises by a real authority: their file is followed while it serves, and a bad one changes nothing."""

from __future__ import annotations

from pathlib import Path

import lowwater
from tests.kit.eventually import eventually
from tests.process.accessing import SOON
from tests.process.scrape import Scrape
from tests.process.serving import Serving

BILLING = '[[promise]]\ncomputations = "billing-*"\nlate = "15m"\nteam = "billing"\n'
REPORTS = '[[promise]]\ncomputations = "*"\nteam = "reports"\n'


def test_promises_follow_a_file(tmp_path: Path) -> None:
    path = tmp_path / "promises.toml"
    path.write_text(BILLING)
    server = Serving(tmp_path / "data", "--promises", str(path), "--log-format", "json")
    server.constants = SOON
    with server, lowwater.connect(server.address) as lw:
        for name in ("billing-eu", "hourly"):
            lw.register(name)

        def teams() -> list[str | None]:
            views = lw.get("billing-eu", "hourly").values()
            return [None if view.promise is None else view.promise.team for view in views]

        assert teams() == ["billing", None]
        path.write_text(BILLING + REPORTS)
        eventually(lambda: teams() == ["billing", "reports"])
        assert Scrape(server).all("promise_late_seconds") == {("billing-eu",): 900}
        path.write_text("[[promise")
        eventually(lambda: server.events("promises_refused"))
        assert teams() == ["billing", "reports"]
        assert Scrape(server).value("promises_refused") == 1
