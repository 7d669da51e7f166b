"""The oracle of the store: its content is true, nothing of it is lost, and some losses are excused when the store itself forgot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowwater_authority.core.codec import int64s
from lowwater_authority.core.groups import GroupState
from lowwater_authority.journal import GRAPH
from lowwater_authority.journal.frames import Kind, decode
from lowwater_authority.records import journal_pb2
from tests.kit.faults import Operation
from tests.simulation.ledger import Ledger, sequencers
from tests.simulation.reported import Reported
from tests.simulation.truth import MIN, Node, Pipeline

if TYPE_CHECKING:
    from lowwater_authority.authority import Authority
    from lowwater_authority.core.computation import Computation
    from lowwater_authority.core.topology import Spec
    from lowwater_authority.engine.graph_log import ReadGraph
    from lowwater_authority.engine.holding import Recovered
    from lowwater_authority.journal import LoadedLog, Ownership
    from tests.simulation.kernel import Process, Simulation


@dataclass
class Claim:
    name: str
    ranges: list[range]
    order: tuple[int, int]
    bound: int | None
    sequencer: int = 0
    granted_at: float = 0.0

    @property
    def cells(self) -> range:
        return range(self.ranges[0].start, self.ranges[-1].stop)


class Durable:
    """Looks at every write, and at whoever takes a computation over."""

    def __init__(self, sim: Simulation, pipeline: Pipeline, ledger: Ledger, *, weak: bool) -> None:
        self.violations: list[str] = []
        self.observations = 0
        self._sim = sim
        self._pipeline = pipeline
        self._ledger = ledger
        self._weak = weak
        pipeline.look_again = self._changed_by_others
        self._authorities: dict[str, tuple[Process, Authority]] = {}
        self._durable: dict[tuple[str, int], int] = {}
        self._highest: dict[tuple[str, int], int] = {}
        self._durable_claims: set[tuple[str, int]] = set()
        self._written: dict[tuple[str, int], set[int]] = {}
        self._excused: dict[str, int] = {}
        """The published value of a computation when a new owner came to do old work again: that value is not taken back."""
        self._reported = Reported()
        self._dropped: dict[str, int] = {}
        """The incarnations in which somebody was told that computations were dropped."""
        self.untaken: set[str] = set()
        """Logs of which a fail-over took away an ownership number that others may have read, and whose owner was not told of it."""
        self.damaged: set[str] = set()
        """Computations whose log was damaged in the store: it may be written again, from memory or for an incarnation after a drop."""
        self._stood: dict[tuple[str, int, int], int] = {}
        """Greatest durable value of the slice that had a cell, by computation, incarnation and cell: keys that are cut off keep it."""
        self._moved: dict[str, float] = {}
        self._held_by_workers: set[tuple[str, int]] = set()
        """Cells of slices that a worker was granted since they were retired last, if they were: none of them is taken out of a root."""
        self._grown: dict[str, int] = {}
        """The incarnation in which a computation was given another input: nobody has waited for that in older ones."""
        self._input_versions: dict[str, int] = {}
        """The newest version of the inputs that a computation has demanded, durably."""
        self._followed: dict[str, int] = {}
        """Greatest position of each log whose changes the oracle knows: the news of an older write may come behind it."""
        self._bereft: set[str] = set()
        """Computations of which something that was acknowledged, and is not just an advance, is lost for good."""

    def fail(self, message: str) -> None:
        self.violations.append(f"at {self._sim.now:.3f} s: {message}")

    def expect(self, holds: bool, message: str) -> None:
        self._expect(holds, message)

    def _expect(self, holds: bool, message: str) -> None:
        self.observations += 1
        if not holds:
            self.fail(message)

    def _not_ahead(self, name: str, low: int, where: str, incarnation: int = 0) -> None:
        if 0 < incarnation < self._grown.get(name, 0):
            return
        truth = self._pipeline.low(name)
        self._expect(low <= max(truth, self._excused.get(name, MIN)), f"{where}, but {truth} is not finished")

    # -- taking over -----------------------------------------------------------------------------------------------

    def started(self, process: Process, authority: Authority) -> None:
        shard = str(process)
        self._authorities = {name: entry for name, entry in self._authorities.items() if entry[0].alive}
        self._authorities[shard] = process, authority
        holdings = authority.shard.held
        resume: Callable[[Spec, Ownership, LoadedLog, Recovered | None], Computation] = holdings.resume

        def looked_at(
            spec: Spec, ownership: Ownership, loaded: LoadedLog, recovered: Recovered | None = None
        ) -> Computation:
            computation = resume(spec, ownership, loaded, recovered)
            if self._ledger.owners.get(spec.name) == ownership:
                self._check_takeover(shard, computation)
            else:
                self._sim.reach("a shard was replaced while it took over")
            return computation

        holdings.resume = looked_at  # type: ignore[method-assign]
        read_graph: Callable[[], Awaitable[ReadGraph]] = holdings.graph.read

        async def read_and_compared() -> ReadGraph:
            graph_read = await read_graph()
            self._read(shard, graph_read)
            return graph_read

        holdings.graph.read = read_and_compared  # type: ignore[method-assign]

    def _read(self, shard: str, graph_read: ReadGraph) -> None:
        loaded, graph = graph_read
        book = self._ledger.book(GRAPH)
        if loaded.last != book.position:
            return  # somebody has written since
        computations = {**graph.computations, **graph.dropped}
        self._expect(
            {name: spec.incarnation for name, spec in computations.items()} == book.incarnations
            and {name: spec.inputs for name, spec in computations.items()} == book.inputs
            and graph.dropped.keys() == book.dropped,
            f"{shard} reads another graph than what its log says up to {loaded.last}",
        )
        if loaded.snapshot is not None and loaded.records:
            self._sim.reach("the graph is a whole one and changes behind it")

    def _check_takeover(self, shard: str, computation: Computation) -> None:
        name = computation.spec.name
        self._sim.trace("held", process=shard, name=name, low=computation.low)
        lost = self._ledger.took(shard, name)
        self._expect(
            self._weak or not lost,
            f"{name} is taken over by {shard} without {len(lost)} records that were acknowledged",
        )
        if lost:
            self._sim.reach("something is lost for good")
            self._bereft.add(name)
        self._forget_uncovered(name, computation)
        computation.check()
        self._has_keys(computation)
        self._took_out(name, computation)
        self._stands(computation)
        self._sound(name, computation)
        self._remembers(computation)
        # What a crash left of the cache is durable now, though nobody was told before.
        stored = self._ledger.logs.get(name)
        self._followed[name] = stored.last if stored is not None else 0
        if stored is not None and stored.snapshot is not None and stored.records:
            self._sim.reach("a recovery from a snapshot and records behind it")
        incarnation = name, computation.incarnation
        if computation.low < self._durable.get(incarnation, MIN):
            self._sim.reach("a weak store went back")
        self._durable[incarnation] = computation.low
        self._highest[incarnation] = max(computation.low, self._highest.get(incarnation, MIN))
        self._durable_claims.update((name, sequencer) for sequencer, _ in computation.granted.values())
        for sequencer, group in computation.map.groups.items():
            values = computation.map.columns.values[group.slots()]
            self._written.setdefault((name, sequencer), set()).update(values.tolist())

    def _remembers(self, computation: Computation) -> None:
        name, book = computation.spec.name, self._ledger.book(computation.spec.name)
        about = f"{name}/{computation.incarnation} has come back without its"
        if book.incarnation == computation.incarnation:
            batch = computation.batches.last[0] if computation.batches.last is not None else 0
            self._expect(computation.order >= book.order, f"{about} order of claims")
            self._expect(batch >= book.batch, f"{about} last batch")
            self._expect(computation.low >= book.lows.get(book.incarnation, MIN), f"{about} low watermark")
        if not self._weak:
            for missing in self._reported.missing(computation):
                self.fail(f"{about} reports: {missing}")
        granted = {request: sequencer for request, (sequencer, _) in computation.granted.items()}
        self._expect(book.requests.items() <= granted.items(), f"{about} grants")
        self._expect(computation.last_sequencer >= max(sequencers(book), default=0), f"{about} sequencers")

    def _sound(self, name: str, computation: Computation) -> None:
        if self._may_lack_an_input(name, computation.input_version):
            return
        for cells, value in self._ranges(name, computation):
            truth = self._pipeline.least_of(name, cells)
            self._expect(value <= truth, f"{name} {cells} stands at {value}, but {truth} is not finished")

    def _may_lack_an_input(self, name: str, *input_versions: int) -> bool:
        """Return True if a slice has not heard of an input yet: its values by the older inputs count nowhere any more.

        ``input_versions``: those of the owners that take the slice over now.
        """
        root = self._pipeline.whole(name).name
        newest = self._input_versions.get(root, 0)
        owned = [
            computation.input_version
            for shard in self._authorities
            if (computation := self._owned_by(shard, name)) is not None
        ]
        return name != root and any(0 < version < newest for version in (*owned, *input_versions))

    def _owned_by(self, shard: str, name: str) -> Computation | None:
        return self._computation(shard, name) if self._owns(shard, name) else None

    def excuse_slices(self, name: str) -> None:
        """A computation has another input, which does not stand below what it has published. A slice of it may have gone further, and so may an older incarnation."""
        self._grown[name] = self._ledger.book(GRAPH).incarnations.get(name, 0)
        for slice_name in self._pipeline.nodes[name].slices:
            lows = [low for (computation, _), low in self._highest.items() if computation == slice_name]
            self._excused[slice_name] = max([self._excused.get(slice_name, MIN), *lows])

    def _covers_slices(self, name: str) -> None:
        for shard in self._authorities:
            computation = self._computation(shard, name)
            if computation is not None and self._owns(shard, name):
                self._sound(name, computation)

    def _ranges(self, name: str, computation: Computation) -> list[tuple[range, int]]:
        node = self._pipeline.whole(name)
        ranges, _ = computation.map.all_ranges(1000)
        return [
            (node.covered(range_.start, range_.end), range_.value)
            for range_ in ranges
            if range_.owner.state is not GroupState.RETIRED
        ]

    def _takes_out(self, log: str, record: journal_pb2.Record) -> None:
        """Keys that are retired, or claimed again, in the order of the record. What a slice does counts, and not what its root hears of it."""
        node = self._pipeline.whole(log)
        if log == node.name and node.cuts:
            for retire in (op.retire for op in record.ops if op.HasField("retire")):
                claimed = [at for at in node.covered(retire.start, retire.end) if (log, at) in self._held_by_workers]
                self._expect(
                    not claimed, f"{log} has taken out its slice of the cells {claimed}, which workers have claimed"
                )
            return
        for op in record.ops:
            match op.WhichOneof("kind"):
                case "retire":
                    cells = node.covered(op.retire.start, op.retire.end)
                    self._held_by_workers -= {(node.name, index) for index in cells}
                    self._pipeline.retire(log, cells)
                case "claim":
                    self._pipeline.revive(log, node.covered(op.claim.bounds[0], op.claim.bounds[-1]))
                case _:
                    pass

    def _took_out(self, name: str, computation: Computation) -> None:
        node = self._pipeline.whole(name)
        if (name == node.name and node.cuts) or computation.spec.keys.source:
            return
        ranges, _ = computation.map.all_ranges(1000)
        for range_ in ranges:
            cells = node.covered(range_.start, range_.end)
            if range_.owner.state is not GroupState.RETIRED:
                self._pipeline.revive(name, cells)
            elif not all(node.cells[index].retired for index in cells):
                self._held_by_workers -= {(node.name, index) for index in cells}
                self._pipeline.retire(name, cells)

    # -- writes ----------------------------------------------------------------------------------------------------

    def wrote(self, shard: str, operation: Operation) -> None:
        self._ledger.wrote(shard, operation)

    def durable(self, shard: str, operation: Operation) -> None:
        self._ledger.acknowledged(operation)
        for log, position in operation.places:
            if log == GRAPH:
                self._changed(position)
            if not log:
                continue
            if operation.name == "restore":
                self._restored(shard, log)
                self._followed[log] = position
            stored = self._ledger.logs.get(log)
            frame = stored.records.get(position) if stored is not None else None
            if operation.name == "append" and frame is not None:
                writer, _, payload = decode(log, position, frame, kind=Kind.RECORD)
                # A store that forgets may make an older owner, and its positions, the newest again.
                replaced = writer != self._ledger.states_of([log])[log].owner[:2]
                late = replaced and position <= self._followed.get(log, 0)
                self._followed[log] = max(position, self._followed.get(log, 0))
                self._recorded(shard, log, journal_pb2.Record.FromString(payload), late=late)

    def _changed_by_others(self) -> None:
        stored = self._ledger.logs.get(GRAPH)
        if stored is not None and stored.records:
            self._followed[GRAPH] = stored.last
            self._changed(min(stored.records))

    def _changed(self, position: int) -> None:
        """Follow the graph from a record on, as far as it is known to be durable, in the order of its log.

        A shard that was frozen behind its write brings the news of it behind those of newer ones.
        """
        stored = self._ledger.logs.get(GRAPH)
        self._followed[GRAPH] = max(position, self._followed.get(GRAPH, 0))
        for place, frame in sorted(stored.records.items()) if stored is not None else ():
            if position <= place <= self._followed[GRAPH]:
                payload = decode(GRAPH, place, frame, kind=Kind.RECORD).payload
                self._follow(journal_pb2.Topology.FromString(payload))

    def _follow(self, graph: journal_pb2.Topology) -> None:
        for computation in graph.computations:
            node = self._pipeline.nodes.get(computation.name)
            if node is None:
                continue
            self._cut(node, computation)
            if not computation.dropped and computation.first > self._grown.get(node.name, computation.first):
                # Dropped, and registered again by a request that was under way since before it had the other input.
                for lost in set(node.inputs) - set(computation.inputs):
                    self._pipeline.forget_input(node.name, lost)

    def _cut(self, node: Node, computation: journal_pb2.Computation) -> None:
        parts = tuple((part.number, node.covered(part.start, b"").start) for part in computation.cut)
        if not parts and not node.parts:
            return
        self._moved[node.name] = self._sim.now
        node.parts = parts  # none any more, once it was dropped and registered again
        self._pipeline.changed()
        if any(not part.HasField("source") for part in computation.cut):
            self._sim.reach("a slice took keys over")

    def _has_keys(self, computation: Computation) -> None:
        """A slice has the keys that its own log gives it.

        The graph names a cut before the slice has handed its keys over, and its writer may hear last, or never, that the record
        of the graph is durable: other shards have read it by then, and act on it.
        """
        spec = computation.spec
        if not spec.slice_of:
            return
        cells = self._pipeline.whole(spec.name).covered(*computation.map.span)
        if self._pipeline.own.get(spec.name) != cells:
            self._pipeline.own[spec.name] = cells
            self._pipeline.changed()

    def _recorded(self, shard: str, log: str, record: journal_pb2.Record, *, late: bool) -> None:
        """``late``: a next owner has read the record, and perhaps retired keys or granted them since."""
        computation = self._computation(shard, log)
        if computation is not None and self._owns(shard, log):
            self._has_keys(computation)
        if not late:
            self._takes_out(log, record)
        if any(op.HasField("move_out") for op in record.ops):
            self._moved[self._pipeline.whole(log).name] = self._sim.now
        incarnation = log, record.incarnation
        # Others may have gone on, when the news of this write is late.
        previous = MIN if self._weak else self._durable.get(incarnation, MIN)
        self._durable[incarnation] = max(record.low_micros, previous)
        self._highest[incarnation] = max(record.low_micros, self._highest.get(incarnation, MIN))
        self._not_ahead(log, record.low_micros, f"{log}/{record.incarnation} is written down at {record.low_micros}")
        self._durable_claims.update((log, op.claim.sequencer) for op in record.ops if op.HasField("claim"))
        for values in (op.values for op in record.ops if op.HasField("values")):
            self._written.setdefault((log, values.sequencer), set()).update(int64s(values.micros).tolist())
            for behind in (behind for arrived in values.arrived for behind in arrived.behind):
                self._expect(
                    behind.counted >= behind.told,
                    f"{behind.told} records of {log} came behind what their owner saw, but {behind.counted} count",
                )
        kinds = [op.WhichOneof("kind") for op in record.ops]
        if "batch" in kinds and "claim" in kinds[kinds.index("batch") :]:
            self._sim.reach("a claim committed the batch before it")
        if any(op.revoke.HasField("bound_micros") for op in record.ops):
            self._sim.reach("a new input lowered a range")
        if computation is not None:
            self._stands(computation)  # also when another has taken over since: it has read this
        # The news of a write may come late, and find that another has taken over: what this one has in memory is not published any more.
        if computation is not None and self._owns(shard, log):
            self._sound(log, computation)
            self._counts(computation)

    def _stands(self, computation: Computation) -> None:
        name = computation.spec.name
        self._input_versions[name] = max(computation.input_version, self._input_versions.get(name, 0))
        if not computation.spec.slice_of:
            return
        node, low = self._pipeline.whole(name), computation.map.minimum()
        for index in node.covered(*computation.map.span):
            key = node.name, computation.incarnation, index
            self._stood[key] = max(low, self._stood.get(key, MIN))

    def _counts(self, computation: Computation) -> None:
        root = self._pipeline.nodes.get(computation.spec.name)
        if root is None or not root.cuts:
            return
        for cells, value in self._ranges(root.name, computation):
            for name in (name for name, its in root.slices.items() if its == cells):
                stood = min(self._stood.get((root.name, computation.incarnation, index), MIN) for index in cells)
                self._expect(
                    value <= stood,
                    f"{name} counts as {value} in the incarnation {computation.incarnation}, but stood at {stood} at most",
                )

    def _owns(self, shard: str, log: str) -> bool:
        holding = self._authorities[shard][1].shard.held.served.get(log)
        return holding is not None and holding.ownership == self._ledger.owners.get(log)

    def _restored(self, shard: str, log: str) -> None:
        self._sim.reach("a log was put back from memory")
        # The end of a log that is written after a drop takes the place of all that was there, also when the next registration is
        # written at the same time: a shard that takes the log for that registration ends this one's ownership of it.
        ended = log in self._ledger.book(GRAPH).dropped or log in self._ledger.ended
        expected = self._is_damaged(log) or ended
        self._expect(
            self._weak or expected,
            f"{shard} restores the log of {log}, of which a store that keeps its word lost nothing",
        )
        if self._ledger.took(shard, log) and not expected:
            self._sim.reach("something is lost for good")
            self._bereft.add(log)
        book = self._ledger.book(log)
        self._durable[log, book.incarnation] = book.lows.get(book.incarnation, MIN)
        self._durable_claims.update((log, sequencer) for sequencer in sequencers(book))
        for incarnation, low in book.lows.items():
            self._highest[log, incarnation] = max(low, self._highest.get((log, incarnation), MIN))
        computation = self._computation(shard, log)
        if computation is not None:
            self._forget_uncovered(log, computation)
            self._sound(log, computation)

    def _computation(self, shard: str, log: str) -> Computation | None:
        entry = self._authorities.get(shard)
        return entry[1].shard.held.computation(log) if entry is not None else None

    # -- what is lost ----------------------------------------------------------------------------------------------

    def restore(self, name: str, cells: Iterable[int], time: int) -> None:
        """An owner, which has said so, does work from a time on once more. What was published in any incarnation is not taken back."""
        root = self._pipeline.whole(name)
        for affected in sorted({name, root.name, *root.slices}):
            lows = [low for (computation, _), low in self._highest.items() if computation == affected]
            self._excused[affected] = max([self._excused.get(affected, MIN), *lows])
        self._pipeline.restore(name, cells, time)
        if root.cuts:
            self._covers_slices(root.name)
        if name in self._bereft:
            for holder in self._holders(name):
                self._forget_uncovered(name, holder)

    def _forget_uncovered(self, name: str, computation: Computation) -> None:
        """Old work that was announced by what is lost for good holds nothing back: nobody knows of it until it is announced again."""
        if name in self._bereft:
            for cells, value in self._ranges(name, computation):
                self._pipeline.forget(name, cells, value)

    def _holders(self, name: str) -> list[Any]:
        computations = [self._computation(shard, name) for shard in self._authorities]
        return [computation for computation in computations if computation is not None]

    def _gone(self, name: str, sequencer: int) -> bool:
        return (self._weak or self._is_damaged(name)) and sequencer not in sequencers(self._ledger.book(name))

    def _is_damaged(self, log: str) -> bool:
        return log in self.damaged or (log != GRAPH and self._pipeline.whole(log).name in self.damaged)

    def knows_inputs(self, name: str, inputs: Iterable[str]) -> bool:
        input_lists = [self._ledger.book(GRAPH).inputs.get(name, ())]
        for process, authority in self._authorities.values():
            spec = authority.shard.topology.computations.get(name)
            if spec is not None and process.alive:
                input_lists.append(spec.inputs)
        return any(set(inputs) <= set(input_list) for input_list in input_lists)

    def lost_incarnations(self) -> list[str]:
        """Return the computations of which the store has forgotten a reset, or a drop: who was told of it waits for a later incarnation."""
        incarnations = self._ledger.book(GRAPH).incarnations
        newest = {
            name: max((incarnation for computation, incarnation in self._highest if computation == name), default=0)
            for name in incarnations
        }
        return [name for name, life in incarnations.items() if life < newest[name] or name in self.undropped()]

    def undropped(self) -> list[str]:
        book = self._ledger.book(GRAPH)
        return [
            name
            for name, incarnation in self._dropped.items()
            if book.incarnations.get(name, 0) < incarnation
            or (book.incarnations[name] == incarnation and name not in book.dropped)
        ]
