"""A worker's text for people is shown beside its own key ranges while it owns them, and does nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from lowwater.core import checks, wire
from lowwater.core.columns import Column
from lowwater.core.fold import Fold
from lowwater.core.lease import LeaseState, Report
from lowwater.v1 import workers_pb2
from lowwater.views import NO_REMARKS, RangeState, Remarks
from lowwater.watermark import MAX, MIN
from lowwater_authority.core import recovery
from lowwater_authority.core.requests import NO_FOLD, GroupReport
from lowwater_authority.records import journal_pb2 as pb
from lowwater_authority.rpc import codec
from lowwater_spark.track.run.status import in_short
from tests.property.core_driver import SECOND, Driver, column

FILE = "/in/daily.json (written again after it was read)"
REMARKS = Remarks(holdback_micros=3_600_000_000, ended=True, failure="[STATE_STORE] no", untimed_rows=3)


def says(driver: Driver, sequencer: int, text: str, number: int) -> list[str]:
    """Report one value of all ranges, and what is waited for; returns the reasons of what was refused."""
    report = GroupReport(sequencer, column([SECOND]), waiting_for=text)
    refused = driver.core.report(report, sender=b"s", number=(1, number), required=NO_FOLD, now=driver.now)
    driver.settle()
    return [refusal.reason for refusal in refused]


def shown(driver: Driver) -> list[str]:
    ranges, _ = driver.core.map.all_ranges(10)
    return [codec.key_range_message(entry).waiting_for for entry in sorted(ranges, key=lambda entry: entry.start)]


def test_it_is_shown_beside_the_ranges_of_its_claim_until_the_next_report() -> None:
    d = Driver()
    first, second = d.claim(b"", b"m").sequencer, d.claim(b"m", b"").sequencer
    says(d, second, "nothing of the other's", 1)
    says(d, first, FILE, 2)
    assert shown(d) == [FILE, "nothing of the other's"]
    assert d.core.published.holder is not None
    assert d.core.published.holder.owner.waiting_for == FILE, "whoever reads the watermark is told as well"
    says(d, first, "another file", 3)
    assert shown(d) == ["another file", "nothing of the other's"]
    says(d, first, "", 4)
    assert shown(d) == ["", "nothing of the other's"]


def test_it_goes_with_its_worker_unless_that_one_released_its_ranges() -> None:
    d = Driver()
    ways: tuple[Callable[[int], object], ...] = (
        lambda _: d.claim(b"", b""),
        lambda _: d.claim(b"", b"m"),  # the rest is cut off, and nobody's
        lambda _: d.retire(force=True),
        lambda owner: d.report(owner, MAX, number=(1, 1000), finish=True),
    )
    for number, leave in enumerate(ways):
        owner = d.claim(b"", b"").sequencer
        assert says(d, owner, FILE, number + 1) == []
        assert shown(d) == [FILE]
        leave(owner)
        assert set(shown(d)) == {""}, number


def test_it_is_in_no_record_and_moves_no_watermark() -> None:
    plain, telling = Driver(), Driver()
    for driver, text in ((plain, ""), (telling, FILE)):
        owner = driver.claim(b"", b"").sequencer
        for number in (1, 2):
            says(driver, owner, text, number)
    assert (telling.records, telling.low) == (plain.records, plain.low)
    telling.crash()
    assert shown(telling) == [""], "after a restart the worker says it again"


def lease_of(count: int) -> LeaseState:
    return LeaseState("c", 7, Column(count, 0), reference=0)


def test_remarks_reach_the_reader_of_the_watermark_and_of_a_worker_that_left_its_end_stays() -> None:
    lease, driver = lease_of(1), Driver()
    owner = driver.claim(b"", b"").sequencer
    for number, remarks in enumerate((REMARKS, REMARKS._replace(untimed_rows=4), NO_REMARKS), 1):
        lease.advance(Fold(10, (), 0, ()), MAX, remarks=remarks, now=0.0)
        group = lease.take()
        assert group is not None, "remarks alone are news"
        [sent] = wire.report_request(Report(1, (dataclasses.replace(group, sequencer=owner),))).report.groups
        report = codec.group(sent)
        driver.core.report(report, sender=b"s", number=(1, number), required=NO_FOLD, now=driver.now)
        driver.settle()
        [range_], _ = driver.core.map.all_ranges(10)
        assert wire.range_view(codec.key_range_message(range_)).remarks == remarks
    for text in (FILE, ""):
        lease.advance(Fold(10, (), 0, ()), MAX, waiting_for=text, now=0.0)
        alone = lease.take()
        assert alone is not None, "so is what is waited for"
        assert alone.waiting_for == text
    driver.core.report(
        GroupReport(owner, column([10]), waiting_for=FILE, remarks=REMARKS),
        sender=b"s",
        number=(1, 9),
        required=NO_FOLD,
        now=driver.now,
    )
    driver.settle()

    def freed() -> tuple[RangeState, Remarks, str, int]:
        [range_], _ = driver.core.map.all_ranges(10)
        view = wire.range_view(codec.key_range_message(range_))
        return view.state, view.remarks, view.waiting_for, view.last_report_micros

    driver.now += SECOND
    end = RangeState.UNOWNED, Remarks(ended=True, failure=REMARKS.failure), FILE, driver.now
    driver.release(owner)
    assert freed() == end
    driver.crash()
    assert freed() == end, "the log has it"
    driver.records = []
    driver.crash(snapshot=recovery.snapshot(driver.core))
    assert freed() == end, "and so does a snapshot"
    driver.claim(b"", b"m")
    rest = max(driver.core.map.all_ranges(10)[0], key=lambda entry: entry.start)
    assert wire.range_view(codec.key_range_message(rest)).remarks == NO_REMARKS


@pytest.mark.parametrize("failure", [None, "", "it broke"])
def test_how_a_worker_ended_is_unknown_from_a_log_that_does_not_say(failure: str | None) -> None:
    driver = Driver()
    owner = driver.claim(b"", b"").sequencer
    driver.release(owner)
    record = pb.Record.FromString(driver.records.pop())
    [op] = record.ops
    op.release.CopyFrom(pb.Release(sequencer=owner, failure=failure))
    driver.records.append(record.SerializeToString())
    driver.crash()
    [left], _ = driver.core.map.all_ranges(10)
    assert left.owner.last_report, "it is told when it left"
    assert left.owner.remarks == (NO_REMARKS if failure is None else Remarks(ended=True, failure=failure))


@pytest.mark.parametrize("user", ["etl:", "u:"])
def test_no_password_is_taken_over(user: str) -> None:
    password = "p@ss"
    url = f"jdbc://{user}{password}@db/in"
    report = workers_pb2.GroupReport(waiting_for=f"{url}/key=5/a.json")
    report.remarks.failure = f"{url} does not answer; token: {password}"
    report.remarks.untimed_rows = 3
    shown = codec.group(report)
    assert shown.waiting_for == f"jdbc://{user}***@db/in/key=5/a.json"
    assert shown.remarks == Remarks(failure="jdbc://***@db/in does not answer; token: ***", untimed_rows=3)


@pytest.mark.parametrize(
    "name", ["a" * 300, "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 300, "\n" * 300, "\udcff" * 300]
)
@pytest.mark.parametrize("others", [0, 1, 5])
def test_what_a_stage_waits_for_is_always_taken(name: str, others: int) -> None:
    text = in_short([f"/in/{name}.json (too old)", *["/in/b"] * others])
    assert checks.words("waiting_for", text) == text
    assert text.startswith(".../in/")
    assert text.removesuffix(f", and {others} more").endswith(".json (too old)")
    assert len(text.encode()) > 190, "no more is left out than has to be"


def test_a_text_without_its_password_is_no_longer_than_the_root_takes() -> None:
    report = workers_pb2.GroupReport(waiting_for="a://:p@ " * 25)
    report.remarks.failure = "sig=a " * 33
    shown = codec.group(report)
    report.waiting_for, report.remarks.failure = shown.waiting_for, shown.remarks.failure
    codec.group(report)


def test_when_its_owner_claimed_a_range_is_shown_and_whether_it_reported_since() -> None:
    d = Driver()

    def times() -> list[tuple[int, bool]]:
        ranges = sorted(d.core.map.all_ranges(10)[0], key=lambda entry: entry.start)
        views = [wire.range_view(codec.key_range_message(entry)) for entry in ranges]
        return [(view.claimed_micros, view.last_report_micros > view.claimed_micros) for view in views]

    claimed = d.now
    owner = d.claim(b"", b"").sequencer
    assert times() == [(claimed, False)]
    snapshot = recovery.snapshot(d.core)
    d.report(owner, MIN)
    assert times() == [(claimed, True)], "a report that promises nothing is one"
    d.crash()
    assert times()[0][0] == claimed, "the log has the claim"
    second, again = d.now, d.claim(b"m", b"").sequencer
    assert [time for time, _ in times()] == [0, second], "the rest is nobody's"
    d.release(again)
    assert times()[1][0] == 0
    d.records = []
    d.crash(snapshot=snapshot)
    assert times()[0][0] == 0, "a snapshot does not have it"


@pytest.mark.parametrize("snapshot", [False, True])
def test_how_a_worker_ended_is_unknown_when_it_has_not_reported_since_a_restart(snapshot: bool) -> None:
    def left() -> Remarks:
        [range_], _ = driver.core.map.all_ranges(10)
        return range_.owner.remarks

    for again in (False, True):
        driver = Driver()
        owner = driver.claim(b"", b"").sequencer
        report = GroupReport(owner, column([SECOND]), remarks=REMARKS)
        driver.core.report(report, sender=b"s", number=(1, 1), required=NO_FOLD, now=driver.now)
        driver.settle()
        image = recovery.snapshot(driver.core) if snapshot else None
        driver.records = [] if snapshot else driver.records
        driver.crash(snapshot=image)
        if again:
            driver.core.report(report, sender=b"s", number=(1, 2), required=NO_FOLD, now=driver.now)
        driver.release(owner)
        assert left() == (Remarks(ended=True, failure=REMARKS.failure) if again else NO_REMARKS)
        driver.crash(snapshot=image)
        assert left() == (Remarks(ended=True, failure=REMARKS.failure) if again else NO_REMARKS)
