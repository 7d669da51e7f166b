"""What the oracle knows of slices that are cut in two, whoever hears first that the graph names the cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowwater_authority.core.computation import Computation
from lowwater_authority.core.requests import ClaimRequest
from lowwater_authority.core.topology import Spec
from tests.simulation.kernel import Simulation
from tests.simulation.ledger import Ledger
from tests.simulation.oracle import Oracle
from tests.simulation.truth import Cell, Node, Pipeline, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

LATER, EARLIER = 200, 100
"""Oldest work of the first key range of the slice, and of the second one, which is cut off."""


def world() -> tuple[Oracle, Pipeline]:
    """A computation of four cells, of which each slice has two."""
    injected = [Cell(source=Source([time], time)) for time in (0, 0, LATER, EARLIER)]
    pipeline = Pipeline([Node("a", [], 0, injected, cuts=(2,))])
    return Oracle(Simulation(1), pipeline, Ledger(), weak=False, sharded=True), pipeline


def cut_slice(values: Sequence[int]) -> Computation:
    """The second slice of it, whose log the graph has given fewer keys, and which has not handed any over."""
    root = Spec("a", slices=(b"\x80",))
    whole = root.slice_specs()["a~1"]
    computation = Computation(whole)
    request = ClaimRequest((b"\x80", b"\xc0", b""), request_id=bytes(16))
    computation.claim(request, 1)
    cut, _ = root.split("a~1", b"\xc0")
    computation.spec = cut.slice_specs()["a~1"]
    stand_at(computation, values)
    return computation


def stand_at(computation: Computation, values: Sequence[int]) -> None:
    """Let the ranges that it has come to these values."""
    slots = np.concatenate([group.base + group.live_places() for group in computation.map.run_groups()])
    computation.map.columns.set(slots, np.array(values, dtype=np.int64))


def test_a_slice_has_the_keys_of_its_own_log_and_not_those_of_the_graph() -> None:
    oracle, pipeline = world()
    computation = cut_slice([LATER, EARLIER])
    assert pipeline.low("a~1") == EARLIER
    oracle._has_keys(computation)
    assert pipeline.low("a~1") == EARLIER
    computation.move_out("a~2")
    oracle._has_keys(computation)
    assert pipeline.low("a~1") == LATER, "before anybody told the oracle of the record of the graph"


def test_keys_that_are_cut_off_stood_where_the_slice_came_until_it_handed_them_over() -> None:
    oracle, _ = world()
    computation = cut_slice([EARLIER, EARLIER])
    oracle._stands(computation)
    stand_at(computation, [LATER, LATER])
    oracle._stands(computation)
    computation.move_out("a~2")
    stand_at(computation, [LATER + 1])
    oracle._stands(computation)
    assert oracle._stood["a", 1, 2] == LATER + 1
    assert oracle._stood["a", 1, 3] == LATER
