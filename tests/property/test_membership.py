"""Who serves what: few computations move, and the way to a view does not matter."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from lowwater_authority.cluster.membership import Member, View

MANY = [f"team/computation-{number}" for number in range(300)]
addresses = st.lists(
    st.builds("{}:{}".format, st.text("abcz.-09", min_size=1, max_size=12), st.integers(1, 65535)),
    min_size=2,
    max_size=9,
    unique=True,
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
