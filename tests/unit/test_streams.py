"""What goes down one report stream."""

from __future__ import annotations

from lowwater import errors
from lowwater_authority.service.streams import Outbox


async def test_nothing_is_acknowledged_behind_a_report_that_failed() -> None:
    outbox = Outbox()
    outbox.acknowledge(1, [], [])
    outbox.close(errors.JournalFailed("report 2 was not written"))
    outbox.acknowledge(3, [], [])
    (message,) = await outbox.take()
    assert message.ack.number == 1
    assert outbox.closed is not None


async def test_acknowledgements_merge() -> None:
    outbox = Outbox()
    for number in (1, 2, 3):
        outbox.acknowledge(number, [], [])
    (message,) = await outbox.take()
    assert message.ack.number == 3
    assert outbox.empty
