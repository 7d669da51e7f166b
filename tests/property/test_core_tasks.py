"""Leases and tasks beside their oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.property import task_switches
from tests.property.search import walk
from tests.property.switches import off
from tests.property.task_machine import TaskMachine, small

EXAMPLES = 40

KINDS = [
    *("create_group", "configure", "create", "take", "renew", "release", "commit", "snapshot", "crash", "reset"),
    *("BELOW_MARK", "INCARNATION_CHANGED", "INVALID_ARGUMENT", "OVERLOADED", "REGISTRATION_CONFLICT"),
    *("STALE_LEASE", "TASK_CONFLICT", "UNKNOWN_GROUP", "taken", "repeated", "lost", "finished"),
] + ["mark moved", "all done"]


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch.setattr)


def test_tasks_do_what_the_oracle_says() -> None:
    steps = walk(TaskMachine, examples=EXAMPLES, kinds=KINDS)
    assert not [kind for kind in KINDS if not steps[kind]], "everything that can happen happened"


@pytest.mark.parametrize("patch", [pytest.param(p, marks=off(r), id=p.__name__) for r, p in task_switches.ALL])
def test_the_oracle_notices(patch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)
    walk(type("Broken", (TaskMachine,), {}), examples=4 * EXAMPLES, kinds=["never"])
