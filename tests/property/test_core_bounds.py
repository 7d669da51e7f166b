"""Bounds beside a list of the same, and the parts of a message beside the message."""

from __future__ import annotations

import gc

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lowwater_authority.core import codec
from lowwater_authority.core.bounds import Bounds, head
from lowwater_authority.records import journal_pb2 as pb

keys = st.lists(st.binary(max_size=6) | st.binary(min_size=120, max_size=140), max_size=12)


@given(keys, st.integers(-15, 15), st.integers(-15, 15) | st.none(), st.sampled_from([None, 1, -1, 2]))
def test_bounds_are_what_a_list_is(keys: list[bytes], first: int, end: int | None, step: int | None) -> None:
    ours = Bounds(iter(keys))
    assert len(ours) == len(keys)
    assert list(ours) == keys
    assert ours[first:end:step] == keys[first:end:step]
    assert [ours[at] for at in range(-len(keys), len(keys))] == keys + keys
    for outside in (len(keys), -len(keys) - 1):
        with pytest.raises(IndexError):
            ours[outside]


@given(keys, st.integers(1, 40))
def test_bounds_are_encoded_as_protobuf_does(keys: list[bytes], field: int) -> None:
    right = pb.Group(bounds=keys).SerializeToString()
    assert Bounds(keys).encode(pb.Group.BOUNDS_FIELD_NUMBER) == right
    assert Bounds(keys).encode(field) == b"".join(head(field, len(one)) + one for one in keys)


def test_rule7_the_garbage_collector_has_no_million_bounds_to_walk() -> None:
    bounds = Bounds(at.to_bytes(4, "big") for at in range(1_000))
    assert not any(gc.is_tracked(item) and isinstance(item, list | tuple) for item in gc.get_referents(bounds))
    assert len(gc.get_referents(bounds)) < 10


groups = st.lists(
    st.builds(pb.Group, sequencer=st.integers(0, 2**64 - 1), bounds=keys, live=st.binary(max_size=200)), max_size=4
)
snapshots = st.builds(
    pb.Snapshot,
    computation=st.text(max_size=200),
    incarnation=st.integers(0, 2**64 - 1),
    low_micros=st.integers(-(2**63), 2**63 - 1),
    bound=st.booleans(),
    groups=groups,
    granted=st.lists(st.builds(pb.Granted, request_id=st.binary(max_size=16)), max_size=3),
)


def in_parts(encoded: bytes) -> pb.Snapshot:
    places, rest = codec.parted(encoded, pb.Snapshot.GROUPS_FIELD_NUMBER)
    snapshot = pb.Snapshot.FromString(rest)
    snapshot.groups.extend(pb.Group.FromString(encoded[place]) for place in places)
    return snapshot


@given(snapshots)
def test_a_message_in_parts_is_the_message(whole: pb.Snapshot) -> None:
    assert in_parts(whole.SerializeToString()) == whole
    groups = [group.SerializeToString() for group in whole.groups]
    del whole.groups[:]
    all_ = whole.SerializeToString() + b"".join(head(pb.Snapshot.GROUPS_FIELD_NUMBER, len(one)) + one for one in groups)
    assert pb.Snapshot.FromString(all_) == in_parts(all_)


@given(snapshots, st.integers(0, 400))
def test_a_message_that_is_cut_off_is_refused_as_protobuf_refuses_it(whole: pb.Snapshot, cut: int) -> None:
    encoded = whole.SerializeToString()[:-cut] if cut else whole.SerializeToString()
    try:
        pb.Snapshot.FromString(encoded)
    except DecodeError:
        with pytest.raises(DecodeError):
            in_parts(encoded)
    else:
        in_parts(encoded)
