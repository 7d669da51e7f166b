"""Report streams: what one process is told back, which stream of a process is the newest, and how many may start at once."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lowwater import errors
from lowwater.core.events import shortened
from lowwater.v1 import workers_pb2 as pb
from lowwater_authority.core.names import NAME, whole
from lowwater_authority.core.requests import Refused
from lowwater_authority.engine.admission import MOST_DELAY, Admission
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.codec import MAX_RANGES
from lowwater_authority.rpc.refusals import MESSAGE_BYTES as TEXT_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from lowwater.v1.types_pb2 import Redirect
    from lowwater_authority.core.requests import Fenced
    from lowwater_authority.engine.admission import Gate

    Handles = npt.NDArray[np.uint32]
    Each = tuple[tuple[str, int, str], Refused]
    """A refusal, by its computation, its claim and its reason."""


LARGEST_MESSAGE: Final = 64 << 20
"""Bytes of a message that gRPC lets through, here and in the client."""

MESSAGE_BYTES: Final = LARGEST_MESSAGE // 2
"""Bytes of refusals in one message. Those of one claim are a quarter of it: see
``codec.MAX_RANGES``."""

REFUSAL_BYTES: Final = 256
"""What a refusal takes in memory besides its text and its handles, about; it is less in a message.
"""


class Acknowledgement:
    """What is to be said of the reports since the last acknowledgement.

    Refusals merge by claim and reason: there is one of each, of all ranges.

    ``before`` is the number of the report that was acknowledged last; ``message_bytes`` are those
    of refusals in one message, which may take twice as many.
    """

    def __init__(self, before: int, message_bytes: int = MESSAGE_BYTES) -> None:
        self.number = before
        self._message_bytes = message_bytes
        self.bytes = 0
        """Of the refusals, about."""
        self._before = before
        self._refused: dict[tuple[str, int, str], Refused] = {}
        self._redirects: dict[tuple[str, int], Redirect | None] = {}
        """Where the claims are that have moved, as far as that is known."""
        self._references: dict[str, pb.ReferenceTime] = {}

    def add(
        self,
        number: int,
        refused: Iterable[tuple[str, Refused]],
        references: Mapping[str, pb.ReferenceTime],
        redirects: Mapping[str, Redirect],
    ) -> None:
        """Add a report that is durable but for what was refused. O(handles).

        What the caller has made up is kept as it is told, by its beginning and its end, so that
        what is counted is what waits.
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

    def fit(self, most: int) -> bool:
        """Make the refusals take so many bytes at most, if they can: of the claims with most ranges to name all are refused. Returns whether they do."""
        if self.bytes > most:
            lost = sum(_size(each) for each in self._refused.items() if _ahead(each[1]))
            rest = [each for each in self._refused.items() if not _ahead(each[1])]
            self._refused.update(_shortened(rest, most - lost))
            self.bytes = sum(map(_size, self._refused.items()))
        return self.bytes <= most

    def messages(self) -> Iterator[pb.ReportAck]:
        """Return what to send, in order. Raises Overloaded when it cannot be made to fit.

        The last message has the number, so nothing counts as taken over before all that is refused
        of it is told: that ranges are lost may be said in earlier ones, for they stay lost. What
        else does not fit is said of all ranges of a claim.
        """
        rest = list(self._refused.items())
        if self.bytes > self._message_bytes:
            lost = [each for each in rest if _ahead(each[1])]
            rest = _shortened([each for each in rest if not _ahead(each[1])], self._message_bytes)
            for some in _divided(lost, self._message_bytes):
                yield pb.ReportAck(number=self._before, refused=map(self._encoded, some))
        last = pb.ReportAck(number=self.number, refused=map(self._encoded, rest), references=self._references.values())
        largest = 2 * self._message_bytes
        if last.ByteSize() > largest - REFUSAL_BYTES:
            msg = f"{len(rest)} claims were refused at once, and do not fit into one message; send fewer in a report"
            raise errors.Overloaded(msg, metadata={"bound": "acknowledgement", "limit": str(largest)})
        yield last

    def _encoded(self, each: Each) -> pb.RefusedRanges:
        (name, sequencer, reason), value = each
        message = codec.refused_message(name, value)
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


def _divided(refused: Sequence[Each], most: int) -> Iterator[list[Each]]:
    """Divide refusals into as many as fit into a message."""
    part: list[Each] = []
    size = 0
    for each in refused:
        if part and size + _size(each) > most:
            yield part
            part, size = [], 0
        part.append(each)
        size += _size(each)
    if part:
        yield part


def _shortened(refused: Sequence[Each], most: int) -> list[Each]:
    """Let refusals take so many bytes: of the claims with most ranges to name all are refused.

    What was taken over is said again then.
    """
    kept = dict(refused)
    size = sum(map(_size, refused))
    for key, value in sorted(refused, key=_size, reverse=True):
        if size <= most or value.handles is None:
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


IN_FLIGHT: Final = 64
"""Reports of one stream that may wait for the journal; more are left in the transport, which slows
the sender."""

STREAM_BYTES: Final = 64 << 20
"""Bytes of these reports, decoded: one of the largest, or many that are small."""

ALL_BYTES: Final = 256 << 20
"""The same of all streams together. A stream that waits for it has read one report more."""

UNREAD_BYTES: Final = 128 << 20
"""Bytes of what was refused and is not sent yet, because the senders do not read it, of all streams
together."""

WATCHED_BYTES: Final = 256 << 20
"""Bytes that the names take which watch streams follow one by one, and what waits there of each."""

WATCHED_LEAST: Final = 16 << 10
"""Bytes of these that each stream may have, whatever the others do: fifty names."""

NAME_WATCHED: Final = 512
"""What a name takes besides its characters, about: in the request, in what is followed, and its
value that waits."""

SHARE: Final = 4
"""A stream may have at most one part in so many of what it leaves of what is shared: so the next
one finds something."""

FLOOR: Final = 20
"""Whatever the others have, the n-th stream may have one part in so many times n of what is shared.
All these together are less than half as much again, for a whole, a half, a third and so on up to
``STREAMS`` make less than ten wholes."""

UNREAD_LEAST: Final = 4096
"""Bytes that a stream may have in an acknowledgement that waits, whatever the others do: what is
refused of a few claims."""

SENDERS_KEPT: Final = 4096
"""Senders without a stream whose newest one is remembered."""

FENCED_BOUND: Final = 4096
"""Notices of lost ranges waiting for one stream; the oldest go first, since every later report
repeats them."""


DENIED_BOUND: Final = 10_000
"""Computations that a stream may be refused one by one; with one more it ends."""

SILENCE: Final = 2.0
"""Seconds after which a stream that has not begun to report keeps no other from starting: it may
have nothing to say for long."""


class Turn(asyncio.Future[None]):
    """What waits before a gate for a principal, or for ``""``; done when it is inside."""

    def __init__(self, who: str) -> None:
        super().__init__()
        self.who = who


async def enter(gate: Gate[Turn], who: str) -> None:
    """Return when inside a gate, which is to be left then. Raises Overloaded."""
    loop = asyncio.get_running_loop()
    turn = Turn(who)
    if gate.enter(turn, loop.time(), who):
        return
    try:
        await turn
    except BaseException:  # cancelled: the caller is gone
        if not gate.give_up(turn) and not turn.cancelled() and turn.exception() is None:
            leave(gate, who)
        raise


def leave(gate: Gate[Turn], who: str) -> None:
    """Let the next one in."""
    now = asyncio.get_running_loop().time()
    turn = gate.leave(now, who)
    while turn is not None and turn.cancelled():  # its caller has gone in this moment
        turn = gate.leave(now, turn.who)
    if turn is not None:
        turn.set_result(None)


@asynccontextmanager
async def inside(gate: Gate[Turn], who: str) -> AsyncIterator[None]:
    """Be inside a gate. Raises Overloaded."""
    await enter(gate, who)
    try:
        yield
    finally:
        leave(gate, who)


class Room:
    """So many bytes at once; who comes beyond them waits, in order.

    What is larger than all of it is let in alone. O(1).
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.bytes = 0
        """How many are inside."""
        self.peak = 0
        """The most that ever were."""
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size: int) -> None:
        """Return when there is room, which is to be left then."""
        if self.free(size):
            self._admit(size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append((turn, size))
        try:
            await turn
        except BaseException:  # cancelled: the caller is gone
            if turn.cancelled():
                self._next()  # who waits behind it may need less
            else:
                self.leave(size)
            raise

    def free(self, size: int) -> bool:
        """Whether so many may enter at once."""
        return not self._line and self._fits(size)

    def leave(self, size: int) -> None:
        """Let others in."""
        self.bytes -= size
        self._next()

    def _next(self) -> None:
        while self._line:
            turn, size = self._line[0]
            if not turn.cancelled():
                if not self._fits(size):
                    return
                self._admit(size)
                turn.set_result(None)
            self._line.popleft()

    def _fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self.bound

    def _admit(self, size: int) -> None:
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


class Shared:
    """So many bytes of all streams: of what was refused and is not sent yet, or of the names that are followed. O(1).

    Nobody waits here, so nobody is kept out by those who do not read.

    The share of a stream falls as the room fills (Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory packet
    switches"): however much some have, there is room for the next. But a share that falls by one part in five with each stream is nothing
    behind some forty that take all they can. So there is half as much room again, for a share that falls as the number of streams grows.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.bytes = 0
        """How many there are."""
        self.streams = 0
        """How many streams have some, where that is counted here."""

    def share(self, own: int, streams: int) -> int:
        """Return how many bytes one of so many streams may have that has ``own`` of them now."""
        others = self.bytes - own
        return max((self.bound - others) // (SHARE + 1), self.bound // (FLOOR * streams))


class Outbox:
    """What waits to be sent down one stream: acknowledgements merge, so it stays small."""

    def __init__(self, stream_bytes: int = STREAM_BYTES, message_bytes: int = MESSAGE_BYTES) -> None:
        """``stream_bytes``: of reports that wait for the journal; ``message_bytes`` as in Acknowledgement."""
        self._message_bytes = message_bytes
        self.barred: set[str] = set()
        """Computations of which the stream may not report any more: another shard served them in
        between, and may have been told what this one was not."""
        self.older: dict[tuple[str, int], Refused] = {}
        """Claims of which a newer report than this stream's was taken over, by computation and
        sequencer, and what they were told."""
        self.denied: set[str] = set()
        """Computations that its caller was not allowed to report for."""
        self.permits = asyncio.Semaphore(IN_FLIGHT)
        self.room = Room(stream_bytes)
        self.closed: errors.LowwaterError | None = None
        self.finished = False
        self.silence: asyncio.TimerHandle | None = None
        """Ends the wait for the first report."""
        self.starting = True
        """Whether it is among those that start."""
        self.who = ""
        """Principal whose place among the starting streams this stream takes; empty: none."""
        self.place_of = ""
        """Principal whose place among the open streams it takes. It differs from ``who`` when the
        stream replaced one that another principal had opened for the same sender."""
        self.claims: set[tuple[str, int]] = set()
        """What it speaks for, and maybe some that another stream speaks for since."""
        self._ack: Acknowledgement | None = None
        self._told = 0
        """The newest report that was acknowledged."""
        self._acked = 0
        self._sending = 0
        """Bytes of the refusals that are being sent."""
        self._line: deque[tuple[asyncio.Future[Any], Callable[[asyncio.Future[Any]], None]]] = deque()
        """Reports that are not answered, and how each is."""
        self._fenced: list[pb.Fenced] = []
        self._changed = asyncio.Event()

    def acknowledge(
        self,
        number: int,
        refused: Iterable[tuple[str, Refused]] = (),
        *,
        references: Mapping[str, pb.ReferenceTime] | None = None,
        redirects: Mapping[str, Redirect] | None = None,
        most: int = UNREAD_BYTES,
    ) -> None:
        """Everything up to a report is durable but for what was refused; not so behind one that failed.

        When what is refused and not sent cannot be said in ``most`` bytes, or a few more, the stream ends: the next one reports all anew.
        """
        if self.closed is not None:
            return
        if self._ack is None:
            self._ack = Acknowledgement(self._told, self._message_bytes)
        self._ack.add(number, refused, references or {}, redirects or {})
        self._acked += 1
        if not self._ack.fit(max(most - self._sending, UNREAD_LEAST)):
            self._ack = None
            msg = "more of this stream's reports is refused than there is room for until it is read; read the acknowledgements"
            self.close(errors.Overloaded(msg, metadata={"bound": "unread_refusals", "limit": str(UNREAD_BYTES)}))
        self._changed.set()

    def answer(self, durable: asyncio.Future[Any], how: Callable[[asyncio.Future[Any]], None]) -> None:
        """Answer a report as soon as it, and all in front of it, is durable: an acknowledgement covers these."""
        self._line.append((durable, how))
        durable.add_done_callback(lambda _: self._answer_next())

    def _answer_next(self) -> None:
        while self._line and self._line[0][0].done():
            durable, how = self._line.popleft()
            how(durable)

    def fence(self, fenced: Fenced) -> None:
        """Ranges were lost."""
        self._fenced = [*self._fenced[-(FENCED_BOUND - 1) :], codec.fenced_message(fenced)]
        self._changed.set()

    def deny(self, name: str) -> None:
        """Remember that a report of a computation was refused for who sent it.

        Raises Overloaded when that are too many.
        """
        if name in self.denied or NAME.fullmatch(whole(name)) is None:  # no rule ever allows what is no name
            return
        if len(self.denied) >= DENIED_BOUND:
            msg = (
                f"this stream was refused the reports of {DENIED_BOUND} computations; report for those that are allowed"
            )
            raise errors.Overloaded(msg, metadata={"bound": "denied", "limit": str(DENIED_BOUND)})
        self.denied.add(name)

    def close(self, error: errors.LowwaterError) -> None:
        """End the stream with an error: the first one."""
        self.closed = self.closed or error
        self._changed.set()

    def end(self) -> None:
        """Nothing is sent any more."""
        self.close(errors.ShuttingDown("the stream has ended"))
        self._ack = None
        self.sent()

    def finish(self) -> None:
        """The client has said all; end once everything is acknowledged."""
        self.finished = True
        self._changed.set()

    def wake(self) -> None:
        """Look around: the server stops."""
        self._changed.set()

    @property
    def unread(self) -> int:
        """Bytes of what was refused and is not sent yet, about."""
        return self._sending + (0 if self._ack is None else self._ack.bytes)

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be sent."""
        return self._ack is None and not self._fenced

    async def take(self) -> Iterator[pb.ReportResponse]:
        """Wait for something to send or do, and take it.

        Each message is made when it is its turn.
        """
        await self._changed.wait()
        self._changed.clear()
        fenced, self._fenced = self._fenced, []
        ack, self._ack = self._ack, None
        for _ in range(self._acked):
            self.permits.release()
        self._acked = 0
        if ack is not None:
            self._told = ack.number
            self._sending += ack.bytes
        return self._messages(fenced, ack)

    def _messages(self, fenced: Iterable[pb.Fenced], ack: Acknowledgement | None) -> Iterator[pb.ReportResponse]:
        for each in fenced:
            yield pb.ReportResponse(fenced=each)
        try:
            for message in ack.messages() if ack is not None else ():
                yield pb.ReportResponse(ack=message)
        except errors.Overloaded as error:
            self.close(error)

    def sent(self) -> None:
        """What was taken has gone, or never will."""
        self._sending = 0


@contextmanager
def watched(room: Shared, names: Collection[str]) -> Iterator[None]:
    """Have room for names that are followed.

    Raises Overloaded when they are more than the share of a stream.
    """
    size = sum(map(len, names)) * 2 + len(names) * NAME_WATCHED
    if size > max(room.share(0, room.streams + 1), WATCHED_LEAST):
        msg = f"{len(names)} names are more than there is room to follow just now; follow fewer, or name none, for all"
        error = errors.Overloaded(msg, metadata={"bound": "watched_names", "limit": str(WATCHED_BYTES)})
        error.retry_after = MOST_DELAY
        raise error
    room.bytes += size
    room.streams += bool(names)
    try:
        yield
    finally:
        room.bytes -= size
        room.streams -= bool(names)


class Streams:
    """The open report streams: the newest of each sender, and which one speaks for each claim."""

    def __init__(self, silence: float = SILENCE) -> None:
        """``silence``: as ``SILENCE``."""
        self._silence = silence
        self.stream_bytes = STREAM_BYTES
        """Bytes of the reports that wait for the journal, of each stream that is opened from now
        on."""
        self.admission: Admission[Turn] = Admission()
        self.room = Room(ALL_BYTES)
        """What waits for the journal, of all streams."""
        self.unread = Shared(UNREAD_BYTES)
        """What is refused and waits to be sent, of all streams."""
        self.watched = Shared(WATCHED_BYTES)
        """The names that watch streams follow."""
        self.slowed = 0
        """Reports whose streams were not read on, because too many bytes waited."""
        self._newest: dict[bytes, tuple[int, Outbox]] = {}
        self._ended: dict[bytes, int] = {}
        """The newest stream of senders that have none now, oldest first."""
        self._speakers: dict[tuple[str, int], Outbox] = {}

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._newest)

    @property
    def again(self) -> float:
        """Seconds to stay away for streams that all end at once.

        Counted by the most that were ever open, since they end one by one.
        """
        now = asyncio.get_running_loop().time()
        return self.admission.starting.all_again(self.admission.streams.peak, now)

    async def admit(self, sender: bytes, stream: int, who: str = "") -> Outbox:
        """Open a stream of a principal when it is its turn to start.

        Raises as open does, and ShuttingDown.
        """
        await enter(self.admission.starting, who)
        try:
            return self.open(sender, stream, who)
        except errors.LowwaterError:
            leave(self.admission.starting, who)
            raise

    def open(self, sender: bytes, stream: int, who: str = "") -> Outbox:
        """Open a stream, closing the sender's older one.

        Raises Overloaded, and OldStream when it is not newer than all before.

        Its reports would count as repeats of the older ones' and change nothing.
        """
        newest, older = self._newest.get(sender, (self._ended.get(sender, 0), None))
        if stream <= newest:
            msg = f"this sender has opened stream {newest} already, {stream} was delayed or repeated; count streams up"
            raise errors.OldStream(msg, metadata={"stream": str(stream), "newest": str(newest)})
        loop = asyncio.get_running_loop()
        outbox = Outbox(self.stream_bytes)
        outbox.who, outbox.place_of = who, who if older is None else older.place_of
        if older is not None:
            older.close(errors.OldStream("a newer stream of this sender was opened", metadata={"newest": str(stream)}))
        else:
            self.admission.streams.enter(Turn(who), loop.time(), who)
        outbox.silence = loop.call_later(self._silence, self.started, outbox)
        self._ended.pop(sender, None)
        self._newest[sender] = (stream, outbox)
        return outbox

    def heard(self, outbox: Outbox) -> None:
        """A stream has begun to report: it starts until that is durable."""
        if outbox.silence is not None:
            outbox.silence.cancel()

    def started(self, outbox: Outbox) -> None:
        """Let another stream start: the first report of this one is durable, or none comes, or it has ended."""
        self.heard(outbox)
        if outbox.starting:
            outbox.starting = False
            leave(self.admission.starting, outbox.who)

    def close(self, sender: bytes, outbox: Outbox) -> None:
        """Forget a stream."""
        self.started(outbox)
        self.unread.bytes -= outbox.unread
        outbox.end()
        stream, newest = self._newest.get(sender, (0, None))
        if newest is outbox:
            leave(self.admission.streams, outbox.place_of)
            del self._newest[sender]
            self._ended[sender] = stream
            if len(self._ended) > SENDERS_KEPT:
                del self._ended[next(iter(self._ended))]
        for key in outbox.claims:
            if self._speakers.get(key) is outbox:
                del self._speakers[key]

    def speaks(self, name: str, sequencer: int, outbox: Outbox) -> None:
        """A stream reports for a claim, and will hear what it loses."""
        self._speakers[name, sequencer] = outbox
        outbox.claims.add((name, sequencer))

    def fence(self, fenced: Fenced) -> None:
        """Tell the stream that speaks for a claim what it lost."""
        key = fenced.computation, fenced.sequencer
        outbox = self._speakers.get(key)
        if outbox is not None:
            outbox.fence(fenced)
            if fenced.handles is None:
                del self._speakers[key]
                outbox.claims.discard(key)

    def bar(self, name: str) -> None:
        """A computation was let go: what was sent of it on the streams that are open now counts no more."""
        for _, outbox in self._newest.values():
            outbox.barred.add(name)

    async def take(self, outbox: Outbox) -> Iterator[pb.ReportResponse]:
        """Wait for something to send down a stream; all that was taken before was sent."""
        before = outbox.unread
        outbox.sent()
        self.unread.bytes -= before - outbox.unread
        return await outbox.take()

    def acknowledge(
        self,
        outbox: Outbox,
        number: int,
        refused: Iterable[tuple[str, Refused]] = (),
        *,
        references: Mapping[str, pb.ReferenceTime] | None = None,
        redirects: Mapping[str, Redirect] | None = None,
    ) -> None:
        """Everything up to a report of a stream is durable but for what was refused.

        See :meth:`Outbox.acknowledge`.
        """
        before = outbox.unread
        most = self.unread.share(before, max(1, len(self)))
        outbox.acknowledge(number, refused, references=references, redirects=redirects, most=most)
        self.unread.bytes += outbox.unread - before

    async def enter(self, outbox: Outbox, size: int) -> None:
        """Return when a report of so many bytes may wait for the journal; the next ones of its stream are not read before."""
        await outbox.permits.acquire()
        self.slowed += not (outbox.room.free(size) and self.room.free(size))
        await outbox.room.enter(size)
        try:
            await self.room.enter(size)
        except BaseException:
            outbox.room.leave(size)
            raise

    def leave(self, outbox: Outbox, size: int) -> None:
        """A report is durable, or refused, whether or not its sender reads that."""
        outbox.room.leave(size)
        self.room.leave(size)

    def wake(self) -> None:
        """Make every stream look around, and end those that wait to start: the server stops."""
        for _, outbox in self._newest.values():
            outbox.wake()
        for gate in self.admission.gates:
            for turn in list(gate.waiting):
                gate.give_up(turn)
                if not turn.done():
                    turn.set_exception(errors.ShuttingDown("this process ends its streams; connect again"))
