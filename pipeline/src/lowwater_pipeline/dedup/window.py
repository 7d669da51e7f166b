"""How long an id is remembered, and what becomes of a message. Pure: no I/O, no clock.

Each id has a rank, and an id is forgotten when its rank is below the floor. There are three
windows.

- By count: the rank is the row's ordinal in the output partition. The floor is N below the next
  one.
- By time: the rank is the time at which the broker appended the message to the input
  (LogAppendTime). The floor is a span below the greatest rank so far. A message without a broker's
  stamp, or with one below the floor, cannot be remembered: :meth:`Window.stamps` and
  :meth:`Window.risen` refuse it.
- By a low watermark W of the senders: the rank is the message's event time. The floor is W, raised
  by the lane when W may count. A message below it is *undecidable*: a late original and a copy of a
  forgotten one look alike.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from lowwater import Watermark
from lowwater.cli.arguments import parse_duration
from lowwater_pipeline.dedup.ids import Field, Kind, Unreadable
from lowwater_pipeline.dedup.mark import NO_FLOOR

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["Decisions", "Verdict", "Window", "WindowKind", "decide"]


class WindowKind(enum.Enum):
    """The kind of bound of a window."""

    COUNT = "count"
    TIME = "time"
    WATERMARK = "watermark"


_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Window:
    """The bound up to which ids are remembered."""

    kind: WindowKind
    size: int = 0
    """Rows of the output partition, or milliseconds; 0 for a window by a watermark."""
    names: tuple[str, ...] = ()
    """Names of the senders' computations; the least of their low watermarks counts."""
    event_time: Field | None = None
    """Field of a message that has its event time, the same in every copy."""

    @classmethod
    def parse(cls, text: str, event_time: Field | None = None) -> Window:
        """Return the window of a text: rows, a duration, or ``watermark:NAME[,NAME...]``.

        Raises ValueError.

        >>> Window.parse("1000000").kind, Window.parse("1h").size
        (<WindowKind.COUNT: 'count'>, 3600000)
        """
        if text.startswith("watermark:"):
            names = tuple(text.removeprefix("watermark:").split(","))
            if not all(names):
                msg = f"{text!r} lacks a name: watermark:NAME[,NAME...]"
                raise ValueError(msg)
            if event_time is None or event_time.kind is Kind.KEY:
                msg = "a window by a watermark needs --event-time header:NAME, json:FIELD or timestamp: what W is compared with"
                raise ValueError(msg)
            return cls(WindowKind.WATERMARK, 0, names, event_time)
        if event_time is not None:
            msg = f"--event-time belongs to a window by a watermark, and --window is {text}"
            raise ValueError(msg)
        if text.isascii() and text.isdigit():
            window = cls(WindowKind.COUNT, int(text))
        else:
            window = cls(WindowKind.TIME, round(_seconds(text) * 1000))
        if window.size < 1:
            msg = f"the window {text!r} is empty: every copy would pass"
            raise ValueError(msg)
        return window

    def __str__(self) -> str:
        if self.kind is WindowKind.WATERMARK:
            return f"watermark:{','.join(self.names)}@{self.event_time}"
        return f"{self.size}ms" if self.kind is WindowKind.TIME else str(self.size)

    def stamps(self) -> Callable[[Message], int]:
        """Return a function that reads the stamp of an input message; it raises Unreadable.

        Windows by count ignore the stamp.
        """
        return _by_broker if self.kind is WindowKind.TIME else self.row_stamps()

    def row_stamps(self) -> Callable[[Message], int]:
        """Return a function that reads an output row's stamp: rows keep their timestamps."""
        if self.kind is WindowKind.COUNT:
            return lambda _: 0
        if self.kind is WindowKind.TIME or self.event_time is None:
            return lambda row: row.timestamp()[1]
        read, field = self.event_time.reader(), str(self.event_time)
        if self.event_time.kind is Kind.TIMESTAMP:
            return lambda message: _within(read(message) * 1000, field)
        return lambda message: _micros(read(message), field)

    def risen(self, floor: int, stamp: int) -> int:
        """Return the floor of a window by time after a message.

        Raises Unreadable for a message whose id would be forgotten at once, so that copies pass.
        """
        if self.kind is not WindowKind.TIME:
            return floor
        if stamp < floor:
            raise Unreadable(
                f"the broker has stamped it {floor - stamp} ms further back than the window reaches: a broker's clock is wrong now, or was ahead before"
            )
        return max(floor, stamp - self.size)


def _by_broker(message: Message) -> int:
    """Return the time at which the broker appended a message, milliseconds."""
    kind, millis = message.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise Unreadable(
            "it has the time of its sender, by which one wrong clock would move the window for all: it was written before the topic had message.timestamp.type=LogAppendTime"
        )
    return millis


def _seconds(text: str) -> float:
    import argparse

    try:
        return parse_duration(text)
    except argparse.ArgumentTypeError:
        msg = f"{text!r} is no window; write a number of rows, a duration like 1h, or watermark:NAME"
        raise ValueError(msg) from None


def _micros(value: Any, field: str) -> int:
    """Return a field's event time, microseconds: a whole number of them, or ISO 8601 with zone."""
    if type(value) is bytes:
        value = value.decode("utf-8", "replace")
    if type(value) is int or (type(value) is str and _NUMBER.fullmatch(value)):
        return _within(int(value), field)
    if type(value) is str:
        try:
            return Watermark.of(datetime.fromisoformat(value)).micros
        except ValueError:
            pass
    raise Unreadable(f"its {field} is no event time: a whole number of microseconds, or ISO 8601 with a time zone")


def _within(micros: int, field: str) -> int:
    """Return an event time that means neither unknown nor finished; else raise Unreadable."""
    if not -(2**63) < micros < 2**63 - 1:
        raise Unreadable(f"its {field} is no event time: it is beyond a 64-bit count of microseconds")
    return micros


class Verdict(enum.Enum):
    """Decision about a message."""

    ADMITTED = enum.auto()
    """The first message with its id, as far as ids are remembered: it goes into the output."""
    DUPLICATE = enum.auto()
    """A message whose id is remembered: it is dropped."""
    UNDECIDABLE = enum.auto()
    """A message below the watermark: it goes to the topic for undecidable ones."""


@dataclass(slots=True)
class Decisions:
    """Verdicts on some messages, in their order."""

    verdicts: list[Verdict] = field(default_factory=list)
    fresh: dict[bytes, int] = field(default_factory=dict)
    """Ranks of the new ids."""
    floor: int = NO_FLOOR
    next: int = 0
    greatest: int = NO_FLOOR
    """Greatest rank of a new id."""


def decide(
    window: Window,
    ids: Sequence[bytes],
    stamps: Sequence[int],
    ranks: Mapping[bytes, int],
    floor: int,
    following: int,
    raised: tuple[int, int] | None = None,
) -> Decisions:
    """Return the verdicts on messages. O(1) for each.

    Args:
        window: Bound up to which ids are remembered.
        ids: Ids of the messages.
        stamps: Stamps as :meth:`Window.stamps` reads them; by time none is below the floor, see
            :meth:`Window.risen`.
        ranks: Ranks of those ids that the memory has, also ranks below the floor.
        floor: Rank below which ids are forgotten.
        following: Ordinal of the next row of the output.
        raised: Position of the message from which a new watermark counts, and the watermark; None
            without one.
    """
    decisions = Decisions(floor=floor, next=following)
    verdicts, fresh = decisions.verdicts, decisions.fresh
    kind, size = window.kind, window.size
    from_place = -1 if raised is None else raised[0]
    for place, (id_, stamp) in enumerate(zip(ids, stamps, strict=True)):
        if kind is WindowKind.COUNT:
            stamp, floor = following, following - size
        elif kind is WindowKind.TIME:
            floor = max(floor, stamp - size)
        elif place == from_place and raised is not None:
            floor = max(floor, raised[1])
        if kind is WindowKind.WATERMARK and stamp < floor:
            verdicts.append(Verdict.UNDECIDABLE)
            continue
        rank = fresh.get(id_)
        if rank is None:
            rank = ranks.get(id_)
        if rank is not None and rank >= floor:
            verdicts.append(Verdict.DUPLICATE)
            continue
        verdicts.append(Verdict.ADMITTED)
        fresh[id_] = stamp
        following += 1
    if raised is not None and from_place >= len(ids):
        floor = max(floor, raised[1])
    decisions.floor, decisions.next = floor, following
    decisions.greatest = max(fresh.values(), default=NO_FLOOR)
    return decisions
