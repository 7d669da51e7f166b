"""Report streams: what one process is told back, and which stream of a process is the newest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lowwater import errors
from lowwater._pb.lowwater.v1 import workers_pb2 as pb
from lowwater_authority.service import encode

if TYPE_CHECKING:
    from lowwater_authority.core.requests import Fenced

IN_FLIGHT: Final = 64
"""Reports of one stream that may wait for the journal; more are left in the transport, which slows the sender."""

SENDERS_KEPT: Final = 4096
"""Senders without a stream whose newest one is remembered."""

FENCED_BOUND: Final = 4096
"""Notices of lost ranges waiting for one stream; the oldest go first, since every later report repeats them."""


class Outbox:
    """What waits to be sent down one stream: acknowledgements merge, so it stays small."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(IN_FLIGHT)
        self.closed: errors.LowwaterError | None = None
        self.finished = False
        self._ack: pb.ReportAck | None = None
        self._acked = 0
        self._fenced: list[pb.Fenced] = []
        self._changed = asyncio.Event()

    def acknowledge(self, number: int, refused: list[pb.RefusedRanges], references: list[pb.ReferenceTime]) -> None:
        """Everything up to a report is durable but for what was refused; not so behind one that failed."""
        if self.closed is not None:
            return
        if self._ack is None:
            self._ack = pb.ReportAck()
        self._ack.number = number
        self._ack.refused.extend(refused)
        known = {reference.computation for reference in references}
        kept = [reference for reference in self._ack.references if reference.computation not in known]
        del self._ack.references[:]
        self._ack.references.extend([*kept, *references])
        self._acked += 1
        self._changed.set()

    def fence(self, fenced: Fenced) -> None:
        """Ranges were lost."""
        self._fenced = [*self._fenced[-(FENCED_BOUND - 1) :], encode.fenced(fenced)]
        self._changed.set()

    def close(self, error: errors.LowwaterError) -> None:
        """End the stream with an error: the first one."""
        self.closed = self.closed or error
        self._changed.set()

    def finish(self) -> None:
        """The client has said all; end once everything is acknowledged."""
        self.finished = True
        self._changed.set()

    def wake(self) -> None:
        """Look around: the server stops."""
        self._changed.set()

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be sent."""
        return self._ack is None and not self._fenced

    async def take(self) -> list[pb.ReportResponse]:
        """Wait for something to send or do, and take it."""
        await self._changed.wait()
        self._changed.clear()
        messages = [pb.ReportResponse(fenced=fenced) for fenced in self._fenced]
        self._fenced = []
        if self._ack is not None:
            messages.append(pb.ReportResponse(ack=self._ack))
            self._ack = None
        for _ in range(self._acked):
            self.permits.release()
        self._acked = 0
        return messages


class Streams:
    """The open report streams: the newest of each sender, and which one speaks for each claim."""

    def __init__(self) -> None:
        self._newest: dict[bytes, tuple[int, Outbox]] = {}
        self._ended: dict[bytes, int] = {}
        """The newest stream of senders that have none now, oldest first."""
        self._speakers: dict[tuple[str, int], Outbox] = {}

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._newest)

    def open(self, sender: bytes, stream: int) -> Outbox:
        """Open a stream, closing the sender's older one. Raises OldStream when it is not newer than all before.

        Its reports would count as repeats of the older ones' and change nothing.
        """
        newest, older = self._newest.get(sender, (self._ended.get(sender, 0), None))
        if stream <= newest:
            msg = f"this sender has opened stream {newest} already, {stream} was delayed or repeated; count streams up"
            raise errors.OldStream(msg, metadata={"stream": str(stream), "newest": str(newest)})
        if older is not None:
            older.close(errors.OldStream("a newer stream of this sender was opened", metadata={"newest": str(stream)}))
        outbox = Outbox()
        self._ended.pop(sender, None)
        self._newest[sender] = (stream, outbox)
        return outbox

    def close(self, sender: bytes, outbox: Outbox) -> None:
        """Forget a stream."""
        stream, newest = self._newest.get(sender, (0, None))
        if newest is outbox:
            del self._newest[sender]
            self._ended[sender] = stream
            if len(self._ended) > SENDERS_KEPT:
                del self._ended[next(iter(self._ended))]
        for key in [key for key, speaker in self._speakers.items() if speaker is outbox]:
            del self._speakers[key]

    def speaks(self, name: str, sequencer: int, outbox: Outbox) -> None:
        """A stream reports for a claim, and will hear what it loses."""
        self._speakers[name, sequencer] = outbox

    def fence(self, fenced: Fenced) -> None:
        """Tell the stream that speaks for a claim what it lost."""
        key = fenced.computation, fenced.sequencer
        outbox = self._speakers.get(key)
        if outbox is not None:
            outbox.fence(fenced)
            if fenced.handles is None:
                del self._speakers[key]

    def wake(self) -> None:
        """Make every stream look around: the server stops."""
        for _, outbox in self._newest.values():
            outbox.wake()
