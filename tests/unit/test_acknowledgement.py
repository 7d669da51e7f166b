"""What is refused of the reports of a stream: merged while it waits, and divided over messages without a word that is not true."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lowwater import errors
from lowwater._core import wire
from lowwater._core.columns import Column
from lowwater._core.fold import Fold
from lowwater._core.lease import LeaseState
from lowwater._core.reports import ReporterState
from lowwater._pb.lowwater.v1 import workers_pb2 as pb
from lowwater._pb.lowwater.v1.types_pb2 import Redirect
from lowwater_authority.core.requests import Refused
from lowwater_authority.rpc import streams
from lowwater_authority.rpc.streams import Acknowledgement, Outbox

FAR, STALE = errors.TooFarAhead.reason, errors.StaleSequencer.reason


def handles(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, dtype=np.uint32)


def added(*refused: tuple[str, Refused], before: int = 0) -> Acknowledgement:
    made = Acknowledgement(before)
    for number, each in enumerate(refused, before + 1):
        made.add(number, [each], {}, {})
    return made


def references(**micros: int) -> dict[str, pb.ReferenceTime]:
    return {name: pb.ReferenceTime(computation=name, micros=value) for name, value in micros.items()}


def test_refusals_merge_by_claim_and_reason() -> None:
    (message,) = added(
        ("a", Refused(1, FAR, "first", handles(3, 5))),
        ("a", Refused(1, STALE, "lost", handles(4))),
        ("a", Refused(2, FAR, "another claim", handles(5))),
        ("b", Refused(1, FAR, "another computation", handles(5))),
        ("a", Refused(1, FAR, "second", handles(9, 0, 5))),
    ).messages()
    found = {(each.computation, each.sequencer, each.reason): each for each in message.refused}
    assert len(found) == len(message.refused) == 4
    assert list(found["a", 1, FAR].handles) == [0, 3, 5, 9]
    assert found["a", 1, FAR].message == "second"
    assert list(found["a", 1, STALE].handles) == [4]
    assert message.number == 5


def test_handles_that_no_claim_has_are_refused_as_a_whole() -> None:
    """Merging costs a byte for each handle below the greatest."""
    refused = [("a", Refused(1, "INVALID_ARGUMENT", "", handles(value))) for value in (7, 2**32 - 1)]
    (message,) = added(*refused).messages()
    assert [list(each.handles) for each in message.refused] == [[]]


def test_the_newest_number_and_the_address_stay() -> None:
    made = Acknowledgement(0)
    old = errors.OldStream.reason
    made.add(1, [("a", Refused(1, old, "", newest=9))], references(a=1, b=2), {})
    redirect = Redirect(computation="c", address="x:1", epoch=3)
    moved = [("c", Refused(1, errors.Moved.reason, "")), ("d", Refused(1, errors.Moved.reason, ""))]
    made.add(2, [("a", Refused(1, old, "", newest=4)), *moved], references(b=3), {"c": redirect})
    (message,) = made.messages()
    first, second, third = message.refused
    assert first.newest == 9
    assert second.redirect == redirect
    assert third.redirect == Redirect(computation="d")
    assert {each.computation: each.micros for each in message.references} == {"a": 1, "b": 3}


RANGES = 1000


def claim(reporter: ReporterState, sequencer: int) -> LeaseState:
    lease = LeaseState("a", sequencer, Column(RANGES, 0), reference=0)
    lease.advance(Fold(50 * sequencer, (), 0, ()), 10**6, now=0.0)
    reporter.add(lease)
    return lease


def reported(messages: Iterator[pb.ReportAck], told: int) -> list[tuple[int, set[int], set[int], bool]]:
    """A process that reports claims 1 to 5 takes the messages of one acknowledgement.

    Returns, after each of them, how much is durable of claim 3, what of it is refused, what of it is lost, and whether the neighbour,
    claim 6, is durable.
    """
    reporter = ReporterState(b"s" * 16, 0.05, lambda: 0.5)
    leases = [claim(reporter, sequencer) for sequencer in range(1, 7)]
    reporter.open()
    reporter.accepted(0.0)
    (report,) = reporter.take(0.0)
    assert report.number == told
    seen = []
    for message in messages:
        refused = [(each.computation, each.sequencer, wire.refusal(each)) for each in message.refused]
        reporter.acknowledged(message.number, refused)
        third, refusal = leases[2], leases[2].refusal
        waits = set() if refusal is None else set(range(RANGES)) if refusal.handles is None else set(refusal.handles)
        seen.append((third.durable, waits, set(third.lost), bool(leases[5].durable)))
    return seen


def refusals() -> list[tuple[str, Refused]]:
    """Of claims 1 to 5 a third is lost, and a third is too far ahead; the rest, and claim 6, is taken over."""
    third = np.arange(RANGES, dtype=np.uint32)
    return [
        ("a", Refused(sequencer, reason, reason, third[third % 3 == rest]))
        for sequencer in range(1, 6)
        for rest, reason in enumerate((STALE, FAR))
    ]


def divided() -> list[tuple[int, set[int], set[int], bool]]:
    made = Acknowledgement(0)
    made.add(1, refusals(), {}, {})
    return reported(made.messages(), told=1)


def test_rule7_an_acknowledgement_of_several_messages_acknowledges_nothing_that_is_refused_in_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "MESSAGE_BYTES", 8 * RANGES)
    *before, (durable, refused, lost, neighbour) = divided()
    assert len(before) >= 1
    for early, _, _, beside in before:
        assert not early, "nothing is taken over before all is told that is not"
        assert not beside
    assert not durable
    assert {handle for handle in range(RANGES) if handle % 3 == 1} <= refused
    assert lost == {handle for handle in range(RANGES) if handle % 3 == 0}
    assert neighbour, "what was refused of others does not hold it up"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="breaks when the first message has the number")
def test_rule7_breaks_when_the_first_of_several_messages_acknowledges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MESSAGE_BYTES", 8 * RANGES)
    init = Acknowledgement.__init__
    monkeypatch.setattr(Acknowledgement, "__init__", lambda self, _: init(self, 1))
    for _, _, _, beside in divided()[:-1]:
        assert not beside


async def test_what_cannot_be_made_to_fit_ends_the_stream_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(streams, "LARGEST_MESSAGE", 2000)
    outbox = Outbox()
    outbox.acknowledge(1, [("a", Refused(sequencer, FAR, "")) for sequencer in range(100)])
    assert not list(await outbox.take())
    assert isinstance(outbox.closed, errors.Overloaded)
    assert "send fewer in a report" in outbox.closed.message
