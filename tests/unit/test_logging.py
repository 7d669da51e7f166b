"""How the authority logs: lines of text and of JSON, no secrets, no floods, and the counter of warnings."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from lowwater._server.logging import set_up
from lowwater.core.events import Limited, event
from lowwater.core.text import without_passwords, without_secrets
from lowwater_authority.ops.log_events import ALERTED, MOST_SERIES, OTHER
from lowwater_authority.ops.metrics import Metrics

SECRET = "pa:ss/wo@rd"


class Terminal(io.StringIO):
    """What says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def logged(chosen: str | None, stream: io.StringIO | None = None) -> str:
    """What three lines look like: one of ours, one of a library, one with a traceback."""
    out = stream or io.StringIO()
    set_up(chosen, stream=out)
    told = event("reset", computation="hourly", host="", ranges=2, inputs=["a"])
    logging.getLogger("lowwater_authority.engine.shard").warning("%s was %s", "hourly", "reset", extra=told)
    logging.getLogger("redis").warning("cannot reach %s", f"redis://lowwater:{SECRET}@redis:6379/0")
    logging.getLogger("redis").info("of no interest")
    try:
        raise ValueError(f"rediss://:{SECRET}@redis is away")
    except ValueError:
        logging.getLogger("lowwater_authority").exception("broken", extra=event("internal_error"))
    return out.getvalue()


def test_json_has_a_line_an_event_with_its_fields() -> None:
    first, second, third = map(json.loads, logged("json").splitlines())
    assert list(first) == ["time", "level", "event", "message", "computation", "ranges", "inputs", "logger"]
    assert first["time"].endswith("Z")
    del first["time"]
    assert first == {
        "level": "warning",
        "event": "reset",
        "message": "hourly was reset",
        "computation": "hourly",
        "ranges": 2,
        "inputs": ["a"],
        "logger": "lowwater_authority.engine.shard",
    }
    assert (second["event"], second["logger"]) == ("log", "redis"), "what other libraries log is a line as well"
    assert third["event"] == "internal_error"
    assert third["exception"].startswith("Traceback")


def test_text_is_the_time_the_level_and_the_sentence() -> None:
    lines = logged("text").splitlines()
    assert lines[0].split(" ", 1)[1] == "warning hourly was reset"
    assert lines[2].endswith("error   broken")
    assert lines[3].startswith("  Traceback")


def test_nobody_forges_a_line_of_text() -> None:
    """A worker calls itself what it likes, and so does whoever makes an exception."""
    out = io.StringIO()
    set_up("text", stream=out)
    logger = logging.getLogger("lowwater_authority.engine.shard")
    forged = "exec\x1b[2J\r\n2026-01-01T00:00:00.000Z error   FORGED\u2028"
    logger.info("claimed by %s", forged)
    try:
        raise ValueError(forged)
    except ValueError:
        logger.exception("broken")
    first, second, *rest = out.getvalue().split("\n")[:-1]
    assert first.endswith("claimed by exec\\x1b[2J\\r\\n2026-01-01T00:00:00.000Z error   FORGED\\u2028")
    assert second.endswith("error   broken")
    assert all(line.startswith("  ") and line.isprintable() for line in rest), rest


def test_a_terminal_gets_text_and_a_program_json() -> None:
    assert not logged(None, Terminal()).startswith("{")
    assert logged(None).startswith("{")


@pytest.mark.parametrize("chosen", ["text", "json"])
def test_no_password_of_a_url_is_logged(chosen: str) -> None:
    text = logged(chosen)
    assert SECRET not in text
    assert "wo@rd" not in text
    assert "redis://lowwater:***@redis:6379/0" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis+cluster://u:p@a:1,b:2#x", "redis+cluster://u:***@a:1,b:2#x"),
        ("redis://:p@a and redis://u:q@b", "redis://:***@a and redis://u:***@b"),
        (
            "rediss://h?ssl_password=p&db=1 and redis://h?Password=q",
            "rediss://h?ssl_password=***&db=1 and redis://h?Password=***",
        ),
        ("http://127.0.0.1:7421/metrics of a@b", "http://127.0.0.1:7421/metrics of a@b"),
        ("hdfs://host:8020/v@2 and webhdfs://a:1/x@y", "hdfs://host:8020/v@2 and webhdfs://a:1/x@y"),
        ("postgres://u:9?p@a:1/x and hdfs://u:9@a", "postgres://u:***@a:1/x and hdfs://u:***@a"),
        ("redis://:12/3@a redis://u:12@a", "redis://:***@a redis://u:***@a"),
    ],
)
def test_what_is_a_password_and_what_is_not(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    if text == shown:
        assert without_secrets(text) == shown


def test_what_happens_again_and_again_is_told_once_in_a_while_with_the_count() -> None:
    quiet = Limited(10)
    assert [quiet.count("a", now) for now in (0, 1, 9.9, 10, 10.1)] == [1, 0, 0, 3, 0]
    assert quiet.count("b", 9) == 1, "each for itself"
    for key in range(5_000):
        quiet.count(key, 100 + key)
    assert len(vars(quiet)["_told"]) <= 1_001, "bounded while keys come and go"


def test_a_flood_of_names_is_a_bounded_number_of_lines_and_costs_little() -> None:
    """Beyond a thousand keys new ones share one; and the old ones are looked through once in a while, not each time."""
    quiet = Limited(10)
    looks = 0

    class Counted(dict[object, tuple[float, int]]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    vars(quiet)["_told"] = Counted()
    assert sum(quiet.count(number, number / 10_000) for number in range(50_000)) == 1_001
    assert looks <= 1
    assert len(vars(quiet)["_told"]) == 1_001
    assert quiet.count(60_000, 11) == 1, "the quiet ones are forgotten"


DOCUMENTED = Path(__file__).parents[2] / "docs" / "logs.md"
log = logging.getLogger("a.library")


def counted(metrics: Metrics) -> dict[tuple[str, str], float]:
    """What a scrape would find."""
    text = metrics.render()[0].decode()
    found = re.findall(r'^lowwater_log_events_total\{event="(.*)",level="(.*)"\} (.*)$', text, re.MULTILINE)
    return {(name, level): float(value) for name, level, value in found}


def test_lines_are_counted_by_event_and_level_while_the_process_serves() -> None:
    metrics = Metrics("1")
    with metrics.counting_log():
        log.error("it is lost", extra=event("store_lost_records"))
        log.error("it is lost again", extra=event("store_lost_records"))
        log.warning("a line without an event")
        log.info("news are not counted", extra=event("claimed"))
    log.error("behind the end", extra=event("store_lost_records"))
    found = counted(metrics)
    assert found.pop(("store_lost_records", "error")) == 2
    assert found.pop((OTHER, "warning")) == 1
    assert found == {pair: 0 for pair in ALERTED if pair != ("store_lost_records", "error")}, "so that 1 is an increase"


def test_made_up_events_are_a_bounded_number_of_series() -> None:
    metrics = Metrics("1")
    with metrics.counting_log():
        for number in range(3 * MOST_SERIES):
            log.warning("anything", extra=event(f"made_up_{number}"))
    found = counted(metrics)
    assert len(found) <= MOST_SERIES + 2
    assert sum(found.values()) == 3 * MOST_SERIES


def test_what_alerts_are_about_is_documented() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", DOCUMENTED.read_text(), re.MULTILINE))
    for name, level in ALERTED:
        assert level in documented[name], name
