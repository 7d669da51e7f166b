"""The observer that knows the truth: checks every value that leaves the authority, and every value that a program sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lowwater import Completeness, History, Inputs, WatermarkView
from lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2, workers_pb2
from lowwater_authority.journal import GRAPH
from tests.simulation.durable import Claim, Durable
from tests.simulation.timers import TIMED
from tests.simulation.truth import MAX, MIN, Pipeline

if TYPE_CHECKING:
    from lowwater.aio import Lease
    from tests.simulation.kernel import Process, Simulation, Tap
    from tests.simulation.ledger import Ledger
    from tests.simulation.programs import Share

HOUR = 3_600_000_000


@dataclass
class Seen:
    """The newest values of one computation that one observer has seen."""

    incarnation: int = 0
    low: int = MIN
    shares: Mapping[int, int] = field(default_factory=dict)
    budgets: Mapping[int, int] = field(default_factory=dict)


class Oracle(Durable):
    def __init__(self, sim: Simulation, pipeline: Pipeline, ledger: Ledger, *, weak: bool, sharded: bool) -> None:
        super().__init__(sim, pipeline, ledger, weak=weak)
        self._sharded = sharded
        self._published: dict[str, Seen] = {}
        self._publishers: dict[tuple[str, int], str] = {}
        self._incarnations: dict[str, dict[int, float]] = {}
        self._listing: dict[int, watermarks_pb2.ListRangesRequest] = {}
        self._before: dict[int, dict[str, Seen]] = {}
        """The published values when a call was made; for a stream, the values that it was sent last."""
        self._seen: dict[tuple[str, int, str], Seen] = {}
        self._epochs: dict[tuple[str, int, str], int] = {}
        self._claims: dict[tuple[str, bytes], Claim] = {}
        self._asking: dict[int, Claim] = {}
        self._ended: dict[str, float] = {}
        """When a reset or new inputs of a computation were last asked for: all its older claims may be stale since."""
        self._released: set[tuple[str, int]] = set()
        self._histories: dict[tuple[str, int], dict[int, int]] = {}
        self._said: dict[tuple[str, int, int], int] = {}
        """The completeness that an output reports, by computation, incarnation and cell."""
        self._dropping: dict[int, int] = {}
        """The incarnation that somebody had been told of when a drop was asked for."""
        self._registered: dict[str, int] = {}

    # -- what is sent ----------------------------------------------------------------------------------------------

    def sent(self, tap: Tap) -> None:
        try:
            self._sent(tap)
        except Exception as error:  # noqa: BLE001 - not the sender's fault
            self._sim.abort(error)

    def arrived_late(self, message: Any) -> None:
        match message:
            case topology_pb2.ResetRequest() | topology_pb2.SetInputsRequest():
                self._ended.update(dict.fromkeys(self._pipeline.nodes, self._sim.now))
            case topology_pb2.DropRequest() | topology_pb2.RetireRequest():
                self._ended[self._pipeline.whole(message.computation).name] = self._sim.now
            case _:
                pass

    def _sent(self, tap: Tap) -> None:
        match tap.message:
            case (
                watermarks_pb2.WatchRequest()
                | watermarks_pb2.GetWatermarksRequest()
                | watermarks_pb2.CheckCompleteRequest()
            ):
                # What an answer, or a stream, begins with is no older than what anybody had been sent before it was asked for.
                self._before[tap.call] = dict(self._published)
            case watermarks_pb2.WatchResponse() as message:
                for watermark in message.watermarks:
                    self._publishes(tap, watermark)
            case watermarks_pb2.GetWatermarksResponse() as message:
                for watermark in message.watermarks:
                    self._publishes(tap, watermark)
            case watermarks_pb2.CheckCompleteResponse() as message:
                self._publishes(tap, message.watermark)
            case watermarks_pb2.ListRangesRequest() as message:
                self._listing[tap.call] = message
            case watermarks_pb2.ListRangesResponse() as message:
                self._lists(self._listing[tap.call], message)
            case workers_pb2.ClaimRequest() as message:
                self._asks(tap, message)
            case workers_pb2.ClaimResponse() as message:
                self._grants(tap, message)
            case workers_pb2.ReportRequest() as message:
                self._reported.sent(tap.call, message)
            case workers_pb2.CommitBatchRequest() as message:
                self._reported.commits(message)
            case topology_pb2.RegisterResponse() as message:
                self._keeps(message.computation)
            case topology_pb2.DropRequest() as message:
                self._ended[message.computation] = self._sim.now
                self._dropping[tap.call] = self._registered.get(message.computation, 0)
            case topology_pb2.DropResponse() as message:
                told = message.computation
                before = self._dropping[tap.call]
                self._expect(
                    told.incarnation >= before or self._weak,
                    f"{told.name} is dropped in its incarnation {told.incarnation}, after its incarnation {before}",
                )
                self._dropped[told.name] = max(told.incarnation, self._dropped.get(told.name, 0))
                self.keeps_the_graph()
            case topology_pb2.ResetResponse() as message:
                for each in message.computations:
                    self._keeps(each)
                    if self._is_root(each.name):
                        self._sim.reach("a root was reset under its slices")
            case topology_pb2.RetireRequest() as message:
                self._ended[self._pipeline.whole(message.computation).name] = self._sim.now
            case workers_pb2.ReportResponse() as message if message.HasField("ack"):
                for claim, values in self._reported.acknowledged(tap.call, message.ack).items():
                    self._acknowledges(claim, values)
                for refused in message.ack.refused:
                    self._refuses(refused)
            case topology_pb2.ResetRequest() | topology_pb2.SetInputsRequest():
                # What is reset takes its readers along.
                self._ended.update(dict.fromkeys(self._pipeline.nodes, self._sim.now))
            case _:
                pass

    def _keeps(self, told: topology_pb2.Computation) -> None:
        self._registered[told.name] = max(told.incarnation, self._registered.get(told.name, 0))
        self.keeps_the_graph()

    def keeps_the_graph(self) -> None:
        incarnations = self._ledger.book(GRAPH).incarnations
        for name in () if self._weak else self.undropped():
            self.fail(f"{name} was told to be dropped in its incarnation {self._dropped[name]}, but the store has it")
        for name, incarnation in self._registered.items():
            known = incarnations.get(name, 0)
            self._expect(
                known >= incarnation or self._weak,
                f"{name} was told to be in its incarnation {incarnation}, but the store knows {known}",
            )

    def _publishes(self, tap: Tap, message: types_pb2.Watermark) -> None:
        name, low = message.computation, message.low_micros
        if not message.registered:
            return
        # A single authority answers with what is the newest at that moment, whenever it was asked.
        streams = isinstance(tap.message, watermarks_pb2.WatchResponse)
        before = self._before[tap.call] if self._sharded or streams else self._published
        where = f"{name}/{message.incarnation} is published at {low}"
        self._not_ahead(name, low, where, message.incarnation)
        seen = Seen(
            message.incarnation,
            low,
            {each.share_ppm: each.micros for each in message.heuristics},
            {each.budget_ppm: each.micros for each in message.budgets},
        )
        for share, micros in seen.shares.items():
            self._expect(low <= micros and (micros != MAX or low == MAX), f"{where}, the {share} ppm one at {micros}")
        for each in message.budgets:
            self._expect(
                low <= each.micros and (each.micros != MAX or low == MAX),
                f"{where}, but its budget of {each.budget_ppm} ppm at {each.micros}",
            )
            self._expect(each.excused <= each.behind <= each.records, f"{where}, and a budget has {each}")
            if low < each.micros:
                self._sim.reach("a lateness budget is ahead of the low watermark")
            if each.behind:
                self._sim.reach("records came behind a lateness budget")
        self._incarnations.setdefault(name, {}).setdefault(seen.incarnation, self._sim.now)
        old, before[name] = before.get(name, Seen()), seen
        newest = self._published.get(name, Seen())
        if self._weak or (seen.incarnation, seen.low) > (newest.incarnation, newest.low):
            self._published[name] = seen
        if not self._weak:
            publisher = self._publishers.setdefault((name, message.epoch), str(tap.process))
            who = f"{where} by {tap.process}, but by {publisher} under the same epoch {message.epoch}"
            self._expect(publisher == str(tap.process), who)
            self._not_behind(old, seen, where)
            durable = self._durable.get((name, message.incarnation), MIN)
            self._expect(low <= durable, f"{where}, but only {durable} is durable")

    def _not_behind(self, old: Seen, new: Seen, where: str) -> None:
        self._expect(new.incarnation >= old.incarnation, f"{where} after its incarnation {old.incarnation}")
        if new.incarnation == old.incarnation:
            self._expect(new.low >= old.low, f"{where} after {old.low}")
            for share, micros in new.shares.items():
                self._expect(micros >= old.shares.get(share, MIN), f"{where}: its {share} ppm one falls to {micros}")
            for ppm, micros in new.budgets.items():
                self._expect(
                    micros >= old.budgets.get(ppm, MIN),
                    f"{where}: its budget of {ppm} ppm goes back from {old.budgets.get(ppm)} to {micros}",
                )

    def _lists(self, asked: watermarks_pb2.ListRangesRequest, message: watermarks_pb2.ListRangesResponse) -> None:
        name, limit = asked.computation, asked.below_micros if asked.HasField("below_micros") else MAX
        node = self._pipeline.whole(name)
        covered: list[int] = []
        for each in message.ranges:
            cells = node.covered(each.start, each.end)
            covered += cells
            truth = self._pipeline.least_of(name, cells)
            retired = each.state == types_pb2.RANGE_STATE_RETIRED
            holds = each.watermark_micros <= truth or retired or self._may_lack_an_input(name)
            self._expect(holds, f"{name} {cells} is shown at {each.watermark_micros}, but {truth} is not finished")
            self._expect(each.watermark_micros < limit or limit == MAX, f"{name} {cells} is not below {limit}")
        if len(message.ranges) == message.total and limit == MAX:
            self._expect(
                sorted(covered) == list(self._pipeline.cells_of(name)), f"the ranges of {name} cover {sorted(covered)}"
            )

    def _asks(self, tap: Tap, message: workers_pb2.ClaimRequest) -> None:
        node = self._pipeline.whole(message.computation)
        ranges = [node.covered(start, end) for start, end in pairwise(message.bounds)]
        # The claim of a tracked stage says where its ranges stand, and not that it does old work again.
        # That of a slice at its root says where the slice stands.
        again = message.bound_micros and message.computation != TIMED and not self._is_root(message.computation)
        bound = message.bound_micros[0] if again else None
        if self._is_root(message.computation):
            self._sim.reach("a slice was served by another shard than its root")
        claim = Claim(message.computation, ranges, (message.generation, message.ordinal), bound)
        self._asking[tap.call] = self._claims.setdefault((message.computation, message.request_id), claim)

    def _grants(self, tap: Tap, message: workers_pb2.ClaimResponse) -> None:
        claim = self._asking[tap.call]
        about = f"the claim {message.sequencer} of {claim.name} {claim.cells}"
        self._expect((claim.name, message.sequencer) in self._durable_claims, f"{about} is granted, but not durable")
        if claim.sequencer not in {0, message.sequencer} and self._gone(claim.name, claim.sequencer):
            claim.sequencer = 0  # the store does not know of it any more
        self._expect(claim.sequencer in {0, message.sequencer}, f"{about} was granted as {claim.sequencer} before")
        if claim.sequencer:
            self._sim.reach("a claim was granted twice")
            return
        claim.sequencer, claim.granted_at = message.sequencer, self._sim.now
        node = self._pipeline.whole(claim.name)
        if claim.name != node.name:
            self._held_by_workers.update((node.name, i) for i in claim.cells if not node.cells[i].retired)
        for other in self._claims.values():
            if other.name != claim.name or other is claim or not other.sequencer:
                continue
            self._expect(other.sequencer != claim.sequencer, f"{about} has the sequencer of another claim")
            older, newer = sorted((other, claim), key=lambda each: each.sequencer)
            # A reset forgets who owned: what was claimed before it is not compared.
            same_incarnation = not self._may_have_ended(older) and not self._gone(newer.name, newer.sequencer)
            # Slices are owned one by one.
            beside = self._is_root(claim.name) and not set(older.cells) & set(newer.cells)
            self._expect(
                older.order <= newer.order or not same_incarnation or beside,
                f"{about} is granted: {older} is the newer run",
            )
        if claim.bound is not None:
            self.restore(claim.name, claim.cells, claim.bound)
        self._written.setdefault((claim.name, claim.sequencer), set()).update(message.watermarks_micros)
        for cells, micros in zip(claim.ranges, message.watermarks_micros, strict=True):
            truth = self._pipeline.least_of(claim.name, cells)
            holds = micros <= truth or self._may_lack_an_input(claim.name)
            self._expect(holds, f"{about} begins with {cells} at {micros}, but {truth} is not finished")

    def _may_have_ended(self, claim: Claim) -> bool:
        """Return True if a reset, new inputs or a cut may have made a claim stale: asked for since, or shortly before and still on the way."""
        root = self._pipeline.whole(claim.name).name
        return max(each.get(root, float("-inf")) for each in (self._ended, self._moved)) >= claim.granted_at - 30

    def _is_root(self, name: str) -> bool:
        return name in self._pipeline.nodes and bool(self._pipeline.nodes[name].cuts)

    def _acknowledges(self, claim: tuple[str, int], values: set[int]) -> None:
        never = values - self._written.get(claim, set())
        self._expect(self._weak or not never, f"{claim} is told to stand at {sorted(never)}, which was never durable")

    def _refuses(self, refused: workers_pb2.RefusedRanges) -> None:
        if refused.reason != "STALE_SEQUENCER":
            return
        if self._is_root(refused.computation):
            return  # a slice that is served beside its root claims it without a message
        name, sequencer = refused.computation, refused.sequencer
        found = [claim for claim in self._claims.values() if claim.name == name and claim.sequencer == sequencer]
        if not found or (name, sequencer) in self._released:
            return  # granted, but the answer never came
        [claim] = found
        if self._gone(name, sequencer):
            return
        newer = any(
            other is not claim
            and other.name == name
            and (not other.sequencer or other.sequencer > sequencer)
            and set(other.cells) & set(claim.cells)
            for other in self._claims.values()
        )
        self._expect(
            newer or self._may_have_ended(claim),
            f"the claim {sequencer} of {name} {claim.cells} is refused as stale, and nobody replaced it",
        )

    # -- what programs see -----------------------------------------------------------------------------------------

    def viewed(self, process: Process, view: WatermarkView) -> None:
        if not view.registered:
            return
        where = f"{process.name} sees {view.computation}/{view.incarnation} at {view.low.micros}"
        self._not_ahead(view.computation, view.low.micros, where, view.incarnation)
        new = Seen(
            view.incarnation,
            view.low.micros,
            {share: mark.micros for share, mark in view.shares},
            {round(each.share * 1_000_000): each.watermark.micros for each in view.budgets},
        )
        key = (process.name, process.generation, view.computation)
        self._not_behind(self._seen.setdefault(key, Seen()), new, where)
        self._seen[key] = new
        epoch = self._epochs.setdefault(key, view.epoch)
        self._expect(view.epoch >= epoch, f"{where} under the epoch {view.epoch}, after {epoch}")
        self._epochs[key] = view.epoch

    def folded(self, process: Process, name: str, seen: Inputs) -> None:
        low = min((view.low.micros for view in seen.each.values()), default=MIN)
        self._expect(
            seen.low.micros <= low, f"{process.name} folds {seen.low.micros} for {name or 'itself'}, not {low}"
        )
        for view in seen.each.values():
            self.viewed(process, view)

    def incarnation(self, name: str) -> int:
        """Return the newest incarnation that everybody who is connected must know of: it was first published some seconds ago."""
        known = max(
            (incarnation for incarnation, at in self._incarnations.get(name, {}).items() if at < self._sim.now - 5),
            default=0,
        )
        return min(known, self._ledger.book(GRAPH).incarnations.get(name, known)) if self._weak else known

    def answered(self, process: Process, name: str, until: int, answer: Completeness) -> None:
        about = f"{process.name} is told about {name} to {until}: {answer}"
        self.viewed(process, answer.watermark)
        complete = answer.watermark.registered and until <= answer.watermark.low.micros
        self._expect(answer.complete == complete, about)
        held = [each.watermark.micros for each in answer.holders]
        self._expect(held == sorted(held) and all(micros < until for micros in held), about)
        self.reached(process, name, until, complete=answer.complete, incarnation=answer.watermark.incarnation)

    def reached(self, process: Process, name: str, until: int, *, complete: bool, incarnation: int = 0) -> None:
        if complete:
            self._not_ahead(name, until, f"{process.name} is told that {name} is complete to {until}", incarnation)

    def remembered(self, name: str, history: History) -> None:
        for each in history:
            highest = self._highest.get((name, each.incarnation), MIN)
            about = f"the history of {name}/{each.incarnation} is through {each.through.micros}"
            self._expect(each.through.micros <= highest, f"{about}, but it never came further than {highest}")
            known = self._histories.setdefault((name, each.incarnation), {})
            at = known.setdefault(each.through.micros, each.time_micros)
            self._expect(
                at == each.time_micros or self._weak,
                f"the history of {name} says that {each.through.micros} was complete at {each.time_micros}, and before at {at}",
            )

    # -- what programs do ------------------------------------------------------------------------------------------

    def claimed(self, process: Process, name: str, sequencer: int, share: Share) -> None:
        self._sim.trace("claimed", process=process.name, name=name, sequencer=sequencer, edges=share.edges)

    def flushed(self, process: Process, lease: Lease, oldest: Sequence[int], seen: Inputs) -> None:
        most = {handle: min(value, seen.low.micros) for handle, value in enumerate(oldest) if handle not in lease.lost}
        beyond = self._reported.beyond((lease.computation, lease.sequencer), most)
        self._expect(not beyond, f"{process.name} was told that its newest state is durable: {'; '.join(beyond)}")

    def offered(self, name: str, task: str, *, done: bool) -> None:
        self._expect(self._weak or not done, f"{name} offers {task}, which was done")

    def vouched(self, name: str, incarnation: int, through: int) -> None:
        """An output was told that it may say so: its owner keeps that in mind, so that no input comes below it."""
        for owner in (each for who in self._authorities if (each := self._owned_by(who, name)) is not None):
            kept = owner.incarnation != incarnation or owner.vouched >= through
            self._expect(
                self._weak or kept, f"an output of {name} may say {through}, but its owner knows of {owner.vouched}"
            )

    def says(self, name: str, incarnation: int, cells: Iterable[int], through: int) -> None:
        for index in cells:
            key = name, incarnation, index
            self._said[key] = max(through, self._said.get(key, MIN))
        self.look_at_outputs(name)

    def look_at_outputs(self, name: str) -> None:
        """Look whether what outputs say of a computation is true: in its incarnation, and in a store that keeps what an authority was told."""
        now = self._ledger.book(GRAPH).incarnations.get(name)
        for (other, incarnation, index), through in () if self._weak else self._said.items():
            if (other, incarnation) == (name, now):
                truth = self._pipeline.low_of(name, index, fresh=True)
                self._expect(
                    through <= truth,
                    f"an output of {name}/{incarnation} says {through} of cell {index}, but {truth} is still to come",
                )

    def released(self, name: str, sequencer: int) -> None:
        self._released.add((name, sequencer))

    def published(self, name: str) -> int:
        return self._published.get(name, Seen()).low

    def has_seen(self, process: Process, names: Iterable[str]) -> int:
        return min(self._seen.get((process.name, process.generation, name), Seen()).low for name in names)

    # -- at the end ------------------------------------------------------------------------------------------------

    def behind(self, names: Iterable[str]) -> dict[str, str]:
        lags = {}
        for name in names:
            low, truth = self.published(name), self._pipeline.low(name)
            if low != truth:
                lags[name] = f"{low}, the truth is {truth}"
        return lags
