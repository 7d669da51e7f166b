"""An oracle of one computation, which works one key at a time."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from tests.kit.times import MINUTE
from tests.property.oracle_words import CELLS, Batch, Cell, Claim, Part, Refusal
from tests.property.second_opinion import MAX, MIN, Told, completed, heuristic

Folded = tuple[int, tuple[int, ...]]
"""The version of the inputs that somebody has folded, and the incarnation of each; 0: not registered."""


class Oracle:
    def __init__(self, shares: Sequence[int], skew: int, step: int, epoch_base: int) -> None:
        self.shares, self.skew, self.step, self.epoch_base = shares, skew, step, epoch_base
        self.history: list[tuple[int, int, int, int]] = []
        self.last_sequencer = 0
        self.granted: dict[bytes, int] = {}
        self.incarnation = 0
        self.layout: tuple[int, tuple[int, ...], tuple[int, ...]] = (0, (), ())
        """The one that is wanted: its version, where its ranges start, and in which tasks they run."""
        self.restart()

    def restart(self, *, dropped: bool = False) -> None:
        """Reset: a new incarnation, in which nothing is known and every sequencer is stale; none is ever granted twice.

        ``dropped``: the name was, and is registered again. What was wanted of it is not wanted any more, and its version is not used twice.
        """
        self.incarnation += 1
        if dropped:
            self.layout = (self.layout[0], (), ())
        self.cells = [Cell() for _ in range(CELLS)]
        self.claims: dict[int, Claim] = {}
        self.low = self.vouched = self.reference = MIN
        self.heuristics = dict.fromkeys(self.shares, MIN)
        self.identity: str | None = None
        self.order = (0, 0)
        self.committed: tuple[int, bytes] | None = None
        self.committed_by = 0
        self.changed = self.strong = False
        self.dirty: set[int] = set()
        self.forget_batches()

    def forget_batches(self) -> None:
        self.parts: dict[tuple[int, int, int], Part] = {}
        self.parts_of = (0, -1)
        self.ended = (0, -1)
        """Claim and number of the batch that was applied last: what comes of it, or of one before it, is too late."""
        self.prepared: Batch | None = None
        self.refused_of_batch: set[tuple[str, int | None]] = set()

    def crash(self, epoch_base: int) -> None:
        self.epoch_base = epoch_base
        self.forget_batches()

    def image(self) -> bytes:
        return pickle.dumps(self)

    # -- owners --------------------------------------------------------------------------------------------

    def claim(
        self,
        edges: tuple[int, ...],
        *,
        worker: str,
        identity: str,
        order: tuple[int, int],
        request: bytes,
        bounds: Sequence[int],
        digest: bytes,
        instead_of: int,
        now: int,
    ) -> tuple[int, list[int], dict[int, set[int]]]:
        if request in self.granted:
            claim = self.claims.get(self.granted[request])
            if claim is None or not claim.owned or not claim.live:
                raise Refusal("STALE_SEQUENCER")
            # A range that is no longer the claim's own has nothing to say to it.
            stands = [self.value(claim, h) if h in claim.live else MIN for h in range(len(claim.edges) - 1)]
            return claim.sequencer, stands, {}
        if self.identity not in (None, identity):
            raise Refusal("IDENTITY_MISMATCH")
        if order < self.order:
            raise Refusal("OLDER_CLAIM")
        if self.committed is not None:
            replay = order[0] == self.committed[0] and digest == self.committed[1] and digest != b""
            if order[0] <= self.committed[0] and not replay:
                raise Refusal("REWOUND")
        if instead_of:
            before = self.owner(instead_of)
            if len(before.live) < len(before.edges) - 1:
                raise Refusal("STALE_SEQUENCER")
        if any(now + self.skew < bound < MAX for bound in bounds):
            raise Refusal("TOO_FAR_AHEAD")
        if self.prepared is not None and self.prepared.number < order[0]:
            self.apply_prepared(now)
        start, end = edges[0], edges[-1]
        values = []
        for handle in range(len(edges) - 1):
            least = MAX
            for index in range(edges[handle], edges[handle + 1]):
                cell = self.cells[index]
                if cell.state != "RETIRED":
                    least = min(least, cell.value)
                elif not bounds or bounds[handle % len(bounds)] == MAX:
                    least = MIN
            values.append(min(least, bounds[handle % len(bounds)]) if bounds else least)
        new = Claim(max(self.last_sequencer, self.epoch_base) + 1, edges, worker)
        new.masses = self.inherited(start, end, revives=bool(bounds))
        new.stand_ins = new.masses or []
        lost = self.cut(start, end)
        for handle, value in enumerate(values):
            new.live.add(handle)
            for index in new.cells(handle):
                self.cells[index] = Cell(value, "OWNED", new, handle)
        self.claims[new.sequencer] = new
        self.last_sequencer = new.sequencer
        self.identity, self.order = identity, max(self.order, order)
        self.granted[request] = new.sequencer
        self.changed = self.strong = True
        return new.sequencer, values, lost

    def inherited(self, start: int, end: int, *, revives: bool) -> list[Told] | None:
        """The masses that stand for a new claim's records until it tells its own: those of whom it replaces whole.

        Takes the mass away from whom it replaces in part. A range that comes back by a bound has told nothing yet.
        """
        inside = self.cells[start:end]
        complete = all(cell.state != "RETIRED" and (cell.claim is not None or cell.value == MAX) for cell in inside)
        if revives and any(cell.value == MAX if cell.claim is None else self.finished(cell.claim) for cell in inside):
            complete = False
        masses: list[Told] = []
        for claim in {id(c.claim): c.claim for c in inside if c.claim is not None}.values():
            outside = any(c.claim is claim for c in self.cells[:start] + self.cells[end:])
            finished = self.finished(claim)
            if claim.masses is not None and not outside and not finished:
                masses += claim.masses
            elif not finished:
                complete = False
            if outside:
                claim.masses = None
        return masses if complete else None

    def cut(self, start: int, end: int) -> dict[int, set[int]]:
        lost: dict[int, set[int]] = {}
        for cell in self.cells[start:end]:
            claim, handle = cell.claim, cell.handle
            if claim is None or handle not in claim.live:
                continue
            if claim.owned:
                lost.setdefault(claim.sequencer, set()).add(handle)
            claim.live.remove(handle)
            for index in claim.cells(handle):
                self.cells[index] = Cell(self.cells[index].value, "UNOWNED")
        return lost

    def owner(self, sequencer: int) -> Claim:
        claim = self.claims.get(sequencer)
        if claim is None or not claim.owned or not claim.live:
            raise Refusal("STALE_SEQUENCER")
        return claim

    def disown(self, claim: Claim) -> None:
        claim.owned = False
        for cell in self.cells:
            if cell.claim is claim:
                cell.state = "UNOWNED"

    def change_layout(self, incarnation: int, expected: int, starts: Sequence[int], tasks: Sequence[int]) -> int:
        if incarnation != self.incarnation:
            raise Refusal("INCARNATION_CHANGED")
        if self.layout == (expected + 1, tuple(starts), tuple(tasks)):
            return expected + 1  # asked once more
        if self.layout[0] != expected:
            raise Refusal("LAYOUT_CONFLICT")
        self.layout = (expected + 1, tuple(starts), tuple(tasks))
        self.changed = self.strong = True
        return expected + 1

    def release(self, sequencer: int) -> None:
        self.disown(self.owner(sequencer))
        self.changed = self.strong = True

    def revoke(self, bound: int | None) -> set[int]:
        owners = {c.claim.sequencer for c in self.cells if c.claim is not None and c.claim.owned}
        for sequencer in owners:
            self.disown(self.claims[sequencer])
        if bound is not None:
            # A new input: it may bring work from there on, to any cell, and nobody has told of its records.
            for cell in self.cells:
                if cell.state != "RETIRED":
                    cell.value = min(cell.value, bound)
                    if cell.claim is not None:
                        cell.claim.masses, cell.claim.stand_ins = None, []
        self.changed = self.strong = True
        return owners

    def retire(self, start: int, end: int, *, force: bool, newest: int | None) -> dict[int, set[int]]:
        """``newest``: the newest claim that the caller knew of. What was cut off may be of any claim since; what is retired is of none."""
        if newest is not None:
            cut_off = self.last_sequencer
            claims = (c.claim.sequencer if c.claim else cut_off * (c.state == "UNOWNED") for c in self.cells[start:end])
            if not max(claims) <= newest <= self.last_sequencer:
                raise Refusal("STALE_SEQUENCER")
        owners = [c.claim for c in self.cells[start:end] if c.claim is not None and c.claim.owned]
        if not force and not all(self.finished(claim) for claim in owners):
            raise Refusal("OWNED_RANGES")
        self.inherited(start, end, revives=False)
        lost = self.cut(start, end)
        for index in range(start, end):
            self.cells[index] = Cell(MAX, "RETIRED")
        self.changed = self.strong = True
        return lost

    # -- reports -------------------------------------------------------------------------------------------

    def report(
        self,
        sequencer: int,
        handles: Sequence[int] | None,
        values: Sequence[int],
        *,
        finish: bool,
        fold: Folded,
        required: Folded,
        mass: Told | None,
        operation: int,
        sender: bytes,
        number: tuple[int, int],
        now: int,
    ) -> set[tuple[str, int | None]]:
        try:
            claim = self.owner(sequencer)
        except Refusal as refusal:
            return {(refusal.reason, None)}
        newest = claim.numbers.get(sender, (0, 0))
        if number <= newest:
            return {("OLD_STREAM", None)}
        if fold[0] != required[0]:
            return {("INPUT_VERSION", None)} if handles is None else {("INPUT_VERSION", h) for h in handles}
        claim.numbers[sender] = number
        if newest[0] < number[0]:
            # What an earlier stream has yet to say must not count, whatever is lost.
            self.changed, self.strong = True, self.strong or number[0] > 1
            self.dirty.add(sequencer)
        claim.operation = min(operation, now)
        above = [*values, *(mass.frontiers.values() if mass else ())]
        foreign = fold_refused(fold, required, max(above))
        refused: set[tuple[str, int | None]] = set()
        if foreign:
            spoken = (None,) if handles is None else [handle for handle in handles if handle in claim.live]
            refused |= {(foreign, handle) for handle in spoken}
        if mass is not None:
            if foreign:
                mass = mass._replace(frontiers=dict.fromkeys(mass.frontiers, MIN))
            refused |= self.take_mass(claim, mass, now)
        named = range(len(claim.edges) - 1) if handles is None else handles
        for position, handle in enumerate(named):
            value = MIN if foreign else values[position % len(values)]
            refused |= self.take_value(claim, handle, value, finish=finish, now=now)
        return refused

    def take_value(
        self, claim: Claim, handle: int, value: int, *, finish: bool, now: int
    ) -> set[tuple[str, int | None]]:
        if handle not in claim.live:
            return {("STALE_SEQUENCER", handle)}
        if value == MAX and not finish:
            return {("FINISH_REQUIRED", handle)}
        if now + self.skew < value < MAX and value > self.value(claim, handle):
            return {("TOO_FAR_AHEAD", handle)}
        for index in claim.cells(handle):
            cell = self.cells[index]
            if cell.value != value:
                self.changed = True
                self.dirty.add(claim.sequencer)
                self.strong = self.strong or value < cell.value
                cell.value = value
        return set()

    def take_mass(self, claim: Claim, mass: Told, now: int) -> set[tuple[str, int | None]]:
        if any(now + self.skew < frontier < MAX for frontier in mass.frontiers.values()):
            return {("TOO_FAR_AHEAD", None)}
        # A record from the far future counts as far ahead as any may be.
        mass = mass._replace(pending=tuple(min(time, now + self.skew) for time in mass.pending))
        if claim.masses is None or claim.mass != mass:
            self.changed = True
            self.dirty.add(claim.sequencer)
        claim.masses, claim.mass = [mass], mass
        return set()

    # -- micro-batches -------------------------------------------------------------------------------------

    def stage(self, sequencer: int, number: int, task: tuple[int, int, int], part: Part, most: int) -> None:
        self.owner(sequencer)
        key = (sequencer, number)
        if key < self.parts_of or key <= self.ended:
            return
        if key > self.parts_of:
            self.parts_of, self.parts = key, {}
        staged = self.parts | {task: part}
        size, before = (sum(part.bytes for part in parts.values()) for parts in (staged, self.parts))
        if size > max(most, before):
            raise Refusal("OVERLOADED")
        self.parts = staged

    def prepare(self, batch: Batch, tasks: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        self.owner(batch.sequencer)
        if 0 in batch.fold[1] and max(batch.bound, *batch.frontiers.values()) > MIN:
            raise Refusal("INVALID_ARGUMENT")
        key = (batch.sequencer, batch.number)
        if self.committed is not None:
            if batch.number < self.committed[0]:
                return list(tasks)  # long past: nothing is prepared
            if key == (self.committed_by, self.committed[0]):
                return []
        if self.prepared is not None and key < (self.prepared.sequencer, self.prepared.number):
            return list(tasks)
        have = self.parts if self.parts_of == key else {}
        missing = [task for task in tasks if task not in have]
        if missing:
            self.prepared = None
            return missing
        jobs: dict[int, list[Part]] = {}
        for task in tasks:
            jobs.setdefault(task[0], []).append(have[task])
            for handle, oldest in have[task].oldest.items():
                batch.oldest[handle] = min(oldest, batch.oldest.get(handle, MAX))
        if jobs:
            largest = max(jobs.values(), key=lambda parts: sum(part.records for part in parts))
            batch.pending = [t for part in largest for t in part.pending]
            batch.finished = sum(part.finished for part in largest)
        self.prepared = batch
        return []

    def commit(self, sequencer: int, number: int, required: Folded, now: int) -> set[tuple[str, int | None]]:
        self.owner(sequencer)
        batch = self.prepared
        if batch is None or (batch.sequencer, batch.number) != (sequencer, number):
            if self.committed is not None and self.committed[0] == number:
                return self.refused_of_batch
            raise Refusal("NOT_PREPARED")
        if batch.fold[0] != required[0]:
            raise Refusal("INPUT_VERSION")
        if was_reset(batch.fold, required):
            raise Refusal("INCARNATION_CHANGED")
        return self.apply_prepared(now)

    def vouch(self, sequencer: int, through: int, fold: Folded, required: Folded, now: int) -> None:
        self.owner(sequencer)
        if fold[0] != required[0]:
            raise Refusal("INPUT_VERSION")
        if refusal := fold_refused(fold, required, through):
            raise Refusal(refusal)
        if through > self.vouched:
            if now + self.skew < through < MAX:
                raise Refusal("TOO_FAR_AHEAD")
            self.vouched = through
            self.changed = self.strong = True

    def apply_prepared(self, now: int) -> set[tuple[str, int | None]]:
        batch, self.prepared = self.prepared, None
        assert batch is not None
        self.ended = max(self.ended, (batch.sequencer, batch.number))
        if self.parts_of <= self.ended:
            self.parts = {}
        try:
            claim = self.owner(batch.sequencer)
        except Refusal as refusal:
            return {(refusal.reason, None)}
        claim.operation = min(batch.operation, now)
        if batch.finished:
            minute = now // MINUTE
            claim.minutes[minute] = claim.minutes.get(minute, 0) + batch.finished
            claim.minutes = dict(sorted(claim.minutes.items())[-10:])
        mass = Told(tuple(sorted(batch.pending)), sum(claim.minutes.values()), dict(batch.frontiers))
        refused = self.take_mass(claim, mass, now)
        for handle in range(len(claim.edges) - 1):
            if handle in batch.oldest or not batch.covers_all:
                value = min(batch.bound, batch.oldest.get(handle, MAX))
                refused |= self.take_value(claim, handle, value, finish=batch.bound == MAX, now=now)
        if self.committed is None or batch.number >= self.committed[0]:
            self.committed, self.committed_by = (batch.number, batch.digest), batch.sequencer
        self.changed = self.strong = True
        self.refused_of_batch = refused
        return refused

    # -- watermarks ----------------------------------------------------------------------------------------

    def value(self, claim: Claim, handle: int) -> int:
        (value,) = {self.cells[index].value for index in claim.cells(handle)}
        return value

    def finished(self, claim: Claim) -> bool:
        return all(cell.value == MAX for cell in self.cells if cell.claim is claim)

    def minimum(self) -> int:
        return min(cell.value for cell in self.cells)

    def holders(self) -> list[Claim]:
        return list({id(c.claim): c.claim for c in self.cells if c.claim is not None}.values())

    def oldest_operation(self) -> int:
        claims = [claim for claim in self.holders() if claim.owned and not self.finished(claim)]
        return min((claim.operation for claim in claims if claim.operation), default=0)

    def greatest_frontier(self) -> int:
        """Return the greatest frontier of the claims that still have ranges: their last mass, or what stands in for it."""
        masses = [mass for claim in self.holders() for mass in ([claim.mass] if claim.mass else claim.stand_ins)]
        return max((time for mass in masses for time in mass.frontiers.values() if time != MAX), default=MIN)

    def record(self, now: int) -> bool | None:
        if not self.changed:
            return None
        # A computation all of whose cells were retired holds: nobody is left to say that nothing will come.
        least = self.minimum() if any(cell.state != "RETIRED" for cell in self.cells) else MIN
        old, self.low = self.low, max(self.low, least)
        if entry := completed(old, self.low, self.step):
            self.history.append((self.incarnation, *entry, now))
        self.reference = self.greatest_frontier()
        for share in self.shares:
            progress = heuristic(share, self.unfinished())
            self.heuristics[share] = max(self.heuristics[share], self.low, MIN if progress is None else progress)
        for sequencer in self.dirty:
            self.claims[sequencer].durable_numbers = dict(self.claims[sequencer].numbers)
        strong, self.strong, self.changed = self.strong, False, False
        self.dirty = set()
        return strong

    def unfinished(self) -> list[list[Told] | None]:
        masses: list[list[Told] | None] = [
            None for c in self.cells if c.claim is None and c.state != "RETIRED" and c.value != MAX
        ]
        return masses + [claim.masses for claim in self.holders() if not self.finished(claim)]


def was_reset(fold: Folded, required: Folded) -> bool:
    """Return whether an input was reset after it was folded; 0: it was not registered then."""
    return any(folded not in (0, now) for folded, now in zip(fold[1], required[1], strict=True))


def fold_refused(fold: Folded, required: Folded, above: int) -> str:
    """Return why what goes up to a value does not count, by the inputs that it folds; empty: it counts."""
    if was_reset(fold, required):
        return "INCARNATION_CHANGED"
    return "INVALID_ARGUMENT" if 0 in fold[1] and above > MIN else ""
