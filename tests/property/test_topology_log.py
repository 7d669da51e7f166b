"""The log of the graph: changes over whole graphs say what the whole graph after each change would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater import errors
from lowwater_authority.core.topology import Spec, Topology, WrongGraph
from lowwater_authority.engine.graph_log import ReadGraph, replayed
from lowwater_authority.journal import LoadedLog

NAMES = "abcdefgh"
names = st.sampled_from(NAMES)
inputs = st.lists(names, max_size=3, unique=True).map(tuple)
edits = st.lists(
    st.one_of(
        st.tuples(st.just("register"), names, inputs, st.booleans()),
        st.tuples(st.just("upgrade"), names),
        st.tuples(st.just("inputs"), names, inputs),
        st.tuples(st.just("reset"), names),
        st.tuples(st.just("drop"), names),
        st.tuples(st.just("fork")),
        st.tuples(st.just("merge")),
        st.tuples(st.just("compact"), st.integers(0, 3)),
        st.tuples(st.just("read")),
    ),
    max_size=40,
)


def edited(graph: Topology, edit: tuple[object, ...]) -> Topology:
    kind, name = str(edit[0]), str(edit[1])
    try:
        match kind:
            case "register":
                return graph.register(Spec(name, edit[2], estimated=bool(edit[3])))  # type: ignore[arg-type]
            case "upgrade":
                spec = graph.get(name)
                return graph.register(Spec(name, spec.inputs, estimated=True), unused=True)
            case "inputs":
                return graph.set_inputs(name, edit[2])  # type: ignore[arg-type]
            case "reset":
                return graph.reset(name)[0]
            case _:
                return graph.drop(name)
    except errors.LowwaterError:
        return graph


@given(edits=edits)
@settings(max_examples=150, database=None)
def test_changes_say_what_whole_graphs_would(edits: list[tuple[object, ...]]) -> None:
    graph, fork = Topology(), Topology()
    position = 0
    snapshot: tuple[int, bytes | None] = (0, None)
    records: list[tuple[int, bytes]] = []
    naive = [Topology().encode()]
    earlier: ReadGraph | None = None
    for edit in edits:
        kind, before, whole = edit[0], graph, False
        if kind == "fork":
            fork = graph
        elif kind == "merge":
            # Another shard, whose changes the store has lost, writes once more what it knows.
            fork = edited(edited(fork, ("register", "a", ("b",), False)), ("reset", "a"))
            graph, whole = graph.merged(fork), True
        elif kind == "compact" and position:
            # By a process that may be behind: it has read some of the records, and speaks of those only.
            at = max(snapshot[0], position - int(str(edit[1])))
            snapshot = (at, naive[at])
            records = [record for record in records if record[0] > at]
        elif kind == "read":
            earlier = replayed(LoadedLog(*snapshot, records), earlier)
        elif kind != "compact":
            graph = edited(graph, edit)
        if graph is not before:
            position += 1
            records = [*records, (position, graph.encode(None if whole else before))]
            naive.append(graph.encode())
        right = Topology.decode(naive[position])
        loaded = LoadedLog(*snapshot, records)
        for topology in (replayed(loaded).topology, replayed(loaded, earlier).topology):
            assert topology == right == graph
            assert topology.digest == right.digest == replace(graph).digest == graph.digest
            for name in NAMES:
                assert topology.is_estimated(name) == right.is_estimated(name) == graph.is_estimated(name)
        both = {**before.computations, **before.dropped}, {**graph.computations, **graph.dropped}
        moved = before.computations.keys() ^ graph.computations.keys()
        differing = {name for name in both[1] if both[0].get(name) != both[1][name]}
        assert set(graph.changed(before)) == moved | differing


def test_a_change_is_as_long_as_what_it_changes() -> None:
    small = Topology().register(Spec("a"))
    large = small
    for number in range(1000):
        large = large.register(Spec(f"c{number}", ("a",)))
    changes = [len(graph.register(Spec("new", ("a",))).encode(graph)) for graph in (small, large)]
    assert changes[1] <= changes[0] + 4, "but for the numbers of the versions"


def test_a_change_of_another_graph_is_refused() -> None:
    first = Topology().register(Spec("a"))
    second = first.register(Spec("b"))
    change = second.register(Spec("c")).encode(second)
    with pytest.raises(WrongGraph, match="a change of version 2 of the graph stands behind version 1"):
        first.replayed([change])
    with pytest.raises(WrongGraph, match="behind version 0"):
        Topology.decode(change)
    with pytest.raises(WrongGraph, match="a change of another graph of version 2 stands behind this one"):
        first.register(Spec("other")).replayed([change])
    assert second.replayed([change]) == second.register(Spec("c"))


def test_a_log_that_was_cut_off_and_written_anew_is_read_anew() -> None:
    base = Topology().register(Spec("a"))
    lost, later = base.register(Spec("lost")), base.register(Spec("other"))
    log = [(1, base.encode())]
    earlier = replayed(LoadedLog(0, None, [*log, (2, lost.encode(base))]))
    after = replayed(LoadedLog(0, None, [*log, (2, later.encode(base))]), earlier)
    assert after.topology == later
