"""``make zombie`` shows what it is for: the zombie fails, visibly, wherever there is a guard, and nowhere else."""

from __future__ import annotations

import re

import pytest

from examples.zombie.__main__ import main


def test_the_zombie_fails_visibly_where_there_is_a_guard_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = dict(part.split("\n", 1) for part in capsys.readouterr().out.strip().split("\n\n"))
    assert len(told) == 6
    for store, steps in told.items():
        if store.endswith("guarded"):
            assert re.search(r"B   (goes on|tries again): Fenced: .* it is a zombie, and must stop", steps), steps
            assert "in the store: 09:00, 10:00; B' knows of all" in steps
        else:
            assert "B   goes on: its write lands" in steps
            assert "B' never fires 10:00" in steps
