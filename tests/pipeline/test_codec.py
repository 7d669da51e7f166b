"""State as bytes: it comes back as it was, or it is refused by name."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from types import GenericAlias
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater_pipeline.computation.codec import Codec
from tests.kit.times import at


@dataclass
class Bucket:
    n: int = 0
    seen: set[str] = field(default_factory=set[str])
    last: datetime | None = None


@dataclass
class Grown(Bucket):
    more: float = 0.5


@dataclass
class Bare:
    n: int


@dataclass(frozen=True)
class Point:
    x: int
    name: str | None = None


@dataclass(frozen=True)
class Pair:
    left: Point
    right: tuple[float, ...] = ()


@dataclass(frozen=True)
class Listed:
    all: list[int] = field(default_factory=list[int])


@dataclass
class Derived:
    n: int = 0
    twice: int = field(init=False, default=0)


class Level(IntEnum):
    LOW = 1


texts = st.text(max_size=5)
times = st.datetimes(timezones=st.just(UTC))
buckets = st.builds(Bucket, st.integers(), st.sets(texts, max_size=3), st.one_of(st.none(), times))


class Declared(NamedTuple):
    kind: Any
    values: st.SearchStrategy[Any]


PLAIN = [
    Declared(bool, st.booleans()),
    Declared(int, st.one_of(st.sampled_from([0, 8, 16, -1]), st.integers(), st.integers(1 - 2**2048, 2**2048 - 1))),
    Declared(float, st.one_of(st.sampled_from([-0.0, float("inf"), 1.0]), st.floats(allow_nan=False))),
    Declared(str, texts),
    Declared(bytes, st.binary(max_size=5)),
    Declared(datetime, times),
    Declared(Point, st.builds(Point, st.integers(), st.none() | texts)),
    Declared(Pair, st.builds(Pair, st.builds(Point, st.integers()), st.tuples(st.floats(allow_nan=False)))),
]
OTHERS = [Declared(Bucket, buckets), Declared(float, st.just(float("nan")))]


def optional(item: Declared) -> Declared:
    return Declared(item.kind | None, st.none() | item.values)


def tuples(item: Declared) -> Declared:
    return Declared(GenericAlias(tuple, (item.kind, ...)), st.lists(item.values, max_size=3).map(tuple))


def two(a: Declared, b: Declared) -> Declared:
    return Declared(GenericAlias(tuple, (a.kind, b.kind)), st.tuples(a.values, b.values))


def lists(item: Declared) -> Declared:
    return Declared(GenericAlias(list, item.kind), st.lists(item.values, max_size=3))


def sets(item: Declared) -> Declared:
    return Declared(GenericAlias(set, item.kind), st.sets(item.values, max_size=4))


def dicts(key: Declared, item: Declared) -> Declared:
    return Declared(GenericAlias(dict, (key.kind, item.kind)), st.dictionaries(key.values, item.values, max_size=3))


def within(item: st.SearchStrategy[Declared]) -> st.SearchStrategy[Declared]:
    return st.one_of(st.builds(optional, item), st.builds(tuples, item), st.builds(two, item, item))


hashables = st.recursive(st.sampled_from(PLAIN), within, max_leaves=3)
declared = st.recursive(
    st.one_of(hashables, st.sampled_from(OTHERS), st.builds(sets, hashables)),
    lambda item: st.one_of(within(item), st.builds(lists, item), st.builds(dicts, hashables, item)),
    max_leaves=4,
)


def exact(value: Any) -> Any:
    """Return what is equal for equal values of the same types, and only for these: with the sign of a zero, NaN and the order of a dict."""
    kind = type(value)
    if is_dataclass(value):
        return kind, tuple(exact(getattr(value, field.name)) for field in fields(value))
    if kind in (list, tuple):
        return kind, tuple(exact(item) for item in value)
    if kind is set:
        return kind, frozenset(exact(item) for item in value)
    if kind is dict:
        return kind, tuple((exact(k), exact(item)) for k, item in value.items())
    return kind, value.hex() if kind is float else value, value.tzinfo if kind is datetime else None


def inserted_otherwise(value: Any, chance: random.Random) -> Any:
    """Return an equal value whose sets were filled in another order."""
    kind = type(value)
    if kind is set:
        other = set[Any]()
        for item in chance.sample(list(value), len(value)):
            other.add(item)
        return other
    if kind in (list, tuple):
        return kind([inserted_otherwise(item, chance) for item in value])
    if kind is dict:
        return {k: inserted_otherwise(item, chance) for k, item in value.items()}
    if kind is Bucket:
        return Bucket(value.n, inserted_otherwise(value.seen, chance), value.last)
    return value


@given(st.data(), st.randoms(use_true_random=False))
def test_what_is_declared_comes_back_and_sets_have_one_order(data: st.DataObject, chance: random.Random) -> None:
    kind, values = data.draw(declared)
    state = data.draw(values)
    codec = Codec[Any](kind, initial=lambda: state)
    written = codec.encode(state)
    assert exact(codec.decode(written)) == exact(state)
    assert codec.encode(codec.decode(written)) == written
    assert codec.encode(inserted_otherwise(state, chance)) == written


@given(st.data())
def test_bytes_of_one_type_are_refused_as_another_one_or_read_as_exactly_that(data: st.DataObject) -> None:
    (kind, values), other = data.draw(declared), data.draw(declared)
    state = data.draw(values)
    written = Codec[Any](kind, initial=lambda: state).encode(state)
    start = data.draw(other.values)
    reader = Codec[Any](other.kind, initial=lambda: start)
    try:
        read = reader.decode(written)
    except ValueError:
        return
    assert exact(reader.decode(reader.encode(read))) == exact(read)


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (list[str], b'{"a":1}', r"the state is \{'a': 1\}, which is no list"),
        (tuple[int, int], b"[1,2,3]", r"the state is \[1, 2, 3\] and does not have 2 values"),
        (dict[str | None, str], b'["ab"]', "a pair of the state is 'ab', which is no list"),
        (dict[int, int], b"[[1,2],[1,3]]", "two keys of the state are the same"),
        (set[int], b"[1,1]", "two elements of the state are the same"),
        (Bucket, b'{"n":1.5}', "Bucket.n is 1.5, which is no int"),
        (float, b"9007199254740993", "9007199254740993 and no float"),
        (float, b"1" + b"0" * 400, "too large"),
        (bool, b"1", "the state is 1, which is no bool"),
        (bytes, b'"a!b="', "base64|padding"),
        (str, b'"\\ud800"', "has a lone surrogate at 0"),
        (datetime | None, b"1" + b"0" * 18, "out of range"),
        (list[int], b"[" * 200_000, "recursion"),
    ],
)
def test_bytes_of_another_type_are_refused(kind: Any, data: bytes, text: str) -> None:
    initial = (lambda: (1, 2)) if kind == tuple[int, int] else None
    with pytest.raises(ValueError, match=f"(?s)the stored state is no .*{text}"):
        Codec[Any](kind, initial=initial).decode(data)


def test_a_float_is_read_of_a_whole_number() -> None:
    read = Codec[float](float).decode(b"7")
    assert (type(read), read) == (float, 7.0)


def test_sets_of_what_has_no_order_are_written_in_one() -> None:
    assert Codec[Any](set[int | None]).encode({8, None, 0}) == b"[0,8,null]"
    assert Codec[Any](set[Point]).encode({Point(2), Point(1, "a")}) == b'[{"x":1,"name":"a"},{"x":2,"name":null}]'
    assert Codec[Any](set[tuple[int, str | None]]).encode({(1, None), (1, "a")}) == b'[[1,"a"],[1,null]]'
    assert Codec[Any](set[int]).encode({9, 10}) == b"[10,9]"


def test_the_initial_state_is_new_each_time() -> None:
    codec = Codec[Bucket](Bucket)
    codec.initial().seen.add("x")
    assert codec.initial() == Bucket()
    assert [Codec[Any](kind).initial() for kind in (int, str, list[int], int | None)] == [0, "", [], None]
    abroad = datetime(2013, 1, 9, 11, tzinfo=timezone(timedelta(hours=1)))
    assert Codec[datetime](datetime, initial=lambda: at(9)).decode(Codec[Any](datetime | None).encode(abroad)) == at(10)


def test_a_dataclass_may_grow_and_nothing_is_dropped() -> None:
    old = Codec[Bucket](Bucket).encode(Bucket(3))
    assert Codec[Grown](Grown).decode(old) == Grown(3)
    new = Codec[Grown](Grown).encode(Grown(3))
    with pytest.raises(
        ValueError,
        match=r"the stored state is no Bucket \(Bucket has no field more any more\): declare the state as it was",
    ):
        Codec[Bucket](Bucket).decode(new)
    with pytest.raises(ValueError, match="the stored state is no Bare"):
        Codec[Bare](Bare, initial=lambda: Bare(0)).decode(b"{}")


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        (int, True, "the state is True where int is declared"),
        (dict[str, int], {1: 1}, "a key of the state is 1 where str is declared"),
        (dict[int, int], defaultdict(int), "the state is defaultdict.* where dict is declared, and would come back as"),
        (Bucket, Grown(), "the state is Grown.* where Bucket is declared, and would come back as Bucket"),
        (dict[str, Bucket], {"a": Bucket(seen=["a"])}, r"Bucket.seen is \['a'\] where set is declared"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        (int, Level.LOW, "where int is declared"),
        (float, 1, "the state is 1 where float is declared: convert it, or declare what it is"),
        (list[int], "a" * 1000, "the state is 'aa*[.]{3} where list is declared"),
    ],
)
def test_a_value_of_another_type_is_refused(kind: Any, state: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Codec[Any](kind).encode(state)


EAST = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        (datetime | None, datetime(2013, 1, 9), "the state is datetime.* and has no time zone"),  # noqa: DTZ001
        (datetime | None, datetime.min.replace(tzinfo=EAST), "in UTC outside of the years 1 to 9999"),
        (int, 2**2048, "the state is an int of 2049 bits, at most 2048 can be read again"),
        (str, "a\ud800", r"the state is 'a\\ud800', which has a lone surrogate at 1 and is no text"),
        (set[float], {float("nan"), -float("nan")}, "two elements of the state are the same in bytes"),
        (dict[float, int], {float("nan"): 1, -float("nan"): 2}, "two keys of the state are the same in bytes"),
    ],
)
def test_a_value_that_could_not_be_read_again_is_refused_when_it_is_written(kind: Any, state: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text) as refused:
        Codec[Any](kind).encode(state)
    str(refused.value).encode()


def test_the_largest_int_is_read_where_the_limit_of_digits_is_the_lowest() -> None:
    codec, largest, before = Codec[int](int), 2**2048 - 1, sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        assert [codec.decode(codec.encode(number)) for number in (largest, -largest)] == [largest, -largest]
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (object, "a state cannot be of object: take bool, int"),
        (Bare, r"Bare makes no initial state without arguments: pass Codec\(Bare, initial=...\)"),
        (dict[Bucket, int], "a key of the state cannot be a Bucket, which has no hash of its values: declare it with"),
        (set[Listed], r"Listed.all cannot be a list\[int\], which has no hash"),
        (dict[list[int], int], r"a key of the state cannot be a list\[int\], which has no hash: take a tuple"),
        (set[tuple[int, dict[str, int]]], r"\[1\] of an element of the state cannot be a dict"),
        (dict[str, Derived], "Derived cannot be made again of its fields, because of twice"),
    ],
)
def test_a_type_that_it_does_not_know_is_refused_when_it_is_declared(kind: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Codec[Any](kind)


def test_an_initial_state_of_another_type_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match=r"initial= makes no state of float \(the state is 0 where float is declared"):
        Codec[Any](float, initial=lambda: 0)
