"""The counter of log lines: warnings and errors by their event, in a bounded set of series."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from lowwater._core.events import event
from lowwater_authority.ops.log_events import ALERTED, MOST_SERIES, OTHER
from lowwater_authority.ops.metrics import Metrics

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
