"""Bugs, planted one at a time into the production code: the simulator must find each of them."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from lowwater import Inputs
from lowwater.aio import Lease, Worker
from lowwater.core import lateness
from lowwater.core.fold import Fold
from lowwater.core.ratchet import Ratchet
from lowwater.core.reports import ReporterState
from lowwater.core.router import Router
from lowwater_authority.cluster.cluster import Cluster
from lowwater_authority.cluster.membership import Beats, View
from lowwater_authority.core import names, recovery, topology
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.computation import View as View_
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.late_records import LateRecords
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine import endings, graph_log, holding
from lowwater_authority.engine import round as rounds
from lowwater_authority.engine.holdings import Holdings
from lowwater_authority.engine.hub import Hub
from lowwater_authority.engine.logs import Log, Logs
from lowwater_authority.engine.requests import Requests
from lowwater_authority.engine.round import Round, Rounds
from lowwater_authority.engine.slice import Slice
from lowwater_authority.journal import GRAPH, End, JournalCorrupt, JournalFailed, frames, rules
from lowwater_authority.records import journal_pb2
from tests.kit import memory_journal as memory
from tests.kit.memory_journal import MemoryJournal
from tests.kit.planting import Bug, Part, bug
from tests.property import slice_switches
from tests.simulation.chaos import is_budgeted, is_hasty, is_rotten, is_sharded, is_sliced, is_weak
from tests.simulation.runs import MOVES, live
from tests.simulation.timer_mutants import TIMING
from tests.simulation.timers import is_timed

SEEDS: Final = 40

FIRST: Final = 1_000_000

FINDERS: Final = Path(__file__).with_name("finders.json")

NEVER: Final = re.compile("nothing went wrong for")
"""The message of a world that does not arrive. An ``unsafe`` bug is not found by that alone."""

FAILED: Final = re.compile(r"\b(AttributeError|KeyError|NameError|TypeError)\b")
"""The errors of a bug that does not fit any more to the code into which it is planted: such a bug finds nothing."""

Planted = pytest.MonkeyPatch
Plant = Bug | Callable[[Planted], None]


@bug("_append_records", Rounds)
def publish_before_append(append: Part) -> Part:
    """Values are shown while their record is on its way to the disk (rule 2)."""

    async def late(self: Rounds, round_: Round) -> None:
        if round_.topology is not None:  # what is dropped has no log any more that could be written
            await append(self, round_)
            return
        appending = asyncio.ensure_future(append(self, round_))
        await asyncio.sleep(0)  # the records are taken
        self._publish(round_, 0)
        await appending

    return late


@bug("recover", recovery)
def forget_an_interval_on_recovery(recover: Part) -> Part:
    """The first of the claims found in the journal holds nothing back after a restart (rule 1)."""

    def forgetful(*arguments: Any, **more: Any) -> Computation:
        computation: Computation = recover(*arguments, **more)
        for group in [group for group in computation.map.run_groups() if group.sequencer][:1]:
            computation.map.columns.set(group.slots(), MAX)
        return computation

    return forgetful


@bug("replay_budgets", Computation)
def forget_the_budget_on_recovery(replay: Part) -> Part:
    """A replay works out a budget's published value from the records, and not from the record that says it (rule 3)."""

    def forgetful(self: Computation, record: journal_pb2.Record) -> None:
        replay(self, record)
        for budget in self.budgets.values():
            budget.value = self.low

    return forgetful


@bug("arrived", LateRecords)
def judge_by_what_was_not_shown(arrived: Part) -> Part:
    """Records are judged by where a budget would stand without its ratchet, which no reader sees (rule 2)."""

    def unratcheted(
        self: LateRecords, spec: Spec, group: Any, reported: Lateness, view: View_, budgets: Any, *times: int
    ) -> Any:
        bare = tuple(
            published._replace(micros=max(MIN, budget.reference - budget.delay()))
            if budget.reference > MIN
            else published
            for published, budget in zip(view.budgets, budgets.values(), strict=True)
        )
        reported = replace(reported, behind={ppm: (n, MAX) for ppm, (n, _) in reported.behind.items()})
        op = arrived(self, spec, group, reported, replace(view, budgets=bare), budgets, *times)
        for behind in op.behind if isinstance(op, journal_pb2.Arrived) else ():
            counts = dict(zip(op.buckets, op.counts, strict=True))
            mark = next(published.micros for published in bare if published.ppm == behind.ppm)
            behind.counted = lateness.behind(counts, op.reference_micros, mark) if mark > MIN else 0
        return op

    return unratcheted


@bug("take_record", Computation)
def silence_counts_as_idle(take_record: Part) -> Part:
    """Ranges that have not been reported for five seconds hold nothing back (rule 1)."""

    def careless(self: Computation, now: int) -> Any:
        for group in self.map.groups.values():
            if group.state is GroupState.OWNED and 0 < group.last_report < now - 5_000_000:
                self.map.columns.set(group.slots(), MAX)
        return take_record(self, now)

    return careless


@bug("claim", Worker)
def fold_newer_inputs(claim: Part) -> Part:
    """The newest inputs take the place of the snapshot that the worker passed (rule 5)."""

    async def remembering(self: Worker, *arguments: Any, **more: Any) -> Lease:
        lease: Lease = await claim(self, *arguments, **more)
        lease.__dict__["worker"] = self
        return lease

    return remembering


@fold_newer_inputs.also("_fold", Lease)
def _newest(fold: Part) -> Part:
    def newest(self: Lease, inputs: Inputs | None, frontier: Any) -> Fold:
        reader = self.__dict__["worker"]._reader
        if inputs is not None:
            runtime, subscription = reader._ready()
            inputs = reader._folding.fold(runtime.watcher.state, subscription)
        folded: Fold = fold(self, inputs, frontier)
        return folded

    return newest


@bug("is_usurped", memory, rules)
def skip_the_epoch_check(_: Part) -> Part:
    """The store takes writes of a shard that was replaced, as long as they fit (rule 4)."""
    return lambda mine, stored: False


@bug("epoch_base", holding, endings)
def restart_counters_after_a_lost_epoch(_: Part) -> Part:
    """Sequencers are counted from the epoch alone, and from those that still own something (rule 4)."""
    return lambda ownership: ownership.epoch << 40


@restart_counters_after_a_lost_epoch.also("recover", recovery)
def _restarting(recover: Part) -> Part:
    def restarting(*arguments: Any, **more: Any) -> Computation:
        computation: Computation = recover(*arguments, **more)
        computation.last_sequencer = max(computation.map.groups, default=0)
        return computation

    return restarting


@bug("redirected", Router)
def follow_a_redirect_to_a_lower_epoch(redirected: Part) -> Part:
    """The client believes a shard that was asleep (rule 3). What it is then told must be believed as well: both checks are off."""

    def credulous(self: Router, name: str, address: str, epoch: int) -> bool:
        self._route(name).epoch = 0
        return bool(redirected(self, name, address, epoch))

    return credulous


@follow_a_redirect_to_a_lower_epoch.also("admit", Ratchet)
def _forgetful(admit: Part) -> Part:
    def forgetful(self: Ratchet, view: Any) -> bool:
        current = self.get(view.computation)
        if view.epoch < current.epoch:
            self._entries[view.computation].view = replace(current, epoch=0)
        return bool(admit(self, view))

    return forgetful


@bug("_end", endings.Endings)
def leave_the_log_of_what_is_dropped(_: Part) -> Part:
    """A dropped log stays as it was: should it be damaged, nobody can ever read the next incarnation of it."""

    async def leave(self: endings.Endings, name: str, *_: Any) -> None:
        self._over(name)

    return leave


@bug("_tombstone", topology)
def forget_the_tombstone(_: Part) -> Part:
    """A dropped computation leaves nothing behind, and its log stays as it was: its next registration begins with incarnation 1 (rule 3)."""
    return lambda spec: Spec(spec.name, incarnation=0, input_version=0)


forget_the_tombstone.includes(leave_the_log_of_what_is_dropped)


@forget_the_tombstone.also("begin", endings.Endings)
def _no_end(_: Part) -> Part:
    return lambda self, name: None


@bug("decode_records", memory)
def take_what_is_damaged_for_the_end(decode_records: Part) -> Part:
    """A log ends in front of a record that cannot be read, as if the last write had been torn (rules 2 and 10)."""

    def lenient(log: str, records: Sequence[tuple[int, bytes]], **more: Any) -> Any:
        try:
            return decode_records(log, records, **more)
        except JournalCorrupt as damage:
            intact = [(position, frame) for position, frame in records if position < (damage.position or 0)]
            return [(position, frames.decode(log, position, frame).payload) for position, frame in intact], {}

    return lenient


@bug("heal_damage", graph_log.GraphLog)
def leave_a_damaged_graph(_: Part) -> Part:
    """A graph that cannot be read stays as it is, though the shards have it in memory: nobody can be started, or take anything over."""

    async def refuse(self: graph_log.GraphLog, damage: JournalCorrupt) -> None:
        raise JournalFailed(str(damage))

    return refuse


@bug("end", rounds._Request)
def answer_what_has_left_a_round(end: Part) -> Part:
    """A computation that another shard has taken leaves the round, and its callers are answered as if it were written too (rule 2)."""

    def answer_all(self: Any, result: Any, dropped: Mapping[str, Exception], *unheard: Any) -> None:
        del dropped
        end(self, result, {}, *unheard)

    return answer_all


@bug("record", graph_log.GraphLog)
def lose_a_change_by_compaction(record: Part) -> Part:
    """The whole graph that replaces its changes is the one that stood in front of the last of them (rule 2)."""

    def remembering(self: graph_log.GraphLog, graph: Topology, *, whole: bool) -> Any:
        self.logs.__dict__["older"] = self.topology
        return record(self, graph, whole=whole)

    return remembering


@lose_a_change_by_compaction.also("snapshot", Logs)
def _older(snapshot: Part) -> Part:
    async def older(self: Logs, log: Log, take: Callable[[], Iterable[bytes]], now: int = 0, **how: bool) -> None:
        has_older = log.name == GRAPH and "older" in self.__dict__
        await snapshot(self, log, (lambda: [self.__dict__["older"].encode()]) if has_older else take, now, **how)

    return older


@bug("continues", graph_log, holding)
def apply_over_the_wrong_whole(_: Part) -> Part:
    """A shard goes on with the graph that it has read, whatever the store has put in its place (rule 2).

    That a change names the version in front of it would tell: that is not looked at either.
    """
    return lambda loaded, before: True


@apply_over_the_wrong_whole.also("replayed", Topology)
def _trusting(replayed: Part) -> Part:
    def trusting(self: Topology, payloads: Iterable[bytes]) -> Topology:
        for payload in payloads:
            over = journal_pb2.Topology.FromString(payload).over
            self = replayed(replace(self, version=over), [payload])
        return self

    return trusting


@bug("acknowledged", ReporterState)
def answer_what_was_staged_meanwhile(acknowledged: Part) -> Part:
    """An acknowledgement counts for what was staged while its report was on its way, which nobody was told yet (rule 2)."""

    def generous(self: ReporterState, *arguments: Any) -> Any:
        if self._in_flight is not None:
            versions = self._in_flight.versions
            versions.update((key, lease.version) for key, lease in self._leases.items() if key in versions)
        return acknowledged(self, *arguments)

    return generous


@bug("_has_rival", Cluster)
def let_the_older_process_have_the_address(has_rival: Part) -> Part:
    """A process that was replaced takes its address back as soon as the newer one is not heard of, and that one ends when it sees it there."""

    def unordered(self: Cluster, view: View, beats: Beats) -> bool:
        me, self.me = self.me, replace(self.me, joined=0)
        try:
            return bool(has_rival(self, view, replace(beats, since=0)))
        finally:
            self.me = me

    return unordered


@bug("publish", Hub)
def publish_a_slice_as_the_whole(publish: Part) -> Part:
    """A slice's published value is read as if it were the watermark of the whole computation."""

    def generous(self: Hub, views: Iterable[View_]) -> None:
        published = list(views)
        as_whole = [replace(view, name=names.whole(view.name)) for view in published if view.name.endswith("~0")]
        publish(self, [*published, *as_whole])

    return generous


@bug("_settled", MemoryJournal)
def hand_keys_over_by_an_unconfirmed_graph(settled: Part) -> Part:
    """A slice forgets what it has handed over before it is durable that another has received it (rule 10).

    Records of the graph are used that the store's master has executed, and that a fail-over may take away.
    """

    async def at_once(self: MemoryJournal, name: str, end: End) -> bool:
        return name == GRAPH or await settled(self, name, end)

    return at_once


@bug("by_its_inputs", Requests)
def change_inputs_by_an_unconfirmed_graph(_: Part) -> Part:
    """A shard uses a change of the graph before it is durable, and no log follows a graph that is ahead of it (rule 2)."""
    return lambda self, _, name: self.served.computation(name)


change_inputs_by_an_unconfirmed_graph.includes(hand_keys_over_by_an_unconfirmed_graph)


@bug("_retire", Slice)
def keep_the_claim_of_a_lost_retirement(_: Part) -> Part:
    """A slice goes on with its claim at the root when its retirement had no answer, and may arrive at any time (rule 8)."""

    async def keep(self: Slice, range_: Any) -> None:
        await self._answered(range_, range_.retire())

    return keep


@bug("give_back", Holdings)
def keep_logs_that_are_not_served(_: Part) -> Part:
    """The store goes on naming a shard that has taken a log and could not read it: a damaged log is left to it for ever (rule 7)."""

    async def keep(self: Holdings, due: Mapping[str, bool]) -> None:
        del self, due

    return keep


class Mutant(NamedTuple):
    """A bug, and the worlds that are searched for it."""

    plant: Plant
    where: tuple[Callable[[int], bool], ...] = ()
    harsh: bool = False
    unsafe: bool = False
    """True if the bug must be seen as it does harm: a value that leads or goes back, or a process that is refused for long."""


def _mutants(
    *plants: Plant, where: tuple[Callable[[int], bool], ...] = (), harsh: bool = False, unsafe: bool = False
) -> dict[str, Mutant]:
    return {plant.__name__: Mutant(plant, where, harsh, unsafe) for plant in plants}


def is_strong(seed: int) -> bool:
    """Return True if the store of a world keeps what it acknowledged."""
    return not is_weak(seed)


MUTANTS: Final[dict[str, Mutant]] = {
    **_mutants(
        publish_before_append,
        forget_an_interval_on_recovery,
        silence_counts_as_idle,
        fold_newer_inputs,
        forget_the_tombstone,
        take_what_is_damaged_for_the_end,
        leave_the_log_of_what_is_dropped,
        lose_a_change_by_compaction,
        answer_what_was_staged_meanwhile,
    ),
    **_mutants(forget_the_budget_on_recovery, judge_by_what_was_not_shown, where=(is_budgeted, is_strong)),
    **_mutants(
        skip_the_epoch_check,
        answer_what_has_left_a_round,
        apply_over_the_wrong_whole,
        let_the_older_process_have_the_address,
        where=(is_sharded,),
    ),
    **_mutants(restart_counters_after_a_lost_epoch, follow_a_redirect_to_a_lower_epoch, where=(is_sharded, is_weak)),
    **_mutants(leave_a_damaged_graph, where=(is_rotten,), unsafe=True),
    **_mutants(
        slice_switches.ratchet_is_told,
        slice_switches.lowerings_are_acknowledged_at_once,
        slice_switches.new_owners_answer_at_once,
        slice_switches.retired_is_told_as_finished,
        slice_switches.one_order,
        slice_switches.sequencers_go_down_in_a_move,
        slice_switches.logs_name_the_keys,
        publish_a_slice_as_the_whole,
        where=(is_sliced,),
        unsafe=True,
    ),
    **_mutants(keep_logs_that_are_not_served, where=(is_sharded, is_sliced)),
    **_mutants(slice_switches.keys_are_exported_early, where=(is_sliced,)),
    **_mutants(*TIMING, where=(is_timed,)),
    # These only show behind a fail-over, where many shards read what it takes away, or where messages come late.
    **_mutants(change_inputs_by_an_unconfirmed_graph, where=(is_sharded, is_strong), harsh=True),
    **_mutants(hand_keys_over_by_an_unconfirmed_graph, where=(is_sharded, is_sliced), harsh=True),
    **_mutants(keep_the_claim_of_a_lost_retirement, where=(is_sharded, is_sliced, is_hasty), harsh=True),
}


def worlds(name: str) -> Iterator[int]:
    """Return the seeds of the worlds where a bug can show."""
    return (seed for seed in count(FIRST) if all(fits(seed) for fits in MUTANTS[name].where))


class Hunt(NamedTuple):
    """The result of the search for one bug."""

    name: str
    worlds: int
    seed: int | None
    why: str


def hunt(name: str, first: int | None = None, most: int = SEEDS) -> Hunt:
    """Look for one bug, in the world ``first`` before all others."""
    seeds = islice(worlds(name), most) if first is None else chain([first], islice(worlds(name), most))
    number, why, mutant = 0, "nothing was noticed", MUTANTS[name]
    with Planted.context() as planted:
        mutant.plant(planted)
        for number, seed in enumerate(seeds, start=1):
            outcome = live((seed, MOVES), harsh=mutant.harsh)
            late = mutant.unsafe and bool(outcome.violations) and NEVER.search(outcome.violations[0])
            if outcome.violations and not late and not FAILED.search(outcome.violations[0]):
                return Hunt(name, number, seed, outcome.violations[0])
            why = outcome.violations[0] if outcome.violations else why
    return Hunt(name, number, None, why)


def finders() -> dict[str, int]:
    """Return the worlds that are known to find bugs: each may be another one when the code has changed."""
    seeds: dict[str, int] = json.loads(FINDERS.read_text())
    return seeds


def main(names: Sequence[str], jobs: int, *, keep: bool = False) -> int:
    """Look for the named bugs, or all, and ``keep`` which worlds found them; returns the exit code."""
    unknown = set(names) - MUTANTS.keys()
    if unknown:
        print(f"there is no mutant {', '.join(sorted(unknown))}; there are: {', '.join(MUTANTS)}")
        return 2
    chosen = list(names) or list(MUTANTS)
    seeds: dict[str, int] = {}
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(chosen))) as pool:
        for name, tried, seed, why in pool.imap(hunt, chosen):
            if seed is None:
                print(f"{name}: NOT FOUND in {tried} worlds: {why}", flush=True)
            else:
                print(f"{name}: found in world {tried}, of the seed {seed}: {why}", flush=True)
                seeds[name] = seed
    if keep:
        finder_seeds = {name: seed for name, seed in (finders() | seeds).items() if name in MUTANTS}
        FINDERS.write_text(json.dumps(finder_seeds, indent=2, sort_keys=True) + "\n")
    print(json.dumps({"mutants": len(chosen), "found": len(seeds)}))
    return int(len(seeds) < len(chosen))
