"""Hashes and filters are stored, so they say the same for ever; and a filter never excludes what is there."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lowwater_pipeline.dedup.bloom import bloom, hashed, is_bloom, perhaps_in


def test_hashes_and_filters_are_those_of_every_release() -> None:
    ids = ["", "a", "12345678", "123456789", "0b5c8a52-8f6a-4bb6-9a52-6c9e0f6d1c11", "ä"]
    text = hashed(pa.array(ids, pa.large_string()))
    assert [hex(each) for each in text.tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x5e025f9ade9eaf3e",
        "0x83dbec76b33f9ca3",
        "0x7cf46f00f45fa22a",
        "0x6c6e8c73a546e0c7",
        "0xe28fe9e7e601eab3",
    ]
    assert hashed(pa.array([each.encode() for each in ids], pa.large_binary())).tolist() == text.tolist()
    assert [hex(each) for each in hashed(pa.array([0, 1, -1, 2**63 - 1])).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x910a2dec89025cc1",
        "0xe4d971771b652c20",
        "0x2a67d7552e039ea7",
    ]
    assert bloom(text).hex() == "832f4bc70edc2c70"


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 2**63 - 1))
def test_a_filter_never_excludes_what_is_there(ids: set[int], other: int) -> None:
    hashes = hashed(pa.array(sorted(ids), pa.int64()))
    data = bloom(hashes)
    assert is_bloom(data, len(ids))
    assert perhaps_in(data, hashes).all()
    assert not is_bloom(data[:-1], len(ids))
    assert perhaps_in(data, hashed(pa.array([other, *ids], pa.int64())))[1:].all()
