"""Requests that come twice, malformed, or out of a journal that is not one history; and what a view says."""

from __future__ import annotations

import pytest

from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2 as pb
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import GRANTS_KEPT
from lowwater_authority.core.groups import GroupState
from tests.property.core_driver import MIN, NOW, SECOND, Driver


def test_a_repeated_claim_says_nothing_of_ranges_it_has_lost() -> None:
    """The slots of lost ranges stand at MAX inside; the repeat must not read as if those were finished."""
    d = Driver()
    first = d.claim(b"", b"m", b"", request_id=b"r")
    d.report(first.sequencer, 10)
    d.claim(b"m", b"")
    again = d.claim(b"", b"m", b"", request_id=b"r")
    assert (again.sequencer, again.watermarks.tolist()) == (first.sequencer, [10, MIN])


def test_request_ids_are_kept_in_bounded_number() -> None:
    d = Driver()
    for index in range(GRANTS_KEPT + 1):
        d.claim(b"", b"", request_id=b"%d" % index, settle=False)
    d.settle()
    assert len(d.core.granted) == GRANTS_KEPT
    assert b"0" not in d.core.granted
    assert d.core.map.columns.size < 20_000, "dead claims are given back"
    d.crash()
    assert next(iter(d.core.granted)) == b"1"


@pytest.mark.parametrize(
    ("values", "handles"),
    [((1, 2, 3), None), ((), None), ((1, 2), [0]), ((1,), [2]), ((1, 2), [0, 0])],
    ids=["too many values", "no value", "more values than handles", "no such handle", "a handle twice"],
)
def test_a_malformed_report_is_refused_whole(values: tuple[int, ...], handles: list[int] | None) -> None:
    d = Driver()
    owner = d.claim(b"", b"m", b"").sequencer
    d.report(owner, 0)
    refused = d.report(owner, *values, handles=handles, number=(9, 9))
    assert {reason for reason, _ in refused} == {"INVALID_ARGUMENT"}
    assert d.values() == [(b"", 0), (b"m", 0)]
    assert d.report(owner, 7, number=(9, 9)) == set(), "its number is not used up"
    assert d.low == 7


def test_a_replay_checks_the_sequencers_again() -> None:
    """What two owners wrote, one after the other, is not one history."""
    d = Driver()
    first = d.claim(b"", b"m", b"").sequencer
    d.report(first, 5, 6)
    report = d.records[-1]
    d.claim(b"", b"m")
    claim = d.records[-1]
    d.release(first)
    for history in ([*d.records, report], [d.records[0], claim, report], [claim, claim], [report]):
        with pytest.raises(recovery.ReplayError):
            recovery.recover(d.spec, None, history, epoch_base=0)
    low = pb.Record.FromString(d.records[0])
    low.low_micros = 99
    with pytest.raises(recovery.ReplayError, match="goes back"):
        recovery.recover(d.spec, None, [low.SerializeToString(), *d.records[1:]], epoch_base=0)
    empty = pb.Record(incarnation=1, ops=[pb.Op()], low_micros=MIN)
    with pytest.raises(recovery.ReplayError, match="unknown op"):
        recovery.recover(d.spec, None, [empty.SerializeToString()], epoch_base=0)


def test_a_view_says_who_holds_and_since_when() -> None:
    d = Driver()
    left, right = d.claim(b"", b"m", worker="left").sequencer, d.claim(b"m", b"", worker="right").sequencer
    d.report(left, 10)
    d.report(right, 20)
    moved = d.now - SECOND
    d.report(right, 30)
    view = d.core.published
    assert view.holder is not None
    assert (view.holder.owner.worker, view.holder.start, view.holder.end, view.holder.value) == ("left", b"", b"m", 10)
    assert view.holder.since == NOW + 2 * SECOND
    assert (view.low, view.since, view.ranges) == (10, moved, 2)
    assert view.holder.owner.state is GroupState.OWNED
