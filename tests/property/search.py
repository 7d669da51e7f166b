"""Property tests look for an order of steps that breaks a rule: every example is new, and none is shrunk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SEARCH: Final = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)


STEPS: Final = 60


class Counting(RuleBasedStateMachine):
    steps: ClassVar[Counter[str]] = Counter()


def play(machine: type[RuleBasedStateMachine], *, examples: int, steps: int, seed_: int | None = None) -> None:
    chosen = settings(SEARCH, max_examples=examples, stateful_step_count=steps, derandomize=seed_ is None)
    run_state_machine_as_test(machine if seed_ is None else seed(seed_)(machine), settings=chosen)


def walk(machine: type[Counting], *, examples: int, kinds: Sequence[str]) -> Counter[str]:
    """Run a machine until it has taken steps of these kinds, with at most four seeds; returns all steps, by kind.

    What Hypothesis draws depends on the modules that are loaded, so one seed may miss a kind, and no number of steps is sure.
    """
    machine.steps = Counter()
    first = int(os.environ.get("LOWWATER_SEED", "1"))
    for seed_ in range(first, first + 4):
        play(machine, examples=int(os.environ.get("LOWWATER_EXAMPLES", examples)), steps=STEPS, seed_=seed_)
        if all(machine.steps[kind] for kind in kinds):
            break
    print(f"from seed {first} on: {dict(machine.steps)}")
    return machine.steps
