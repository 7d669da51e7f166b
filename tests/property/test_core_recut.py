"""A computation that is cut anew while its workers run: the graph."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater import errors
from lowwater_authority.core.cut import MAX_SLICES, Cut
from lowwater_authority.core.topology import Spec, Topology

CUTS = (b"g", b"p")


def cut() -> Topology:
    return Topology().register(Spec("a")).register(Spec("b", ("a",), slicing=Cut(CUTS)))


def slices(graph: Topology) -> list[tuple[str, tuple[bytes, bytes], str]]:
    return [(name, spec.keys.span, spec.keys.source) for name, spec in graph.get("b").slice_specs().items()]


def check(graph: Topology) -> None:
    root = graph.get("b")
    specs = root.slice_specs()
    assert {name: spec for name, spec in graph.computations.items() if spec.slice_of == "b"} == specs
    spans = [spec.keys.span for spec in specs.values()]
    assert (spans[0][0], spans[-1][1]) == (b"", b"")
    assert all(lower[1] == upper[0] and lower[1] for lower, upper in pairwise(spans))
    for name, spec in specs.items():
        assert root.slices_over(*spec.keys.span) == [name]
        assert spec.keys.began[0] == spec.keys.span[0]
        assert not spec.keys.began[1] or (spec.keys.span[1] and spec.keys.span[1] <= spec.keys.began[1])
    assert root.slices_over(b"", b"") == list(specs)
    assert not specs.keys() & graph.dropped.keys()
    assert Topology.decode(graph.encode()) == graph


def test_a_split_slice_hands_its_last_keys_to_a_new_one() -> None:
    graph, new = cut().split("b", "b~1", b"k")
    assert new == "b~3"
    assert slices(graph) == [
        ("b~0", (b"", b"g"), ""),
        ("b~1", (b"g", b"k"), ""),
        ("b~3", (b"k", b"p"), "b~1"),
        ("b~2", (b"p", b""), ""),
    ]
    assert graph.get("b~1").keys.began == (b"g", b"p")
    assert graph.get("b").slices_over(b"h", b"q") == ["b~1", "b~3", "b~2"]
    assert graph.register(cut().get("b")) is graph, "it is the same registration"
    check(graph)


def test_one_move_at_a_time_and_numbers_are_never_used_again() -> None:
    graph, new = cut().split("b", "b~1", b"k")
    with pytest.raises(errors.Unavailable) as caught:
        graph.split("b", "b~0", b"c")
    assert caught.value.metadata == {"computation": "b", "slice": "b~3", "source": "b~1"}
    graph = graph.received(new)
    assert graph.received(new) is graph
    graph, second = graph.split("b", new, b"m")
    assert second == "b~4"
    check(graph)


def test_a_reset_undoes_the_cut_that_is_under_way_and_keeps_the_others() -> None:
    whole = cut()
    graph, new = whole.split("b", "b~1", b"k")
    for again in (graph.reset("b")[0], graph.reset("a")[0]):
        check(again)
        assert [span for _, span, _ in slices(again)] == [span for _, span, _ in slices(whole)]
        assert {spec.incarnation for spec in again.get("b").slice_specs().values()} == {2}
        assert new not in again.computations
        assert new in again.dropped
        assert again.get("b~1").keys.began == again.get("b~1").keys.span
        assert again.split("b", "b~0", b"c")[1] != new
    graph = graph.received(new)
    again = graph.reset("b")[0]
    check(again)
    assert [span for _, span, _ in slices(again)] == [span for _, span, _ in slices(graph)]
    assert again.get("b~1").keys.began == again.get("b~1").keys.span


def test_numbers_of_slices_end() -> None:
    root = cut().get("b")
    spec = replace(root, slicing=replace(root.cut, next_number=MAX_SLICES))
    with pytest.raises(errors.InvalidArgument) as caught:
        spec.split("b~1", b"k")
    assert caught.value.metadata["field"] == "slice"


edits = st.lists(
    st.tuples(
        st.sampled_from(["split", "moved", "reset", "inputs"]), st.integers(0, 5), st.binary(min_size=1, max_size=2)
    ),
    max_size=12,
)


def edited(graph: Topology, steps: list[tuple[str, int, bytes]]) -> list[Topology]:
    graphs = [graph]
    for kind, pick, at in steps:
        names = list(graph.get("b").slice_specs())
        name = names[pick % len(names)]
        try:
            match kind:
                case "split":
                    graph, _ = graph.split("b", name, at)
                case "moved":
                    graph = graph.received(name)
                case "reset":
                    graph, _ = graph.reset("b")
                case _:
                    graph = graph.set_inputs("b", () if graph.get("b").inputs else ("a",))
        except (errors.InvalidArgument, errors.Unavailable):
            continue
        graphs.append(graph)
    return graphs


@given(steps=edits)
@settings(max_examples=100, database=None, deadline=None)
def test_any_steps_are_read_back_as_they_were_made(steps: list[tuple[str, int, bytes]]) -> None:
    graphs = edited(cut(), steps)
    for graph in graphs:
        check(graph)
    records = [graphs[0].encode(), *(new.encode(over=before) for before, new in pairwise(graphs) if new is not before)]
    read = Topology().replayed(records)
    assert read == graphs[-1]
    assert read.digest == replace(graphs[-1]).digest


@given(before=edits, one=edits, other=edits)
@settings(max_examples=100, database=None, deadline=None)
def test_two_that_were_cut_apart_merge_to_one_that_covers_all(
    before: list[tuple[str, int, bytes]], one: list[tuple[str, int, bytes]], other: list[tuple[str, int, bytes]]
) -> None:
    common = edited(cut(), before)[-1]
    ours, theirs = edited(common, one)[-1], edited(common, other)[-1]
    merged = ours.merged(theirs)
    check(merged)
    spec, both = merged.get("b"), (ours.get("b"), theirs.get("b"))
    newest = [one for one in both if one.incarnation == spec.incarnation]
    assert spec.inputs in {one.inputs for one in newest if one.input_version == spec.input_version}
    assert spec.cut in {one.cut for one in newest if one.cut.version == spec.cut.version}
    assert spec.incarnation == max(one.incarnation for one in both)
    assert spec.input_version == max(one.input_version for one in newest)
    assert spec.cut.version == max(one.cut.version for one in newest)
    again = merged.merged(theirs)
    assert again.computations == merged.computations
