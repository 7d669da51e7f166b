"""Cuts of the key space: the column that runs in the JVM and the bounds of a claim are the same, and what a range has of the ranges before."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from lowwater import Layout
from lowwater.layout import SLOTS
from lowwater_spark.track.inputs import Reading
from lowwater_spark.track.rows.cut import Cut, least_of
from lowwater_spark.track.rows.ranges import place_bytes
from lowwater_spark.track.run.progress import AfterBatch, Progress

starts = st.sets(st.integers(1, SLOTS - 1), max_size=30).map(lambda some: (0, *sorted(some)))
cuts = st.one_of(st.builds(Cut, st.integers(1, 40)), st.builds(lambda some: Cut(4, Layout(1, some)), starts))


@pytest.mark.spark
@pytest.mark.parametrize(
    "chosen", [(0,), (0, 0x8000), (0, 0x4000, 0x4400, 0x8000), (0, 1, 2, 0xFFFF), (0, 77, 0x1234, 0xFFFE)]
)
def test_the_column_agrees_with_the_bounds(spark: SparkSession, chosen: tuple[int, ...]) -> None:
    cut = Cut(4, Layout(1, chosen))
    places = {0, 2**63, 2**64 - 1, *((start << 48) + by for start in chosen for by in (-1, 0, 1))}
    hashes = sorted(place - 2**63 for place in places if 0 <= place < 2**64)
    frame = spark.createDataFrame([(value,) for value in hashes], "hash long").select(cut.handle(sf.col("hash")))
    bounds = cut.bounds[:-1]
    assert [value[0] for value in frame.collect()] == [bisect_right(bounds, place_bytes(value)) - 1 for value in hashes]


def test_there_are_as_many_tasks_as_ranges_or_as_pins_name_and_no_more_than_there_may_be() -> None:
    pinned = Cut(4, Layout(1, (0, 0x4000), (0, 7)))
    assert [pinned.spread(most, pins=True) for most in (1, 2, 7, 200)] == [1, 2, 7, 7]
    assert [pinned.spread(most, pins=False) for most in (1, 2, 7, 200)] == [1, 2, 2, 2]
    assert Cut(4, Layout(1, (0, 1, 2), (1, 0, 1))).spread(200, pins=True) == 3
    assert Cut(4).spread(200, pins=True) == 4


@given(cuts, cuts, st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_each_place_of_a_range_is_in_one_share_of_its_parent(old: Cut, new: Cut, places: list[int]) -> None:
    shares = new.shares(old)
    assert len(shares) == len(new)
    borders = {place + by for place in (*old.places, *new.places) for by in (-1, 0)}
    for place in (*places, *(border for border in borders if 0 <= border < 2**64)):
        mine, parent = bisect_right(new.places, place) - 1, bisect_right(old.places, place) - 1
        holding = [
            share.parent
            for share in shares[mine]
            if share.parent == parent and (share.places is None or share.places[0] <= place - 2**63 < share.places[1])
        ]
        assert holding == [parent]
        for handle, others in enumerate(shares):
            if handle != mine:
                assert not [
                    share
                    for share in others
                    if share.parent == parent
                    and (share.places is None or share.places[0] <= place - 2**63 < share.places[1])
                ]


@given(cuts, cuts, st.data())
def test_a_part_copies_and_a_union_takes_the_least(old: Cut, new: Cut, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=len(old), max_size=len(old)))
    least = least_of(new.shares(old), values)
    for handle, (start, end) in enumerate(zip(new.places, new.places[1:], strict=False)):
        met = [
            value
            for value, low, high in zip(values, old.places, old.places[1:], strict=False)
            if max(start, low) < min(end, high) and value is not None
        ]
        assert least[handle] == min(met, default=None)


def test_what_is_reported_has_a_value_for_each_range_of_the_cut() -> None:
    progress = Progress(2, None, [], AfterBatch(held=[5, None]))
    progress.relay(3, [5, 5, None])
    assert progress.values(Reading(9)) == [5, 5, 9]
    progress.relay(4, ())
    assert progress.values(Reading(9)) == [9] * 4
