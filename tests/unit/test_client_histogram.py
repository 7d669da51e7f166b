"""Histograms of record timestamps: small, never leading, and ageing only merges neighbours."""

from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import MAX, MIN, Histogram, Watermark
from lowwater.histogram import bucket_start

MS = 1_000
YEAR = 365 * 86_400 * 1_000_000

references = st.integers(0, 100 * YEAR)
ages = st.one_of(st.integers(0, 10 * MS), st.integers(0, YEAR), st.integers(0, 90 * YEAR))
times = st.one_of(st.integers(-YEAR, 100 * YEAR), st.sampled_from([MIN, MAX, 0]))


@given(references, ages)
def test_a_bucket_is_at_most_one_percent_of_its_age_or_one_millisecond(reference: int, age: int) -> None:
    t = reference - age
    assert 0 <= t - bucket_start(t, reference) < max(MS, age / 100)


@given(references, times)
def test_values_round_down_and_stay_in_64_bits(reference: int, t: int) -> None:
    assert MIN <= bucket_start(t, reference) <= t


@given(references, times, times)
def test_order_is_kept(reference: int, a: int, b: int) -> None:
    assert bucket_start(min(a, b), reference) <= bucket_start(max(a, b), reference)


@given(references, st.integers(0, YEAR))
def test_all_from_the_reference_on_share_one_bucket(reference: int, ahead: int) -> None:
    assert bucket_start(reference + ahead, reference) == reference // MS * MS


def test_an_unknown_reference_puts_everything_at_unknown() -> None:
    made = Histogram(MIN)
    made.add_many([0, MAX, MIN])
    assert made.columns() == ([MIN], [3])


@given(references, st.lists(times))
def test_many_at_once_is_one_by_one(reference: int, many: list[int]) -> None:
    at_once, one_by_one = Histogram(reference), Histogram(reference)
    at_once.add_many(many)
    for t in many:
        one_by_one.add(t)
    at_once._check()
    assert at_once == one_by_one
    starts, counts = at_once.columns()
    assert starts == sorted(set(starts))
    assert at_once.total == sum(counts) == len(many)
    assert dict(zip(starts, counts, strict=True)) == Counter(bucket_start(t, reference) for t in many)


@given(references, st.lists(times), st.lists(st.integers(0, 10 * YEAR), max_size=4))
def test_ageing_only_merges_neighbours_and_keeps_the_total(reference: int, many: list[int], steps: list[int]) -> None:
    aged = Histogram(reference)
    aged.add_many(many)
    for step in steps:
        before, _ = aged.columns()
        reference += step
        aged.age(reference)
        aged._check()
        after, _ = aged.columns()
        assert set(after) <= {bucket_start(start, reference) for start in before}
        assert [bucket_start(start, reference) for start in before] == sorted(
            bucket_start(s, reference) for s in before
        )
        assert aged.total == len(many)


@given(references, st.lists(ages), st.integers(0, 50 * YEAR))
def test_ageing_equals_building_fresh(reference: int, many: list[int], step: int) -> None:
    """For all records up to the old reference; later ones have already been put into one bucket."""
    aged, fresh = Histogram(reference), Histogram(reference + step)
    aged.add_many(reference - age for age in many)
    aged.age(reference + step)
    fresh.add_many(reference - age for age in many)
    assert aged == fresh


@given(references, ages, ages)
def test_buckets_do_not_overlap(reference: int, a: int, b: int) -> None:
    """A bucket's start belongs to it, and nothing between a start and a member belongs to another bucket."""
    start = bucket_start(reference - a, reference)
    assert bucket_start(start, reference) == start
    between = start + b % (reference - a - start + 1)
    assert bucket_start(between, reference) == start


@given(references, st.lists(st.integers(0, 100 * YEAR)), st.integers(1, YEAR))
def test_the_reference_never_goes_back(reference: int, many: list[int], back: int) -> None:
    made = Histogram(reference)
    made.add_many(many)
    same = made.copy()
    made.age(reference - back)
    assert made == same


@given(references, references, st.lists(times), st.lists(times))
def test_merging_is_adding_under_the_later_reference(a: int, b: int, these: list[int], those: list[int]) -> None:
    left, right = Histogram(a), Histogram(b)
    left.add_many(these)
    right.add_many(those)
    other = right.copy()
    left.merge(right)
    left._check()
    assert right == other
    assert left.reference_micros == max(a, b)
    assert left.total == len(these) + len(those)


@given(references, st.lists(times))
def test_columns_rebuild_it(reference: int, many: list[int]) -> None:
    made = Histogram(reference)
    made.add_many(many)
    assert Histogram.from_columns(reference, *made.columns()) == made


def test_any_past_fits_into_some_thousand_buckets() -> None:
    made = Histogram(60 * YEAR)
    made.add_many(60 * YEAR - int(1.002**i) for i in range(17_500))
    assert 2_000 < len(made) < 3_600


def test_every_kind_of_event_times() -> None:
    many = [5_000, 7_000, 7_000]
    expected = Histogram(10_000)
    expected.add_many(many)
    for container in (array("q", many), np.array(many), [Watermark(t) for t in many], iter(many)):
        made = Histogram(10_000)
        made.add_many(container)
        assert made == expected
    made = Histogram(10_000)
    made.add(5_000)
    made.add(7_000, 2)
    assert made == expected
    assert repr(made) == "<Histogram of 3 records in 2 buckets>"


def test_records_cannot_be_taken_away() -> None:
    with pytest.raises(ValueError, match="build a new one"):
        Histogram(0).add(0, -1)
