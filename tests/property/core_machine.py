"""Random actions of owners, done to the core and to its oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from lowwater_authority.core.batches import MAX_PART_BYTES, PART_BYTES
from lowwater_authority.core.requests import Fold, GroupReport, Prepare, TaskAttempt
from tests.property.core_driver import MAX, MIN, column, flat, mass, part, request
from tests.property.core_pair import SHARES, SKEW, Pair
from tests.property.oracle_words import CELLS, Batch, Part, edge
from tests.property.second_opinion import Told

# Small numbers meet each other often. The last four stand for MIN, MAX, and both sides of the largest accepted lead.
times = st.integers(0, 24)
values = st.lists(times, min_size=1, max_size=3)
inner = st.lists(st.integers(0, CELLS), min_size=2, max_size=5, unique=True).map(lambda e: tuple(sorted(e)))
whole = st.lists(st.integers(1, CELLS - 1), max_size=3, unique=True).map(lambda e: (0, *sorted(e), CELLS))
edges = whole | inner
picks = st.integers(0, 5)
coins = st.booleans()
UNREGISTERED = (0,)
"""The fold of an input that was not registered yet."""
masses = st.none() | st.tuples(st.lists(times, max_size=3), st.integers(0, 3), st.lists(times, min_size=2, max_size=2))


class CoreMachine(Pair):
    """Every rule does the same to both, compares what they answer, and then all they hold."""

    @rule(edges=edges, bounds=st.lists(times | st.just(MAX), max_size=2), pick=picks, generation=picks)
    def claim(self, edges: tuple[int, ...], bounds: list[int], pick: int, generation: int) -> None:
        newest, past, next_ = self.oracle.order[0], self.oracle.committed, self.oracle.prepared
        batch = past[0] if past else newest
        generations = (newest, batch, batch, batch + 1, next_.number + 1 if next_ else newest + 1, max(0, newest - 1))
        fields = {
            "edges": edges,
            "worker": f"w{pick}",
            "identity": "other" if pick == 5 else "q",
            "order": (generations[generation], pick // 2),
            "request": b"%d" % len(self.requests),
            "bounds": bounds[:1] if len(bounds) != len(edges) - 1 else bounds,
            "digest": past[1] if past and pick % 2 else b"",
            "instead_of": self.replaced(pick, generation),
        }
        self.requests.append(fields)
        self.ask(fields)

    def replaced(self, pick: int, generation: int) -> int:
        del pick, generation
        return 0

    @initialize(edges=whole, bounds=st.lists(times, max_size=1))
    def first_claim(self, edges: tuple[int, ...], bounds: list[int]) -> None:
        self.claim(edges, bounds, 0, 1)

    @precondition(lambda self: self.requests)
    @rule(pick=picks)
    def repeat_claim(self, pick: int) -> None:
        self.ask(self.requests[-1 - pick % len(self.requests)])

    def ask(self, fields: dict[str, Any]) -> None:
        claim = request(
            [edge(e) for e in fields["edges"]],
            worker=fields["worker"],
            identity=fields["identity"],
            generation=fields["order"][0],
            ordinal=fields["order"][1],
            request_id=fields["request"],
            bound=fields["bounds"],
            digest=fields["digest"],
            instead_of=fields["instead_of"],
        )

        def ours() -> Any:
            grant = self.core.claim(claim, self.now)
            self.sequencers.append(grant.sequencer)
            lost = {}
            for fenced in grant.fenced:
                all_of_it = range(len(self.oracle.claims[fenced.sequencer].edges) - 1)
                lost[fenced.sequencer] = set(all_of_it if fenced.handles is None else fenced.handles)
            return grant.sequencer, grant.watermarks.tolist(), lost

        past, cells = self.oracle.committed, self.oracle.cells[fields["edges"][0] : fields["edges"][-1]]
        first = self.oracle.identity is None and fields["request"] not in self.oracle.granted
        assert self.core.revives(claim) == any(cell.state == "RETIRED" for cell in cells)
        begins = self.core.begins(claim, self.now)
        answer = self.same("claim", ours, lambda: self.oracle.claim(**fields, now=self.now))
        assert begins == (first and not isinstance(answer, str))
        self.steps["batch committed by a claim"] += self.oracle.committed != past
        self.check()

    @precondition(lambda self: self.turn % 5 == 4)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        sequencer = self.sequencer(pick)
        self.same("release", lambda: self.core.release(sequencer, self.now), lambda: self.oracle.release(sequencer))
        self.check()

    @rule(pick=picks, through=times, older=coins)
    def vouch(self, pick: int, through: int, older: bool) -> None:
        sequencer, fold = self.sequencer(pick), (self.fold[0] - (older and pick == 3), self.fold[1])
        fold = (fold[0], UNREGISTERED) if older and pick == 2 else fold
        self.same(
            "vouch",
            lambda: self.core.vouch(sequencer, self.tide + through, Fold(*fold), Fold(*self.fold), self.now),
            lambda: self.oracle.vouch(sequencer, self.tide + through, fold, self.fold, self.now),
        )
        self.check()

    @precondition(lambda self: self.oracle.last_sequencer % 4 == 3)
    @rule(added=coins, bound=times, mass_=masses)
    def revoke(self, added: bool, bound: int, mass_: Any) -> None:
        if mass_:  # what was reported right before, in the same round
            self.report_values(self.sequencer(0), [bound], True, -1, mass_)
        self.fold = (self.fold[0] + 1, self.fold[1])
        # What is behind the published low watermark is refused before it comes here.
        low = max(self.tide + bound, self.oracle.low) if added else None

        def ours() -> Any:
            return {f.sequencer for f in self.core.revoke(self.fold[0], self.now, bound=low)}

        self.same("revoke", ours, lambda: self.oracle.revoke(low))
        self.check()

    @precondition(lambda self: self.turn % 5 == 3)
    @rule(edges=inner, force=coins)
    def retire(self, edges: tuple[int, ...], force: bool) -> None:
        start, end = edges[0], edges[1]
        newest = self.sequencer(edges[2]) if len(edges) == 5 else None  # one that was decided on before, now and then

        def ours() -> Any:
            _, fenced = self.core.retire(edge(start), edge(end), force=force, now=self.now, newest_claim=newest)
            return {f.sequencer for f in fenced}

        self.same("retire", ours, lambda: set(self.oracle.retire(start, end, force=force, newest=newest)))
        self.check()

    @rule(pick=picks, values=values, whole=coins, special=st.integers(0, 10), mass_=masses)
    def report(self, pick: int, values: list[int], whole: bool, special: int, mass_: Any) -> None:
        self.report_values(self.sequencer(pick), values, whole, special, mass_)

    @rule(values=values, mass_=masses)
    def tick(self, values: list[int], mass_: Any) -> None:
        self.tide += 5
        for sequencer in [c.sequencer for c in self.oracle.claims.values() if c.owned and c.live]:
            self.report_values(sequencer, values, True, -1, mass_)

    def report_values(self, sequencer: int, values: list[int], whole: bool, special: int, mass_: Any) -> None:
        values = [self.tide + t for t in values]
        claim = self.oracle.claims.get(sequencer)
        count = len(claim.edges) - 1 if claim else 1
        handles = None if whole else sorted({v % count for v in values}, reverse=bool(special % 2))
        limit = self.now + SKEW
        extra = {0: [MIN], 1: [MAX], 2: [MAX], 3: [limit], 4: [limit + 1, limit], 5: [MAX, limit]}.get(special, [])
        lows = [*extra, *values[len(extra) > 0 :]]
        length = count if handles is None else len(handles)
        lows = [lows[i % len(lows)] for i in range(length if length != 1 and len(lows) > 1 else 1)]
        self.numbers += 1
        frontiers = {p: self.tide + t for p, t in zip(SHARES, mass_[2], strict=True)} if mass_ else {}
        if special == 6 and frontiers:
            frontiers = {SHARES[0]: limit + 1}
        elif special == 7 and frontiers:
            frontiers = {SHARES[1]: MAX}
        known_mass = Told(tuple(sorted(self.tide + t for t in mass_[0])), mass_[1], frontiers) if mass_ else None
        version, incarnations = self.fold
        folded = {9: (incarnations[0] + 1,), 10: UNREGISTERED}.get(special, incarnations)
        fold, operation = (version - (special == 8), folded), {7: self.now + 9}.get(special, values[-1] % 4)
        report = GroupReport(
            sequencer,
            column(lows),
            None if handles is None else np.array(handles, dtype=np.uint32),
            special in (1, 2),
            Fold(*fold),
            operation,
            mass(known_mass.pending, known_mass.recent, known_mass.frontiers) if known_mass else None,
        )
        fields: dict[str, Any] = {"sequencer": sequencer, "handles": handles, "values": lows}
        fields |= {"finish": report.finish, "fold": fold, "mass": known_mass, "operation": operation}
        self.reports.append((report, fields, b"%d" % (len(values) % 2), (1 + self.epoch, self.numbers)))
        self.send(*self.reports[-1])

    @precondition(lambda self: self.reports)
    @rule(pick=st.integers(0, 30))
    def repeat_report(self, pick: int) -> None:
        self.send(*self.reports[-1 - pick % len(self.reports)])

    def send(self, report: GroupReport, fields: dict[str, Any], sender: bytes, number: tuple[int, int]) -> None:
        required = Fold(*self.fold)
        self.same(
            "report",
            lambda: flat(self.core.report(report, sender=sender, number=number, required=required, now=self.now)),
            lambda: self.oracle.report(**fields, required=self.fold, sender=sender, number=number, now=self.now),
        )
        self.check()

    @rule(pick=picks, number=st.integers(0, 2), task=picks, oldest=values, finished=st.integers(0, 2))
    def stage(self, pick: int, number: int, task: int, oldest: list[int], finished: int) -> None:
        number += self.oracle.committed[0] if self.oracle.committed else 0
        self.stage_task(self.sequencer(pick // 5), number, (task % 2, task // 2, 0), oldest, finished)

    def stage_task(
        self, sequencer: int, number: int, name: tuple[int, int, int], oldest: list[int], finished: int
    ) -> None:
        most = 5 * PART_BYTES // 2 if finished == 2 else MAX_PART_BYTES
        claim = self.oracle.claims.get(sequencer)
        count = len(claim.edges) - 1 if claim else 1
        lows = {t % count: self.tide + t if t < 20 else MAX for t in oldest}
        pending = [self.tide + t for t in oldest if t > 5]
        task, part_ = TaskAttempt(*name), part(lows, pending, finished)
        self.same(
            "stage",
            lambda: self.core.stage_task(sequencer, number, task, part_, most=most),
            lambda: self.oracle.stage(sequencer, number, name, Part(lows, pending, finished), most),
        )

    @precondition(lambda self: self.oracle.parts or self.turn % 7 == 1)
    @rule(
        pick=st.integers(0, 3),
        back=st.integers(0, 2),
        task_count=st.integers(0, 3),
        bound=times | st.just(MAX),
        covers_all=coins,
    )
    def prepare(self, pick: int, back: int, task_count: int, bound: int, covers_all: bool) -> None:
        sequencer, number = self.oracle.parts_of if pick else (self.sequencer(0), self.oracle.parts_of[1] - back)
        tasks = sorted(self.oracle.parts)[:task_count] if task_count < 3 else [(0, 9, 9)]
        folded = UNREGISTERED if pick == 2 else (7,) if pick == 1 and not back else self.fold[1]
        bound = MIN if pick == 2 and back else bound  # which may be folded as long as an input is not registered
        self.fix(sequencer, max(0, number), tasks, bound, covers_all, (self.fold[0], folded))

    @rule(pick=picks, parts=st.lists(values, max_size=3), bound=times | st.just(MAX), covers_all=coins)
    def batch(self, pick: int, parts: list[list[int]], bound: int, covers_all: bool) -> None:
        self.tide += 2
        sequencer = self.sequencer(pick % 3)
        number = 1 + max(self.oracle.parts_of[1], self.oracle.committed[0] if self.oracle.committed else 0)
        names = [(index % 2, index, 0) for index in range(len(parts))]
        for name, oldest in zip(names, parts, strict=True):
            self.stage_task(sequencer, number, name, oldest, sum(oldest) % 4)
        self.fix(sequencer, number, names, bound, covers_all, self.fold)

    def fix(
        self,
        sequencer: int,
        number: int,
        tasks: list[tuple[int, int, int]],
        bound: int,
        covers_all: bool,
        fold: tuple[int, tuple[int, ...]],
    ) -> None:
        digest = b"%d" % number
        bound, operation = bound if bound in (MIN, MAX) else self.tide + bound, bound % 3
        frontiers = {SHARES[0]: min(bound, self.tide + 9), SHARES[1]: bound}
        named = [TaskAttempt(*task) for task in tasks]
        request = Prepare(sequencer, number, digest, named, bound, covers_all, Fold(*fold), operation, frontiers)
        batch = Batch(sequencer, number, digest, bound, covers_all, frontiers, fold, operation, {}, [], 0)
        self.same("prepare", lambda: list(self.core.prepare(request)), lambda: self.oracle.prepare(batch, tasks))

    @precondition(lambda self: self.oracle.prepared or self.turn % 7 == 0)
    @rule(other=st.integers(0, 5))
    def commit(self, other: int) -> None:
        prepared, past = self.oracle.prepared, self.oracle.committed
        sequencer, number = (prepared.sequencer, prepared.number) if prepared else (self.sequencer(0), 0)
        if not other and past:
            sequencer, number = self.oracle.committed_by, past[0]
        self.steps["batch committed"] += prepared is not None and prepared.sequencer == sequencer
        self.same(
            "commit",
            lambda: flat(self.core.commit(sequencer, number, Fold(*self.fold), self.now)),
            lambda: self.oracle.commit(sequencer, number, self.fold, self.now),
        )
        self.check()


class LaidOut(CoreMachine):
    """The same where key ranges are cut anew: layouts are wanted, and claims take the place of claims. On a walk of its own, so that the other one stays as it is."""

    def replaced(self, pick: int, generation: int) -> int:
        return self.sequencer(generation) if pick == 3 else 0

    @precondition(lambda self: self.turn % 5 == 0 and self.flying is None)
    @rule(starts=inner, pinned=coins, stale=st.integers(0, 5))
    def change_layout(self, starts: tuple[int, ...], pinned: bool, stale: int) -> None:
        version, bounds, tasks = self.oracle.layout
        incarnation = self.oracle.incarnation - (stale == 1)
        change = version - (stale == 2), (0, *starts[1:]), starts if pinned else ()
        if stale == 3 and version:
            change = version - 1, bounds, tasks
        self.same(
            "change_layout",
            lambda: self.core.change_layout(incarnation, *change),
            lambda: self.oracle.change_layout(incarnation, *change),
        )
        self.check()

    @precondition(lambda self: self.oracle.last_sequencer % 4 == 2)
    @rule(dropped=st.integers(0, 3).map(lambda chance: not chance))
    def reset(self, dropped: bool) -> None:
        self.begin_anew(dropped=dropped)
