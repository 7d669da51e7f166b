"""The core and the oracle side by side, some tens of thousands of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lowwater_authority.core import columns
from lowwater_authority.core.computation import Computation
from tests.property import switches
from tests.property.core_driver import Driver
from tests.property.core_machine import CoreMachine, LaidOut
from tests.property.search import walk
from tests.property.switches import off, planted

EXAMPLES = 200

KINDS = [
    *("claim", "release", "revoke", "retire", "report", "stage", "prepare", "commit", "vouch", "take", "arrive"),
    *("snapshot", "crash", "reset"),
]
REFUSALS = [
    *("STALE_SEQUENCER", "IDENTITY_MISMATCH", "OLDER_CLAIM", "REWOUND", "OWNED_RANGES", "NOT_PREPARED"),
    *("INCARNATION_CHANGED", "TOO_FAR_AHEAD", "FINISH_REQUIRED", "INPUT_VERSION", "INVALID_ARGUMENT", "OVERLOADED"),
]
MOMENTS = (
    *("low moved", "high moved", "oldest operation", "steps completed", "steps completed in a later incarnation"),
    *("stand-ins", "batch committed", "batch committed by a claim", "shrunk"),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, of which there are many."""
    monkeypatch.setattr(columns, "BLOCK", 4)


LAYOUTS = ("change_layout", "LAYOUT_CONFLICT", "STALE_SEQUENCER", "reset of a layout")


@pytest.mark.parametrize(
    ("machine", "kinds"), [(CoreMachine, (*KINDS, *REFUSALS, *MOMENTS)), (LaidOut, LAYOUTS)], ids=["ranges", "layouts"]
)
def test_the_core_does_what_the_oracle_says(machine: type[CoreMachine], kinds: Sequence[str]) -> None:
    steps = walk(machine, examples=EXAMPLES, kinds=kinds)
    assert not [kind for kind in kinds if not steps[kind]], "everything that can happen happened"


CLASSES = (
    ("H2", switches.BatchesRepeat),
    ("H5b", switches.NoHandOver),
    ("H9", switches.AnySkew),
    (1, switches.UnregisteredInputsCount),
    (4, switches.ChecksPublishedOwners),
    (4, switches.NoClaimOrder),
    (8, switches.NumbersIgnored),
    (8, switches.NumbersOfChangesOnly),
    (10, switches.AllWeak),
)
PATCHES = (
    (1, switches.merge_takes_the_greatest),
    (1, switches.recovery_skips_lowering),
    (4, switches.handles_count_what_is_left),
    (9, switches.reset_keeps_owners),
    ("H", switches.unknown_masses_count_as_none),
    ("history", switches.replay_notes_nothing),
)
LAID_OUT = (
    (4, switches.PlacesNotChecked),
    ("layouts", switches.AnyLayoutVersion),
    ("layouts", switches.snapshots_have_no_layout),
    ("layouts", switches.replay_has_no_layout),
)
BROKEN: list[tuple[Any, Any, Any]] = [(rule, CoreMachine, broken) for rule, broken in (*CLASSES, *PATCHES)]
BROKEN += [(rule, LaidOut, broken) for rule, broken in LAID_OUT]


@pytest.mark.parametrize(
    ("machine", "broken"), [pytest.param(m, b, marks=off(rule), id=b.__name__) for rule, m, b in BROKEN]
)
def test_the_oracle_notices_a_bug(machine: type[CoreMachine], broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"computation_class": broken} if isinstance(broken, type) else {}
    if not fields:
        broken(monkeypatch)
    # What is drawn depends on the modules that are loaded, so it may be found late. The search ends when it is found.
    walk(type("Broken", (machine,), fields), examples=4 * EXAMPLES, kinds=("never",))


@planted(8, switches.TurnsIgnored)
def test_rule8_turns_order_a_claims_reports_over_all_streams(computation_class: type[Computation]) -> None:
    old = {("OLD_STREAM", None)}
    d = Driver(computation_class=computation_class)
    owner = d.claim(b"", b"").sequencer
    d.report(owner, 14, sender=b"first", number=(7, 1), turn=1)
    d.report(owner, 12, sender=b"second", number=(1, 1), turn=2)
    assert d.report(owner, 15, sender=b"first", number=(7, 2), turn=1) == old
    d.crash()
    assert d.report(owner, 15, sender=b"first", number=(7, 2), turn=1) == old
    assert d.values() == [(b"", 12)]
    assert d.report(owner, 16, sender=b"first", number=(7, 3), turn=3) == set(), "and back again"
    assert d.values() == [(b"", 16)]
