"""The pipeline graph: cycles, order, resets, versions."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater import errors
from lowwater_authority.core.budget import LEAST
from lowwater_authority.core.history import LARGEST_STEP
from lowwater_authority.core.requests import NO_FOLD, Fold
from lowwater_authority.core.times import ANY_SKEW, DAY
from lowwater_authority.core.topology import Spec, Topology

NAMES = "abcdefgh"
GUESSES = frozenset("gh")
"""Names of those that are registered as estimated."""
edits = st.lists(
    st.tuples(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)), max_size=16
)


def reaches(inputs: dict[str, tuple[str, ...]], start: str, goal: str) -> bool:
    reached: set[str] = set()
    new = set(inputs.get(start, ()))
    while new - reached:
        reached |= new
        new = {i for name in reached for i in inputs.get(name, ())}
    return goal in reached


def graph(*edges: tuple[str, tuple[str, ...]]) -> Topology:
    topology = Topology()
    for name, inputs in edges:
        topology = topology.register(Spec(name, inputs))
    return topology


@given(edits=edits)
@settings(max_examples=200, database=None)
def test_no_cycle_ever_and_nothing_else_is_refused(edits: list[tuple[str, tuple[str, ...]]]) -> None:
    topology, inputs = Topology(), dict[str, tuple[str, ...]]()
    for name, reads in edits:
        after = inputs | {name: reads}
        cyclic, before, guess = reaches(after, name, name), topology, name in GUESSES
        guessed = any(GUESSES & after.keys() & {*reads} for reader, reads in after.items() if reader not in GUESSES)
        try:
            new = Spec(name, reads, estimated=guess)
            topology = topology.set_inputs(name, reads) if name in inputs else topology.register(new)
        except errors.Cycle as error:
            assert cyclic
            path = error.metadata["cycle"].split(" -> ")
            assert path[0] == path[-1] == name
            assert all(b in after[a] for a, b in pairwise(path))
            assert topology is before
            continue
        except errors.EstimatedInput:
            assert guessed
            assert not cyclic
            continue
        assert not cyclic
        assert not guessed
        inputs[name] = reads
        assert topology.version == before.version + 1
    assert {name: spec.inputs for name, spec in topology.computations.items()} == inputs
    assert {name for name in inputs if topology.is_estimated(name)} == GUESSES & inputs.keys()
    assert Topology.decode(topology.encode()) == topology


BOUNDS: dict[str, tuple[Any, Any]] = {
    "heuristics": (range(1, 17), range(1, 18)),
    "budgets": (range(LEAST, LEAST + 4), range(LEAST, LEAST + 5)),
    "key_hash": ("h" * 64, "h" * 65),
    "max_skew": (2**62 - 1, 2**62),
    "history_step": (LARGEST_STEP, LARGEST_STEP + 1),
}


@pytest.mark.parametrize("field", BOUNDS)
def test_as_much_as_is_allowed_is_registered_and_one_more_is_refused(field: str) -> None:
    most, more = (tuple(bound) if isinstance(bound, range) else bound for bound in BOUNDS[field])
    spec = Topology().register(Spec("c", **{field: most})).get("c")  # type: ignore[arg-type]
    assert getattr(spec, field) == most
    with pytest.raises(errors.InvalidArgument, match=field):
        Topology().register(Spec("c", **{field: more}))  # type: ignore[arg-type]


@given(edits=edits, root=st.sampled_from(NAMES))
@settings(max_examples=200, database=None)
def test_a_reset_takes_all_that_reads_it_inputs_first(edits: list[tuple[str, tuple[str, ...]]], root: str) -> None:
    topology = Topology()
    for name, reads in [*edits, (root, ())]:
        if name not in topology.computations:
            try:
                topology = topology.register(Spec(name, reads))
            except errors.Cycle:
                continue
    if root not in topology.computations:
        return
    inputs = {name: spec.inputs for name, spec in topology.computations.items()}
    changed, names = topology.reset(root)
    assert set(names) == {root} | {name for name in inputs if reaches(inputs, name, root)}
    assert len(set(names)) == len(names)
    assert names == topology.downstream(root)
    for position, name in enumerate(names):
        assert not set(inputs[name]) & set(names[position:]), "inputs come before their readers"
    for name, spec in topology.computations.items():
        assert changed.get(name) == replace(spec, incarnation=spec.incarnation + (name in names))
    assert changed.version == topology.version + 1


def test_a_long_pipeline_may_be_reset() -> None:
    specs = {f"c{i}": Spec(f"c{i}", (f"c{i - 1}",) if i else ()) for i in range(3000)}
    changed, names = Topology(1, specs).reset("c0")
    assert names == [f"c{i}" for i in range(3000)]
    assert changed.get("c2999").incarnation == 2


def test_a_cycle_that_a_heal_has_made_can_be_reset_read_and_undone() -> None:
    """Two shards have changed a graph that the store has lost: each kept it free of cycles, the two together did not."""
    before = graph(("a", ()), ("b", ()), ("reader", ("b",)), ("beside", ()))
    topology = before.set_inputs("a", ["b"]).merged(before.set_inputs("b", ["a"]))
    assert topology._cycle_through("a") == ["a", "b", "a"]
    for root in ("a", "b"):
        changed, names = topology.reset(root)
        assert set(names) == {"a", "b", "reader"}
        assert {name: spec.incarnation for name, spec in changed.computations.items()} == {
            "a": 2,
            "b": 2,
            "reader": 2,
            "beside": 1,
        }
    assert topology.reset("reader")[1] == ["reader"]
    assert topology.register(Spec("c", ("a",))).downstream("a")[0] == "a"
    assert topology.register(Spec("a", ("b",))) is topology
    with pytest.raises(errors.Cycle, match="leave one of these inputs out, with set_inputs"):
        topology.set_inputs("a", ["b", "beside"])
    undone = topology.set_inputs("a", [])
    assert undone.downstream("a") == ["a", "b", "reader"]


def test_a_merge_leaves_a_newer_incarnation_as_it_was_registered() -> None:
    """A guess that was dropped and registered again as exact stays exact, whoever has not heard of it; in one incarnation a guess stays one."""
    guessed = Topology().register(Spec("a", estimated=True))
    exact = guessed.drop("a").register(Spec("a")).register(Spec("reader", ("a",)))
    exact = Topology.decode(exact.encode())
    for newer in (exact, exact.reset("a")[0]):
        for merged in (guessed.merged(newer), newer.merged(guessed)):
            assert {spec.name: spec.estimated for spec in merged.computations.values()} == {"a": False, "reader": False}
    assert guessed.merged(Topology().register(Spec("a"))).get("a").estimated


def test_a_fold_names_the_inputs_as_they_are_now() -> None:
    topology = graph(("b", ("a",)), ("a", ()))
    assert topology.required("a") == NO_FOLD
    assert topology.required("b") == Fold(1, (1,))
    topology = topology.set_inputs("b", ("a", "z"))
    assert topology.required("b") == Fold(2, (1, 0))
    assert topology.set_inputs("b", ()).required("b") == NO_FOLD
    assert topology.set_inputs("b", ()).set_inputs("b", ("a",)).required("b") == Fold(4, (1,)), "never a version twice"


def test_registering_again_changes_nothing_or_is_refused() -> None:
    topology = graph(("a", ()), ("b", ("a",)))
    assert topology.register(Spec("b", ("a",))) is topology
    later, _ = topology.set_inputs("b", ("a",)).reset("b")
    assert later.register(Spec("b", ("a",))) is later, "neither incarnation nor input version is the caller's"
    for other in (Spec("b"), Spec("b", ("a",), (1,)), Spec("b", ("a",), key_hash="h"), Spec("a", estimated=True)):
        with pytest.raises(errors.RegistrationConflict):
            topology.register(other)
    with pytest.raises(errors.UnknownComputation):
        topology.downstream("z")
    with pytest.raises(errors.UnknownComputation):
        topology.set_inputs("z", ())


def test_a_reader_may_follow_its_inputs_as_far_as_they_go() -> None:
    """Bookings are rightly in the future. Whoever says nothing of max_skew takes that of the inputs, also when it was registered before them."""
    topology, year = graph(("late", ("forecast",))), 365 * DAY
    assert topology.computations["late"].max_skew == DAY
    for spec in (Spec("forecast", max_skew=year), Spec("near", max_skew=1)):
        topology = topology.register(spec)
    for name, inputs in (("reads", ("near", "forecast")), ("next", ("reads",)), ("late", ("forecast",))):
        unsaid = Spec(name, inputs, max_skew=0)
        topology = topology.register(unsaid)
        assert topology.computations[name].max_skew == year
        assert topology.register(unsaid) is topology
    assert topology.register(Spec("close", ("near",), max_skew=0)).computations["close"].max_skew == DAY
    assert topology.register(Spec("near", max_skew=0)) is topology, "as it was registered"
    assert topology.register(Spec("forecast", max_skew=DAY)) is topology, "workers of 0.1 always ask for a day"
    far = topology.register(Spec("global/far", max_skew=ANY_SKEW)).register(Spec("reader", ("global/far",), max_skew=0))
    assert far.computations["reader"].max_skew == DAY
    assert topology.register(Spec("near", max_skew=year)).computations["near"] == Spec("near", max_skew=year)
