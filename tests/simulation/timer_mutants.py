"""Bugs of computations with timers, and of key ranges that are cut otherwise: each breaks one rule by which a batch is computed, in the production code."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from lowwater_pipeline.computation.keys import Keys
from lowwater_spark.track import part as parts
from lowwater_spark.track import update
from lowwater_spark.track.batch_log import BatchEntry, BatchLog
from lowwater_spark.track.hook import Hook
from lowwater_spark.track.part import Part
from lowwater_spark.track.progress import Progress
from lowwater_spark.track.state import StateStore, Version

Planted = pytest.MonkeyPatch


def change_the_state_in_place(planted: Planted) -> None:
    """A batch that runs again builds on what its first run has left, as with a state that is changed where it is: all of it counts twice."""
    before = StateStore.before

    def in_place(self: StateStore, batch: int) -> Version | None:
        if self.version(batch) is not None:
            shutil.rmtree(self.root / str(batch - 1), ignore_errors=True)
            (self.root / str(batch)).rename(self.root / str(batch - 1))
        return before(self, batch)

    planted.setattr(StateStore, "before", in_place)


def replay_by_the_clock(planted: Planted) -> None:
    """A batch that runs again goes by the clock as it is by then, and not by what was logged."""
    begin = BatchLog.begin

    def anew(self: BatchLog, entry: BatchEntry) -> tuple[BatchEntry, bool]:
        kept, replayed = begin(self, entry)
        return replace(kept, now=entry.now), replayed

    planted.setattr(BatchLog, "begin", anew)


def let_the_clock_go_back(planted: Planted) -> None:
    """A batch begins by the clock of its host, which may be behind that of the batch before."""
    planted.setattr(Hook, "_clock", lambda self: int(self.wall() * 1_000_000))


def cut_in_mid_batch(planted: Planted) -> None:
    """Another layout is followed when the batch has begun, and was logged with the one before."""
    logged, wanted = Part.follow_logged, Part.follow_wanted

    def follow_both(self: Part, layouts: Any, batch: int, digest: str) -> None:
        logged(self, layouts, batch, digest)
        wanted(self, batch, digest)

    planted.setattr(Part, "follow_logged", follow_both)
    planted.setattr(Part, "follow_wanted", lambda *_: None)


def hide_holds(planted: Planted) -> None:
    """What a timer holds is not told: the low watermark passes what it will produce."""
    least = Keys.least
    planted.setattr(Keys, "least", lambda self, name: None if name == "hold" else least(self, name))


def merge_to_the_greatest(planted: Planted) -> None:
    """Of ranges that become one, the hold of the one that is farthest counts until the next batch."""

    def greatest(shares: Any, values: Sequence[int | None]) -> list[int | None]:
        each = [[values[share.parent] for share in found] for found in shares]
        return [None if None in found else max(value or 0 for value in found) for found in each]

    for module in (parts, update):
        planted.setattr(module, "least_of", greatest)


def count_a_watermark_at_once(planted: Planted) -> None:
    """A batch runs with the newest low watermark, though it has not read all that was there: a limited one closes windows early."""
    observe = Progress.observe

    def credulous(self: Progress, reading: Any, heads: Sequence[Any], now: float, planned: Sequence[Any]) -> None:
        observe(self, reading, [0] * len(heads), now, planned)

    planted.setattr(Progress, "observe", credulous)


TIMING: Final = (
    change_the_state_in_place,
    replay_by_the_clock,
    let_the_clock_go_back,
    cut_in_mid_batch,
    hide_holds,
    merge_to_the_greatest,
    count_a_watermark_at_once,
)
