"""Bugs of computations with timers, and of key ranges that are cut otherwise: each breaks one rule by which a batch is computed, in the production code."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from lowwater_pipeline.computation.keys import Keys, Piece
from lowwater_spark.track import segments
from lowwater_spark.track.facts import BatchFacts
from lowwater_spark.track.run import stage_run as stage_runs
from lowwater_spark.track.run.batch_log import BatchLog
from lowwater_spark.track.run.hook import Hook
from lowwater_spark.track.run.progress import Progress
from lowwater_spark.track.run.stage_run import StageRun
from lowwater_spark.track.state import update
from lowwater_spark.track.state.store import StateStore
from tests.kit.planting import Bug, Part, bug


@bug("before", StateStore)
def change_the_state_in_place(before: Part) -> Part:
    """A batch that runs again builds on what its first run has left, as with a state that is changed where it is: all of it counts twice."""

    def in_place(self: StateStore, batch: int) -> Any:
        if self.version(batch) is not None:
            shutil.rmtree(self.root / str(batch - 1), ignore_errors=True)
            (self.root / str(batch)).rename(self.root / str(batch - 1))
        return before(self, batch)

    return in_place


def _anew(field: str) -> Callable[[Part], Part]:
    """A batch that runs again goes by what is known now, and not by what was logged."""

    def wrong(begin: Part) -> Part:
        def anew(self: BatchLog, facts: BatchFacts) -> BatchFacts:
            begun: BatchFacts = replace(begin(self, facts), **{field: getattr(facts, field)})
            return begun

        return anew

    return wrong


replay_by_the_clock = Bug("replay_by_the_clock").also("begin", BatchLog)(_anew("now"))
"""A replay runs by the clock as it is by then."""

replay_by_the_new_bounds = Bug("replay_by_the_new_bounds").also("begin", BatchLog)(_anew("layouts"))
"""A replay cuts the key space as the stage does by then."""


@bug("_clock", Hook)
def let_the_clock_go_back(_: Part) -> Part:
    """A batch begins by the clock of its host, which may be behind that of the batch before."""
    return lambda self: int(self.wall() * 1_000_000)


@bug("follow_logged", StageRun)
def cut_in_mid_batch(logged: Part) -> Part:
    """Another layout is followed when the batch has begun, and was logged with the one before."""
    follow_wanted = StageRun.follow_wanted

    def follow_both(self: StageRun, layouts: Any, batch: int, digest: str) -> None:
        logged(self, layouts, batch, digest)
        follow_wanted(self, batch, digest)

    return follow_both


@cut_in_mid_batch.also("follow_wanted", StageRun)
def _not_before(_: Part) -> Part:
    return lambda *_: None


@bug("within", Keys)
def drop_idle_keys_in_a_split(within: Part) -> Part:
    """A part of a range has the keys that were changed last: the timers of idle ones are gone."""
    return lambda self, *span: within(replace(self, pieces=self.pieces[-1:]), *span)


@bug("_live", Keys)
def fire_what_is_shadowed(_: Part) -> Part:
    """A row counts though a newer piece has its key: what has fired since, or was cleared, fires again."""
    return lambda self, number, rows: np.ones(len(rows), np.bool_)


@bug("find", Piece)
def take_one_place_for_one_key(_: Part) -> Part:
    """The first key that is found among keys of one hash is taken for the other."""

    def find(self: Piece, places: Any, keys: Any) -> Any:
        del keys
        stored = self.column("place")
        at = np.searchsorted(stored, places)
        matches = at < len(stored)
        matches[matches] = stored[at[matches]] == places[matches]
        return np.where(matches, at, -1)

    return find


@bug("os", segments)
def name_segments_of_older_versions(_: Part) -> Part:
    """A version names a segment where it was made, and not by a link of its own: who deletes that version deletes it."""
    named = SimpleNamespace(**{name: getattr(os, name) for name in ("path", "fspath")})
    named.link = lambda source, here: Path(here).symlink_to(os.path.realpath(source))
    return named


@bug("least", Keys)
def hide_holds(least: Part) -> Part:
    """A timer's hold is not reported: the low watermark passes what the timer will produce."""
    return lambda self, name: None if name == "hold" else least(self, name)


@bug("least_of", stage_runs, update)
def merge_to_the_greatest(_: Part) -> Part:
    """The hold of the farthest range counts until the next batch when ranges become one."""

    def greatest(shares: Any, values: Sequence[int | None]) -> list[int | None]:
        by_range = [[values[share.parent] for share in parts] for parts in shares]
        return [None if None in holds else max(value or 0 for value in holds) for holds in by_range]

    return greatest


@bug("observe", Progress)
def count_a_watermark_at_once(observe: Part) -> Part:
    """A batch runs with the newest low watermark, though it has not read all that was there: a limited one closes windows early."""
    return lambda self, reading, heads, now, planned: observe(self, reading, [0] * len(heads), now, planned)


@bug("least", Keys)
def forget_when_keys_are_due(least: Part) -> Part:
    """A key range tells of no timer of the clock when it is due: nobody asks for a batch, and the last ones never fire."""
    return lambda self, name: None if name == "wall" else least(self, name)


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
