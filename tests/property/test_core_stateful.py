"""The core and the oracle side by side, some tens of thousands of steps."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from lowwater_authority.core import columns
from tests.property.core_machine import KINDS, MOMENTS, REFUSALS, CoreMachine

STEPS = 60
EXAMPLES = 600
PROMISED = 20_000


def walk(machine: type[CoreMachine], monkeypatch: pytest.MonkeyPatch, *, examples: int, seed_: int) -> Counter[str]:
    """Run a machine; returns the steps it took, by kind. Small blocks, so that there are many."""
    monkeypatch.setattr(columns, "BLOCK", 4)
    machine.steps = Counter()
    run_state_machine_as_test(
        seed(seed_)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return machine.steps


def test_the_core_does_what_the_oracle_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_ = int(os.environ.get("LOWWATER_SEED", "1"))
    examples = int(os.environ.get("LOWWATER_EXAMPLES", EXAMPLES))
    steps = walk(CoreMachine, monkeypatch, examples=examples, seed_=seed_)
    total = sum(steps[kind] for kind in KINDS)
    print(f"seed {seed_}: {total} steps: {dict(steps)}")
    assert total >= PROMISED * min(1, examples / EXAMPLES)
    assert all(steps[kind] for kind in (*KINDS, *REFUSALS, *MOMENTS)), "everything that can happen happened"
