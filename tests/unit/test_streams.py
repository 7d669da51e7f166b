"""What goes down one report stream."""

from __future__ import annotations

from lowwater import errors
from lowwater_authority.core.requests import Fenced
from lowwater_authority.rpc.streams import Outbox, Streams


async def test_nothing_is_acknowledged_behind_a_report_that_failed() -> None:
    outbox = Outbox()
    outbox.acknowledge(1)
    outbox.close(errors.JournalFailed("report 2 was not written"))
    outbox.acknowledge(3)
    (message,) = await outbox.take()
    assert message.ack.number == 1
    assert outbox.closed is not None


async def test_acknowledgements_merge() -> None:
    outbox = Outbox()
    for number in (1, 2, 3):
        outbox.acknowledge(number)
    (message,) = await outbox.take()
    assert message.ack.number == 3
    assert outbox.empty


async def test_a_claim_that_is_lost_whole_is_spoken_for_no_more() -> None:
    """A worker that claims again and again on one stream leaves nothing behind."""
    streams = Streams()
    outbox = streams.open(b"s" * 16, 1)
    for sequencer in range(1, 4):
        streams.speaks("a", sequencer, outbox)
        streams.fence(Fenced("a", sequencer, [0], "a newer claim took it over"))
    assert len(outbox.claims) == 3
    for sequencer in range(1, 4):
        streams.fence(Fenced("a", sequencer, None, "a newer claim took it over"))
    assert not outbox.claims
