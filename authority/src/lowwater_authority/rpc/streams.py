"""The open report streams: the newest of each sender, and what waits to be sent down each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors
from lowwater.v1 import workers_pb2 as pb
from lowwater_authority.core.names import NAME, whole
from lowwater_authority.engine.admission import Admission
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.acknowledgement import MESSAGE_BYTES, Acknowledgement
from lowwater_authority.rpc.rooms import WATCHED_BYTES, Room, Shared, Turn, enter, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lowwater.v1.types_pb2 import Redirect
    from lowwater_authority.core.requests import Fenced, Refused

IN_FLIGHT: Final = 64
"""Reports of one stream that may wait for the journal. More are left in the transport, which slows
the sender."""

STREAM_BYTES: Final = 64 << 20
"""Bytes of these reports, decoded: one of the largest, or many small ones."""

ALL_BYTES: Final = 256 << 20
"""Bytes of these reports, of all streams. A stream that waits here has read one report more."""

UNREAD_BYTES: Final = 128 << 20
"""Bytes of the refusals of all streams that are not sent yet because the senders do not read them.
"""

UNREAD_LEAST: Final = 4096
"""Bytes of refusals that may wait for one stream, whatever the others do: those of a few claims."""

SENDERS_KEPT: Final = 4096
"""Senders without an open stream of which the number of the newest stream is remembered."""

FENCED_BOUND: Final = 4096
"""Notices of lost ranges that wait for one stream. The oldest are dropped first, since the answer
to every later report repeats them."""

DENIED_BOUND: Final = 10_000
"""Computations that a stream may be refused for lack of rights. One more ends the stream."""

SILENCE: Final = 2.0
"""Seconds that a stream without a report keeps its place among the starting streams. A worker may
have nothing to report for long."""


class Outbox:
    """One open report stream, and what waits to be sent down it.

    Acknowledgements merge, so little waits.
    """

    def __init__(self, stream_bytes: int = STREAM_BYTES, message_bytes: int = MESSAGE_BYTES) -> None:
        """``stream_bytes`` as ``STREAM_BYTES``, ``message_bytes`` as in Acknowledgement."""
        self._message_bytes = message_bytes
        self.barred: set[str] = set()
        """Computations that this stream may not report for any more. Another shard has served them
        since the stream began, and may have got reports that this shard has not."""
        self.older: dict[tuple[str, int], Refused] = {}
        """Refusals of claims for which a newer report than this stream's was applied, by
        computation and sequencer."""
        self.denied: set[str] = set()
        """Computations that the caller had no right to report for."""
        self.permits = asyncio.Semaphore(IN_FLIGHT)
        self.room = Room(stream_bytes)
        self.closed: errors.LowwaterError | None = None
        """Error that ends the stream; None while it is open."""
        self.finished = False
        """True when the client has sent its last report."""
        self.silence: asyncio.TimerHandle | None = None
        """Timer that ends the wait for the first report."""
        self.starting = True
        """True while the stream has a place among the starting streams."""
        self.who = ""
        """Principal whose place among the starting streams this stream takes; empty: none."""
        self.place_of = ""
        """Principal whose place among the open streams this stream takes. It differs from ``who``
        when the stream replaced one that another principal had opened for the same sender."""
        self.claims: set[tuple[str, int]] = set()
        """Claims that this stream has reported for. Another stream may have taken over some."""
        self._ack: Acknowledgement | None = None
        self._acknowledged = 0
        """Number of the newest report that was acknowledged."""
        self._merged = 0
        """Reports that the waiting acknowledgement answers."""
        self._sending = 0
        """Bytes of the refusals that are being sent."""
        self._line: deque[tuple[asyncio.Future[Any], Callable[[asyncio.Future[Any]], None]]] = deque()
        """Reports that wait for an answer, each with the function that answers it."""
        self._fenced: list[pb.Fenced] = []
        self._changed = asyncio.Event()

    def answer(self, durable: asyncio.Future[Any], how: Callable[[asyncio.Future[Any]], None]) -> None:
        """Call ``how`` when a report is durable, and all before it were answered.

        An acknowledgement covers the reports before it, so answers keep the order of the reports.
        """
        self._line.append((durable, how))
        durable.add_done_callback(lambda _: self._answer_next())

    def _answer_next(self) -> None:
        while self._line and self._line[0][0].done():
            durable, how = self._line.popleft()
            how(durable)

    def acknowledge(
        self,
        number: int,
        refused: Iterable[tuple[str, Refused]] = (),
        *,
        references: Mapping[str, pb.ReferenceTime] | None = None,
        redirects: Mapping[str, Redirect] | None = None,
        most: int = UNREAD_BYTES,
    ) -> None:
        """Acknowledge all reports up to ``number``, but for what was refused.

        The stream ends when the unsent refusals do not fit into ``most`` bytes, even where whole
        claims are refused to save bytes. The next stream reports everything again.
        """
        if self.closed is not None:
            return
        if self._ack is None:
            self._ack = Acknowledgement(self._acknowledged, self._message_bytes)
        self._ack.add(number, refused, references or {}, redirects or {})
        self._merged += 1
        if not self._ack.fit(max(most - self._sending, UNREAD_LEAST)):
            self._ack = None
            msg = "more refusals of this stream wait than there is room for; read the acknowledgements"
            self.close(errors.Overloaded(msg, metadata={"bound": "unread_refusals", "limit": str(UNREAD_BYTES)}))
        self._changed.set()

    def fence(self, fenced: Fenced) -> None:
        """Send a notice of lost ranges."""
        self._fenced = [*self._fenced[-(FENCED_BOUND - 1) :], codec.fenced_message(fenced)]
        self._changed.set()

    def deny(self, name: str) -> None:
        """Note that the caller has no right to report for a computation.

        Raises Overloaded when there are too many such computations.
        """
        if name in self.denied or NAME.fullmatch(whole(name)) is None:  # no rule allows a malformed name
            return
        if len(self.denied) >= DENIED_BOUND:
            msg = (
                f"this stream was refused the reports of {DENIED_BOUND} computations; report for those that are allowed"
            )
            raise errors.Overloaded(msg, metadata={"bound": "denied", "limit": str(DENIED_BOUND)})
        self.denied.add(name)

    def close(self, error: errors.LowwaterError) -> None:
        """End the stream with an error; the first one counts."""
        self.closed = self.closed or error
        self._changed.set()

    def end(self) -> None:
        """Send nothing any more."""
        self.close(errors.ShuttingDown("the stream has ended"))
        self._ack = None
        self.sent()

    def finish(self) -> None:
        """End the stream once everything is acknowledged: the client has sent its last report."""
        self.finished = True
        self._changed.set()

    def wake(self) -> None:
        """Make a waiting :meth:`take` return, even with nothing: the server stops."""
        self._changed.set()

    @property
    def unread(self) -> int:
        """Bytes of the refusals that are not sent yet, about."""
        return self._sending + (0 if self._ack is None else self._ack.bytes)

    @property
    def empty(self) -> bool:
        """True when nothing waits to be sent."""
        return self._ack is None and not self._fenced

    async def take(self) -> Iterator[pb.ReportResponse]:
        """Wait until something changes, and take the messages that wait.

        Each message is built when the iterator reaches it.
        """
        await self._changed.wait()
        self._changed.clear()
        fenced, self._fenced = self._fenced, []
        ack, self._ack = self._ack, None
        for _ in range(self._merged):
            self.permits.release()
        self._merged = 0
        if ack is not None:
            self._acknowledged = ack.number
            self._sending += ack.bytes
        return self._messages(fenced, ack)

    def _messages(self, fenced: Iterable[pb.Fenced], ack: Acknowledgement | None) -> Iterator[pb.ReportResponse]:
        for notice in fenced:
            yield pb.ReportResponse(fenced=notice)
        try:
            for message in ack.messages() if ack is not None else ():
                yield pb.ReportResponse(ack=message)
        except errors.Overloaded as error:
            self.close(error)

    def sent(self) -> None:
        """Note that the messages taken last were sent, or never will be."""
        self._sending = 0


class Streams:
    """All open report streams, by sender and by the claims that they report for."""

    def __init__(self, silence: float = SILENCE) -> None:
        """``silence``: as ``SILENCE``."""
        self._silence = silence
        self.stream_bytes = STREAM_BYTES
        """Bytes of reports that may wait for the journal, of each stream that opens from now on."""
        self.admission: Admission[Turn] = Admission()
        self.room = Room(ALL_BYTES)
        """Bytes of the reports of all streams that wait for the journal."""
        self.unread = Shared(UNREAD_BYTES)
        """Bytes of the refusals of all streams that wait to be sent."""
        self.watched = Shared(WATCHED_BYTES)
        """Bytes of the names that watch streams follow."""
        self.slowed = 0
        """Number of reports that had to wait for room, so that no more of their stream was read."""
        self._newest: dict[bytes, tuple[int, Outbox]] = {}
        self._ended: dict[bytes, int] = {}
        """Number of the newest stream of each sender without an open one, oldest first."""
        self._speakers: dict[tuple[str, int], Outbox] = {}
        """The stream that reports for a claim, by computation and sequencer."""

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._newest)

    @property
    def again(self) -> float:
        """Seconds to stay away for streams that all end at once.

        The most streams that were ever open are counted, because streams end one by one.
        """
        now = asyncio.get_running_loop().time()
        return self.admission.starting.all_again(self.admission.streams.peak, now)

    # -- the life of a stream ----------------------------------------------------------------------

    async def admit(self, sender: bytes, stream: int, who: str = "") -> Outbox:
        """Open a stream of a principal when it is its turn to start.

        Raises as :meth:`open`, and ShuttingDown.
        """
        await enter(self.admission.starting, who)
        try:
            return self.open(sender, stream, who)
        except errors.LowwaterError:
            leave(self.admission.starting, who)
            raise

    def open(self, sender: bytes, stream: int, who: str = "") -> Outbox:
        """Open a stream, and close the sender's older one.

        Raises Overloaded, and OldStream unless the number is above all before: the reports of an
        older stream would count as repeats and change nothing.
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

    def begin_reports(self, outbox: Outbox) -> None:
        """Note that a stream has begun to report. It is starting until that report is durable."""
        if outbox.silence is not None:
            outbox.silence.cancel()

    def started(self, outbox: Outbox) -> None:
        """Let another stream start.

        Called when the first report of a stream is durable, none comes, or the stream has ended.
        """
        self.begin_reports(outbox)
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

    def wake(self) -> None:
        """Make every stream see that the server stops, and end those that wait to start."""
        for _, outbox in self._newest.values():
            outbox.wake()
        for gate in self.admission.gates:
            for turn in list(gate.waiting):
                gate.give_up(turn)
                if not turn.done():
                    turn.set_exception(errors.ShuttingDown("this process ends its streams; connect again"))

    # -- a report and its answer -------------------------------------------------------------------

    async def enter(self, outbox: Outbox, size: int) -> None:
        """Return when a report of ``size`` bytes may wait for the journal.

        No further report of its stream is read before that.
        """
        await outbox.permits.acquire()
        self.slowed += not (outbox.room.free(size) and self.room.free(size))
        await outbox.room.enter(size)
        try:
            await self.room.enter(size)
        except BaseException:
            outbox.room.leave(size)
            raise

    def speaks(self, name: str, sequencer: int, outbox: Outbox) -> None:
        """Note that a stream reports for a claim, so that :meth:`fence` finds the stream."""
        self._speakers[name, sequencer] = outbox
        outbox.claims.add((name, sequencer))

    def acknowledge(
        self,
        outbox: Outbox,
        number: int,
        refused: Iterable[tuple[str, Refused]] = (),
        *,
        references: Mapping[str, pb.ReferenceTime] | None = None,
        redirects: Mapping[str, Redirect] | None = None,
    ) -> None:
        """Acknowledge reports, within the stream's share; see :meth:`Outbox.acknowledge`."""
        before = outbox.unread
        most = self.unread.share(before, max(1, len(self)))
        outbox.acknowledge(number, refused, references=references, redirects=redirects, most=most)
        self.unread.bytes += outbox.unread - before

    def leave(self, outbox: Outbox, size: int) -> None:
        """Free the room of a report that is answered, and let another stream start.

        The sender may not read the answer.
        """
        self.started(outbox)
        outbox.room.leave(size)
        self.room.leave(size)

    async def take(self, outbox: Outbox) -> Iterator[pb.ReportResponse]:
        """Wait for messages to send down a stream. All those before must have been sent."""
        before = outbox.unread
        outbox.sent()
        self.unread.bytes -= before - outbox.unread
        return await outbox.take()

    # -- claims and computations that are lost -----------------------------------------------------

    def fence(self, fenced: Fenced) -> None:
        """Tell the stream that reports for a claim which ranges the claim has lost."""
        key = fenced.computation, fenced.sequencer
        outbox = self._speakers.get(key)
        if outbox is not None:
            outbox.fence(fenced)
            if fenced.handles is None:
                del self._speakers[key]
                outbox.claims.discard(key)

    def bar(self, name: str) -> None:
        """Refuse the reports of all open streams for a computation that this shard has lost."""
        for _, outbox in self._newest.values():
            outbox.barred.add(name)
