"""Micro-batches: parts, prepare, commit, and the executions that would apply the wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowwater import errors
from lowwater_authority.core import batches
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import Fold, TaskAttempt
from lowwater_authority.core.topology import Spec
from tests.property import switches
from tests.property.core_driver import MAX, MIN, Driver, part
from tests.property.switches import off, planted

HALF = 500_000


@planted("C2", switches.PartOfABatch)
def test_C2_all_or_nothing(made: type[Computation]) -> None:
    """C2: tasks 0, 1 and 2 hold nothing, task 3 holds 12, and its part never came."""
    d = Driver(made=made)
    run = d.claim(b"", b"d", b"h", b"p", b"").sequencer
    d.report(run, 10)
    tasks = [d.stage(run, 1, index, {index: MAX}) for index in range(3)]
    lost = TaskAttempt(0, 3, 0)
    assert d.prepare(run, 1, [*tasks, lost], 14) == [lost]
    with pytest.raises(errors.NotPrepared, match="empty batch"):
        d.commit(run, 1)
    assert {value for _, value in d.values()} == {10}
    d.core.stage_task(run, 1, lost, part({3: 12}))
    assert d.prepare(run, 1, [*tasks, lost], 14) == []
    assert d.commit(run, 1) == set()
    assert [value for _, value in d.values()] == [14, 14, 14, 12]
    assert d.strong[-1]


def test_C2_a_failed_prepare_withdraws_the_earlier_one() -> None:
    d = Driver()
    run = d.claim(b"", b"").sequencer
    task = d.stage(run, 1, 0, {0: MAX})
    assert d.prepare(run, 1, [task], 14) == []
    assert d.prepare(run, 1, [task, TaskAttempt(0, 1, 0)], 14) == [TaskAttempt(0, 1, 0)]
    with pytest.raises(errors.NotPrepared):
        d.commit(run, 1)


def test_S4_only_the_accepted_attempt_counts() -> None:
    """Attempt 0 staged part of its work and failed; attempt 1 succeeded, and its part was lost."""
    d = Driver()
    run = d.claim(b"", b"").sequencer
    d.stage(run, 1, 0, {0: MAX}, attempt=0)
    assert d.prepare(run, 1, [TaskAttempt(0, 0, 1)], 14) == [TaskAttempt(0, 0, 1)]
    d.stage(run, 1, 0, {0: 12}, attempt=1)
    assert d.prepare(run, 1, [TaskAttempt(0, 0, 1)], 14) == []
    d.commit(run, 1)
    assert d.low == 12


def test_nothing_moves_before_the_commit() -> None:
    d = Driver()
    run = d.claim(b"", b"").sequencer
    task = d.stage(run, 1, 0, {0: MAX})
    d.prepare(run, 1, [task], 14)
    assert d.settle() is None
    assert d.low == MIN
    d.crash()
    with pytest.raises(errors.NotPrepared):
        d.commit(run, 1)
    assert d.low == MIN, "parts wait in memory only: a restart holds the stage"


def test_a_commit_may_be_repeated() -> None:
    d = Driver()
    run = d.claim(b"", b"").sequencer
    d.prepare(run, 1, [], 14)
    assert d.commit(run, 1) == set()
    d.report(run, 13)
    assert d.commit(run, 1) == set()
    assert d.values() == [(b"", 13)]


@pytest.mark.parametrize("batch", [5, 6])
def test_H2_a_late_repeat_of_a_batch_changes_nothing(batch: int) -> None:
    """H2 once more: prepare and commit of an empty batch come a second time, behind a batch that lowered the range."""
    d = Driver()
    run = d.claim(b"", b"").sequencer
    d.prepare(run, 5, [], 14)
    d.commit(run, 5)
    task = d.stage(run, 6, 0, {0: 13})
    d.prepare(run, 6, [task], 15)
    d.commit(run, 6)
    assert d.values() == [(b"", 13)]
    for _ in range(2):
        d.prepare(run, batch, [], 14)
        try:
            d.commit(run, batch)
        except errors.NotPrepared:
            pass
        assert d.values() == [(b"", 13)]
        d.crash()


def test_a_late_prepare_leaves_the_newer_one_as_it_is() -> None:
    d = Driver()
    run = d.claim(b"", b"").sequencer
    old = d.stage(run, 1, 0, {0: 11})
    new = d.stage(run, 2, 0, {0: 12})
    assert d.prepare(run, 2, [new], 15) == []
    assert d.prepare(run, 1, [old], 14) == [old]
    d.stage(run, 1, 0, {0: MAX})
    assert d.commit(run, 2) == set()
    assert d.low == 12


@planted("H5b", switches.NoHandOver)
def test_H5b_a_newer_claim_applies_what_was_prepared(made: type[Computation]) -> None:
    """H5b: commits/7 is written, the driver dies before it tells, and the new run is idle."""
    d = Driver(made=made)
    run = d.claim(b"", b"m", b"", identity="q", generation=7).sequencer
    d.report(run, 10)
    task = d.stage(run, 7, 0, {0: 12, 1: MAX})
    d.prepare(run, 7, [task], 14, digest=b"seven")
    new = d.claim(b"", b"m", b"", identity="q", generation=8, bound=[20, 13])
    assert new.watermarks.tolist() == [12, 13], "applied first, then the claim's bound"
    assert d.core.last_batch == (7, b"seven")
    d.crash()
    assert [value for _, value in d.values()] == [12, 13]
    assert d.low == 12


@pytest.mark.parametrize("generation", [6, 7])
def test_H5b_an_uncommitted_batch_is_not_applied(generation: int) -> None:
    """The new run starts at the prepared batch itself: it is not in the commit log."""
    d = Driver()
    run = d.claim(b"", b"", identity="q", generation=6).sequencer
    d.report(run, 10)
    d.prepare(run, 7, [], 14)
    assert d.claim(b"", b"", identity="q", generation=generation, ordinal=1).watermarks.tolist() == [10]
    assert d.core.last_batch is None
    assert d.claim(b"", b"", identity="q", generation=8).watermarks.tolist() == [10], "fenced by now"


def test_H5b_a_refused_claim_applies_nothing() -> None:
    d = Driver()
    run = d.claim(b"", b"", identity="q", generation=6).sequencer
    d.prepare(run, 6, [], 14)
    with pytest.raises(errors.IdentityMismatch):
        d.claim(b"", b"", identity="other", generation=9)
    assert d.values() == [(b"", MIN)]
    assert d.commit(run, 6) == set()


def test_a_released_run_cannot_commit() -> None:
    d = Driver()
    run = d.claim(b"", b"", generation=1).sequencer
    d.prepare(run, 1, [], 14)
    d.release(run)
    with pytest.raises(errors.StaleSequencer):
        d.commit(run, 1)
    for call in (lambda: d.stage(run, 1, 0, {}), lambda: d.prepare(run, 1, [], 14)):
        with pytest.raises(errors.StaleSequencer):
            call()
    assert d.claim(b"", b"", generation=2).watermarks.tolist() == [MIN]


def test_a_batch_of_another_fold_is_refused() -> None:
    d = Driver(Spec("c", ("a",)))
    run = d.claim(b"", b"").sequencer
    d.prepare(run, 1, [], 14, fold=Fold(1, (1,)))
    with pytest.raises(errors.InputVersion):
        d.commit(run, 1, Fold(2, (1, 1)))
    with pytest.raises(errors.IncarnationChanged):
        d.commit(run, 1, Fold(1, (2,)))
    assert d.low == MIN
    assert d.commit(run, 1, Fold(1, (1,))) == set()
    assert d.low == 14


def test_an_input_that_is_registered_while_a_batch_runs_was_not_reset() -> None:
    """It was folded as unknown, so nothing above MIN is in the batch, whatever incarnation the input is in now."""
    d = Driver(Spec("c", ("a", "b")))
    run = d.claim(b"", b"").sequencer
    with pytest.raises(errors.InvalidArgument, match="must be"):
        d.prepare(run, 1, [], 14, fold=Fold(1, (1, 0)))
    task = d.stage(run, 1, 0, {0: 12})
    d.prepare(run, 1, [task], MIN, fold=Fold(1, (1, 0)))
    for incarnations in ((2, 1), (2, 0), (1,), (1, 1, 1)):
        with pytest.raises(errors.IncarnationChanged):
            d.commit(run, 1, Fold(1, incarnations))
    assert d.commit(run, 1, Fold(1, (1, 7))) == set()
    assert d.low == MIN
    d.prepare(run, 2, [], 14, fold=Fold(1, (1, 7)))
    with pytest.raises(errors.IncarnationChanged):
        d.commit(run, 2, Fold(1, (1, 0)))


def test_a_lost_range_is_refused_and_the_rest_of_the_batch_counts() -> None:
    d = Driver()
    run = d.claim(b"", b"m", b"").sequencer
    task = d.stage(run, 1, 0, {0: 12, 1: 13})
    d.prepare(run, 1, [task], 14)
    d.claim(b"", b"m")
    assert d.commit(run, 1) == {("STALE_SEQUENCER", 0)}
    assert d.values() == [(b"", MIN), (b"m", 13)]


@pytest.mark.parametrize(("covers_all", "values"), [(True, [12, 10]), (False, [12, 14])])
def test_a_range_without_a_task_holds_or_has_nothing(covers_all: bool, values: list[int]) -> None:
    d = Driver()
    run = d.claim(b"", b"m", b"").sequencer
    d.report(run, 10)
    task = d.stage(run, 1, 0, {0: 12})
    d.prepare(run, 1, [task], 14, covers_all=covers_all)
    d.commit(run, 1)
    assert [value for _, value in d.values()] == values


def test_MAX_passes_only_by_a_bound_of_MAX() -> None:
    d = Driver()
    run = d.claim(b"", b"m", b"").sequencer
    task = d.stage(run, 1, 0, {0: 12, 1: MAX})
    d.prepare(run, 1, [task], MAX)
    assert d.commit(run, 1) == set()
    assert [value for _, value in d.values()] == [12, MAX]
    d.prepare(run, 2, [], MAX - 1)
    assert d.commit(run, 2) == {("TOO_FAR_AHEAD", 0)}, "the other one goes back, which nothing may keep it from"
    assert [value for _, value in d.values()] == [12, MAX - 1]


def test_jobs_of_a_batch_fold_minima_and_never_add_histograms() -> None:
    """Two jobs see the same records: minima by min, the histogram and the count of the larger job alone."""
    d = Driver(Spec("c", heuristics=(HALF,)))
    run = d.claim(b"", b"m", b"").sequencer
    parts = {
        TaskAttempt(1, 0, 0): part({0: 12}, [12, 13], finished=1),
        TaskAttempt(1, 1, 1): part({1: 15}, [13], finished=2),
        TaskAttempt(2, 0, 2): part({0: 11, 1: 16}, [11], finished=0),
    }
    for name, held in parts.items():
        d.core.stage_task(run, 1, name, held)
    assert d.prepare(run, 1, list(parts), 14, frontiers={HALF: 14}) == []
    d.commit(run, 1)
    assert [value for _, value in d.values()] == [11, 14]
    told = d.core.map.groups[run].mass
    assert told is not None
    assert (told.starts.tolist(), told.counts.tolist(), told.recent) == ([12, 13], [1, 2], 3)


def test_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_PARTS", 2)
    d = Driver()
    run = d.claim(b"", b"").sequencer
    for task in (0, 1, 1):
        d.stage(run, 1, task, {0: 5})
    with pytest.raises(errors.Overloaded, match="fewer partitions"):
        d.stage(run, 1, 2, {0: 5})
    assert len(d.core.batches) == 2
    d.stage(run, 2, 2, {0: 5})
    assert len(d.core.batches) == 1, "a newer batch takes the place of the older one"
    d.stage(run, 1, 0, {0: 5})
    assert len(d.core.batches) == 1


def test_rule7_the_bytes_of_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tasks with large histograms cost what many with small ones do; a repeat of a task takes the place of its first part."""
    monkeypatch.setattr(batches, "MAX_PART_BYTES", 3 * batches.PART_BYTES)
    d = Driver()
    run = d.claim(b"", b"").sequencer
    small, large = part({0: 5}), part({0: 5}, pending=range(100))
    for index in (0, 1, 1):
        d.core.stage_task(run, 1, TaskAttempt(0, index, 0), small)
    before = d.core.batches.bytes
    with pytest.raises(errors.Overloaded, match="fewer partitions"):
        d.core.stage_task(run, 1, TaskAttempt(0, 1, 0), large)
    assert (len(d.core.batches), d.core.batches.bytes) == (2, before)
    neighbour = Driver()
    other = neighbour.claim(b"", b"").sequencer
    neighbour.core.stage_task(other, 1, TaskAttempt(0, 1, 0), large)


def test_a_part_that_grows_nothing_is_taken_where_no_other_would_be() -> None:
    """Others have filled the process; the answer to a part was lost, or its task says less when it is asked again."""
    d = Driver()
    run = d.claim(b"", b"").sequencer
    less, held, more = (part({0: at}, pending=range(records)) for at, records in ((7, 1), (5, 2), (5, 3)))
    for index in (0, 1):
        d.core.stage_task(run, 1, TaskAttempt(0, index, 0), held)
    before = d.core.batches.bytes
    d.core.stage_task(run, 1, TaskAttempt(0, 0, 0), held, most=1)
    assert d.core.batches.bytes == before
    d.core.stage_task(run, 1, TaskAttempt(0, 1, 0), less, most=1)
    kept = d.core.batches.bytes
    assert kept < before
    for index, refused in ((0, more), (1, held), (2, less)):
        with pytest.raises(errors.Overloaded):
            d.core.stage_task(run, 1, TaskAttempt(0, index, 0), refused, most=1)
    assert (len(d.core.batches), d.core.batches.bytes) == (2, kept)
    assert d.prepare(run, 1, [TaskAttempt(0, 1, 0)], 14) == []
    d.commit(run, 1)
    assert d.low == 7, "the one that took its place counts"


def test_rule7_nothing_of_a_batch_is_kept_after_its_commit() -> None:
    """Nor what comes late of it; the parts of the next batch, which is here before it, stay."""
    d = Driver()
    run = d.claim(b"", b"d", b"").sequencer
    tasks = [d.stage(run, 1, index, {index: 15}) for index in range(2)]
    assert d.prepare(run, 1, tasks, 14) == []
    assert d.commit(run, 1) == set()
    assert (len(d.core.batches), d.core.batches.bytes) == (0, 0)
    d.stage(run, 1, 0, {0: 3}, attempt=1)
    assert len(d.core.batches) == 0
    assert d.prepare(run, 1, tasks, 14) == []
    assert d.commit(run, 1) == set(), "a repeat gets the first answer"
    tasks = [d.stage(run, 2, index, {index: 20}) for index in range(2)]
    assert d.prepare(run, 2, tasks, 19) == []
    d.stage(run, 3, 0, {0: 30})
    assert d.commit(run, 2) == set()
    assert len(d.core.batches) == 1, "of the batch that follows"
    assert {value for _, value in d.values()} == {19}


@off(7)
def test_rule7_off_for_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(self: batches.BatchStage, *_: object) -> None:
        self.prepared = None

    monkeypatch.setattr(batches.BatchStage, "committed", kept)
    test_rule7_nothing_of_a_batch_is_kept_after_its_commit()


OVER: dict[str, Callable[[Driver, int], object]] = {
    "a newer claim": lambda d, _: d.claim(b"", b"", worker="next"),
    "a release": lambda d, run: d.core.release(run),
    "a revocation": lambda d, _: d.core.revoke(2, d.now),
    "a retirement": lambda d, _: d.core.retire(b"", b"", force=True, now=d.now),
}


@pytest.mark.parametrize("how", OVER)
def test_rule7_nothing_of_a_batch_is_kept_after_its_claim(how: str) -> None:
    """What nobody can commit any more. A claim that goes on keeps what it has, whatever ends beside it."""
    d = Driver()
    run, beside = d.claim(b"", b"d").sequencer, d.claim(b"d", b"").sequencer
    staged = [d.stage(run, 1, index, {0: 15}) for index in range(2)]
    assert d.prepare(run, 1, staged, 14) == []
    d.stage(run, 2, 0, {0: 15})
    d.core.release(beside)
    assert d.core.batches.bytes > 0
    assert d.core.batches.prepared is not None
    OVER[how](d, run)
    assert (len(d.core.batches), d.core.batches.bytes) == (0, 0)
    assert d.core.batches.prepared is None


def test_a_claim_that_lost_a_part_of_its_ranges_commits_what_it_prepared() -> None:
    d = Driver()
    run = d.claim(b"", b"d", b"").sequencer
    tasks = [d.stage(run, 1, index, {index: 15}) for index in range(2)]
    assert d.prepare(run, 1, tasks, 14) == []
    d.claim(b"d", b"")
    d.commit(run, 1)
    assert d.values()[0] == (b"", 14)


def test_a_part_of_a_range_that_is_not_there_is_refused() -> None:
    d = Driver()
    run = d.claim(b"", b"").sequencer
    with pytest.raises(errors.InvalidArgument):
        d.stage(run, 1, 0, {1: 5})
    assert len(d.core.batches) == 0
