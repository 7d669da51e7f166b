"""What one report stream is told of its reports: a number, and what was refused of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lowwater import errors
from lowwater.core.events import shortened
from lowwater.v1 import workers_pb2 as pb
from lowwater_authority.core.requests import Refused
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.codec import MAX_RANGES
from lowwater_authority.rpc.refusals import MESSAGE_BYTES as TEXT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from lowwater.v1.types_pb2 import Redirect

    Handles = npt.NDArray[np.uint32]
    Refusal = tuple[tuple[str, int, str], Refused]
    """A refusal with its key: computation, sequencer of the claim, and reason."""

LARGEST_MESSAGE: Final = 64 << 20
"""Bytes of the largest message that gRPC lets through, here and in the client."""

MESSAGE_BYTES: Final = LARGEST_MESSAGE // 2
"""Bytes of refusals in one message. The refusals of one claim take a quarter of it at most: see
``codec.MAX_RANGES``."""

REFUSAL_BYTES: Final = 256
"""Bytes of a refusal in memory besides its text and its handles, about. In a message it has fewer.
"""


class Acknowledgement:
    """The answer to all reports since the last acknowledgement of a stream.

    Refusals merge: for each claim and reason there is one, which names the ranges of all.

    ``before`` is the number of the report that was acknowledged last. ``message_bytes`` bounds the
    refusals in one message, which may take twice as many in all.
    """

    def __init__(self, before: int, message_bytes: int = MESSAGE_BYTES) -> None:
        self.number = before
        self._message_bytes = message_bytes
        self.bytes = 0
        """Bytes of the refusals, about."""
        self._before = before
        self._refused: dict[tuple[str, int, str], Refused] = {}
        self._redirects: dict[tuple[str, int], Redirect | None] = {}
        """Places of the claims that have moved; None where the place is not known."""
        self._references: dict[str, pb.ReferenceTime] = {}

    def add(
        self,
        number: int,
        refused: Iterable[tuple[str, Refused]],
        references: Mapping[str, pb.ReferenceTime],
        redirects: Mapping[str, Redirect],
    ) -> None:
        """Add a report that is durable but for what was refused. O(handles).

        Texts that the caller made up are shortened here, as they will be when they are sent. So
        the bytes that are counted are the bytes that wait.
        """
        self.number = number
        self._references.update(references)
        for name, refusal in refused:
            key = shortened(name), refusal.sequencer, refusal.reason
            text = shortened(refusal.message, TEXT_BYTES)
            value = refusal if text is refusal.message else replace(refusal, message=text)
            waiting = self._refused.get(key)
            merged = value if waiting is None else _merged(waiting, value)
            self.bytes += _size((key, merged)) - (0 if waiting is None else _size((key, waiting)))
            self._refused[key] = merged
            if value.reason == errors.Moved.reason and (name in redirects or key[:2] not in self._redirects):
                self._redirects[key[:2]] = redirects.get(name)

    def fit(self, most: int) -> bool:
        """Shrink the refusals to ``most`` bytes, if possible. Returns whether they fit.

        The claims with the longest lists of handles are refused whole instead.
        """
        if self.bytes > most:
            lasting = sum(map(_size, filter(_is_lasting, self._refused.items())))
            rest = [refusal for refusal in self._refused.items() if not _is_lasting(refusal)]
            self._refused.update(_without_handles(rest, most - lasting))
            self.bytes = sum(map(_size, self._refused.items()))
        return self.bytes <= most

    def messages(self) -> Iterator[pb.ReportAck]:
        """Return the messages to send, in order. Raises Overloaded when they cannot be made to fit.

        Only the last message has the new number, so the client counts no report as applied before
        it has read all refusals. Lost ranges may be told in earlier messages, because they stay
        lost. Of the rest, claims that do not fit are refused whole.
        """
        rest = list(self._refused.items())
        if self.bytes > self._message_bytes:
            lasting = list(filter(_is_lasting, rest))
            rest = [refusal for refusal in rest if not _is_lasting(refusal)]
            rest = _without_handles(rest, self._message_bytes)
            for part in _divided(lasting, self._message_bytes):
                yield pb.ReportAck(number=self._before, refused=map(self._encoded, part))
        last = pb.ReportAck(number=self.number, refused=map(self._encoded, rest), references=self._references.values())
        largest = 2 * self._message_bytes
        if last.ByteSize() > largest - REFUSAL_BYTES:
            msg = f"{len(rest)} claims were refused at once, and do not fit into one message; send fewer in a report"
            raise errors.Overloaded(msg, metadata={"bound": "acknowledgement", "limit": str(largest)})
        yield last

    def _encoded(self, refusal: Refusal) -> pb.RefusedRanges:
        (name, sequencer, reason), value = refusal
        message = codec.refused_message(name, value)
        if reason == errors.Moved.reason:
            message.redirect.computation = name  # without an address while the place is not known
            redirect = self._redirects[name, sequencer]
            if redirect is not None:
                message.redirect.CopyFrom(redirect)
        return message


def _is_lasting(refusal: Refusal) -> bool:
    """Return whether a refusal stays true whatever later reports say."""
    return refusal[1].reason == errors.StaleSequencer.reason


def _size(refusal: Refusal) -> int:
    (name, _, _), value = refusal
    return REFUSAL_BYTES + len(name) + len(value.message) + (0 if value.handles is None else value.handles.nbytes)


def _divided(refused: Sequence[Refusal], most: int) -> Iterator[list[Refusal]]:
    """Divide refusals into parts of at most ``most`` bytes, or of one refusal."""
    part: list[Refusal] = []
    size = 0
    for refusal in refused:
        if part and size + _size(refusal) > most:
            yield part
            part, size = [], 0
        part.append(refusal)
        size += _size(refusal)
    if part:
        yield part


def _without_handles(refused: Sequence[Refusal], most: int) -> list[Refusal]:
    """Refuse whole claims, those with the longest lists of handles first, to save bytes.

    The client then reports all ranges of such a claim again, applied ones too.
    """
    shrunk = dict(refused)
    size = sum(map(_size, refused))
    for key, value in sorted(refused, key=_size, reverse=True):
        if size <= most or value.handles is None:
            break
        shrunk[key] = replace(value, handles=None)
        size -= value.handles.nbytes
    return list(shrunk.items())


def _merged(earlier: Refused, later: Refused) -> Refused:
    handles = _united(earlier.handles, later.handles)
    return Refused(later.sequencer, later.reason, later.message, handles, max(earlier.newest, later.newest))


def _united(earlier: Handles | None, later: Handles | None) -> Handles | None:
    """Return the handles that either names, without a sort; None: all."""
    if earlier is None or later is None:
        return None
    if np.array_equal(earlier, later):
        return later
    largest = max(int(earlier.max(initial=0)), int(later.max(initial=0)))
    if largest >= MAX_RANGES:
        return None  # no claim has such a handle, so nothing of that report was applied
    named = np.zeros(largest + 1, dtype=np.bool_)
    named[earlier] = True
    named[later] = True
    return np.flatnonzero(named).astype(np.uint32)
