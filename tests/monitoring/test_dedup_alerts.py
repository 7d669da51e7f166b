"""Each alert about deduplicators fires at its second, and its nearest harmless neighbour does not fire it at all."""

from __future__ import annotations

from pathlib import Path

from tests.monitoring.exported import HOURS, Exported, Value, check, dedup, healthy, paused, quiet

FAULT = 1 * HOURS
AFTER = range(FAULT, 2 * HOURS, 300)
PARTITION = {"job": "dedup", "topic": "orders", "partition": "0"}


def changed(running: Value, *, refused: Value = lambda t: 0, commits: Value = lambda t: min(t, FAULT)) -> Exported:
    """A deployment in which nothing is committed from the fault on."""
    more = {dedup("running"): running, dedup("refused"): refused, dedup("commits_total"): commits}
    return healthy() | more


def test_a_partition_that_has_refused_fires_after_a_minute_and_is_not_held_as_well(tmp_path: Path) -> None:
    exported = changed(lambda t: float(t < FAULT), refused=lambda t: float(t >= FAULT))
    check(
        tmp_path,
        exported,
        {
            "LowwaterDedupRefused": {FAULT + 30: [], FAULT + 60: [PARTITION]},
            "LowwaterDedupHeld": {FAULT + 3000: []},
        },
    )


def test_a_process_that_is_gone_fires_after_five_minutes(tmp_path: Path) -> None:
    """Killed, or ended since all of its partitions have refused: there is nothing that could say so any more."""
    exported = healthy()
    paused(exported, FAULT, 20 * HOURS, "lowwater_dedup_")
    check(tmp_path, exported, {"LowwaterDedupAbsent": {FAULT + 270: [], FAULT + 330: [PARTITION], FAULT + 4000: []}})


def test_a_partition_that_is_held_fires_after_ten_minutes(tmp_path: Path) -> None:
    exported = changed(lambda t: float(t < FAULT))
    check(tmp_path, exported, {"LowwaterDedupHeld": {FAULT + 570: [], FAULT + 600: [PARTITION]}})


def test_a_partition_that_is_taken_again_and_again_is_held(tmp_path: Path) -> None:
    """It works for a minute each time, until a commit has no answer."""
    exported = changed(lambda t: float(t < FAULT or t % 90 >= 30))
    check(tmp_path, exported, {"LowwaterDedupHeld": {FAULT + 840: [], FAULT + 870: [PARTITION]}})


def test_a_partition_without_messages_is_quiet(tmp_path: Path) -> None:
    check(tmp_path, changed(lambda t: 1), quiet(AFTER))


def test_a_partition_that_goes_from_process_to_process_is_quiet(tmp_path: Path) -> None:
    """The old one exports it no more, the new one opens it for a while."""
    exported = changed(lambda t: float(not FAULT <= t < FAULT + 240), commits=lambda t: max(0, t - FAULT - 240))
    paused(exported, FAULT, FAULT + 90, "lowwater_dedup_")
    check(tmp_path, exported, quiet(AFTER))
