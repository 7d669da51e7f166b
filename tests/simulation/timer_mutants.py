"""Bugs of computations with timers, and of key ranges that are cut otherwise: each breaks one rule by which a batch is computed, in the production code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from lowwater_pipeline.computation.keys import Keys, Piece
from lowwater_spark.track import part as parts
from lowwater_spark.track import segments, update
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


def _replay(planted: Planted, field: str) -> None:
    """A batch that runs again goes by what is known now, and not by what was logged."""
    begin = BatchLog.begin

    def anew(self: BatchLog, entry: BatchEntry) -> tuple[BatchEntry, bool]:
        kept, replayed = begin(self, entry)
        now = {field: getattr(entry, field)}
        return replace(kept, **now), replayed

    planted.setattr(BatchLog, "begin", anew)


def replay_by_the_clock(planted: Planted) -> None:
    """A replay runs by the clock as it is by then."""
    _replay(planted, "now")


def replay_by_the_new_bounds(planted: Planted) -> None:
    """A replay cuts the key space as the stage does by then."""
    _replay(planted, "layouts")


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


def drop_idle_keys_in_a_split(planted: Planted) -> None:
    """A part of a range has the keys that were changed last: the timers of idle ones are gone."""
    within = Keys.within
    planted.setattr(Keys, "within", lambda self, *span: within(replace(self, pieces=self.pieces[-1:]), *span))


def fire_what_is_shadowed(planted: Planted) -> None:
    """A row counts though a newer piece has its key: what has fired since, or was cleared, fires again."""
    planted.setattr(Keys, "_live", lambda self, number, rows: np.ones(len(rows), np.bool_))


def take_one_place_for_one_key(planted: Planted) -> None:
    """Of keys with one hash the first that is found is taken for the other."""

    def find(self: Piece, places: Any, keys: Any) -> Any:
        del keys
        held = self.column("place")
        at = np.searchsorted(held, places)
        there = at < len(held)
        there[there] = held[at[there]] == places[there]
        return np.where(there, at, -1)

    planted.setattr(Piece, "find", find)


def name_segments_of_older_versions(planted: Planted) -> None:
    """A version names a segment where it was made, and not by a link of its own: who deletes that version deletes it."""
    named = SimpleNamespace(**{name: getattr(os, name) for name in ("path", "fspath")})
    named.link = lambda made, here: Path(here).symlink_to(os.path.realpath(made))
    planted.setattr(segments, "os", named)


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


def forget_when_keys_are_due(planted: Planted) -> None:
    """A key range tells of no timer of the clock when it is due: nobody asks for a batch, and the last ones never fire."""
    least = Keys.least
    planted.setattr(Keys, "least", lambda self, name: None if name == "wall" else least(self, name))


TIMING: Final = (
    change_the_state_in_place,
    replay_by_the_clock,
    replay_by_the_new_bounds,
    let_the_clock_go_back,
    cut_in_mid_batch,
    drop_idle_keys_in_a_split,
    fire_what_is_shadowed,
    take_one_place_for_one_key,
    name_segments_of_older_versions,
    hide_holds,
    merge_to_the_greatest,
    count_a_watermark_at_once,
    forget_when_keys_are_due,
)
