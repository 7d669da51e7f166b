"""State as bytes: what a computation keeps of a key is opaque to everything but its codec.

:class:`Codec` is the one that is there. It knows from a declared type what it may write and what it
makes of what it reads: plain values, containers of them and dataclasses. So reading state runs no
code that the state brings along, as ``pickle`` would. Who needs another form writes a
:class:`StateCodec`.
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
"""Of an int, at most: fewer than the 640 digits that every interpreter reads, whatever limit is set
there."""
_TOO_LARGE: Final = 1 << _BITS

_SHOWN: Final = 80
"""Characters of a value in a message, at most."""

_Convert = Callable[[Any], Any]


class StateCodec(Protocol[S]):
    """How the state of a key becomes bytes.

    It travels to the executors, so it can be pickled; the bytes stay in the checkpoint, so later
    releases of it must read them.
    """

    def initial(self) -> S:
        """Return the state of a key that has none, a new one each time.

        A state whose bytes are those of the initial one is not kept.
        """
        ...

    def encode(self, state: S) -> bytes:
        """Return the bytes of a state: the same for the same state."""
        ...

    def decode(self, data: bytes) -> S:
        """Return the state of these bytes, as new as :meth:`initial`."""
        ...


class Codec(Generic[S]):
    """Writes state of a declared type as JSON.

    Types are bool, int (to 2048 bits), float (infinities and NaN, too), str (no lone surrogates),
    bytes, datetime (aware, to the microsecond; it comes back in UTC), dataclasses, and ``list[T]``,
    ``set[T]``, ``tuple[T, ...]``, ``tuple[A, B]``, ``dict[K, V]`` and ``T | None`` of them. Keys of
    a dict and elements of a set are hashable: of a dataclass that is frozen, but of no list, set or
    dict. A dataclass may get further fields if they have a default: state that was written before
    has that.

    A value is of exactly the declared type, so that it comes back as that: a ``defaultdict`` is no
    dict, True is no int, and an int is no float. Equal sets have equal bytes. A dict keeps its
    order.

    The bytes hold no names of types. What looks alike in JSON is read as what is declared: a list,
    a set and a tuple, an int and a datetime, or an int and the float that equals it.

    >>> codec = Codec(dict[int, list[str]])
    >>> codec.encode({7: ["a"]})
    b'[[7,["a"]]]'
    >>> codec.decode(b'[[7,["a"]]]'), codec.initial()
    ({7: ['a']}, {})
    """

    def __init__(self, kind: Any, initial: Callable[[], S] | None = None) -> None:
        """Take the type, and what makes the initial state: by default the type itself, called without arguments, or None where that is allowed.

        Raises TypeError for a type that is none of these, for one without an initial state, and for an initial state that does not come back as it was.
        """
        self.kind = kind
        self._given = initial
        self._make()
        try:
            data = self.encode(self.initial())
            again = self.encode(self.decode(data))
        except Exception as failure:
            made = (
                f"{_name(kind)} makes no initial state without arguments: pass Codec({_name(kind)}, initial=...), a function that returns one"
                if initial is None
                else f"initial= makes no state of {_name(kind)}"
            )
            msg = f"{made} ({failure})"
            raise TypeError(msg) from failure
        if again != data:
            msg = f"the initial state of {_name(kind)} does not come back as it was: what its __init__ takes is what its fields have, or write a codec. It was {data[:_SHOWN]!r} and is {again[:_SHOWN]!r}"
            raise TypeError(msg)

    def _make(self) -> None:
        self._to, self._from = _converters(self.kind, "the state")
        plain = typing.get_origin(self.kind) or self.kind
        self._initial: Callable[[], Any] = self._given or ((lambda: None) if _optional(self.kind) else plain)

    def __getstate__(self) -> tuple[Any, Any]:
        return self.kind, self._given

    def __setstate__(self, state: tuple[Any, Any]) -> None:
        self.kind, self._given = state
        self._make()

    def initial(self) -> S:
        """Return the state of a key that has none."""
        state: S = self._initial()
        return state

    def encode(self, state: S) -> bytes:
        """Return the bytes of a state. O(state), and a sort of each set.

        Raises, with the place, TypeError for a value that is not of exactly the declared type, and
        ValueError for one that could not be read again: an int beyond 2048 bits, a datetime that is
        naive or outside of the years 1 to 9999 in UTC, text with lone surrogates, two elements or
        keys that are written alike.
        """
        return _ENCODER.encode(self._to(state)).encode()

    def decode(self, data: bytes) -> S:
        """Return the state of these bytes.

        O(state). Raises ValueError when they are of another type.
        """
        try:
            # Not decode(), which looks for blanks around: none were written.
            value, end = _DECODER.raw_decode(text := data.decode())
            if end != len(text):
                msg = f"there is more than one value, up to {end} of {len(text)}"
                raise ValueError(msg)
            state: S = self._from(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as failure:
            msg = (
                f"what is kept is no {_name(self.kind)} ({failure}): declare the state as it was, with a default for each field that is new, or begin a new checkpoint, with "
                f"adopt=True. It begins with {data[:_SHOWN]!r}"
            )
            raise ValueError(msg) from failure
        return state


def _converters(
    kind: Any, place: str, inside: tuple[Any, ...] = (), *, hashed: bool = False
) -> tuple[_Convert, _Convert]:
    """Return what makes JSON's values of values of a type, and what makes them back.

    ``place`` is where such values are, for messages; ``inside`` the dataclasses around it;
    ``hashed`` whether they are keys or elements of a set.
    """
    if isinstance(kind, type) and kind in _SCALARS:
        return _SCALARS[kind](place)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, place, inside, hashed=hashed)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _optional(kind):
        [inner] = [each for each in arguments if each is not type(None)]
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
        return _written(origin, place, lambda v: [to(each) for each in v]), _read(
            list, place, lambda v: origin([back(each) for each in v])
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
    pairs = [_converters(each, f"[{index}] of {place}", inside, hashed=hashed) for index, each in enumerate(arguments)]
    many = len(pairs)

    def to(value: tuple[Any, ...]) -> list[Any]:
        if len(value) != many:
            msg = f"{place} is {_shown(value)} where a tuple of {many} is declared: convert it, or declare what it is"
            raise TypeError(msg)
        return [convert(each) for (convert, _), each in zip(pairs, value, strict=True)]

    def back(value: list[Any]) -> tuple[Any, ...]:
        if len(value) != many:
            msg = f"{place} is {_shown(value)} and does not have {many} values"
            raise ValueError(msg)
        return tuple(convert(each) for (_, convert), each in zip(pairs, value, strict=True))

    return _written(tuple, place, to), _read(list, place, back)


def _of_set(element: Any, place: str, inside: tuple[Any, ...]) -> tuple[_Convert, _Convert]:
    element_to, element_back = _converters(element, f"an element of {place}", inside, hashed=True)

    text_of: Callable[[Any], str] = repr if element in (int, datetime) else _ENCODER.encode

    def to(value: set[Any]) -> list[Any]:
        # The order of a set is another one in each process, that of JSON's text is not. It orders
        # what has no order of its own, too.
        texts = {text_of(each): each for each in map(element_to, value)}
        _check_distinct(len(texts), len(value), "elements", place)
        return [texts[text] for text in sorted(texts)]

    def back(value: list[Any]) -> set[Any]:
        elements = {element_back(each) for each in value}
        _check_distinct(len(elements), len(value), "elements", place)
        return elements

    return _written(set, place, to), _read(list, place, back)


def _of_dict(key: Any, item: Any, place: str, inside: tuple[Any, ...]) -> tuple[_Convert, _Convert]:
    key_to, key_back = _converters(key, f"a key of {place}", inside, hashed=True)
    item_to, item_back = _converters(item, f"a value of {place}", inside)
    if key is str:
        return (
            _written(dict, place, lambda v: {key_to(k): item_to(each) for k, each in v.items()}),
            _read(dict, place, lambda v: {key_back(k): item_back(each) for k, each in v.items()}),
        )

    def to(value: dict[Any, Any]) -> list[Any]:
        pairs = [[key_to(k), item_to(each)] for k, each in value.items()]
        if key not in _ONE_TEXT_EACH:
            _check_distinct(len({_ENCODER.encode(k) for k, _ in pairs}), len(pairs), "keys", place)
        return pairs

    pair = _read(list, f"a pair of {place}", lambda v: v)

    def back(value: list[Any]) -> dict[Any, Any]:
        items = {key_back(k): item_back(each) for k, each in map(pair, value)}
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
    declared = {each.name: each for each in dataclasses.fields(kind)}
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
            hashed=hashed and (each.compare if each.hash is None else each.hash),
        )
        for name, each in declared.items()
    }

    def to(value: Any) -> dict[str, Any]:
        return {name: convert(getattr(value, name)) for name, (convert, _) in fields.items()}

    def back(value: dict[str, Any]) -> Any:
        if not value.keys() <= fields.keys():
            msg = f"{_name(kind)} has no field {', '.join(sorted(value.keys() - fields.keys()))} any more"
            raise ValueError(msg)
        return kind(**{name: fields[name][1](each) for name, each in value.items()})

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
    """Return what converts values of exactly this type and refuses others: what is derived from it would come back as something else."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            derived = f", and would come back as {_name(kind)}" if isinstance(value, kind) else ""
            msg = f"{place} is {_shown(value)} where {_name(kind)} is declared{derived}: convert it, or declare what it is"
            raise TypeError(msg)
        return value if convert is None else convert(value)

    return check


def _read(kind: type, place: str, convert: _Convert | None = None) -> _Convert:
    """Return what converts JSON's values of exactly this type back and refuses others."""

    def check(value: Any) -> Any:
        if type(value) is not kind:
            msg = f"{place} is {_shown(value)}, which is no {_name(kind)}"
            raise ValueError(msg)
        return value if convert is None else convert(value)

    return check


def _check_distinct(found: int, given: int, what: str, place: str) -> None:
    if found != given:
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
    """Return a value's text for a message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # as of an int that is too large to be written
        text = f"a {type(value).__name__}"
    # A message can be logged and sent, lone surrogates cannot.
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
"""Types whose unequal values are never written alike."""
