"""The watch over files and memory: one line when they run out, one when that is over."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lowwater.core.events import ATTRIBUTE
from lowwater_authority.ops.resources import FILES, MEMORY, Resource, Watch, memory_limit


@pytest.mark.parametrize(
    ("resource", "runs_out", "free"),
    [(FILES, "files_run_out", "files_free"), (MEMORY, "memory_runs_out", "memory_free")],
)
async def test_what_runs_out_is_one_line_until_it_is_over(
    resource: Resource, runs_out: str, free: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shares = [0.1, 0.85, 0.9, 1.0, 0.85, 0.95, 0.79, 0.9]
    watch = Watch(replace(resource, share=iter(shares).__next__))
    for _ in shares:
        await watch.look()
    told = [(getattr(each, ATTRIBUTE)["event"], getattr(each, ATTRIBUTE)["share"]) for each in caplog.records]
    assert told == [(runs_out, 0.9), (free, 0.79), (runs_out, 0.9)]


def test_the_memory_limit_is_the_least_of_the_groups_of_the_process(tmp_path: Path) -> None:
    own, groups = tmp_path / "cgroup", tmp_path / "groups"
    assert memory_limit(groups, own) == math.inf, "no control groups"
    own.write_text("1:name=systemd:/x\n")
    assert memory_limit(groups, own) == math.inf, "of version 1"
    own.write_text("0::/pod/container\n")
    (groups / "pod/container").mkdir(parents=True)
    (groups / "pod/container/memory.max").write_text("max\n")
    assert memory_limit(groups, own) == math.inf
    (groups / "pod/memory.max").write_text("2000\n")
    assert memory_limit(groups, own) == 2000
    (groups / "pod/container/memory.max").write_text("1000\n")
    assert memory_limit(groups, own) == 1000
    own.write_text("0::/\n")
    assert memory_limit(groups, own) == math.inf
    (groups / "memory.max").write_text("500\n")
    assert memory_limit(groups, own) == 500, "the root of the container's own hierarchy"
    assert MEMORY.share() < 1
