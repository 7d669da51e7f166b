"""How property tests look for an order of steps that breaks a rule: every example is new, and none is shrunk."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

SEARCH: Final = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)


def play(machine: type[RuleBasedStateMachine], *, examples: int, steps: int, seed_: int | None = None) -> None:
    """Run a state machine. The examples depend on ``seed_``; without one, on the machine."""
    chosen = settings(SEARCH, max_examples=examples, stateful_step_count=steps, derandomize=seed_ is None)
    run_state_machine_as_test(machine if seed_ is None else seed(seed_)(machine), settings=chosen)
