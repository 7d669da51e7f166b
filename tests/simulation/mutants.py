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
from lowwater._async.worker import Worker
from lowwater.aio import Lease
from lowwater.core import lateness
from lowwater.core.fold import Fold
from lowwater.core.lease import LeaseState
from lowwater.core.ratchet import Ratchet
from lowwater.core.reports import ReporterState
from lowwater.core.router import Router
from lowwater_authority.cluster.cluster import Cluster
from lowwater_authority.cluster.membership import Beats, View
from lowwater_authority.core import recovery, topology
from lowwater_authority.core.budget import Lateness
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.computation import View as View_
from lowwater_authority.core.groups import GroupState
from lowwater_authority.core.requests import Refused
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.core.topology import Spec, Topology
from lowwater_authority.engine import holding, holdings, rounds
from lowwater_authority.engine.hub import Hub
from lowwater_authority.engine.logs import Log, Logs
from lowwater_authority.engine.rounds import Round
from lowwater_authority.engine.shard import Shard
from lowwater_authority.engine.slices import Slice
from lowwater_authority.journal import GRAPH, End, JournalCorrupt, JournalFailed, Ownership, contract, frames
from lowwater_authority.records import journal_pb2
from tests.kit import memory_journal as memory
from tests.kit.memory_journal import MemoryJournal
from tests.property import slice_switches
from tests.simulation.chaos import is_budgeted, is_hasty, is_rotten, is_sharded, is_sliced, is_weak
from tests.simulation.runs import MOVES, live
from tests.simulation.timer_mutants import TIMING
from tests.simulation.timers import is_timed

SEEDS: Final = 40

FIRST: Final = 1_000_000

FINDERS: Final = Path(__file__).with_name("finders.json")

NEVER: Final = re.compile("nothing went wrong for")
"""What a world says that does not arrive. That is not enough of what is ``unsafe``."""

FAILED: Final = re.compile(r"\b(AttributeError|KeyError|NameError|TypeError)\b")
"""What a bug says that does not fit to the code any more into which it is planted: that finds nothing."""

Planted = pytest.MonkeyPatch


def publish_before_append(planted: Planted) -> None:
    """Values are shown while their record is on its way to the disk (rule 2)."""
    append = Shard.append

    async def late(self: Shard, round_: Round) -> None:
        if round_.topology is not None:  # what is dropped has no log any more that could be written
            await append(self, round_)
            return
        appending = asyncio.ensure_future(append(self, round_))
        await asyncio.sleep(0)  # the records are taken
        self.publish(round_, 0)
        await appending

    planted.setattr(Shard, "append", late)


def forget_an_interval_on_recovery(planted: Planted) -> None:
    """The first of the claims found in the journal holds nothing back after a restart (rule 1)."""
    recover = recovery.recover

    def forgetful(*arguments: Any, **more: Any) -> Computation:
        found = recover(*arguments, **more)
        for group in [group for group in found.map.run_groups() if group.sequencer][:1]:
            found.map.columns.set(group.slots(), MAX)
        return found

    planted.setattr(recovery, "recover", forgetful)


def forget_the_budget_on_recovery(planted: Planted) -> None:
    """What a budget had published is found again by what has come, and not by the record that says so (rule 3)."""
    replay = Computation.replay_budgets

    def forgetful(self: Computation, record: journal_pb2.Record) -> None:
        replay(self, record)
        for budget in self.budgets.values():
            budget.value = self.low

    planted.setattr(Computation, "replay_budgets", forgetful)


def judge_by_what_was_not_shown(planted: Planted) -> None:
    """Records are judged by where a budget would stand without its ratchet, which no reader sees (rule 2)."""
    take = Computation._take_lateness

    def unratcheted(self: Computation, group: Any, told: Lateness, now: int, wall: int) -> list[Refused]:
        published = self.published
        bare = (
            kept._replace(micros=max(MIN, budget.reference - budget.delay())) if budget.reference > MIN else kept
            for kept, budget in zip(published.budgets, self.budgets.values(), strict=True)
        )
        self.published = replace(published, budgets=tuple(bare))
        before = len(self._changes[group.sequencer].arrived) if group.sequencer in self._changes else 0
        refused = take(
            self, group, replace(told, behind={ppm: (n, MAX) for ppm, (n, _) in told.behind.items()}), now, wall
        )
        for arrived in self._changes[group.sequencer].arrived[before:] if group.sequencer in self._changes else ():
            for each in arrived.behind:
                counts = dict(zip(arrived.buckets, arrived.counts, strict=True))
                mark = next(kept.micros for kept in self.published.budgets if kept.ppm == each.ppm)
                each.counted = lateness.behind(counts, arrived.reference_micros, mark) if mark > MIN else 0
        self.published = published
        return refused

    planted.setattr(Computation, "_take_lateness", unratcheted)


def silence_counts_as_idle(planted: Planted) -> None:
    """Ranges that have not been reported for five seconds hold nothing back (rule 1)."""
    take_record = Computation.take_record

    def careless(self: Computation, now: int) -> Any:
        for group in self.map.groups.values():
            if group.state is GroupState.OWNED and 0 < group.last_report < now - 5_000_000:
                self.map.columns.set(group.slots(), MAX)
        return take_record(self, now)

    planted.setattr(Computation, "take_record", careless)


def fold_newer_inputs(planted: Planted) -> None:
    """The newest inputs take the place of the snapshot that the worker passed (rule 5)."""
    claim, fold = Worker.claim, Lease._fold

    async def remembering(self: Worker, *arguments: Any, **more: Any) -> Lease:
        lease = await claim(self, *arguments, **more)
        lease.__dict__["worker"] = self
        return lease

    def newest(self: Lease, seen: Inputs | None, frontier: Any) -> Fold:
        reader = self.__dict__["worker"]._reader
        if seen is not None:
            runtime, subscription = reader._ready()
            seen = reader._folding.fold(runtime.watcher.state, subscription)
        return fold(self, seen, frontier)

    planted.setattr(Worker, "claim", remembering)
    planted.setattr(Lease, "_fold", newest)


def skip_the_epoch_check(planted: Planted) -> None:
    """The store takes writes of a shard that was replaced, as long as they fit (rule 4)."""
    for module in (contract, memory):
        planted.setattr(module, "is_usurped", lambda mine, found: False)


def restart_counters_after_a_lost_epoch(planted: Planted) -> None:
    """Sequencers are counted from the epoch alone, and from those that still own something (rule 4)."""
    recover = recovery.recover

    def base(ownership: Ownership) -> int:
        return ownership.epoch << 40

    def restarting(*arguments: Any, **more: Any) -> Computation:
        found = recover(*arguments, **more)
        found.last_sequencer = max(found.map.groups, default=0)
        return found

    for module in (holding, holdings):
        planted.setattr(module, "epoch_base", base)
    planted.setattr(recovery, "recover", restarting)


def follow_a_redirect_to_a_lower_epoch(planted: Planted) -> None:
    """The client believes a shard that was asleep (rule 3). What it is then told must be believed as well: both checks are off."""
    redirected, admit = Router.redirected, Ratchet.admit

    def credulous(self: Router, name: str, address: str, epoch: int) -> bool:
        self._route(name).epoch = 0
        return redirected(self, name, address, epoch)

    def forgetful(self: Ratchet, view: Any) -> bool:
        known = self.get(view.computation)
        if view.epoch < known.epoch:
            self._seen[view.computation].view = replace(known, epoch=0)
        return admit(self, view)

    planted.setattr(Router, "redirected", credulous)
    planted.setattr(Ratchet, "admit", forgetful)


def forget_the_tombstone(planted: Planted) -> None:
    """What is dropped leaves nothing behind, and its log stays as it was: its next registration begins with incarnation 1 (rule 3)."""
    planted.setattr(topology, "_tombstone", lambda known: Spec(known.name, incarnation=0, input_version=0))

    async def leave(self: holdings.Holdings, name: str, *_: Any) -> None:
        self._over(name)

    planted.setattr(holdings.Holdings, "_end", leave)
    planted.setattr(holdings.Holdings, "end", lambda self, name: None)


def take_what_is_damaged_for_the_end(planted: Planted) -> None:
    """A log ends in front of a record that cannot be read, as if the last write had been torn (rules 2 and 10)."""
    decode_records = frames.decode_records

    def lenient(log: str, records: Sequence[tuple[int, bytes]], **more: Any) -> list[tuple[int, bytes]]:
        try:
            return decode_records(log, records, **more)
        except JournalCorrupt as damage:
            left = [(position, frame) for position, frame in records if position < (damage.position or 0)]
            return [(position, frames.decode(log, position, frame).payload) for position, frame in left]

    planted.setattr(memory, "decode_records", lenient)


def leave_a_damaged_graph(planted: Planted) -> None:
    """A graph that cannot be read stays as it is, though the shards have it in memory: nobody can be started, or take anything over."""

    async def refuse(self: holdings.Holdings, damage: JournalCorrupt) -> None:
        raise JournalFailed(str(damage))

    planted.setattr(holdings.Holdings, "heal_graph", refuse)


def leave_the_log_of_what_is_dropped(planted: Planted) -> None:
    """A dropped log stays as it was: should it be damaged, nobody can ever read the next incarnation of it."""

    async def leave(self: holdings.Holdings, name: str, *_: Any) -> None:
        self._over(name)

    planted.setattr(holdings.Holdings, "_end", leave)


def answer_what_has_left_a_round(planted: Planted) -> None:
    """What another shard has taken leaves the round, and its callers are answered as if it were written too (rule 2)."""
    end = rounds._Work.end

    def answer_all(self: rounds._Work[Any], result: Any, dropped: Mapping[str, Exception], *unheard: Any) -> None:
        del dropped
        end(self, result, {}, *unheard)

    planted.setattr(rounds._Work, "end", answer_all)


def lose_a_change_by_compaction(planted: Planted) -> None:
    """The whole graph that replaces its changes is the one that stood in front of the last of them (rule 2)."""
    record, snapshot = holdings.Holdings.graph_record, Logs.snapshot

    def remembering(self: holdings.Holdings, graph: Topology, *, whole: bool) -> bytes:
        self.logs.__dict__["older"] = self.topology
        return record(self, graph, whole=whole)

    async def older(self: Logs, log: Log, take: Callable[[], Iterable[bytes]], now: int = 0, **how: bool) -> None:
        known = log.name == GRAPH and "older" in self.__dict__
        await snapshot(self, log, (lambda: [self.__dict__["older"].encode()]) if known else take, now, **how)

    planted.setattr(holdings.Holdings, "graph_record", remembering)
    planted.setattr(Logs, "snapshot", older)


def apply_over_the_wrong_whole(planted: Planted) -> None:
    """What a shard has read of the graph is gone on with, whatever the store has put in its place (rule 2).

    That a change names the version in front of it would tell: that is not looked at either.
    """
    planted.setattr(holdings, "_goes_on", lambda loaded, known: True)
    replayed = topology.Topology.replayed

    def trusting(self: Topology, payloads: Iterable[bytes]) -> Topology:
        for payload in payloads:
            over = journal_pb2.Topology.FromString(payload).over
            self = replayed(replace(self, version=over), [payload])
        return self

    planted.setattr(topology.Topology, "replayed", trusting)


def answer_what_was_staged_meanwhile(planted: Planted) -> None:
    """An acknowledgement counts for what was staged while its report was on its way, which nobody was told yet (rule 2)."""
    acknowledged = ReporterState.acknowledged

    def generous(self: ReporterState, *arguments: Any) -> list[LeaseState]:
        if self._in_flight is not None:
            versions = self._in_flight.versions
            versions.update((key, lease.version) for key, lease in self._leases.items() if key in versions)
        return acknowledged(self, *arguments)

    planted.setattr(ReporterState, "acknowledged", generous)


def let_the_older_process_have_the_address(planted: Planted) -> None:
    """A process that was replaced takes its address back as soon as the newer one is not heard of, and that one ends when it sees it there."""
    has_rival = Cluster._has_rival

    def unordered(self: Cluster, view: View, beats: Beats) -> bool:
        me, self.me = self.me, replace(self.me, joined=0)
        try:
            return has_rival(self, view, replace(beats, since=0))
        finally:
            self.me = me

    planted.setattr(Cluster, "_has_rival", unordered)


def publish_a_slice_as_the_whole(planted: Planted) -> None:
    """What a slice has published is read as if it were the watermark of what it is a slice of."""
    publish = Hub.publish

    def generous(self: Hub, views: Iterable[View_]) -> None:
        shown = list(views)
        as_whole = [replace(view, name=topology.whole(view.name)) for view in shown if view.name.endswith("~0")]
        publish(self, [*shown, *as_whole])

    planted.setattr(Hub, "publish", generous)


def _believe_the_master(planted: Planted) -> None:
    """Use records of the graph that the store's master has executed, and that a fail-over may take away."""
    settled = MemoryJournal._settled

    async def at_once(self: MemoryJournal, name: str, end: End) -> bool:
        return name == GRAPH or await settled(self, name, end)

    planted.setattr(MemoryJournal, "_settled", at_once)


def change_inputs_by_an_unconfirmed_graph(planted: Planted) -> None:
    """A shard uses a change of the graph before it is durable, and no log follows a graph that is ahead of it (rule 2)."""
    _believe_the_master(planted)
    planted.setattr(Shard, "_by_its_inputs", lambda self, _, name: self._computation(name))


def hand_keys_over_by_an_unconfirmed_graph(planted: Planted) -> None:
    """A slice forgets what it has handed over before it is durable that another has received it (rule 10)."""
    _believe_the_master(planted)


def keep_the_claim_of_a_lost_retirement(planted: Planted) -> None:
    """A slice goes on with its claim at the root when its retirement had no answer, and may arrive at any time (rule 8)."""

    async def kept(self: Slice, known: Any) -> None:
        await self._by(known, known.retire())

    planted.setattr(Slice, "_retire", kept)


class Mutant(NamedTuple):
    """A bug, and the worlds that are searched for it."""

    plant: Callable[[Planted], None]
    where: tuple[Callable[[int], bool], ...] = ()
    harsh: bool = False
    unsafe: bool = False
    """Whether the bug must be seen as it does harm: a value that leads or goes back, or a process that is refused for long."""


def _mutants(
    *plants: Callable[[Planted], None],
    where: tuple[Callable[[int], bool], ...] = (),
    harsh: bool = False,
    unsafe: bool = False,
) -> dict[str, Mutant]:
    return {plant.__name__: Mutant(plant, where, harsh, unsafe) for plant in plants}


def is_strong(seed: int) -> bool:
    """Whether the store of a world keeps what it acknowledged."""
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
    **_mutants(
        slice_switches.any_life_fits,
        slice_switches.retirements_name_no_claim,
        where=(is_sliced, is_sharded),
        unsafe=True,
    ),
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
    """What came of the search for one bug."""

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
    known: dict[str, int] = json.loads(FINDERS.read_text())
    return known


def main(names: Sequence[str], jobs: int, *, keep: bool = False) -> int:
    """Look for the named bugs, or all, and ``keep`` which worlds found them; returns the exit code."""
    unknown = set(names) - MUTANTS.keys()
    if unknown:
        print(f"there is no mutant {', '.join(sorted(unknown))}; there are: {', '.join(MUTANTS)}")
        return 2
    chosen = list(names) or list(MUTANTS)
    found: dict[str, int] = {}
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(chosen))) as pool:
        for name, tried, seed, why in pool.imap(hunt, chosen):
            if seed is None:
                print(f"{name}: NOT FOUND in {tried} worlds: {why}", flush=True)
            else:
                print(f"{name}: found in world {tried}, of the seed {seed}: {why}", flush=True)
                found[name] = seed
    if keep:
        known = {name: seed for name, seed in (finders() | found).items() if name in MUTANTS}
        FINDERS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    print(json.dumps({"mutants": len(chosen), "found": len(found)}))
    return int(len(found) < len(chosen))
