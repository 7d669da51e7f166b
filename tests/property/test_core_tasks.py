"""Leases and tasks beside their oracle, some tens of thousands of steps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from tests.property import task_switches
from tests.property.search import play
from tests.property.switches import off
from tests.property.task_machine import TaskMachine, small

STEPS = 60
EXAMPLES = 100
PROMISED = 2_500

KINDS = ["create_group", "configure", "create", "take", "renew", "release", "commit", "snapshot", "crash", "reset"]
REFUSALS = [
    "BELOW_MARK",
    "INCARNATION_CHANGED",
    "INVALID_ARGUMENT",
    "OVERLOADED",
    "REGISTRATION_CONFLICT",
    "STALE_LEASE",
    "TASK_CONFLICT",
    "UNKNOWN_GROUP",
]
MOMENTS = ["taken", "repeated", "lost", "mark moved", "finished", "all done"]


def walk(machine: type[TaskMachine], monkeypatch: pytest.MonkeyPatch, *, examples: int, seed_: int) -> Counter[str]:
    """Run a machine; returns the steps it took, by kind."""
    small(monkeypatch.setattr)
    machine.steps = Counter()
    play(machine, examples=examples, steps=STEPS, seed_=seed_)
    return machine.steps


def test_tasks_do_what_the_oracle_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seed_ = int(os.environ.get("LOWWATER_SEED", "1"))
    examples = int(os.environ.get("LOWWATER_EXAMPLES", EXAMPLES))
    steps = walk(TaskMachine, monkeypatch, examples=examples, seed_=seed_)
    total = sum(steps[kind] for kind in KINDS)
    print(f"seed {seed_}: {total} steps: {dict(steps)}")
    assert total >= PROMISED * min(1, examples / EXAMPLES)
    assert all(steps[kind] for kind in (*KINDS, *REFUSALS, *MOMENTS)), "everything that can happen happened"


@pytest.mark.parametrize("patch", [pytest.param(p, marks=off(r), id=p.__name__) for r, p in task_switches.ALL])
def test_the_oracle_notices(patch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    walk(type("Broken", (TaskMachine,), {}), monkeypatch, examples=EXAMPLES, seed_=1)
