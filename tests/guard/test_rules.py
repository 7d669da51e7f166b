"""Every store refuses and admits the same writes: the rules of a guard, one by one, in each."""

from __future__ import annotations

import pytest

from lowwater_pipeline.guard import (
    Damaged,
    Fenced,
    NonceMismatch,
    NotRaised,
    OldConfiguration,
    Rewound,
    StoreReplaced,
    Unaligned,
    Unfit,
    WrongOwner,
)
from tests.guard.stores import Store, claim


def test_figure_12_a_late_zombie_is_refused_and_what_its_successor_has_scanned_stays_true(store: Store) -> None:
    zombie = store.raise_(claim(5))
    assert store.write(zombie, 0, "a", [1, 2])
    successor = store.raise_(claim(6))
    scanned = store.values()
    with pytest.raises(Fenced, match="taken over by claim 6"):
        store.write(zombie, 1, "b", [3])
    with pytest.raises(Fenced, match="taken over by claim 6"):
        store.raise_(claim(5))
    assert store.values() == scanned == [1, 2]
    assert store.write(successor, 1, "c", [4])
    assert store.values() == [1, 2, 4]


def test_an_equal_token_after_a_lost_epoch_does_not_let_the_zombie_pass(store: Store) -> None:
    zombie, successor = claim(5, "before"), claim(5, "after")
    raised = store.raise_(zombie)
    with pytest.raises(NonceMismatch, match="Claim again"):
        store.raise_(successor)
    assert store.write(raised, 0, "a", [1])
    newer = store.raise_(claim(6, "after"))
    with pytest.raises(Fenced):
        store.write(raised, 1, "b", [2])
    assert store.write(newer, 1, "c", [3])


def test_a_batch_that_was_left_out_is_refused_and_the_message_says_what_to_write(store: Store) -> None:
    writer = store.raise_(claim(5))
    store.write(writer, 0, "a", [1])
    with pytest.raises(Rewound, match="write one under every number, also one without rows"):
        store.write(writer, 2, "c", [3])
    assert store.write(writer, 1, "b", [])
    assert store.write(writer, 2, "c", [3])


def test_other_content_under_a_number_and_a_claim_that_was_not_raised_are_refused(store: Store) -> None:
    writer = store.raise_(claim(5))
    store.write(writer, 0, "a", [1])
    with pytest.raises(Rewound, match="of other content"):
        store.write(writer, 0, "b", [2])
    with pytest.raises(NotRaised, match="claim 6 was not raised there"):
        store.write(store.unraised(claim(6)), 1, "b", [2])
    assert store.values() == [1]


def test_a_store_that_has_lost_its_tail_is_seen(store: Store) -> None:
    writer = store.raise_(claim(5))
    for number in range(3):
        store.write(writer, number, f"digest {number}", [number])
    store.forge("batch", 1)
    store.forge("digest", "digest 1")
    with pytest.raises(Rewound, match="lost its tail"):
        store.write(writer, 3, "digest 3", [3])


def test_the_first_batch_may_have_any_number_that_is_said(store: Store) -> None:
    writer = store.raise_(claim(5), begin=57)
    with pytest.raises(Rewound):
        store.write(writer, 0, "a", [1])
    assert store.write(writer, 57, "a", [1])
    again = store.raise_(claim(6), begin=0)
    assert again.found[0].batch == 57


def test_another_identity_counts_anew_in_a_new_incarnation_and_an_old_one_never_again(store: Store) -> None:
    store.write(store.raise_(claim(5, identity="checkpoint"), begin=57), 57, "a", [1])
    with pytest.raises(WrongOwner, match="in the same incarnation"):
        store.raise_(claim(6, identity="another"))
    anew = store.raise_(claim(6, identity="another", incarnation=2))
    assert anew.found[0].batch == -1
    assert store.write(anew, 0, "b", [2])
    with pytest.raises(Fenced):
        store.raise_(claim(7, identity="another", incarnation=1))


def test_another_configuration_is_refused_by_name(store: Store) -> None:
    store.raise_(claim(5, configuration=2))
    with pytest.raises(OldConfiguration, match="raised with configuration 2, and this writer works by 1"):
        store.write(store.unraised(claim(5, configuration=1)), 0, "a", [1])
    with pytest.raises(OldConfiguration, match="raised with configuration 2, and this writer works by 3"):
        store.raise_(claim(5, configuration=3))
    with pytest.raises(OldConfiguration, match="start it with the newer one"):
        store.raise_(claim(6, configuration=1))
    assert store.values() == []


def test_a_new_life_of_the_store_needs_a_new_claim(store: Store) -> None:
    writer = store.raise_(claim(5))
    store.write(writer, 0, "a", [1])
    store.forge("life", "of before")
    with pytest.raises(StoreReplaced, match="Claim again"):
        store.write(writer, 1, "b", [2])
    with pytest.raises(StoreReplaced):
        store.raise_(claim(5))
    assert store.write(store.raise_(claim(6)), 1, "b", [2])


def test_a_guard_of_somebody_else_is_refused(store: Store) -> None:
    store.write(store.raise_(claim(5)), 0, "a", [1])
    for stranger in (claim(6, server_token="another"), claim(6, computation="another")):
        with pytest.raises(WrongOwner, match="another"):
            store.raise_(stranger)
        with pytest.raises(WrongOwner, match="another"):
            store.write(store.unraised(stranger), 1, "b", [2])
    assert store.values() == [1]


FORTY, SIXTY, EIGHTY = b"\x40", b"\x60", b"\x80"


def test_40_to_80_is_split_and_the_zombie_of_all_of_it_is_fenced_in_the_part_that_was_taken(store: Store) -> None:
    """Were there a row by the start of each claim, the zombie would look at its own, which nobody has touched."""
    zombie = store.raise_(claim(5), slots=8, bounds=[FORTY, EIGHTY])
    assert store.write(zombie, 0, "a", [1])
    upper = store.raise_(claim(6), slots=8, bounds=[SIXTY, EIGHTY])
    with pytest.raises(Fenced, match="slot 3"):
        store.write(zombie, {3: 1}, "b", [2])
    with pytest.raises(Fenced, match="slot 3"):
        store.write(zombie, 1, "b", [2])
    assert store.write(upper, 1, "c", [3])
    assert store.write(zombie, {2: 1}, "d", [4])
    assert store.values() == [1, 3, 4]


def test_a_batch_in_one_slot_and_not_in_the_other_is_refused(store: Store) -> None:
    both = store.raise_(claim(7), slots=8, bounds=[FORTY, EIGHTY])
    store.write(both, 0, "a", [1])
    store.forge("batch", -1, slot=3)
    with pytest.raises(Rewound, match="in some of its slots"):
        store.write(both, 0, "a", [1])


def test_claims_that_are_not_made_of_whole_slots_are_refused(store: Store) -> None:
    for bounds in ((b"\x41", EIGHTY), (FORTY, b"\x81"), (EIGHTY, FORTY), (b"\x50", b"\x58")):
        with pytest.raises(Unaligned, match="whole slots of 8"):
            store.raise_(claim(5), slots=8, bounds=bounds)


def test_only_slots_of_the_writer_are_touched(store: Store) -> None:
    lower = store.raise_(claim(5), slots=8, bounds=[FORTY, SIXTY])
    with pytest.raises(Unfit, match="slots 2 to 2"):
        store.write(lower, {3: 0}, "a", [1])
    with pytest.raises(Unfit):
        store.write(lower, {}, "a", [1])


def test_what_is_no_batch_is_refused_and_changes_nothing(store: Store) -> None:
    writer = store.raise_(claim(5))
    before = store.rows()
    for batch, digest in ((-1, "a"), (2**63, "a"), (0, ""), (0, "x" * 257), (0, "a\0"), (True, "a")):
        with pytest.raises(Unfit):
            store.write(writer, batch, digest, [1])
    assert (store.rows(), store.values()) == (before, [])


def test_a_guard_that_is_fenced_changes_nothing_for_its_neighbour(store: Store) -> None:
    mine, other = store.raise_(claim(5)), store.raise_(claim(5), guard="daily")
    store.raise_(claim(9))
    with pytest.raises(Fenced):
        store.write(mine, 0, "a", [1])
    assert store.write(other, 0, "a", [2])
    assert (store.values(), store.values("daily")) == ([], [2])


def test_a_guard_that_is_damaged_changes_nothing_for_its_neighbour(store: Store) -> None:
    mine, other = store.raise_(claim(5)), store.raise_(claim(5), guard="daily")
    store.forge("nonce", None)
    with pytest.raises(Damaged, match="the guard hourly cannot be read"):
        store.write(mine, 0, "a", [1])
    with pytest.raises(Damaged, match="the guard hourly cannot be read"):
        store.raise_(claim(6))
    assert store.write(other, 0, "a", [2])
    assert store.write(store.raise_(claim(6), guard="daily"), 1, "b", [3])
    assert store.values("daily") == [2, 3]


def test_the_number_of_slots_stays(store: Store) -> None:
    store.raise_(claim(5), slots=8)
    with pytest.raises(Damaged, match="made with 8 slots and is opened with 4"):
        store.raise_(claim(6), slots=4)
