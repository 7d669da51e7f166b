"""How a slice claims and reports at a root that the same process serves."""

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
    from lowwater_authority.engine.roots import Asked, Range, Told
    from lowwater_authority.engine.served import Served


def report_of(told: Told, mass: Mass | None, sequencer: int) -> GroupReport:
    """Return the report of a slice to its root."""
    late = {ppm: (behind, micros) for ppm, micros, _, behind in told.kept}
    records = max((records for _, _, records, _ in told.kept), default=0)
    return GroupReport(
        sequencer,
        np.array([told.low], dtype=np.int64),
        finish=told.low == MAX,
        fold=told.fold,
        oldest_operation=told.oldest_operation,
        mass=mass,
        waiting_for=told.waiting_for,
        lateness=Lateness({0: records} if records else {}, MIN, MIN, late) if late else None,
    )


class Here:
    """``Above`` for a root that this process serves itself."""

    def __init__(self, served: Served, owners: OwnerRequests) -> None:
        self._served = served
        self._owners = owners

    async def claim(self, asked: Asked) -> Range:
        """See Above."""
        request = ClaimRequest(
            asked.span,
            worker=asked.name,
            host=asked.host,
            identity=asked.identity,
            generation=asked.generation,
            ordinal=asked.ordinal,
            request_id=asked.request_id,
            bound_micros=np.array([asked.bound], dtype=np.int64),
        )
        grant = await self._owners.claim(asked.root, request)
        return RangeHere(self._served, self._owners, asked, grant.sequencer, int(grant.watermarks[0]))

    async def epoch(self, root: str) -> int:
        """See Above."""
        return self._served.epoch(root)


class RangeHere:
    """``Range`` at a root that this process serves itself."""

    def __init__(self, served: Served, owners: OwnerRequests, asked: Asked, sequencer: int, low: int) -> None:
        self.served = served
        self.owners = owners
        self.asked = asked
        self.sequencer = sequencer
        self.number = 0
        """Number of the newest report under this claim."""
        self.span = asked.span
        self.low = low
        self.incarnation = served.topology.get(asked.root).incarnation
        self.input_version = served.topology.required(asked.root).input_version

    @property
    def lost(self) -> bool:
        """See Range."""
        return not self.served.granted(self.asked.root, self.sequencer)

    async def say(self, told: Told, mass: Mass | None) -> None:
        """See Range."""
        self.number += 1
        report = self.asked.root, report_of(told, mass, self.sequencer)
        number = 1, self.number
        try:
            answers = await self.owners.report([report], sender=self.asked.request_id, number=number)
        except GivenUp as error:
            msg = f"another process has taken {self.asked.root} over, or what was written beside this could not be"
            raise errors.Unavailable(msg) from error
        for _, refused in answers:
            raise errors.BY_REASON[refused.reason](refused.message)

    async def vouch(self, told: Told) -> None:
        """See Range."""
        await self.owners.vouch(self.asked.root, self.sequencer, told.vouched, told.fold)

    async def retire(self) -> None:
        """See Range."""
        root, (start, end) = self.asked.root, self.asked.span
        await self.owners.retire(root, start, end, force=True, sequencer=self.sequencer)

    def close(self) -> None:
        """See Range."""
