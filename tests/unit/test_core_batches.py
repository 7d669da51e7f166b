"""Micro-batches: parts, prepare, commit, and the executions that would apply the wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowwater import errors
from lowwater_authority.core import batches
from lowwater_authority.core.requests import Fold, TaskAttempt
from lowwater_authority.core.topology import Spec
from tests.property.core_driver import MAX, MIN, Driver, part


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


def test_an_input_that_is_registered_while_a_batch_runs_was_not_reset() -> None:
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


def test_rule7_the_bytes_of_parts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_rule7_nothing_of_a_batch_is_kept_after_its_commit() -> None:
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


OVER: dict[str, Callable[[Driver, int], object]] = {
    "a newer claim": lambda d, _: d.claim(b"", b"", worker="next"),
    "a release": lambda d, run: d.core.release(run),
    "a revocation": lambda d, _: d.core.revoke(2, d.now),
    "a retirement": lambda d, _: d.core.retire(b"", b"", force=True, now=d.now),
}


@pytest.mark.parametrize("how", OVER)
def test_rule7_nothing_of_a_batch_is_kept_after_its_claim(how: str) -> None:
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


def test_a_part_of_a_range_that_is_not_there_is_refused() -> None:
    d = Driver()
    run = d.claim(b"", b"").sequencer
    with pytest.raises(errors.InvalidArgument):
        d.stage(run, 1, 0, {1: 5})
    assert len(d.core.batches) == 0
