"""Claims and reports of a slice at a root that the same process serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowwater import errors
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.requests import ClaimRequest, GroupReport
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.engine.round import GivenUp

if TYPE_CHECKING:
    from lowwater_authority.core.groups import Mass
    from lowwater_authority.engine.owner_requests import OwnerRequests
    from lowwater_authority.engine.roots import Range, SliceClaim, SliceReport
    from lowwater_authority.engine.served import Served


def report_of(report: SliceReport, mass: Mass | None, sequencer: int) -> GroupReport:
    """Return the report of a slice to its root."""
    late = {ppm: (behind, micros) for ppm, micros, _, behind in report.budgets}
    records = max((records for _, _, records, _ in report.budgets), default=0)
    return GroupReport(
        sequencer,
        np.array([report.low], dtype=np.int64),
        finish=report.low == MAX,
        fold=report.fold,
        oldest_operation=report.oldest_operation,
        mass=mass,
        waiting_for=report.waiting_for,
        lateness=Lateness({0: records} if records else {}, MIN, MIN, late) if late else None,
    )


class Here:
    """``Above`` for a root that this process serves itself."""

    def __init__(self, served: Served, owners: OwnerRequests) -> None:
        self._served = served
        self._owners = owners

    async def claim(self, claim: SliceClaim) -> Range:
        """See Above."""
        request = ClaimRequest(
            claim.span,
            worker=claim.name,
            host=claim.host,
            identity=claim.identity,
            generation=claim.generation,
            ordinal=claim.ordinal,
            request_id=claim.request_id,
            bound_micros=np.array([claim.bound], dtype=np.int64),
        )
        grant = await self._owners.claim(claim.root, request)
        return RangeHere(self._served, self._owners, claim, grant.sequencer, int(grant.watermarks[0]))

    async def epoch(self, root: str) -> int:
        """See Above."""
        return self._served.epoch(root)


class RangeHere:
    """``Range`` at a root that this process serves itself."""

    def __init__(self, served: Served, owners: OwnerRequests, claim: SliceClaim, sequencer: int, low: int) -> None:
        self.served = served
        self.owners = owners
        self.claim = claim
        self.sequencer = sequencer
        self.number = 0
        """Number of the newest report under this claim."""
        self.span = claim.span
        self.low = low
        self.incarnation = served.topology.get(claim.root).incarnation
        self.input_version = served.topology.required(claim.root).input_version

    @property
    def lost(self) -> bool:
        """See Range."""
        return not self.served.granted(self.claim.root, self.sequencer)

    async def report(self, report: SliceReport, mass: Mass | None) -> None:
        """See Range."""
        self.number += 1
        reports = [(self.claim.root, report_of(report, mass, self.sequencer))]
        number = 1, self.number
        try:
            answers = await self.owners.report(reports, sender=self.claim.request_id, number=number)
        except GivenUp as error:
            msg = f"another process has taken {self.claim.root} over, or another record of the same round was refused"
            raise errors.Unavailable(msg) from error
        for _, refused in answers:
            raise errors.BY_REASON[refused.reason](refused.message)

    async def vouch(self, report: SliceReport) -> None:
        """See Range."""
        await self.owners.vouch(self.claim.root, self.sequencer, report.vouched, report.fold)

    async def retire(self) -> None:
        """See Range."""
        root, (start, end) = self.claim.root, self.claim.span
        await self.owners.retire(root, start, end, force=True, sequencer=self.sequencer)

    def close(self) -> None:
        """See Range."""
