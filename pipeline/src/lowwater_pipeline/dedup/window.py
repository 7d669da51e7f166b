"""How long an id is remembered, and what becomes of a message. Pure: no I/O, no clock.

Each id has a rank, and one number decides both ways: an id is forgotten when its rank is below the
floor. There are three windows.

- By count: the rank is the ordinal of the row in the output partition. The floor lies N below the
  next one.
- By time: the rank is when the broker has appended the message to the input (LogAppendTime). The
  floor lies a span below the greatest so far. A message that the broker has not stamped, or whose
  stamp is below the floor, has no rank to be remembered by: :meth:`Window.stamps` and
  :meth:`Window.risen` say so.
- By a low watermark W of the senders: the rank is the message's event time. The floor is W; it is
  moved from outside, when W may count. A message below it is *undecidable*: a late original and a
  copy of a forgotten one look alike.
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
    """By what a window is bounded."""

    COUNT = "count"
    TIME = "time"
    WATERMARK = "watermark"


_NUMBER: Final = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Window:
    """How long ids are remembered."""

    kind: WindowKind
    size: int = 0
    """Rows of the output partition, or milliseconds."""
    names: tuple[str, ...] = ()
    """The computations of the senders: the least of their low watermarks counts."""
    event_time: Field | None = None
    """Where a message has its event time. It has to be the same in every copy."""

    @classmethod
    def parse(cls, text: str, event_time: Field | None = None) -> Window:
        """Return the window of a text: a number of rows, a duration, or ``watermark:NAME[,NAME...]``. Raises ValueError.

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
            found = cls(WindowKind.COUNT, int(text))
        else:
            found = cls(WindowKind.TIME, round(_seconds(text) * 1000))
        if found.size < 1:
            msg = f"the window {text!r} is empty: every copy would pass"
            raise ValueError(msg)
        return found

    def __str__(self) -> str:
        if self.kind is WindowKind.WATERMARK:
            return f"watermark:{','.join(self.names)}@{self.event_time}"
        return f"{self.size}ms" if self.kind is WindowKind.TIME else str(self.size)

    def stamps(self) -> Callable[[Message], int]:
        """Return what reads the number by which a message of the input is ranked; of a window by count it is of no account. It raises Unreadable."""
        return _by_broker if self.kind is WindowKind.TIME else self.row_stamps()

    def row_stamps(self) -> Callable[[Message], int]:
        """Return the same for rows of the output, which keep the timestamps that their messages came with."""
        if self.kind is WindowKind.COUNT:
            return lambda _: 0
        if self.kind is WindowKind.TIME or self.event_time is None:
            return lambda row: row.timestamp()[1]
        read, said = self.event_time.reader(), str(self.event_time)
        if self.event_time.kind is Kind.TIMESTAMP:
            return lambda message: _within(read(message) * 1000, said)
        return lambda message: _micros(read(message), said)

    def risen(self, floor: int, stamp: int) -> int:
        """Return the floor of a window by time at a message.

        Raises Unreadable when its id would be forgotten at once, and every copy of it pass.
        """
        if self.kind is not WindowKind.TIME:
            return floor
        if stamp < floor:
            raise Unreadable(
                f"the broker has stamped it {floor - stamp} ms further back than the window reaches: a broker's clock is wrong now, or was ahead before"
            )
        return max(floor, stamp - self.size)


def _by_broker(message: Message) -> int:
    """Return when the broker has appended a message."""
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


def _micros(found: Any, said: str) -> int:
    """Return the microseconds since the epoch that a field says: a whole number of them, or a time of ISO 8601 with its zone."""
    if type(found) is bytes:
        found = found.decode("utf-8", "replace")
    if type(found) is int or (type(found) is str and _NUMBER.fullmatch(found)):
        return _within(int(found), said)
    if type(found) is str:
        try:
            return Watermark.of(datetime.fromisoformat(found)).micros
        except ValueError:
            pass
    raise Unreadable(f"its {said} is no event time: a whole number of microseconds, or ISO 8601 with a time zone")


def _within(micros: int, said: str) -> int:
    """Return an event time, which is neither of the two that mean unknown and finished."""
    if not -(2**63) < micros < 2**63 - 1:
        raise Unreadable(f"its {said} is no event time: it is beyond a 64-bit count of microseconds")
    return micros


class Verdict(enum.Enum):
    """What becomes of a message."""

    ADMITTED = enum.auto()
    """It is the first one with its id, as far as is remembered: it goes into the output."""
    DUPLICATE = enum.auto()
    """Its id is remembered: it goes nowhere."""
    UNDECIDABLE = enum.auto()
    """It is below the watermark: it goes to the side."""


@dataclass(slots=True)
class Decisions:
    """What became of some messages, in their order."""

    verdicts: list[Verdict] = field(default_factory=list)
    fresh: dict[bytes, int] = field(default_factory=dict)
    """The ids that are new, by their rank."""
    floor: int = NO_FLOOR
    next: int = 0
    greatest: int = NO_FLOOR
    """Rank of those that are new."""


def decide(
    window: Window,
    ids: Sequence[bytes],
    stamps: Sequence[int],
    known: Mapping[bytes, int],
    floor: int,
    following: int,
    raised: tuple[int, int] | None = None,
) -> Decisions:
    """Return what becomes of messages.

    Args:
        window: How long ids are remembered.
        ids: Theirs.
        stamps: As :meth:`Window.stamps` reads them; by time none is below the floor, see
            :meth:`Window.risen`.
        known: Of these ids those that the memory has, by their rank; also such as are below the
            floor.
        floor: Every id of a lower rank is forgotten.
        following: The ordinal of the next row of the output.
        raised: From which message on the floor is another one, and which; the watermark counts from
            there on.

    O(1) for each.
    """
    found = Decisions(floor=floor, next=following)
    verdicts, fresh = found.verdicts, found.fresh
    kind, size = window.kind, window.size
    from_place = -1 if raised is None else raised[0]
    for place, (each, stamp) in enumerate(zip(ids, stamps, strict=True)):
        if kind is WindowKind.COUNT:
            stamp, floor = following, following - size
        elif kind is WindowKind.TIME:
            floor = max(floor, stamp - size)
        elif place == from_place and raised is not None:
            floor = max(floor, raised[1])
        if kind is WindowKind.WATERMARK and stamp < floor:
            verdicts.append(Verdict.UNDECIDABLE)
            continue
        rank = fresh.get(each)
        if rank is None:
            rank = known.get(each)
        if rank is not None and rank >= floor:
            verdicts.append(Verdict.DUPLICATE)
            continue
        verdicts.append(Verdict.ADMITTED)
        fresh[each] = stamp
        following += 1
    if raised is not None and from_place >= len(ids):
        floor = max(floor, raised[1])
    found.floor, found.next = floor, following
    found.greatest = max(fresh.values(), default=NO_FLOOR)
    return found
