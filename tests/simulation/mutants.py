"""Bugs, planted one at a time into the production code: the simulator must find each of them."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from lowwater import Inputs
from lowwater._aio.worker import Worker
from lowwater._core.fold import Fold
from lowwater._core.granted import Granted
from lowwater.aio import Lease
from lowwater_authority import shard
from lowwater_authority.core import recovery
from lowwater_authority.core.computation import Computation
from lowwater_authority.core.group import GroupState
from lowwater_authority.core.times import MAX
from lowwater_authority.rounds import Round
from lowwater_authority.shard import Shard
from tests.property import switches
from tests.simulation.runs import MOVES, live

SEEDS: Final = 40
"""Worlds tried at most for one bug."""

FIRST: Final = 1_000_000
"""Seed of the first of them."""

Planted = pytest.MonkeyPatch


def _class(planted: Planted, made: type[Computation]) -> None:
    """Use another class for computations."""
    planted.setattr(shard, "Computation", made)
    planted.setattr(recovery, "Computation", made)


def publish_before_append(planted: Planted) -> None:
    """Values are shown while their record is on its way to the disk (rule 2)."""
    append = Shard.append

    async def late(self: Shard, round_: Round) -> None:
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


def drop_the_ratchet(planted: Planted) -> None:
    """What is published is the minimum as it is (rule 3)."""
    _class(planted, switches.NoRatchet)


def silence_counts_as_idle(planted: Planted) -> None:
    """Ranges that have not been reported for five seconds hold nothing back (rule 1)."""
    take_record = Computation.take_record

    def careless(self: Computation, now: int) -> Any:
        for group in self.map.groups.values():
            if group.state is GroupState.OWNED and 0 < group.last_report < now - 5_000_000:
                self.map.columns.set(group.slots(), MAX)
        return take_record(self, now)

    planted.setattr(Computation, "take_record", careless)


def check_against_applied_state(planted: Planted) -> None:
    """Reports are checked against what is published, so an owner replaced in this round still counts (rule 4)."""
    _class(planted, switches.ChecksPublishedOwners)


def fold_newer_inputs(planted: Planted) -> None:
    """The newest inputs take the place of the snapshot that the worker passed (rule 5)."""
    claim, fold = Worker.claim, Granted._fold

    async def remembering(self: Worker, *arguments: Any, **more: Any) -> Lease:
        lease = await claim(self, *arguments, **more)
        lease.__dict__["worker"] = self
        return lease

    def newest(self: Granted, seen: Inputs | None, frontier: Any) -> Fold:
        reader = self.__dict__["worker"]._reader
        if seen is not None:
            runtime, subscription = reader._ready()
            seen = reader._folding.fold(runtime.watcher.state, subscription)
        return fold(self, seen, frontier)

    planted.setattr(Worker, "claim", remembering)
    planted.setattr(Granted, "_fold", newest)


def accept_an_older_claim(planted: Planted) -> None:
    """Claims win in order of arrival (rule 4)."""
    _class(planted, switches.NoClaimOrder)


MUTANTS: Final[dict[str, Callable[[Planted], None]]] = {
    plant.__name__: plant
    for plant in (
        publish_before_append,
        forget_an_interval_on_recovery,
        switches.merge_takes_the_greatest,
        drop_the_ratchet,
        silence_counts_as_idle,
        check_against_applied_state,
        fold_newer_inputs,
        accept_an_older_claim,
    )
}


def hunt(name: str) -> tuple[str, int | None, str]:
    """Look for one bug; returns its name, the seed that found it, and the promise that was broken."""
    with Planted.context() as planted:
        MUTANTS[name](planted)
        for seed in range(FIRST, FIRST + SEEDS):
            outcome = live((seed, MOVES))
            if outcome.violations:
                return name, seed - FIRST + 1, outcome.violations[0]
    return name, None, "nothing was noticed"


def main(names: Sequence[str], jobs: int) -> int:
    """Look for the named bugs, or all; returns the exit code."""
    unknown = set(names) - MUTANTS.keys()
    if unknown:
        print(f"there is no mutant {', '.join(sorted(unknown))}; there are: {', '.join(MUTANTS)}")
        return 2
    chosen = list(names) or list(MUTANTS)
    found = 0
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(chosen))) as pool:
        for name, worlds, why in pool.imap(hunt, chosen):
            found += worlds is not None
            print(
                f"{name}: " + (f"found in world {worlds}: {why}" if worlds is not None else f"NOT FOUND in {SEEDS}"),
                flush=True,
            )
    print(json.dumps({"mutants": len(chosen), "found": found}))
    return int(found < len(chosen))
