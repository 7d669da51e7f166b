"""Each alert about deduplicators fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from pathlib import Path

from tests.monitoring.exported import HOURS, Exported, Value, check, dedup, healthy, paused, quiet

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
PARTITION = {"job": "dedup", "topic": "orders", "partition": "0"}


def changed(running: Value, refused: Value) -> Exported:
    return healthy() | {dedup("running"): running, dedup("refused"): refused}


def test_a_partition_that_has_refused_fires_after_a_minute_and_is_not_held_as_well(tmp_path: Path) -> None:
    exported = changed(lambda t: float(t < FAULT), lambda t: float(t >= FAULT))
    check(
        tmp_path,
        exported,
        {
            "LowwaterDedupRefused": {FAULT + 30: [], FAULT + 60: [PARTITION]},
            "LowwaterDedupHeld": {FAULT + 3000: []},
        },
    )


def test_a_partition_that_is_held_fires_after_ten_minutes(tmp_path: Path) -> None:
    exported = changed(lambda t: float(t < FAULT), lambda t: 0)
    check(tmp_path, exported, {"LowwaterDedupHeld": {FAULT + 570: [], FAULT + 600: [PARTITION]}})


def test_a_partition_that_goes_from_process_to_process_is_quiet(tmp_path: Path) -> None:
    """The old one exports it no more, the new one opens it for a while."""
    exported = changed(lambda t: float(not FAULT <= t < FAULT + 240), lambda t: 0)
    paused(exported, FAULT, FAULT + 90, "lowwater_dedup_")
    check(tmp_path, exported, quiet(AFTER))
