"""Guarded writes: workers raise their claims in a store, read it, and write behind it, and what must never come of that.

The authority of the world grants the claims, to workers that are killed, frozen and replaced. The store judges by the production code, ``guard.row``. Requests
arrive late, twice or never, also when their sender is frozen or dead; the store loses its tail and comes back as another life. The truth is the whole story of
each slot, and asks no row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from lowwater_pipeline.guard import row
from lowwater_pipeline.guard.claim import Claim
from lowwater_pipeline.guard.errors import GuardError, Rewound

if TYPE_CHECKING:
    from lowwater._async.client import Client
    from lowwater.aio import Lease
    from tests.simulation.kernel import Process
    from tests.simulation.oracle import Oracle
    from tests.simulation.programs import Place

WRITTEN: Final = "enriched"
"""Whose workers write. A slot of the guard is a cell."""

RECORDS: Final = 400
"""That are to be written in each slot."""

PATIENCE: Final = 2.0
"""Seconds that a writer waits for an answer."""

UNDOABLE: Final = 12
"""Changes of the store that it may lose at once."""


def is_writing(seed: int) -> bool:
    """Whether guarded writes are made in the world of a seed: in two of nine."""
    return seed % 9 in (3, 6)


@dataclass(frozen=True)
class Slot:
    """What stands in one slot, and the truth about it."""

    row: row.Row | None = None
    records: tuple[int, ...] = ()
    owner: Claim | None = None
    """Who has raised last: the truth. None: nobody since the store came back."""


@dataclass
class Writes:
    """The store, and what is known of it."""

    place: Place
    oracle: Oracle
    slots: list[Slot]
    life: int = 1
    configuration: int = 1
    noted: dict[int, int] = field(default_factory=dict)
    """By slot: the last batch that was acknowledged. The writers' checkpoint, which the store does not lose."""
    lost: set[int] = field(default_factory=set)
    """Slots that have lost what was acknowledged, and nobody has noticed."""
    before: deque[list[Slot]] = field(default_factory=lambda: deque(maxlen=UNDOABLE))

    # -- what happens in the store, at one instant -------------------------------------------------------------

    def raise_(self, claim: Claim, cells: range) -> dict[int, row.Row]:
        """Raise a claim."""
        made = {
            cell: row.raised(self.slots[cell].row, claim, str(self.life), 0, f"slot {cell} of the guard")
            for cell in cells
        }
        self.before.append(list(self.slots))
        for cell in cells:
            owner = self.slots[cell].owner
            self.oracle.expect(
                owner is None or owner.token <= claim.token,
                f"claim {claim.token} was raised in slot {cell} after {owner and owner.token}",
            )
            self.slots[cell] = replace(self.slots[cell], row=made[cell], owner=claim)
        return made

    def read(self, cells: range) -> dict[int, int]:
        """Return how many records are there."""
        return {cell: len(self.slots[cell].records) for cell in cells}

    def write(self, claim: Claim, steps: dict[int, int], records: dict[int, range], digest: str) -> bool:
        """Write a batch."""
        rows = {cell: self.slots[cell].row for cell in steps}
        if not row.judge(rows, claim, str(self.life), steps, digest, "guard"):
            return False
        self.before.append(list(self.slots))
        for cell, batch in steps.items():
            slot, stands = self.slots[cell], rows[cell]
            about = f"claim {claim.token} writes {records[cell]} in slot {cell}"
            self.oracle.expect(slot.owner == claim, f"{about}, which belongs to {slot.owner and slot.owner.token}")
            self.oracle.expect(records[cell].start == len(slot.records), f"{about}, behind {len(slot.records)} records")
            self.oracle.expect(cell not in self.lost, f"{about}, which has lost what was acknowledged, unnoticed")
            made = None if stands is None else replace(stands, batch=batch, digest=digest)
            self.slots[cell] = replace(slot, row=made, records=(*slot.records, *records[cell]))
        return True

    def go_back(self, changes: int) -> None:
        """Come back as another life, without the last changes."""
        self.life += 1
        for _ in range(min(changes, len(self.before))):
            self.slots = self.before.pop()
        self.before.clear()
        for cell, slot in enumerate(self.slots):
            self.slots[cell] = replace(slot, owner=None)
            if slot.row is not None and slot.row.batch < self.noted.get(cell, row.NOTHING):
                self.lost.add(cell)
                self.place.sim.reach("guard: the store lost what it acknowledged")

    def complete(self) -> bool:
        """Whether everything is there, once."""
        return all(slot.records == tuple(range(RECORDS)) for slot in self.slots)

    async def forget(self) -> None:
        """Come back as another life now and then, until there is peace."""
        random = self.place.sim.rng("guarded store")
        while True:
            await asyncio.sleep(random.uniform(5, 25))
            if self.place.calm:
                return
            self.go_back(random.choice([0, 1, 2, 5, UNDOABLE]))

    # -- the way there -----------------------------------------------------------------------------------------

    async def ask(self, process: Process, call: Callable[[], Any]) -> Any:
        """Have something happen in the store. Raises TimeoutError when it is not known whether it has, or will."""
        sim, random = self.place.sim, self.place.sim.rng(f"guarded requests of {process}")
        bad = not self.place.calm
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def arrive(late: float, *, answers: bool) -> None:
            await asyncio.sleep(late)
            found: Any
            try:
                found = call()
            except GuardError as error:
                found = error
                sim.reach(f"guard: {type(error).__name__}")
            await asyncio.sleep(random.uniform(0.001, 0.02))
            if answers and not answer.done():
                answer.set_result(found)

        late = random.uniform(3, 20) if bad and random.random() < 0.05 else random.uniform(0.001, 0.05)
        if not bad or random.random() > 0.03:
            sim.god.start(lambda: arrive(late, answers=not bad or random.random() > 0.05))
        if bad and random.random() < 0.05:
            sim.god.start(lambda: arrive(random.uniform(0.1, 15), answers=False))
        found = await asyncio.wait_for(answer, PATIENCE)
        if isinstance(found, GuardError):
            raise found
        return found


# -- programs --------------------------------------------------------------------------------------------------------------


async def write(writes: Writes, process: Process, lw: Client, lease: Lease, cells: range) -> None:
    """Write behind one claim, until the store refuses it: then its worker has to claim again."""
    place = writes.place
    random = place.sim.rng(f"writes of {process}")
    if not place.calm and random.random() < 0.1:
        writes.configuration += 1
    old = not place.calm and random.random() < 0.05
    claim = Claim(
        lw.server_token,
        lease.computation.partition("~")[0],  # as Claim.of
        lease.incarnation,
        lease.sequencer,
        random.randbytes(16).hex(),
        writes.configuration - old,
        "query",
    )
    try:
        # A careless one does not wait for its raise: the store has to notice.
        found: dict[int, row.Row] = {}
        if place.calm or random.random() > 0.1:
            found = await _surely(writes, process, lambda: writes.raise_(claim, cells))
        there = await _surely(writes, process, lambda: writes.read(cells))
        last = {cell: writes.noted.get(cell, row.NOTHING) for cell in cells}
        # A batch may be there of which its writer never heard: what was read has it.
        last |= {cell: max(last[cell], stands.batch) for cell, stands in found.items()}
        while True:
            await asyncio.sleep(random.uniform(0.05, 1.0))
            chosen = [cell for cell in cells if there[cell] < RECORDS and (place.calm or random.random() < 0.7)]
            if not chosen:
                continue
            most = 50 if place.calm else 3
            records = {cell: range(there[cell], min(there[cell] + random.randint(1, most), RECORDS)) for cell in chosen}
            steps = {cell: last[cell] + 1 for cell in chosen}
            await _write(writes, process, claim, steps, records)
            for cell in chosen:
                there[cell], last[cell] = records[cell].stop, steps[cell]
    except Rewound:
        # What an operator does: the checkpoint is restored to what the store has.
        for cell in cells:
            stands = writes.slots[cell].row
            writes.noted[cell] = row.NOTHING if stands is None else stands.batch
            writes.lost.discard(cell)
    except GuardError:
        pass


async def _surely(writes: Writes, process: Process, call: Callable[[], Any]) -> Any:
    """Ask until there is an answer."""
    while True:
        try:
            return await writes.ask(process, call)
        except TimeoutError:
            writes.place.sim.reach("guard: outcome unknown")


async def _write(
    writes: Writes, process: Process, claim: Claim, steps: dict[int, int], records: dict[int, range]
) -> None:
    digest = str(sorted((cell, each.start, each.stop) for cell, each in records.items()))
    if not await _surely(writes, process, lambda: writes.write(claim, steps, records, digest)):
        writes.place.sim.reach("guard: there already")
    for cell, batch in steps.items():
        writes.noted[cell] = max(batch, writes.noted.get(cell, row.NOTHING))
