"""The log of a real process: what docs/reference/logs.md lists is provoked, and read back from its lines of JSON."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lowwater
from tests.kit.eventually import eventually
from tests.process.serving import Serving

DOCUMENTED = Path(__file__).parents[2] / "docs/reference/logs.md"


def lines(server: Serving) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (server.data.parent / "serve.log").read_text().splitlines()]


def told(server: Serving, name: str, **fields: object) -> list[dict[str, Any]]:
    return [row for row in lines(server) if row["event"] == name and all(row.get(key) == fields[key] for key in fields)]


def documented() -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", DOCUMENTED.read_text(), re.MULTILINE))


def test_the_events_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with Serving(tmp_path / "one" / "data") as server, lowwater.connect(server.address) as lw:
        lw.register("flights")
        lw.register("flights")
        lw.register("weather")
        lw.register("enriched", inputs=["flights"])
        assert len(told(server, "registered")) == 3, "not again for one that is known"
        assert told(server, "registered", computation="enriched", inputs=["flights"])
        assert lw.set_inputs("enriched", ["flights", "weather"]).inputs == ("flights", "weather")
        assert told(server, "inputs_changed", computation="enriched", before=["flights"], inputs=["flights", "weather"])

        lw.worker("flights", name="exec-1").claim(bounds=[b"", b"\x40", b"\x80"])
        [claimed] = told(server, "claimed", computation="flights")
        assert (claimed["worker"], claimed["ranges"], claimed["end"]) == ("exec-1", 2, "80")
        assert claimed["host"]
        second = lw.worker("flights", name="exec-2").claim(start=b"\x40", end=b"\x80")
        [taking] = told(server, "taken_over", computation="flights", worker="exec-2")
        assert taking["sequencer"] > claimed["sequencer"]
        [lost] = told(server, "owner_lost", computation="flights")
        assert (lost["sequencer"], lost["claims"]) == (claimed["sequencer"], 1)

        second.release()
        assert told(server, "released", computation="flights", sequencer=taking["sequencer"])

        lw.worker("weather", identity="one").claim()
        with pytest.raises(lowwater.IdentityMismatch):
            lw.worker("weather", identity="two").claim()
        assert told(server, "call_refused", method="Claim", reason="IDENTITY_MISMATCH")
        lw.worker("weather", identity="two").claim(adopt=True)
        assert told(server, "adopted", computation="weather")

        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(lw.wait, "later", until="2013-01-09T10:00Z", timeout=30)
            eventually(lambda: lw.statistics().watcher.streams > 0)
            lw.register("later")
            later = lw.worker("later").claim()
            later.advance(None, oldest=None, frontier="2013-01-09T10:00Z")
            waiting.result()
        assert not told(server, "call_refused", method="Locate"), "each client asks where a name is"

        lw.reset("flights")
        assert {line["computation"] for line in told(server, "reset", asked="flights")} == {"flights", "enriched"}
        lw.retire("flights", b"", b"\x40", force=True)
        assert told(server, "retired", computation="flights", end="40", force=True)
        assert server.stop() == 0
        assert told(server, "started", address=server.address)
        assert told(server, "stopping", reason="asked to")
        assert lines(server)[-1]["event"] == "stopped"
        server.start()
        recovered = told(server, "recovered")[-1]
        assert recovered["computations"] == 4
        assert recovered["ranges"] >= 3
        assert recovered["seconds"] >= 0
    assert all({"time", "level", "event", "message", "logger"} <= set(line) for line in lines(server))
    assert {line["event"] for line in lines(server)} <= {*documented(), "log"}


def test_the_table_has_every_event_that_the_code_can_tell() -> None:
    root = Path(__file__).parents[2]
    sources = [root / "authority/src", root / "regions/src", root / "page/src", root / "server/src"]
    text = "\n".join(path.read_text() for source in sources for path in source.rglob("*.py"))
    coded = {name for call in re.findall(r"\bevent\((.{0,80})", text, re.DOTALL) for name in _names(call)}
    coded |= {"claimed", "taken_over", "adopted"}
    assert coded == documented(), sorted(coded ^ documented())


def _names(call: str) -> list[str]:
    """The names in the first argument of a call: one, or two with a condition between."""
    match = re.match(r'\s*"(\w+)"(?: if [\w.]+ else "(\w+)")?', call)
    return [name for name in match.groups() if name] if match else []
