"""Codecs turn a key's state into bytes; the rest of the pipeline never looks into them.

:class:`Codec` is the one that ships. A declared type tells it what it may write and read: plain
values, containers and dataclasses. So reading state runs no code from the stored bytes, as
``pickle`` would. Implement :class:`StateCodec` for another form.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar

from lowwater.watermark import to_micros

__all__ = ["Codec", "StateCodec"]

S = TypeVar("S")

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_DECODER: Final = json.JSONDecoder()

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)
_FIRST: Final = to_micros(datetime.min.replace(tzinfo=UTC))
_LAST: Final = to_micros(datetime.max.replace(tzinfo=UTC))

_BITS: Final = 2048
"""Greatest size of an int, in bits. It has fewer than 640 digits, which every interpreter reads
whatever its limit is."""
_TOO_LARGE: Final = 1 << _BITS

_SHOWN: Final = 80
"""Greatest number of characters of a value in a message."""

_Convert = Callable[[Any], Any]


class StateCodec(Protocol[S]):
    """How the state of a key becomes bytes.

    A codec must be picklable, because executors get a copy. Bytes stay in the checkpoint, so later
    versions of the codec must read them.
    """

    def initial(self) -> S:
        """Return a new initial state. A state whose bytes equal its bytes is not stored."""
        ...

    def encode(self, state: S) -> bytes:
        """Return the bytes of a state.

        Where equal states have unequal bytes, as dicts of another order may, a state that has not
        changed is written once more.
        """
        ...

    def decode(self, data: bytes) -> S:
        """Return the state of these bytes, as a new object."""
        ...


class Codec(Generic[S]):
    """A codec that writes state of a declared type as JSON.

    Types are bool, int (to 2048 bits), float (infinities and NaN, too), str (no lone surrogates),
    bytes, datetime (aware, to the microsecond; it comes back in UTC), dataclasses, and ``list[T]``,
    ``set[T]``, ``tuple[T, ...]``, ``tuple[A, B]``, ``dict[K, V]`` and ``T | None`` of them. Keys of
    a dict and elements of a set must be hashable: no list, set or dict, and a dataclass only if it
    is frozen. A dataclass may get new fields with defaults: older state gets the defaults.

    A value must have exactly the declared type, because it comes back as that type: a
    ``defaultdict`` is no dict, True is no int, an int is no float. Equal sets have equal bytes. A
    dict keeps its order.

    The bytes hold no names of types. JSON that looks alike is read as the declared type: a list, a
    set and a tuple; an int and a datetime; an int and the float that equals it.

    >>> codec = Codec(dict[int, list[str]])
    >>> codec.encode({7: ["a"]})
    b'[[7,["a"]]]'
    >>> codec.decode(b'[[7,["a"]]]'), codec.initial()
    ({7: ['a']}, {})
    """

    def __init__(self, kind: Any, initial: Callable[[], S] | None = None) -> None:
        """Take the type of the state, and a function that returns the initial state.

        By default that is the type, called without arguments, or None for ``T | None``. Raises
        TypeError for another type, for a type that makes no initial state, and for an initial state
        that does not survive encoding and decoding.
        """
        self.kind = kind
        self._initial_given = initial
        self._make()
        try:
            data = self.encode(self.initial())
            again = self.encode(self.decode(data))
        except Exception as failure:
            problem = (
                f"{_name(kind)} makes no initial state without arguments: pass Codec({_name(kind)}, initial=...), a function that returns one"
                if initial is None
                else f"initial= makes no state of {_name(kind)}"
            )
            msg = f"{problem} ({failure})"
            raise TypeError(msg) from failure
        if again != data:
            msg = f"the initial state of {_name(kind)} does not come back as it was: what its __init__ takes is what its fields have, or write a codec. It was {data[:_SHOWN]!r} and is {again[:_SHOWN]!r}"
            raise TypeError(msg)

    def _make(self) -> None:
        self._to, self._from = _converters(self.kind, "the state")
        plain = typing.get_origin(self.kind) or self.kind
        self._initial: Callable[[], Any] = self._initial_given or ((lambda: None) if _optional(self.kind) else plain)

    def __getstate__(self) -> tuple[Any, Any]:
        return self.kind, self._initial_given

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self.kind, self._initial_given = state
        self._make()

    def initial(self) -> S:
        """Return a new initial state."""
        state: S = self._initial()
        return state

    def encode(self, state: S) -> bytes:
        """Return the bytes of a state. O(state), and a sort of each set.

        Raises TypeError, naming the place, for a value that has not exactly the declared type.
        Raises ValueError for a value that could not be read again: an int beyond 2048 bits, a
        datetime that is naive or outside of the years 1 to 9999 in UTC, text with lone surrogates,
        two elements or keys with the same text.
        """
        return _ENCODER.encode(self._to(state)).encode()

    def decode(self, data: bytes) -> S:
        """Return the state of these bytes. O(state). Raises ValueError for another type's bytes."""
        try:
            # raw_decode() takes no blanks around the value, as decode() would: encode() writes
            # none.
            value, end = _DECODER.raw_decode(text := data.decode())
            if end != len(text):
                msg = f"there is more than one value, up to {end} of {len(text)}"
                raise ValueError(msg)
            state: S = self._from(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as failure:
            msg = (
                f"the stored state is no {_name(self.kind)} ({failure}): declare the state as it was, with a default for each field that is new, or begin a new checkpoint, with "
                f"adopt=True. It begins with {data[:_SHOWN]!r}"
            )
            raise ValueError(msg) from failure
        return state


def _converters(
    kind: Any, place: str, inside: tuple[Any, ...] = (), *, hashed: bool = False
) -> tuple[_Convert, _Convert]:
    """Return two functions for a type: its values to JSON's values, and back.

    ``place`` names the values in messages; ``inside`` are the dataclasses around them; ``hashed``
    is True for keys of a dict and elements of a set.
    """
    if isinstance(kind, type) and kind in _SCALARS:
        return _SCALARS[kind](place)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, place, inside, hashed=hashed)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _optional(kind):
        [inner] = [argument for argument in arguments if argument is not type(None)]
        to, back = _converters(inner, place, inside, hashed=hashed)
        return (lambda v: None if v is None else to(v)), (lambda v: None if v is None else back(v))
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        return _of_tuple(arguments, place, inside, hashed=hashed)
    if hashed and origin in (list, set, dict):
        msg = f"{place} cannot be a {_name(kind)}, which has no hash: take a tuple or a frozen dataclass"
        raise TypeError(msg)
    if origin is set:
        return _of_set(arguments[0], place, inside)
    if origin in (list, tuple):
        to, back = _converters(arguments[0], f"an element of {place}", inside, hashed=hashed)
        return _written(origin, place, lambda v: [to(item) for item in v]), _read(
            list, place, lambda v: origin([back(item) for item in v])
        )
    if origin is dict:
        return _of_dict(arguments[0], arguments[1], place, inside)
    msg = (
        f"a state cannot be of {_name(kind)}: take bool, int, float, str, bytes, datetime, dataclasses, and list[T], set[T], tuple[...], dict[K, V] and T | None of them, or "
        "write a codec with initial, encode and decode"
    )
    raise TypeError(msg)


def _of_tuple(
    arguments: tuple[Any, ...], place: str, inside: tuple[Any, ...], *, hashed: bool
) -> tuple[_Convert, _Convert]:
    pairs = [
        _converters(argument, f"[{index}] of {place}", inside, hashed=hashed)
        for index, argument in enumerate(arguments)
    ]
    many = len(pairs)

    def to(value: tuple[Any, ...]) -> list[Any]:
        if len(value) != many:
            msg = f"{place} is {_shown(value)} where a tuple of {many} is declared: convert it, or declare what it is"
            raise TypeError(msg)
        return [convert(item) for (convert, _), item in zip(pairs, value, strict=True)]

    def back(value: list[Any]) -> tuple[Any, ...]:
        if len(value) != many:
            msg = f"{place} is {_shown(value)} and does not have {many} values"
            raise ValueError(msg)
        return tuple(convert(item) for (_, convert), item in zip(pairs, value, strict=True))

    return _written(tuple, place, to), _read(list, place, back)


def _of_set(element: Any, place: str, inside: tuple[Any, ...]) -> tuple[_Convert, _Convert]:
    element_to, element_back = _converters(element, f"an element of {place}", inside, hashed=True)

    text_of: Callable[[Any], str] = repr if element in (int, datetime) else _ENCODER.encode

    def to(value: set[Any]) -> list[Any]:
        # A set's order differs from process to process. The order of the JSON texts does not, and
        # it also orders values that have no order of their own.
        texts = {text_of(item): item for item in map(element_to, value)}
        _check_distinct(len(texts), len(value), "elements", place)
        return [texts[text] for text in sorted(texts)]

    def back(value: list[Any]) -> set[Any]:
        elements = {element_back(item) for item in value}
        _check_distinct(len(elements), len(value), "elements", place)
        return elements

    return _written(set, place, to), _read(list, place, back)


def _of_dict(key: Any, item: Any, place: str, inside: tuple[Any, ...]) -> tuple[_Convert, _Convert]:
    key_to, key_back = _converters(key, f"a key of {place}", inside, hashed=True)
    item_to, item_back = _converters(item, f"a value of {place}", inside)
    if key is str:
        return (
            _written(dict, place, lambda v: {key_to(k): item_to(entry) for k, entry in v.items()}),
            _read(dict, place, lambda v: {key_back(k): item_back(entry) for k, entry in v.items()}),
        )

    def to(value: dict[Any, Any]) -> list[Any]:
        pairs = [[key_to(k), item_to(entry)] for k, entry in value.items()]
        if key not in _ONE_TEXT_EACH:
            _check_distinct(len({_ENCODER.encode(k) for k, _ in pairs}), len(pairs), "keys", place)
        return pairs

    pair = _read(list, f"a pair of {place}", lambda v: v)

    def back(value: list[Any]) -> dict[Any, Any]:
        items = {key_back(k): item_back(entry) for k, entry in map(pair, value)}
        _check_distinct(len(items), len(value), "keys", place)
        return items

    return _written(dict, place, to), _read(list, place, back)


def _of_dataclass(kind: Any, place: str, inside: tuple[Any, ...], *, hashed: bool) -> tuple[_Convert, _Convert]:
    if kind in inside:
        msg = f"{_name(kind)} contains itself: a state is no tree of unknown depth; keep a list with positions, or write a codec"
        raise TypeError(msg)
    if hashed and kind.__hash__ in (None, object.__hash__):
        msg = f"{place} cannot be a {_name(kind)}, which has no hash of its values: declare it with @dataclass(frozen=True)"
        raise TypeError(msg)
    declared = {field.name: field for field in dataclasses.fields(kind)}
    odd = sorted(inspect.signature(kind).parameters.keys() ^ declared.keys())
    if odd:
        msg = f"{_name(kind)} cannot be made again of its fields, because of {', '.join(odd)}: its __init__ takes all of them and nothing else, so no init=False and no InitVar; or write a codec"
        raise TypeError(msg)
    hints = typing.get_type_hints(kind)
    fields = {
        name: _converters(
            hints[name],
            f"{_name(kind)}.{name}",
            (*inside, kind),
            hashed=hashed and (field.compare if field.hash is None else field.hash),
        )
        for name, field in declared.items()
    }

    def to(value: Any) -> dict[str, Any]:
        return {name: convert(getattr(value, name)) for name, (convert, _) in fields.items()}

    def back(value: dict[str, Any]) -> Any:
        if not value.keys() <= fields.keys():
            msg = f"{_name(kind)} has no field {', '.join(sorted(value.keys() - fields.keys()))} any more"
            raise ValueError(msg)
        return kind(**{name: fields[name][1](item) for name, item in value.items()})

    return _written(kind, place, to), _read(dict, place, back)


def _bool(place: str) -> tuple[_Convert, _Convert]:
    return _written(bool, place), _read(bool, place)


def _int(place: str) -> tuple[_Convert, _Convert]:
    def to(value: int) -> int:
        if not -_TOO_LARGE < value < _TOO_LARGE:
            msg = f"{place} is an int of {value.bit_length()} bits, at most {_BITS} can be read again: keep it as bytes or as text"
            raise ValueError(msg)
        return value

    return _written(int, place, to), _read(int, place)


def _float(place: str) -> tuple[_Convert, _Convert]:
    def back(value: Any) -> float:
        if type(value) is float:
            return value
        if type(value) is int and float(value) == value:
            return float(value)
        msg = f"{place} is {_shown(value)} and no float"
        raise ValueError(msg)

    return _written(float, place), back


def _str(place: str) -> tuple[_Convert, _Convert]:
    def check(value: str) -> str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as failure:
                msg = f"{place} is {_shown(value)}, which has a lone surrogate at {failure.start} and is no text: keep it as bytes, or replace it"
                raise ValueError(msg) from None
        return value

    return _written(str, place, check), _read(str, place, check)


def _bytes(place: str) -> tuple[_Convert, _Convert]:
    return (
        _written(bytes, place, lambda v: base64.b64encode(v).decode()),
        _read(str, place, lambda v: base64.b64decode(v, validate=True)),
    )


def _datetime(place: str) -> tuple[_Convert, _Convert]:
    def to(value: datetime) -> int:
        if value.utcoffset() is None:
            msg = f"{place} is {value!r} and has no time zone: give it one, as with .replace(tzinfo=UTC)"
            raise ValueError(msg)
        micros = to_micros(value)
        if not _FIRST <= micros <= _LAST:
            msg = f"{place} is {value!r}, in UTC outside of the years 1 to 9999: keep another time"
            raise ValueError(msg)
        return micros

    return _written(datetime, place, to), _read(int, place, lambda v: _EPOCH + v * _MICRO)


def _written(kind: type, place: str, convert: _Convert | None = None) -> _Convert:
    """Return a function that converts values of exactly this type, and refuses derived types."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            derived = f", and would come back as {_name(kind)}" if isinstance(value, kind) else ""
            msg = f"{place} is {_shown(value)} where {_name(kind)} is declared{derived}: convert it, or declare what it is"
            raise TypeError(msg)
        return value if convert is None else convert(value)

    return check


def _read(kind: type, place: str, convert: _Convert | None = None) -> _Convert:
    """Return a function that converts JSON's values of exactly this type back."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            msg = f"{place} is {_shown(value)}, which is no {_name(kind)}"
            raise ValueError(msg)
        return value if convert is None else convert(value)

    return check


def _check_distinct(distinct: int, total: int, what: str, place: str) -> None:
    if distinct != total:
        msg = f"two {what} of {place} are the same in bytes: a NaN, or a time in two zones, is there once"
        raise ValueError(msg)


def _optional(kind: Any) -> bool:
    return (
        typing.get_origin(kind) in (types.UnionType, typing.Union)
        and type(None) in typing.get_args(kind)
        and len(typing.get_args(kind)) == 2
    )


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)


def _shown(value: Any) -> str:
    """Return a value's text, shortened for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # for example an int with too many digits
        text = f"a {type(value).__name__}"
    # Lone surrogates are escaped: a message with one could be neither logged nor sent.
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SCALARS: Final[dict[Any, Callable[[str], tuple[_Convert, _Convert]]]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
    datetime: _datetime,
}

_ONE_TEXT_EACH: Final = (bool, int, bytes)
"""Types of which unequal values always have different texts."""
