"""The observer that knows the truth: checks every value that leaves the authority, and every value that a program sees.

Values are checked at the moment they are *sent*, which is earlier and so stricter than the moment they are read: the truth
goes back only where an owner says that it does old work once more, and what was published before that is excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from lowwater import Completeness, History, Inputs, WatermarkView
from lowwater._pb.lowwater.v1 import topology_pb2, types_pb2, watermarks_pb2, workers_pb2
from lowwater_authority._pb.lowwater.journal.v1 import journal_pb2
from lowwater_authority.journal.faults import Operation
from lowwater_authority.journal.framing import Kind, decode
from lowwater_authority.journal.memory import MemoryDisk, StoredLog
from tests.simulation.truth import MAX, MIN, Pipeline

if TYPE_CHECKING:
    from lowwater_authority.authority import Authority
    from lowwater_authority.core.computation import Computation
    from tests.simulation.kernel import Process, Simulation, Tap
    from tests.simulation.programs import Share

HOUR = 3_600_000_000


@dataclass
class Claim:
    """One ClaimRequest that was sent, and what became of it."""

    name: str
    ranges: list[range]
    """The cells of each handle."""
    order: tuple[int, int]
    bound: int | None
    """From where on its owner has work to do again."""
    sequencer: int = 0
    """0 while nobody has answered."""
    granted_at: float = 0.0

    @property
    def cells(self) -> range:
        """All of them."""
        return range(self.ranges[0].start, self.ranges[-1].stop)


@dataclass
class Seen:
    """The newest values of one computation that one observer has seen."""

    incarnation: int = 0
    low: int = MIN
    shares: Mapping[int, int] = field(default_factory=dict)


class Oracle:
    """Collects violations; the world stops at the first."""

    def __init__(self, sim: Simulation, pipeline: Pipeline, disk: MemoryDisk, *, weak: bool) -> None:
        self.violations: list[str] = []
        self.observations = 0
        self._sim = sim
        self._pipeline = pipeline
        self._disk = disk
        self._weak = weak
        self._authority: Authority | None = None
        self._published: dict[str, Seen] = {}
        self._lives: dict[str, dict[int, float]] = {}
        """When each life of a computation was first published."""
        self._listing: dict[int, str] = {}
        self._streams: dict[int, dict[str, Seen]] = {}
        self._seen: dict[tuple[str, int, str], Seen] = {}
        self._durable: dict[tuple[str, int], int] = {}
        self._highest: dict[tuple[str, int], int] = {}
        self._durable_claims: set[tuple[str, int]] = set()
        self._claims: dict[tuple[str, bytes], Claim] = {}
        self._asking: dict[int, Claim] = {}
        self._ended: dict[str, float] = {}
        """When a reset or new inputs of a computation were last asked for: all its older claims may be stale since."""
        self._released: set[tuple[str, int]] = set()
        self._excused: dict[str, int] = {}
        """What was published of a computation when a new owner came to do old work again: that is not taken back."""
        self._orders: dict[tuple[str, int], tuple[int, int]] = {}
        self._batches: dict[tuple[str, int], int] = {}
        self._requests: dict[str, dict[bytes, int]] = {}
        self._histories: dict[tuple[str, int], dict[int, int]] = {}

    def fail(self, message: str) -> None:
        """A promise was broken."""
        self.violations.append(f"at {self._sim.now:.3f} s: {message}")

    def _expect(self, holds: bool, message: str) -> None:
        self.observations += 1
        if not holds:
            self.fail(message)

    # -- what is durable -------------------------------------------------------------------------------------------

    def started(self, authority: Authority) -> None:
        """An authority has recovered: its state must be sound."""
        self._authority = authority
        for name in authority.shard.names():
            computation = authority.shard._computation(name)
            computation._check()
            self._sound(name)
            self._remembers(computation)
            # What a crash left of the cache is durable now, though nobody was told before.
            stored = self._disk.logs[name] if name in self._disk.logs else StoredLog()
            if stored.snapshot is not None and stored.records:
                self._sim.reach("a recovery from a snapshot and records behind it")
            if computation.low < self.published(name):
                self._sim.reach("a weak store went back")
            life = name, computation.incarnation
            self._durable[life] = computation.low
            self._highest[life] = max(computation.low, self._highest.get(life, MIN))
            self._durable_claims.update((name, sequencer) for sequencer in computation.granted.values())

    def _remembers(self, computation: Computation) -> None:
        """What must not be lost is there: who may claim, what was committed, and every grant."""
        name = computation.spec.name
        life = name, computation.incarnation
        about = f"{name}/{computation.incarnation} has come back without its"
        batch = computation.last_batch[0] if computation.last_batch is not None else 0
        self._expect(computation.order >= self._orders.get(life, (0, 0)), f"{about} order of claims")
        self._expect(batch >= self._batches.get(life, 0), f"{about} last batch")
        requests = self._requests.get(name, {})
        self._expect(requests.items() <= computation.granted.items(), f"{about} grants")
        self._expect(computation.last_sequencer >= max(requests.values(), default=0), f"{about} sequencers")

    def _sound(self, name: str) -> None:
        """No key range stands beyond its own oldest work."""
        assert self._authority is not None
        node = self._pipeline.nodes[name]
        ranges, _ = self._authority.shard._computation(name).map.all_ranges(1000)
        for each in ranges:
            cells = node.covered(each.start, each.end)
            truth = self._pipeline.least_of(name, cells)
            self._expect(each.value <= truth, f"{name} {cells} stands at {each.value}, but {truth} is not finished")

    def durable(self, operation: Operation) -> None:
        """A write has become durable."""
        for log, position in operation.places:
            stored = self._disk.logs.get(log)
            frame = stored.records.get(position) if stored is not None else None
            if not log or operation.name != "append" or frame is None:
                continue
            record = journal_pb2.Record.FromString(decode(log, position, frame, kind=Kind.RECORD).payload)
            self._durable[log, record.incarnation] = record.low_micros
            self._highest[log, record.incarnation] = max(
                record.low_micros, self._highest.get((log, record.incarnation), MIN)
            )
            self._not_ahead(
                log, record.low_micros, f"{log}/{record.incarnation} is written down at {record.low_micros}"
            )
            self._durable_claims.update((log, op.claim.sequencer) for op in record.ops if op.HasField("claim"))
            for op in record.ops:
                self._remember(log, record.incarnation, op)
            kinds = [op.WhichOneof("kind") for op in record.ops]
            if "batch" in kinds and "claim" in kinds[kinds.index("batch") :]:
                self._sim.reach("a claim committed the batch before it")
            if any(op.revoke.HasField("bound_micros") for op in record.ops):
                self._sim.reach("a new input lowered a range")
            if self._authority is not None and log in self._authority.shard.names():
                self._sound(log)

    def _remember(self, name: str, incarnation: int, op: journal_pb2.Op) -> None:
        life = name, incarnation
        if op.HasField("claim"):
            order = op.claim.generation, op.claim.ordinal
            self._orders[life] = max(order, self._orders.get(life, (0, 0)))
            self._requests.setdefault(name, {})[op.claim.request_id] = op.claim.sequencer
        elif op.HasField("batch"):
            self._batches[life] = max(op.batch.number, self._batches.get(life, 0))

    # -- what is sent ----------------------------------------------------------------------------------------------

    def sent(self, tap: Tap) -> None:
        """A message leaves a process."""
        try:
            self._sent(tap)
        except Exception as error:  # noqa: BLE001 - not the sender's fault
            self._sim.abort(error)

    def _sent(self, tap: Tap) -> None:
        match tap.message:
            case watermarks_pb2.WatchRequest():
                # What a stream begins with is no older than what anybody had been sent before it was asked for.
                self._streams[tap.call] = dict(self._published)
            case watermarks_pb2.WatchResponse() as message:
                for watermark in message.watermarks:
                    self._publishes(watermark, self._streams[tap.call])
            case watermarks_pb2.GetWatermarksResponse() as message:
                for watermark in message.watermarks:
                    self._publishes(watermark, self._published)
            case watermarks_pb2.CheckCompleteResponse() as message:
                self._publishes(message.watermark, self._published)
            case watermarks_pb2.ListRangesRequest() as message:
                self._listing[tap.call] = message.computation
            case watermarks_pb2.ListRangesResponse() as message:
                self._lists(self._listing[tap.call], message)
            case workers_pb2.ClaimRequest() as message:
                self._asks(tap, message)
            case workers_pb2.ClaimResponse() as message:
                self._grants(tap, message)
            case workers_pb2.ReportResponse() as message if message.HasField("ack"):
                for refused in message.ack.refused:
                    self._refuses(refused)
            case topology_pb2.ResetRequest() | topology_pb2.SetInputsRequest():
                # What is reset takes its readers along.
                self._ended.update(dict.fromkeys(self._pipeline.nodes, self._sim.now))
            case _:
                pass

    def _publishes(self, message: types_pb2.Watermark, before: dict[str, Seen]) -> None:
        """A watermark goes out, to somebody who, or to whose stream, was sent something before."""
        name, low = message.computation, message.low_micros
        if not message.registered:
            return
        where = f"{name}/{message.incarnation} is published at {low}"
        self._not_ahead(name, low, where)
        seen = Seen(message.incarnation, low, {each.share_ppm: each.micros for each in message.heuristics})
        for share, micros in seen.shares.items():
            self._expect(
                low <= micros and (micros != MAX or low == MAX), f"{where}, but the {share} ppm one at {micros}"
            )
        self._lives.setdefault(name, {}).setdefault(seen.incarnation, self._sim.now)
        old, before[name] = before.get(name, Seen()), seen
        newest = self._published.get(name, Seen())
        if self._weak or (seen.incarnation, seen.low) > (newest.incarnation, newest.low):
            self._published[name] = seen
        if not self._weak:
            self._not_behind(old, seen, where)
            durable = self._durable.get((name, message.incarnation), MIN)
            self._expect(low <= durable, f"{where}, but only {durable} is durable")

    def _not_ahead(self, name: str, low: int, where: str) -> None:
        truth = self._pipeline.low(name)
        self._expect(low <= max(truth, self._excused.get(name, MIN)), f"{where}, but {truth} is not finished")

    def _not_behind(self, old: Seen, new: Seen, where: str) -> None:
        self._expect(new.incarnation >= old.incarnation, f"{where} after its life {old.incarnation}")
        if new.incarnation == old.incarnation:
            self._expect(new.low >= old.low, f"{where} after {old.low}")
            for share, micros in new.shares.items():
                self._expect(
                    micros >= old.shares.get(share, MIN), f"{where}: its {share} ppm one goes back to {micros}"
                )

    def _lists(self, name: str, message: watermarks_pb2.ListRangesResponse) -> None:
        node = self._pipeline.nodes[name]
        covered: list[int] = []
        for each in message.ranges:
            cells = node.covered(each.start, each.end)
            covered += cells
            truth = self._pipeline.least_of(name, cells)
            holds = each.watermark_micros <= truth
            self._expect(holds, f"{name} {cells} is shown at {each.watermark_micros}, but {truth} is not finished")
        if len(message.ranges) == message.total:
            self._expect(
                sorted(covered) == list(range(len(node.cells))), f"the ranges of {name} cover {sorted(covered)}"
            )

    def _asks(self, tap: Tap, message: workers_pb2.ClaimRequest) -> None:
        node = self._pipeline.nodes[message.computation]
        ranges = [node.covered(start, end) for start, end in pairwise(message.bounds)]
        bound = message.bound_micros[0] if message.bound_micros else None
        claim = Claim(message.computation, ranges, (message.generation, message.ordinal), bound)
        self._asking[tap.call] = self._claims.setdefault((message.computation, message.request_id), claim)

    def _grants(self, tap: Tap, message: workers_pb2.ClaimResponse) -> None:
        claim = self._asking[tap.call]
        about = f"the claim {message.sequencer} of {claim.name} {claim.cells}"
        self._expect((claim.name, message.sequencer) in self._durable_claims, f"{about} is granted, but not durable")
        self._expect(claim.sequencer in {0, message.sequencer}, f"{about} was granted as {claim.sequencer} before")
        if claim.sequencer:
            self._sim.reach("a claim was granted twice")
            return
        claim.sequencer, claim.granted_at = message.sequencer, self._sim.now
        for other in self._claims.values():
            if other.name != claim.name or other is claim or not other.sequencer:
                continue
            self._expect(other.sequencer != claim.sequencer, f"{about} has the sequencer of another claim")
            older, newer = sorted((other, claim), key=lambda each: each.sequencer)
            # A reset forgets who owned: what was claimed before it is not compared.
            same_life = not self._may_have_ended(older)
            self._expect(older.order <= newer.order or not same_life, f"{about} is granted: {older} is the newer run")
        if claim.bound is not None:
            self.restore(claim.name, claim.cells, claim.bound)
        for cells, micros in zip(claim.ranges, message.watermarks_micros, strict=True):
            truth = self._pipeline.least_of(claim.name, cells)
            self._expect(micros <= truth, f"{about} begins with {cells} at {micros}, but {truth} is not finished")

    def restore(self, name: str, cells: Iterable[int], time: int) -> None:
        """An owner, which has said so, does work from a time on once more. What was published in any life is not taken back."""
        shown = [low for (known, _), low in self._highest.items() if known == name]
        self._excused[name] = max([self._excused.get(name, MIN), *shown])
        self._pipeline.restore(name, cells, time)

    def _may_have_ended(self, claim: Claim) -> bool:
        """Whether a reset or new inputs may have made a claim stale: asked for since, or shortly before and still on the way."""
        return self._ended.get(claim.name, float("-inf")) >= claim.granted_at - 30

    def _refuses(self, refused: workers_pb2.RefusedRanges) -> None:
        """A claim is stale only if somebody made it so."""
        if refused.reason != "STALE_SEQUENCER":
            return
        name, sequencer = refused.computation, refused.sequencer
        found = [claim for claim in self._claims.values() if claim.name == name and claim.sequencer == sequencer]
        if not found or (name, sequencer) in self._released:
            return  # granted, but the answer never came
        [claim] = found
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
        """A program was shown watermarks."""
        if not view.registered:
            return
        where = f"{process.name} sees {view.computation}/{view.incarnation} at {view.low.micros}"
        self._not_ahead(view.computation, view.low.micros, where)
        new = Seen(view.incarnation, view.low.micros, {share: mark.micros for share, mark in view.shares})
        key = (process.name, process.generation, view.computation)
        self._not_behind(self._seen.setdefault(key, Seen()), new, where)
        self._seen[key] = new

    def folded(self, process: Process, name: str, seen: Inputs) -> None:
        """A program read the minimum over some inputs."""
        low = min((view.low.micros for view in seen.each.values()), default=MIN)
        self._expect(
            seen.low.micros <= low, f"{process.name} folds {seen.low.micros} for {name or 'itself'}, not {low}"
        )
        for view in seen.each.values():
            self.viewed(process, view)

    def life(self, name: str) -> int:
        """Return the newest life that everybody who is connected must know of: it was first published some seconds ago."""
        return max((life for life, at in self._lives.get(name, {}).items() if at < self._sim.now - 5), default=0)

    def answered(self, process: Process, name: str, until: int, answer: Completeness) -> None:
        """A program was told whether everything before a time is here, and if not, who holds it."""
        about = f"{process.name} is told about {name} to {until}: {answer}"
        self.viewed(process, answer.watermark)
        complete = answer.watermark.registered and until <= answer.watermark.low.micros
        self._expect(answer.complete == complete, about)
        held = [each.watermark.micros for each in answer.holders]
        self._expect(held == sorted(held) and all(micros < until for micros in held), about)
        self.reached(process, name, until, complete=answer.complete)

    def reached(self, process: Process, name: str, until: int, *, complete: bool) -> None:
        """A program goes on because everything before a time is here."""
        if complete:
            self._not_ahead(name, until, f"{process.name} is told that {name} is complete to {until}")

    def remembered(self, name: str, history: History) -> None:
        """A program was told when steps became complete: never before they were, and it stays what it was."""
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
        """A worker was granted its share."""
        self._sim.trace("claimed", process=process.name, name=name, sequencer=sequencer, edges=share.edges)

    def released(self, name: str, sequencer: int) -> None:
        """A worker gave its share back."""
        self._released.add((name, sequencer))

    def published(self, name: str) -> int:
        """Return the newest published low watermark."""
        return self._published.get(name, Seen()).low

    def has_seen(self, process: Process, names: Iterable[str]) -> int:
        """Return the least low watermark that a process has seen, over some computations."""
        return min(self._seen.get((process.name, process.generation, name), Seen()).low for name in names)

    # -- at the end ------------------------------------------------------------------------------------------------

    def behind(self, names: Iterable[str]) -> dict[str, str]:
        """What is not published at the truth, and by how much."""
        lags = {}
        for name in names:
            low, truth = self.published(name), self._pipeline.low(name)
            if low != truth:
                lags[name] = f"{low}, the truth is {truth}"
        return lags
