"""Who serves what: few computations move, all shards agree in the end, nobody is left out for what the store did."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from math import sqrt
from random import Random

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from lowwater_authority.cluster import cluster
from lowwater_authority.cluster.cluster import Cluster
from lowwater_authority.cluster.membership import Beats, Member, Patience, View
from tests.kit.planting import Bug, Part, bug
from tests.property.membership_model import ADDRESSES, DEAD_AFTER, INTERVAL, NAMES, MembershipModel, Store

SEED = int(os.environ.get("LOWWATER_SEED", "1"))
MANY = [f"team/computation-{number}" for number in range(300)]
addresses = st.lists(
    st.builds("{}:{}".format, st.text("abcz.-09", min_size=1, max_size=12), st.integers(1, 65535)),
    min_size=2,
    max_size=9,
    unique=True,
)
picks = st.integers(0, 7)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("step"), picks, st.integers(1, 6)),
        st.tuples(st.just("step"), picks, st.integers(1, 6)),
        st.tuples(st.just("rounds"), picks, st.integers(1, 8)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 3 * DEAD_AFTER)),
        st.tuples(st.sampled_from(["cut", "away"]), picks, st.just(0)),
        st.tuples(st.sampled_from(["start", "kill", "pause", "accuse"]), picks, picks),
        st.tuples(st.sampled_from(["drain", "pin", "lose"]), picks, picks),
    ),
    min_size=20,
    max_size=60,
)


def view_of(*members: str) -> View:
    view = View()
    for address in members:
        view = view.joined(Member(f"id of {address}", address))
    return view


def served(view: View) -> dict[str, str]:
    return {name: shard.address for name in MANY if (shard := view.shard_of(name)) is not None}


@given(members=addresses)
@settings(max_examples=60, database=None)
def test_only_what_the_newcomer_gets_moves(members: list[str]) -> None:
    *old, new = members
    before, after = served(view_of(*old)), served(view_of(*members))
    moved = {name for name in MANY if before[name] != after[name]}
    assert moved == {name for name in MANY if after[name] == new}
    share = 1 / len(members)
    assert abs(len(moved) - share * len(MANY)) < 6 * sqrt(share * (1 - share) * len(MANY))
    # And back: a member that goes, or drains, moves nothing but its own.
    joined = view_of(*members)
    assert served(joined.without([f"id of {new}"])) == before
    assert served(joined.draining(new, on=True)) == before


@given(members=addresses, order=st.randoms(use_true_random=False))
@settings(max_examples=60, database=None)
def test_the_way_to_a_view_does_not_matter(members: list[str], order: Random) -> None:
    shuffled = order.sample(members, len(members))
    view = view_of(*shuffled)
    assert view == view_of(*members)
    assert View.decode(view.encode()) == view
    assert served(replace(view, members=tuple(reversed(view.members)))) == served(view)


def play(model: MembershipModel, random: Random, kind: str, pick: int, amount: int) -> None:
    """One move of chaos."""
    if not model.living:
        model.start(ADDRESSES[0])
    shards = model.living
    shard = shards[pick % len(shards)]
    model.now += 1
    match kind:
        case "step":
            for _ in range(0 if shard.paused else amount):
                if not shard.ended:
                    model.step(shard)
        case "rounds":
            for _ in range(amount):
                model.round(random)
        case "wait":
            model.now += amount
        case "start" if len(shards) < 8:
            model.start(ADDRESSES[amount % len(ADDRESSES)])
        case "kill" if len(shards) > 1:
            shard.end()
        case "pause":
            shard.paused = not shard.paused
        case "accuse":
            model.accused ^= {shard.me.id}
        case "cut":
            shard.directory.cut_off = not shard.directory.cut_off
            if not shard.paused:
                model.step(shard)
        case "away":
            model.store.go(away=not model.store.away)
        case "lose":
            model.reached["lost views"] += model.store.view.version > 0
            model.store.lose(1 + amount // 3)
        case "drain" if not shard.paused:
            model.step(shard, shard.operate("", ADDRESSES[amount % len(ADDRESSES)], on=amount > 3))
        case "pin" if not shard.paused:
            name, address = NAMES[amount], ADDRESSES[pick % len(ADDRESSES)]
            model.step(shard, shard.operate(name, address, on=amount > 2))


def chaos(examples: int) -> Counter[str]:
    """Play with so many worlds and heal them; returns what happened in them, how often."""
    reached: Counter[str] = Counter()

    @seed(SEED)
    @given(moves=moves, random_seed=st.integers(0, 2**32))
    @settings(max_examples=examples, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    def run(moves: list[tuple[str, int, int]], random_seed: int) -> None:
        model, random = MembershipModel(reached), Random(random_seed)
        for address in ADDRESSES[:3]:
            model.start(address)
        for kind, pick, amount in moves:
            play(model, random, kind, pick, amount)
        model.heal(random)

    run()
    return reached


def outages(examples: int, *, accused: bool = False) -> Counter[str]:
    """Shards that always beat in time, and a store that comes and goes, or loses views: nobody is ever left out.

    If they are all accused, the store is always there.
    """
    reached: Counter[str] = Counter()

    @seed(SEED)
    @given(
        shards=st.integers(1, 5),
        phases=st.lists(
            st.tuples(
                st.sampled_from(["here"] if accused else ["here", "away", "lose"]), st.integers(1, 4 * DEAD_AFTER)
            ),
            max_size=12,
        ),
        random_seed=st.integers(0, 2**32),
    )
    @settings(max_examples=examples, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    def run(shards: int, phases: list[tuple[str, int]], random_seed: int) -> None:
        model, random = MembershipModel(Counter()), Random(random_seed)
        for address in ADDRESSES[:shards]:
            model.start(address)
        agreed = model.heal(random)
        model.accused = {shard.me.id for shard in model.shards if accused}
        # All have beaten an interval ago.
        due = {shard.me.id: model.now + random.randrange(1, INTERVAL // 3) for shard in model.shards}
        for kind, length in phases:
            model.store.go(away=kind == "away")
            if kind == "lose":
                # A store that loses the same beats again and again is one thing too many.
                model.store.lose()
                length += 2 * DEAD_AFTER
            end = model.now + length
            while (next_due := min(due.values())) < end:
                model.now = max(model.now, next_due)
                shard = next(shard for shard in model.shards if due[shard.me.id] == next_due)
                while not model.step(shard):
                    pass
                model.reached["accused"] += len(model.accused)
                due[shard.me.id] = next_due + INTERVAL
            model.now = max(model.now, end)
        assert model.heal(random).members == agreed.members
        assert model.store.view == agreed or any(kind == "lose" for kind, _ in phases)
        assert not model.reached["left out"]
        reached.update(model.reached)

    run()
    return reached


def test_all_agree_in_the_end_whatever_happens() -> None:
    reached = chaos(120)
    wanted = (
        "left out",
        "left out early",
        "replaced",
        "older",
        "outrun",
        "lost views",
        "JournalFailed",
        "JournalUnknown",
    )
    assert not {kind: reached[kind] for kind in wanted if reached[kind] < 3}


def test_nobody_is_left_out_because_the_store_was_away() -> None:
    assert outages(60)["JournalFailed"] > 400


def test_nobody_who_beats_is_left_out_whatever_is_said_of_it() -> None:
    assert outages(50, accused=True)["accused"] > 1000


@bug("dated", View)
def undated(_: Part) -> Part:
    return lambda view, _: view


@bug("silence", Beats)
def any_silence(_: Part) -> Part:
    return lambda self, member: self.now - self.last.get(member, 0)


@bug("beat", Store)
def no_gaps(beat: Part) -> Part:
    def without_since(members: Store, member_id: str) -> tuple[View, Beats]:
        view, beats = beat(members, member_id)
        return view, replace(beats, since=0)

    return without_since


@bug("propose", Store)
def blind_writes(propose: Part) -> Part:
    return lambda members, view, _: propose(members, view, members.view.version)


@bug("proposal", cluster)
def trust_in_the_store(proposal: Part) -> Part:
    return lambda *args, known, **kwargs: proposal(*args, known=0, **kwargs)


@bug("_has_rival", Cluster)
def whoever_comes_ends_who_is_there(has_rival: Part) -> Part:
    def unordered(self: Cluster, view: View, beats: Beats) -> bool:
        me, self.me = self.me, replace(self.me, joined=0)
        try:
            return bool(has_rival(self, view, beats))
        finally:
            self.me = me

    return unordered


@bug("silence", Beats)
def nobody_dies(_: Part) -> Part:
    return lambda _self, _member: 0


@bug("over", Patience)
def evidence_alone(over: Part) -> Part:
    return lambda self, silence, *, gone: gone or over(self, silence, gone=gone)


BUGS = [
    *(evidence_alone, undated, any_silence, no_gaps, blind_writes, trust_in_the_store),
    *(whoever_comes_ends_who_is_there, nobody_dies),
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda each: each.__name__)
def test_the_worlds_find_a_rule_that_is_off(plant: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        chaos(3000)
