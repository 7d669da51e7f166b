"""The log of a real process: what docs/logs.md lists is provoked, and read back from its lines of JSON."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lowwater
from tests.kit.eventually import eventually
from tests.process.serving import Serving
from tests.process.sharding import Sharded, move, served

DOCUMENTED = Path(__file__).parents[2] / "docs" / "logs.md"
NOT_PROVOKED = {
    "local_only": "tests/unit/test_places.py",
    "journal_refused": "tests/unit/test_writes.py",
    "journal_back": "tests/unit/test_writes.py",
    "data_readable": "tests/unit/test_journal_sqlite.py",
    "store_unreadable": "as store_away, in the moment of a roll-back",
    "graph_changed": "two shards heal the graph at once; tests/simulation",
    "graph_lost": "an emptied store; tests/process/test_shards_store.py",
    "graph_restored": "as graph_changed",
    "damaged_log_mended": "tests/process/test_shards_store.py",
    "damaged_log_kept": "tests/unit/test_isolation.py",
    "damaged_log_dropped": "tests/contract/test_damaged_logs.py",
    "not_written_again": "as damaged_log_kept",
    "log_whole_again": "tests/unit/test_taking.py",
    "damaged_log": "tests/unit/test_taking.py",
    "store_lost_records": "tests/process/test_shards_store.py",
    "store_lost_epochs": "tests/process/test_shards_store.py",
    "store_lost_inputs": "tests/unit/test_half_changes.py",
    "store_settings_changed": "tests/process/test_redis_replicas.py",
    "snapshot_failed": "a store that takes records and refuses a snapshot",
    "roll_back_failed": "as internal_error",
    "purge_failed": "a full disk in the moment of a snapshot",
    "not_checked": "a store that goes away during a stop",
    "hand_over_failed": "as not_checked",
    "not_served": "as damaged_log",
    "internal_error": "a bug",
    "page_failed": "as internal_error",
    "traces_on": "tests/process/test_traces.py",
    "traces_off": "tests/process/test_traces.py",
    "figures_on": "tests/process/test_otlp.py",
    "figures_off": "tests/process/test_otlp.py",
    "figures_not_pushed": "as internal_error",
    "page_follower_failed": "as internal_error",
    "page_absent": "tests/process/test_page_process.py",
    "page_begun": "tests/process/test_page_process.py",
    "page_ended": "tests/process/test_page_process.py",
    "page_refused": "hundreds of connections; tests/process/test_connections.py",
    "page_not_http": "tests/process/test_connections.py",
    "token_expires_soon": "tests/unit/test_access_guard.py",
    "token_expired": "tests/unit/test_access_guard.py",
    "access_failed": "tests/unit/test_access_guard.py",
    "promises_failed": "tests/unit/test_promises.py",
    "promises_read": "tests/process/test_promises.py",
    "promises_refused": "tests/process/test_promises.py",
    "certificate_in_force": "tests/process/test_tls.py",
    "certificate_refused": "tests/process/test_tls.py",
    "certificate_not_for_clients": "tests/process/test_tls.py",
    "key_readable": "tests/process/test_tls.py",
    "files_run_out": "tests/unit/test_resources.py",
    "files_free": "tests/unit/test_resources.py",
    "memory_runs_out": "tests/unit/test_resources.py",
    "memory_free": "tests/unit/test_resources.py",
    "saturated": "8,192 streams; tests/unit/test_logging.py",
    "not_saturated": "as saturated",
}
"""Where else, or why not here."""


def lines(server: Serving) -> list[dict[str, Any]]:
    """Every line of the log; each is one JSON object."""
    return [json.loads(line) for line in (server.data.parent / "serve.log").read_text().splitlines()]


def told(server: Serving, name: str, **fields: object) -> list[dict[str, Any]]:
    """The events of a name that have some fields."""
    return [
        line for line in lines(server) if line["event"] == name and all(line.get(key) == fields[key] for key in fields)
    ]


def documented() -> set[str]:
    """The events in the table of docs/logs.md."""
    return set(re.findall(r"^\| `(\w+)` \|", DOCUMENTED.read_text(), re.MULTILINE))


def test_the_events_of_one_process(tmp_path: Path) -> None:
    """Registration, claims, refusals, a reset, a retirement, and the life of the process itself."""
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
        [taken] = told(server, "taken_over", computation="flights", worker="exec-2")
        assert taken["sequencer"] > claimed["sequencer"]
        [lost] = told(server, "owner_lost", computation="flights")
        assert (lost["sequencer"], lost["claims"]) == (claimed["sequencer"], 1)

        future = datetime.now(UTC) + timedelta(days=9)
        for minute in range(20):
            second.advance(None, oldest=None, frontier=future + timedelta(minutes=minute))
            with pytest.raises(lowwater.TooFarAhead):
                second.flush()
        [refused] = told(server, "report_refused", computation="flights", reason="TOO_FAR_AHEAD")
        assert refused["count"] == 1, "20 of them in less than 10 s are one line"
        assert refused["level"] == "warning"
        second.release()
        assert told(server, "released", computation="flights", sequencer=taken["sequencer"])

        lw.worker("weather", identity="one").claim()
        with pytest.raises(lowwater.IdentityMismatch):
            lw.worker("weather", identity="two").claim()
        assert told(server, "call_refused", method="Claim", reason="IDENTITY_MISMATCH")
        for number in range(20):
            with pytest.raises(lowwater.UnknownComputation):
                lw.worker(f"made up {number}").claim()
        made_up = told(server, "call_refused", method="Claim", reason="UNKNOWN_COMPUTATION")
        assert len(made_up) <= 3, "names that nobody registered are one line in 10 s, however many"
        lw.worker("weather", identity="two").claim(adopt=True)
        assert told(server, "adopted", computation="weather")

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
        assert recovered["computations"] == 3
        assert recovered["ranges"] >= 3
        assert recovered["seconds"] >= 0
    assert all({"time", "level", "event", "message", "logger"} <= set(line) for line in lines(server))
    assert {line["event"] for line in lines(server)} <= {*documented(), "log"}


def test_the_events_of_shards(tmp_path: Path) -> None:
    """Members, take-overs, a drain, and a store that is away for a while."""
    with Sharded(tmp_path, 2) as there, there.connect() as lw:
        one, two = there.shards
        for name in ("flights", "weather"):
            lw.register(name)
        lease = lw.worker("flights", name="exec-1").claim()
        move(lw, one, "flights")
        move(lw, two, "flights")
        eventually(lambda: bool(told(two, "computation_taken", computation="flights", ranges=1)))
        eventually(lambda: bool(told(one, "computation_lost", computation="flights")))
        assert {one.address, two.address} <= set(told(one, "members")[-1]["members"])
        lw.drain(one.address)
        eventually(lambda: bool(told(one, "drain_begun")))
        eventually(lambda: not served(lw, one))
        lw.drain(one.address, cancel=True)
        eventually(lambda: bool(told(one, "drain_ended")))
        assert told(one, "journal_opened")

        there.redis.pause()
        lease.advance(None, oldest=None, frontier=datetime(2013, 1, 9, tzinfo=UTC))
        eventually(lambda: bool(told(two, "cut_off")))
        there.redis.resume()
        eventually(lambda: bool(told(two, "store_back")))
        events = {line["event"] for shard in there.shards for line in lines(shard)}
        assert events & {"store_away", "unconfirmed", "membership_unreadable"}
        assert events <= {*documented(), "log"}, "of libraries"


def test_the_table_has_every_event_that_the_code_can_tell() -> None:
    """What is in the code is in docs/logs.md and the other way round, and what is not provoked above says where it is."""
    root = Path(__file__).parents[2]
    sources = [root / "authority/src", root / "page/src", root / "client/src/lowwater/_server"]
    text = "\n".join(path.read_text() for source in sources for path in source.rglob("*.py"))
    coded = {name for call in re.findall(r"\bevent\((.{0,80})", text, re.DOTALL) for name in _names(call)}
    coded |= {"claimed", "taken_over", "adopted"}
    assert coded == documented(), sorted(coded ^ documented())
    assert set(NOT_PROVOKED) <= coded


def _names(call: str) -> list[str]:
    """The names in the first argument of a call: one, or two with a condition between."""
    found = re.match(r'\s*"(\w+)"(?: if [\w.]+ else "(\w+)")?', call)
    return [name for name in found.groups() if name] if found else []
