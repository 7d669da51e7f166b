"""Killed at every step: nothing is lost, nothing comes twice. A process that is killed: test_command.py."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable

import pytest

from lowwater_pipeline.dedup.lane import STEPS
from tests.pipeline.case import EXACT, Case, Killed, at

OPENING = STEPS[: STEPS.index("read")]
A_BATCH = 10
AHEAD = 8 * A_BATCH


def test_killed_at_every_step_nothing_is_lost_or_doubled(make: Callable[..., Case]) -> None:
    case, chance = make("100000"), random.Random(1)
    numbers = iter(range(10**9))
    position = 0
    for step in STEPS:
        if len(case.sent) - position < AHEAD:
            fresh = [f"id-{next(numbers)}" for _ in range(3 * AHEAD)]
            copies = [chance.choice(fresh) for _ in range(AHEAD)]
            case.send(*chance.sample(fresh + copies, len(fresh) + len(copies)))
        if chance.random() < 0.1:
            shutil.rmtree(case.settings.state, ignore_errors=True)
        number = 1 if step in OPENING else chance.randint(1, 3)
        with pytest.raises(Killed):
            case.drain(case.lane(probe=at(step, number), most=A_BATCH))
        position = max((lane.position for lane in case.open_lanes()), default=position)
        case.bury_all()
    case.drain(case.lane())
    assert case.outcome() == EXACT
