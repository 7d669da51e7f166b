"""The core and the oracle side by side, some tens of thousands of steps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from lowwater_authority.core import columns
from lowwater_authority.core.computation import Computation
from tests.property import switches
from tests.property.core_machine import CoreMachine, LaidOut
from tests.property.search import play
from tests.property.switches import off

STEPS = 60
EXAMPLES = 420
PROMISED = 20_000

KINDS = [
    "claim",
    "release",
    "revoke",
    "retire",
    "report",
    "stage",
    "prepare",
    "commit",
    "vouch",
    "take",
    "arrive",
    "snapshot",
    "crash",
    "reset",
]
REFUSALS = [
    "STALE_SEQUENCER",
    "IDENTITY_MISMATCH",
    "OLDER_CLAIM",
    "REWOUND",
    "OWNED_RANGES",
    "NOT_PREPARED",
    "INCARNATION_CHANGED",
    "TOO_FAR_AHEAD",
    "FINISH_REQUIRED",
    "INPUT_VERSION",
]
MOMENTS = (
    "low moved",
    "high moved",
    "steps completed",
    "steps completed in a later incarnation",
    "stand-ins",
    "batch committed",
    "batch committed by a claim",
    "shrunk",
)


def walk(
    machine: type[CoreMachine], monkeypatch: pytest.MonkeyPatch, *, examples: int, seed_: int, kinds: Sequence[str] = ()
) -> Counter[str]:
    """Run a machine until it has taken steps of these kinds, with at most four seeds; returns all steps, by kind.

    What Hypothesis draws depends on the modules that are loaded, so one seed may miss a kind. Blocks are small, so that there are many.
    """
    monkeypatch.setattr(columns, "BLOCK", 4)
    machine.steps = Counter()
    for seed in range(seed_, seed_ + 4):
        play(machine, examples=examples, steps=STEPS, seed_=seed)
        if all(machine.steps[kind] for kind in kinds):
            break
    return machine.steps


def test_the_core_does_what_the_oracle_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_ = int(os.environ.get("LOWWATER_SEED", "1"))
    examples = int(os.environ.get("LOWWATER_EXAMPLES", EXAMPLES))
    kinds = (*KINDS, *REFUSALS, *MOMENTS)
    steps = walk(CoreMachine, monkeypatch, examples=examples, seed_=seed_, kinds=kinds)
    total = sum(steps[kind] for kind in KINDS)
    print(f"seed {seed_}: {total} steps: {dict(steps)}")
    assert total >= PROMISED * min(1, examples / EXAMPLES)
    assert all(steps[kind] for kind in kinds), "everything that can happen happened"


def test_the_core_does_what_the_oracle_says_where_ranges_are_cut_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_ = int(os.environ.get("LOWWATER_SEED", "1"))
    examples = int(os.environ.get("LOWWATER_EXAMPLES", EXAMPLES // 2))
    kinds = ("change_layout", "LAYOUT_CONFLICT", "STALE_SEQUENCER", "reset of a layout")
    steps = walk(LaidOut, monkeypatch, examples=examples, seed_=seed_, kinds=kinds)
    print(f"seed {seed_}: {dict(steps)}")
    assert all(steps[kind] for kind in kinds)


CLASSES = (
    (1, switches.SilenceCountsAsIdle),
    (1, switches.NewInputsLowerNothing),
    (3, switches.NoRatchet),
    (4, switches.ChecksPublishedOwners),
    (4, switches.NoClaimOrder),
    (8, switches.NumbersIgnored),
    (8, switches.ClaimsNotRepeatable),
    (9, switches.AnyIncarnation),
    (10, switches.AllWeak),
    ("C2", switches.PartOfABatch),
    ("H2", switches.BatchesRepeat),
    ("H5b", switches.NoHandOver),
    ("H9", switches.AnySkew),
)
LAID_OUT = (
    (4, switches.PlacesNotChecked),
    ("layouts", switches.AnyLayoutVersion),
    ("layouts", switches.snapshots_have_no_layout),
    ("layouts", switches.replay_has_no_layout),
    ("layouts", switches.drop_keeps_the_layout),
)
PATCHES = (
    (1, switches.merge_takes_the_greatest),
    (1, switches.split_forgets),
    (1, switches.recovery_skips_lowering),
    (4, switches.handles_count_what_is_left),
    (9, switches.reset_keeps_owners),
    ("S7", switches.finished_claims_keep_their_mass),
    ("H", switches.unknown_masses_count_as_none),
    ("history", switches.half_a_step_is_one),
    ("history", switches.reset_forgets_the_history),
    ("history", switches.replay_notes_nothing),
)


@pytest.mark.parametrize("made", [pytest.param(c, marks=off(rule), id=c.__name__) for rule, c in CLASSES])
def test_the_oracle_notices_a_broken_core(made: type[Computation], monkeypatch: pytest.MonkeyPatch) -> None:
    walk(type("Broken", (CoreMachine,), {"made": made}), monkeypatch, examples=EXAMPLES, seed_=1)


@pytest.mark.parametrize("patch", [pytest.param(p, marks=off(rule), id=p.__name__) for rule, p in PATCHES])
def test_the_oracle_notices_a_broken_function(
    patch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    walk(type("Broken", (CoreMachine,), {}), monkeypatch, examples=EXAMPLES, seed_=1)


@pytest.mark.parametrize("broken", [pytest.param(b, marks=off(rule), id=b.__name__) for rule, b in LAID_OUT])
def test_the_oracle_notices_what_is_broken_of_layouts(
    broken: type[Computation] | Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {}
    if isinstance(broken, type):
        made["made"] = broken
    else:
        broken(monkeypatch)
    # What is drawn depends on the modules that are loaded: one that comes after many may be found late. It ends when it is found.
    walk(type("Broken", (LaidOut,), made), monkeypatch, examples=4 * EXAMPLES, seed_=1)
