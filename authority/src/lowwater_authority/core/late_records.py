"""Late records of one computation, as claims report them and rounds count them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from lowwater import errors
from lowwater.core import lateness
from lowwater_authority.core.budget import MOST_ARRIVED, Arrivals, lateness_from
from lowwater_authority.core.groups import MOST_RECORDS
from lowwater_authority.core.requests import Refused
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.records import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowwater_authority.core.budget import Budget, Lateness, Pending
    from lowwater_authority.core.computation import View
    from lowwater_authority.core.groups import Group
    from lowwater_authority.core.topology import Spec


class LateRecords:
    """The late records of one computation.

    A claim reports totals. :meth:`arrived` compares them with its last report and judges the new
    records by the published watermarks; the op that it returns is journaled. :meth:`add` counts an
    op, live and in a replay, and :meth:`move` moves the budgets by all that a round has counted.
    """

    def __init__(self) -> None:
        self.passed: dict[int, tuple[int, int]] = {}
        """Records by share in ppm, as in View."""
        self._batches: list[tuple[int, Mapping[int, int], dict[int, int]]] = []
        """Records that this round has counted: the event time that their lateness counts from,
        records by bucket of lateness, and late ones by budget."""
        self._records = 0
        """Number of records in ``_batches``."""

    def __bool__(self) -> bool:
        """Return True when this round has counted any report."""
        return bool(self._batches)

    def arrived(
        self,
        spec: Spec,
        group: Group,
        reported: Lateness,
        view: View,
        budgets: Mapping[int, Budget],
        now: int,
        wall: int,
    ) -> pb.Arrived | Refused | None:
        """Return the records that a claim has not reported before; None: there are none.

        ``wall`` as in Computation.report. A report that cannot be true is refused.
        """
        before = group.arrivals or Arrivals()
        more = {bucket: count - before.counts.get(bucket, 0) for bucket, count in reported.counts.items()}
        records = sum(more.values())
        new = {ppm: reported.behind[ppm][0] - before.behind.get(ppm, 0) for ppm in budgets if ppm in reported.behind}
        problem = ""
        if min(more.values(), default=0) < 0 or not before.counts.keys() <= reported.counts.keys():
            problem = (
                "lateness has fewer records than before; send all that the claim has handed on since it was granted"
            )
        elif (total := sum(reported.counts.values())) > MOST_RECORDS:
            problem = f"lateness.counts has more than {MOST_RECORDS} records; no claim has that many, send those that it has handed on"
        elif max(budget.records for budget in budgets.values()) + self._records + records > MOST_ARRIVED:
            problem = f"lateness.counts takes {spec.name} beyond {MOST_ARRIVED} records; begin a new incarnation with 'lowwater reset {spec.name}'"
        elif min(new.values(), default=0) < 0:
            problem = "lateness.behind has fewer records than before; send how many of all came behind"
        elif wrong := [reported.behind[ppm][0] for ppm in new if reported.behind[ppm][0] > total]:
            problem = f"lateness.behind has {wrong[0]} of {total} records; send how many of all came behind"
        if problem:
            return Refused(group.sequencer, errors.InvalidArgument.reason, problem)
        limit = wall + spec.max_skew
        far = limit < reported.frontier != MAX
        if far or (records and reported.reference > limit):
            field, micros = ("frontier", reported.frontier) if far else ("reference", reported.reference)
            msg = f"lateness.{field}_micros: {spec.too_far(micros)}; nothing of it counts"
            return Refused(group.sequencer, errors.TooFarAhead.reason, msg)
        if not records and group.arrivals is not None and reported.frontier == before.frontier:
            return None
        behind = []
        for ppm, mark in ((budget.ppm, budget.micros) for budget in view.budgets if records):
            exactly = ppm in reported.behind and reported.behind[ppm][1] == mark
            may_be = 0 if exactly or mark == MIN else lateness.behind(more, reported.reference, mark)
            # A budget that earlier reports left out has more records here than are new. Those were
            # judged by the buckets already, so at most the new ones count.
            counted = max(min(new.get(ppm, 0), records), may_be)
            behind.append(pb.Behind(ppm=ppm, told=new.get(ppm, 0), counted=counted))
        passed = [
            pb.Passed(ppm=ppm, records=records, behind=lateness.behind(more, reported.reference, mark))
            for ppm, mark in view.heuristics
            if records and mark != MIN
        ]
        buckets = sorted(bucket for bucket, count in more.items() if count)
        return pb.Arrived(
            frontier_micros=reported.frontier,
            reference_micros=reported.reference,
            buckets=buckets,
            counts=[more[bucket] for bucket in buckets],
            behind=behind,
            passed=passed,
            time_micros=now,
        )

    def add(self, group: Group, op: pb.Arrived) -> None:
        """Count new records of a claim."""
        counts = dict(zip(op.buckets, op.counts, strict=True))
        group.arrivals = group.arrivals or Arrivals()
        reported = {behind.ppm: behind.told for behind in op.behind}
        group.arrivals.add(counts, reported, op.frontier_micros, op.time_micros)
        if group.arrived_before is not None and group.arrivals.recent.total >= group.arrived_before[1]:
            group.arrived_before = None
        self._batches.append((op.reference_micros, counts, {behind.ppm: behind.counted for behind in op.behind}))
        self._records += sum(op.counts)
        for passed in op.passed:
            records, late = self.passed.get(passed.ppm, (0, 0))
            self.passed[passed.ppm] = records + passed.records, late + passed.behind

    def move(
        self, budgets: Mapping[int, Budget], references: Mapping[int, int], low: int, pending: Pending | None
    ) -> None:
        """Move the budgets by the records of this round, which ends here.

        ``references`` has R by budget, where a mass or a frontier has changed. ``pending`` has the
        records that are still to come; None where the claims do not report them.
        """
        batches, self._batches, self._records = self._batches, [], 0
        totals: defaultdict[int, Counter[int]] = defaultdict(Counter)
        late = Counter[int]()
        for counted_from, by_bucket, behind in batches:
            totals[counted_from].update(by_bucket)
            late.update(behind)
        counts: dict[int, dict[int, int]] = {}
        for ppm, budget in budgets.items():
            reference = max(budget.reference, references.get(ppm, MIN))
            if reference == MAX:
                reference = budget.reference
            if reference not in counts:
                counts[reference] = lateness_from(totals, reference)
            budget.tick(counts[reference], late[ppm], reference, low, pending)
