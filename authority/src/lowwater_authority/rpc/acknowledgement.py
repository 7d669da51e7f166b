"""The acknowledgement that waits to go down a report stream: merged while it waits, and cut into messages that gRPC lets through."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater._pb.lowwater.v1 import workers_pb2 as pb
from lowwater_authority.core.requests import Refused
from lowwater_authority.ops.events import shortened
from lowwater_authority.rpc import encode
from lowwater_authority.rpc.decode import MAX_RANGES
from lowwater_authority.rpc.refusals import MESSAGE_BYTES as TEXT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from lowwater._pb.lowwater.v1.types_pb2 import Redirect

    Handles = npt.NDArray[np.uint32]
    Each = tuple[tuple[str, int, str], Refused]
    """A refusal, by its computation, its claim and its reason."""

LARGEST_MESSAGE: Final = 64 << 20
"""Bytes of a message that gRPC lets through, here and in the client."""

MESSAGE_BYTES: Final = LARGEST_MESSAGE // 2
"""Bytes of refusals in one message. Those of one claim are a quarter of it: see ``decode.MAX_RANGES``."""

REFUSAL_BYTES: Final = 256
"""What a refusal takes in memory besides its text and its handles, about; it is less in a message."""


class Acknowledgement:
    """What is to be said of the reports since the last acknowledgement. Refusals merge by claim and reason: there is one of each, of all ranges.

    ``before`` is the number of the report that was acknowledged last.
    """

    def __init__(self, before: int) -> None:
        self.number = before
        self.bytes = 0
        """Of the refusals, about."""
        self._before = before
        self._refused: dict[tuple[str, int, str], Refused] = {}
        self._redirects: dict[tuple[str, int], Redirect | None] = {}
        """Where the claims are that have moved, as far as that is known."""
        self._references: dict[str, int] = {}

    def add(
        self,
        number: int,
        refused: Iterable[tuple[str, Refused]],
        references: Mapping[str, int],
        redirects: Mapping[str, Redirect],
    ) -> None:
        """Add a report that is durable but for what was refused. O(handles).

        What the caller has made up is kept as it is told, by its beginning and its end, so that what is counted is what waits.
        """
        self.number = number
        self._references.update(references)
        for name, told in refused:
            key = shortened(name), told.sequencer, told.reason
            text = shortened(told.message, TEXT_BYTES)
            value = told if text is told.message else replace(told, message=text)
            known = self._refused.get(key)
            merged = value if known is None else _merged(known, value)
            self.bytes += _size((key, merged)) - (0 if known is None else _size((key, known)))
            self._refused[key] = merged
            if value.reason == errors.Moved.reason and (name in redirects or key[:2] not in self._redirects):
                self._redirects[key[:2]] = redirects.get(name)

    def messages(self) -> Iterator[pb.ReportAck]:
        """Return what to send, in order. Raises Overloaded when it cannot be made to fit.

        The last message has the number, so nothing counts as taken over before all that is refused of it is told: that ranges are lost may be
        said in earlier ones, for they stay lost. What else does not fit is said of all ranges of a claim.
        """
        rest = list(self._refused.items())
        if self.bytes > MESSAGE_BYTES:
            lost = [each for each in rest if _ahead(each[1])]
            rest = _shortened([each for each in rest if not _ahead(each[1])])
            for some in _divided(lost):
                yield pb.ReportAck(number=self._before, refused=map(self._encoded, some))
        references = [pb.ReferenceTime(computation=name, micros=micros) for name, micros in self._references.items()]
        last = pb.ReportAck(number=self.number, refused=map(self._encoded, rest), references=references)
        if last.ByteSize() > LARGEST_MESSAGE - REFUSAL_BYTES:
            msg = f"{len(rest)} claims were refused at once, and do not fit into one message; send fewer in a report"
            raise errors.Overloaded(msg, metadata={"bound": "acknowledgement", "limit": str(LARGEST_MESSAGE)})
        yield last

    def _encoded(self, each: Each) -> pb.RefusedRanges:
        (name, sequencer, reason), value = each
        message = encode.refused(name, value)
        if reason == errors.Moved.reason:
            message.redirect.computation = name  # without an address when it went just now
            redirect = self._redirects[name, sequencer]
            if redirect is not None:
                message.redirect.CopyFrom(redirect)
        return message


def _ahead(value: Refused) -> bool:
    """Whether a refusal stays true whatever is taken over later."""
    return value.reason == errors.StaleSequencer.reason


def _size(each: Each) -> int:
    (name, _, _), value = each
    return REFUSAL_BYTES + len(name) + len(value.message) + (0 if value.handles is None else value.handles.nbytes)


def _divided(refused: Sequence[Each]) -> Iterator[list[Each]]:
    """Divide refusals into as many as fit into a message."""
    part: list[Each] = []
    size = 0
    for each in refused:
        if part and size + _size(each) > MESSAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += _size(each)
    if part:
        yield part


def _shortened(refused: Sequence[Each]) -> list[Each]:
    """Let refusals fit into a message: of the claims with most ranges to name all are refused. What was taken over is said again then."""
    kept = dict(refused)
    size = sum(map(_size, refused))
    for key, value in sorted(refused, key=_size, reverse=True):
        if size <= MESSAGE_BYTES or value.handles is None:
            break
        kept[key] = replace(value, handles=None)
        size -= value.handles.nbytes
    return list(kept.items())


def _merged(known: Refused, later: Refused) -> Refused:
    handles = _united(known.handles, later.handles)
    return Refused(later.sequencer, later.reason, later.message, handles, max(known.newest, later.newest))


def _united(known: Handles | None, later: Handles | None) -> Handles | None:
    """Return the handles that either names, without a sort; None: all."""
    if known is None or later is None:
        return None
    if np.array_equal(known, later):
        return later
    largest = max(int(known.max(initial=0)), int(later.max(initial=0)))
    if largest >= MAX_RANGES:
        return None  # no claim has it: nothing of the report that named it was taken over
    named = np.zeros(largest + 1, dtype=np.bool_)
    named[known] = True
    named[later] = True
    return np.flatnonzero(named).astype(np.uint32)
