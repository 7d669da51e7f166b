"""Rule 8 of one claim's reports: which of two is newer, whoever carried them, whatever was restarted in between."""

from __future__ import annotations

import numpy as np
import pytest

from lowwater import errors
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import GRANTS_KEPT, LONGEST_STEP, SENDERS_KEPT, Computation
from lowwater_authority.core.cut import Cut
from lowwater_authority.core.requests import NO_FOLD, ClaimRequest, GroupReport, Refused
from lowwater_authority.core.topology import Spec
from lowwater_authority.records import journal_pb2 as pb
from tests.property import switches
from tests.property.core_driver import MIN, SECOND, Driver, column, request
from tests.property.switches import planted

OLD = {("OLD_STREAM", None)}


def test_rule8_a_made_up_turn_leaves_room_for_those_that_the_owner_will_count() -> None:
    d = Driver()
    owner = d.claim(b"", b"").sequencer

    def report(turn: int) -> list[Refused]:
        report_ = GroupReport(owner, column([5]), turn=turn)
        return d.core.report(report_, sender=b"s", number=(1, 1), required=NO_FOLD, now=d.now)

    assert report(3) == []
    for made_up in (2**64 - 1, 3 + LONGEST_STEP + 1):
        (refused,) = report(made_up)
        assert refused.reason == "INVALID_ARGUMENT"
        assert refused.message.startswith(f"turn is {made_up}, more than {LONGEST_STEP} above")
    assert report(3 + LONGEST_STEP) == report(4 + LONGEST_STEP) == []


@planted(8, switches.SendersForgotten)
def test_rule8_no_sender_is_forgotten(computation_class: type[Computation]) -> None:
    d = Driver(computation_class=computation_class)
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 14, sender=b"owner", number=(1, 9))
    for index in range(SENDERS_KEPT - 1):
        assert d.report(owner, 14, sender=b"%d" % index, number=(1, 1)) == set()
    refused = d.report(owner, 15, sender=b"one more", number=(1, 1))
    assert d.report(owner, 15, sender=b"owner", number=(1, 8)) == OLD
    assert d.low == 14
    assert refused == {("STALE_SEQUENCER", None)}
    assert d.report(owner, 16, sender=b"owner", number=(1, 10)) == set(), "those that are known go on"
    again = d.claim(b"", b"").sequencer
    assert d.report(again, 15, sender=b"one more", number=(1, 1)) == set(), "a new claim starts anew"


def test_rule10_the_first_report_of_a_later_stream_waits_for_the_strongest_write() -> None:
    d = Driver()
    for stream, turn, strong in ((2, 0, True), (1, 2, True), (1, 1, False), (1, 0, False)):
        owner = d.claim(b"", b"").sequencer
        d.report(owner, 14, number=(stream, 1), turn=turn)
        assert d.strong[-1] is strong, (stream, turn)


def refusal(core: Computation, claim: ClaimRequest) -> tuple[str, str]:
    try:
        core.claim(claim, 0)
    except errors.InvalidArgument as error:
        return error.metadata["field"], error.metadata["fix"]
    return "", ""


@planted(8, switches.AnyClaimRepeats)
def test_rule8_a_request_id_names_one_request(computation_class: type[Computation]) -> None:
    d = Driver(computation_class=computation_class)
    first = d.claim(b"", b"m", b"", request_id=b"1", bound=[5]).sequencer
    from_records = recovery.recover(d.spec, None, d.records, epoch_base=0)
    from_snapshot = recovery.recover(d.spec, recovery.snapshot(d.core), [], epoch_base=0)
    for core in (d.core, from_records, from_snapshot):
        for claim in (
            request([b"", b"x", b""], request_id=b"1", bound=[5]),
            request([b"", b"m", b""], request_id=b"1", bound=[6]),
            request([b"", b"m", b""], request_id=b"1"),
            request([b"", b"m", b""], request_id=b"1", bound=[5], generation=1),
            request([b"", b"m", b""], request_id=b"1", bound=[5], ordinal=1),
            request([b"", b"m", b""], request_id=b"1", bound=[5], identity="q"),
            request([b"", b"m", b""], request_id=b"1", bound=[5], worker="another"),
            request([b"", b"m", b""], request_id=b"1", bound=[5], digest=b"d"),
        ):
            assert refusal(core, claim) == ("request_id", "send 16 new random bytes for a new claim")
        again = core.claim(request([b"", b"m", b""], request_id=b"1", bound=[5]), d.now)
        assert again.sequencer == first, "a repeat has its answer"


def test_only_ranges_whose_own_values_are_refused_wait_for_the_clock() -> None:
    """Not those that another claim owns, nor the others of the claim. Reports of the others do not end the wait."""
    d = Driver()
    owner, ahead = d.claim(b"", b"g", b"m", b"").sequencer, d.now + 2000 * SECOND
    d.claim(b"", b"g")

    def waiting() -> list[bytes]:
        ranges, _ = d.core.map.all_ranges(10)
        return sorted(entry.start for entry in ranges if entry.owner.waiting_for.startswith("the clock: "))

    assert d.report(owner, ahead, 5, 5) == {("STALE_SEQUENCER", 0)}
    assert waiting() == []
    for value, handle, starts in ((ahead, 1, [b"g"]), (7, 2, [b"g"]), (ahead, 2, [b"g", b"m"]), (8, 1, [b"m"])):
        assert d.report(owner, value, handles=[handle]) == ({("TOO_FAR_AHEAD", handle)} if value == ahead else set())
        assert waiting() == starts
    d.report(owner, 9)
    assert waiting() == []


@planted(8, switches.LoweringsTooFarAhead)
def test_rule8_a_lowering_counts_also_while_the_clock_is_back(computation_class: type[Computation]) -> None:
    """The clock is an hour behind for a while. What was accepted before may stand ahead of it, and an owner has to go back."""
    d = Driver(computation_class=computation_class)
    me, now = d.claim(b"", b"m", b"").sequencer, d.now
    back = now - 3600 * SECOND
    d.report(me, now, now - 100 * SECOND, number=(1, 1))
    late = column([now - 10 * SECOND, now - 100 * SECOND])
    assert d.core.report(GroupReport(me, late), sender=b"s", number=(1, 2), required=NO_FOLD, now=now, wall=back) == []
    d.settle()
    assert d.values() == [(b"", int(late[0])), (b"m", int(late[1]))]
    raising = GroupReport(me, column([now]), np.array([1], dtype=np.uint32))
    (refused,) = d.core.report(raising, sender=b"s", number=(1, 3), required=NO_FOLD, now=now, wall=back)
    assert refused.reason == "TOO_FAR_AHEAD"
    d.report(me, now, handles=[1], number=(1, 4))
    assert d.low == late[0]


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


def test_a_replay_checks_the_sequencers_again() -> None:
    """Two owners' records, one after the other, are not one history."""
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
    cut = Spec("a", slicing=Cut((b"m",)))
    for spec in (d.spec, cut, cut.slice_specs()["a~0"]):
        with pytest.raises(recovery.ReplayError, match="unknown op"):
            recovery.recover(spec, None, [empty.SerializeToString()], epoch_base=0)
