"""Views of the shards, and what a shard proposes."""

from __future__ import annotations

from collections import Counter

import pytest
from google.protobuf.message import DecodeError

from lowwater_authority.cluster.membership import Beats, Member, Patience, View, proposal

DEAD_AFTER = 10
GONE_AFTER = 3
A, B, C = (Member(f"{letter}1", f"{letter}:1") for letter in "abc")
NAMES = [f"ns/computation-{number}" for number in range(1000)]


def view_of(*members: Member) -> View:
    view = View()
    for member in members:
        view = view.joined(member)
    return view


def beats(now: int, since: int = 0, **last: int) -> Beats:
    return Beats(now, last, since)


def propose(
    view: View, heard: Beats, me: Member = A, known: int | None = None, gone: frozenset[str] = frozenset()
) -> View | None:
    patience = Patience(DEAD_AFTER, GONE_AFTER)
    return proposal(view, heard, me, patience=patience, known=view.version if known is None else known, gone=gone)


def shares(view: View) -> Counter[str]:
    return Counter(shard.address if (shard := view.shard_of(name)) else "" for name in NAMES)


# --- views --------------------------------------------------------------------------------------------------------


def test_the_weights_are_the_same_for_ever() -> None:
    view = view_of(*(Member(str(n), f"lowwater-{n}.lowwater:50051") for n in range(5)))
    served = [view.shard_of(f"computation-{n}") for n in range(12)]
    assert "".join(shard.id for shard in served if shard) == "141110144010"


def test_nobody_serves_without_members() -> None:
    assert View().shard_of("x") is None
    assert View().pinned("x", A.address).shard_of("x") is None


def test_balance() -> None:
    counts = shares(view_of(*(Member(str(n), f"10.0.0.{n}:50051") for n in range(5))))
    assert sum(counts.values()) == len(NAMES)
    # The standard deviation is 12.6.
    assert all(150 < counts[address] < 250 for address in counts)
    assert len(counts) == 5


def test_ids_do_not_matter_to_the_weights() -> None:
    before, after = view_of(A, B, C), view_of(A, B, C).joined(Member("c2", C.address))
    assert shares(before) == shares(after)
    assert after.members == (A, B, Member("c2", C.address))


def test_a_pin_counts_while_its_shard_lives_and_is_not_draining() -> None:
    view = view_of(A, B, C)
    (name, *_) = [name for name in NAMES if view.shard_of(name) == A]
    pinned = view.pinned(name, B.address)
    assert pinned.shard_of(name) == B
    assert pinned.draining(B.address, on=True).shard_of(name) == pinned.without([B.id]).shard_of(name) == A
    assert pinned.without([B.id]).joined(Member("b2", B.address)).shard_of(name) == Member("b2", B.address)
    assert pinned.pinned(name, "").shard_of(name) == A
    assert pinned.pinned(name, "").pins == {}
    assert view.pins == {}


def test_a_draining_shard_serves_only_when_all_are() -> None:
    view = view_of(A, B).draining(A.address, on=True)
    assert shares(view) == {B.address: len(NAMES)}
    all_draining = view.draining(B.address, on=True)
    assert shares(all_draining) == shares(view_of(A, B))
    # Nobody is better than another then, also not by a pin.
    assert shares(all_draining.pinned(NAMES[0], A.address)) == shares(view_of(A, B))
    assert shares(all_draining.pinned(NAMES[0], B.address)) == shares(view_of(A, B))
    assert view.draining(A.address, on=False).members == (A, B)


def test_each_change_is_a_new_version_and_the_order_of_joining_leaves_no_trace() -> None:
    view = view_of(C, A, B)
    assert view == view_of(A, B, C)
    assert view.version == 3
    changes = [view.joined(A), view.without([A.id]), view.draining(A.address, on=True), view.pinned("x", "y")]
    assert [change.version for change in changes] == [4, 4, 4, 4]
    assert view.member("b1") == view.at("b:1") == B
    assert view.member("b:1") is view.at("b1") is None


def test_a_member_that_moves_is_there_once() -> None:
    assert view_of(A, B).joined(Member(A.id, "z:1")).members == (B, Member(A.id, "z:1"))
    assert view_of(A, B).joined(Member(A.id, B.address)).members == (Member(A.id, B.address),)


def test_a_date_only_raises_the_version() -> None:
    view = view_of(A)
    assert (view.dated(0).version, view.dated(99).version) == (1, 99)
    assert view.dated(99).joined(B).dated(50).version == 100


def test_encode_and_decode() -> None:
    view = view_of(A, B).draining(B.address, on=True).pinned("ns/z", "a:1").pinned("ns/b", "gone:1")
    view = view.dated(1_800_000_000_000_000)
    assert View.decode(view.encode()) == view
    assert View.decode(b"") == View()
    with pytest.raises(DecodeError):
        View.decode(b"\xff\xff")


# --- proposals ----------------------------------------------------------------------------------------------------


def test_all_is_well() -> None:
    assert propose(view_of(A, B), beats(100, a1=100, b1=90)) is None


def test_join() -> None:
    assert propose(View(), beats(100, a1=100)) == View(100, (A,))
    assert propose(view_of(B), beats(100, a1=100, b1=99)) == View(100, (A, B))


def test_a_process_that_was_started_again_replaces_itself_at_once() -> None:
    again = Member("a2", A.address)
    assert propose(view_of(A, B), beats(100, a1=99, b1=99, a2=100), again) == View(100, (again, B))


@pytest.mark.parametrize(("now", "dead"), [(110, False), (111, True)])
def test_the_silent_are_left_out(now: int, dead: bool) -> None:
    proposed = propose(view_of(A, B, C), beats(now, a1=now, b1=100, c1=now - 1))
    assert proposed == (View(now, (A, C)) if dead else None)


@pytest.mark.parametrize(("now", "dead"), [(60, False), (61, True)])
def test_nobody_is_dead_while_the_store_was_away(now: int, dead: bool) -> None:
    assert propose(view_of(A, B), beats(now, since=50, a1=now, b1=7)) == (View(now, (A,)) if dead else None)


def test_a_member_that_was_never_heard_of_is_dead_in_time() -> None:
    assert propose(view_of(A, B), beats(60, since=50, a1=60)) is None
    assert propose(view_of(A, B), beats(61, since=50, a1=61)) == View(61, (A,))


def test_nobody_leaves_itself_out() -> None:
    assert propose(view_of(A, B), beats(100, a1=1, b1=100)) is None


def test_a_store_that_lost_views_gets_a_newer_one() -> None:
    lost = view_of(A, B)
    heard = beats(100, a1=100, b1=100)
    assert propose(lost, heard, known=2) is None
    assert propose(lost, heard, known=3) == View(100, (A, B))
    assert propose(lost, heard, known=500) == View(501, (A, B))
    assert propose(View(), heard, known=500) == View(501, (A,))


def test_all_at_once_and_pins_stay() -> None:
    view = view_of(B, C).pinned("x", B.address)
    assert propose(view, beats(100, a1=100, c1=99), known=200) == View(201, (A, C), {"x": B.address})


@pytest.mark.parametrize(("now", "dead"), [(103, False), (104, True)])
def test_one_that_seems_dead_is_left_out_sooner_and_nobody_else(now: int, dead: bool) -> None:
    heard = beats(now, a1=now, b1=100, c1=100)
    assert propose(view_of(A, B, C), heard, gone=frozenset({B.id})) == (View(now, (A, C)) if dead else None)


@pytest.mark.parametrize(("now", "dead"), [(53, False), (54, True)])
def test_also_one_that_seems_dead_is_not_silent_while_the_store_was_away(now: int, dead: bool) -> None:
    heard = beats(now, since=50, a1=now, b1=7)
    assert propose(view_of(A, B), heard, gone=frozenset({B.id})) == (View(now, (A,)) if dead else None)


def test_nobody_believes_of_itself_that_it_is_dead() -> None:
    assert propose(view_of(A, B), beats(100, a1=1, b1=100), gone=frozenset({A.id})) is None
