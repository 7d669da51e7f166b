"""The claim that a writer shows a store, and the slots of the key space."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater_pipeline.guard import Claim, Unfit, slot_bounds, slot_of
from lowwater_pipeline.guard.claim import slots_between
from lowwater_spark.track.rows.ranges import range_bounds
from tests.guard.stores import claim
from tests.process.serving import serving


def test_slots_are_the_key_ranges_of_a_tracked_stage() -> None:
    for count in (1, 2, 3, 64, 1_000):
        assert slot_bounds(count) == range_bounds(count)


def test_each_key_is_in_the_slot_between_whose_bounds_it_is() -> None:
    for count in (1, 2, 3, 8, 64):
        bounds = slot_bounds(count)
        for slot, start in enumerate(bounds[:-1]):
            first = start.ljust(8, b"\0")
            assert slot_of(first, count) == slot
            assert slots_between([start, bounds[slot + 1]], count) == range(slot, slot + 1)
            if slot:
                assert slot_of((int.from_bytes(first, "big") - 1).to_bytes(8, "big"), count) == slot - 1


def test_a_stage_of_64_ranges_is_aligned_to_8_slots() -> None:
    assert slots_between([range_bounds(64)[16], range_bounds(64)[32]], 8) == range(2, 4)


def test_what_is_no_number_of_slots_is_refused() -> None:
    with pytest.raises(Unfit, match="1 to 65536 slots"):
        slot_bounds(65_537)


@pytest.mark.parametrize(
    ("field", "value"),
    [("token", 2**64), ("incarnation", "1"), ("nonce", ""), ("computation", "a\0b"), ("identity", None)],
)
def test_what_is_no_claim_is_refused_by_the_field(field: str, value: Any) -> None:
    with pytest.raises(Unfit, match=f"{field}="):
        replace(claim(5), **{field: value})


def test_a_claim_is_what_the_authority_has_granted_with_a_nonce_of_its_own(tmp_path: Path) -> None:
    with serving(tmp_path) as server, lowwater.connect(server.address) as lw:
        lw.register("hourly")
        lease = lw.worker("hourly", identity="checkpoint").claim()
        one, other = (Claim.of(lw, lease, configuration=3, identity="checkpoint") for _ in range(2))
        assert (one.token, one.incarnation, one.configuration) == (lease.sequencer, lease.incarnation, 3)
        assert one.server_token == lw.server_token != ""
        assert one.same_grant(other)
        assert one != other
        assert pickle.loads(pickle.dumps(one)) == one
        newer = Claim.of(lw, lw.worker("hourly", identity="checkpoint").claim(), configuration=3, identity="checkpoint")
        assert newer.token > one.token
        assert not newer.same_grant(one)
