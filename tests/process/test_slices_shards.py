"""Slices of one computation on several shards: subscribers of the root see nothing that goes back or leads what the workers hold, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import lowwater
from lowwater import errors
from tests.kit.eventually import eventually
from tests.kit.times import MAX
from tests.process.cutting import INPUTS, KEYS, ROOT, SLICES, START, Cut, Held
from tests.process.serving import Serving
from tests.process.sharding import Shard, Sharded, move


@contextmanager
def cut_over(deployment: Sharded, keys: Sequence[bytes] = KEYS) -> Iterator[Cut]:
    """The computation, its root on the first shard and its slices in turn from the second on; ``keys`` as in Cut."""
    addresses = [each.address for each in deployment.shards]
    with Cut(addresses, lambda: deployment.connect(timeout=60), keys) as cut:
        place(deployment, cut)
        cut.begin()
        yield cut


def place(deployment: Sharded, cut: Cut) -> None:
    first, *others = deployment.shards
    move(cut.lw, first, ROOT)
    for number in range(SLICES):
        move(cut.lw, others[number % len(others)], f"{ROOT}~{number}")


def test_what_is_wrong_would_be_seen() -> None:
    """The check itself: a value that the slices never had all together is one too many, however high each of them once was."""
    held = Held()
    for number in range(SLICES):
        held.say(1, number, 10, acknowledged=True)
    held.say(1, 0, 20)
    held.say(1, 0, 20, acknowledged=True)
    held.say(1, 0, 5, acknowledged=True)
    for number in range(1, SLICES):
        held.say(1, number, 30)
    assert (held.most(1), held.least(1), held.most(2)) == (10, 5, -(2**63))


HALVES = sorted((*KEYS, b"\x20", b"\x60", b"\xa0", b"\xe0"))
"""Workers claim halves of slices, so that those of one half go on when their slice is cut in the middle."""


def cut_anew(cut: Cut, name: str, at: bytes) -> str:
    """Cut a slice in two, whoever dies meanwhile; returns the new one."""

    def new() -> list[str]:
        return [each.name for each in cut.lw.slices(ROOT) if each.start == at]

    while not (made := new()):
        with suppress(errors.Unavailable, errors.InvalidArgument):  # another one is still taken over, or it is done
            cut.lw.split_slice(name, at)
    return made[0]


def taken_over(cut: Cut, name: str) -> bool:
    """Whether a slice has its keys, and says so at the root."""
    found = cut.lw.topology().computations[name]
    at_root = {(each.start, each.end): each.worker for each in cut.lw.ranges(ROOT)}
    return not found.slice_source and at_root.get((found.slice_start, found.slice_end)) == name


def server_of(cut: Cut, shards: Sequence[Shard], name: str) -> Shard:
    """The process that serves something."""

    def found() -> list[Shard]:
        serving = {each.address for each in cut.lw.shards() if name in each.computations}
        return [each for each in shards if each.address in serving]

    eventually(found)
    return found()[0]


@pytest.mark.slow
def test_a_slice_is_cut_in_two_while_the_shards_of_both_and_of_the_root_are_killed(tmp_path: Path) -> None:
    """As soon as the cut is known, wherever it has come to by then."""
    with Sharded(tmp_path, 3) as deployment, cut_over(deployment, HALVES) as cut:
        shards = deployment.shards
        for victim, name, at in (("source", "~1", b"\x60"), ("new", "~0", b"\x20"), ("root", "~2", b"\xa0")):
            name = f"{ROOT}{name}"
            dies = server_of(cut, shards, ROOT if victim == "root" else name)
            made = cut_anew(cut, name, at)
            dies = server_of(cut, shards, made) if victim == "new" else dies
            dies.kill()
            cut.goes_on()
            dies.start()
            eventually(lambda: len(cut.lw.shards()) == len(shards))
            eventually(partial(taken_over, cut, made))
            eventually(partial(taken_over, cut, name))
            cut.goes_on()
        cut.check()


def change(cut: Cut) -> None:
    """Everything that an operator does to the graph, one after the other, while workers go on."""
    before = cut.lw.get(ROOT)[ROOT].incarnation
    cut.lw.reset(ROOT)
    cut.lives_on(before + 1)
    cut.goes_on()
    cut.lw.set_inputs(ROOT, INPUTS)
    cut.goes_on()
    assert cut.lw.topology().computations[f"{ROOT}~0"].inputs == INPUTS
    with pytest.raises(errors.OwnedRanges):
        cut.lw.drop(ROOT)
    cut.board.dropped = True
    assert cut.lw.drop(ROOT, force=True) == before + 1
    cut.register()
    cut.lives_on(before + 2)
    cut.goes_on()


def retire(cut: Cut) -> None:
    """Take the last slice out, whole, and then a part of another; then have the workers claim them again."""
    [working] = [each for each in cut.working if SLICES - 1 in each.spans]
    incarnation = cut.lw.get(ROOT)[ROOT].incarnation
    with working.stepping:
        span = working.spans.pop(SLICES - 1)
    eventually(lambda: cut.lw.get(ROOT)[ROOT].low.micros > START)
    cut.held.say(incarnation, SLICES - 1, MAX)
    start, end = span
    cut.lw.retire(ROOT, start, end, force=True)
    eventually(lambda: [each.state.value for each in cut.lw.ranges(ROOT) if each.start == start] == ["retired"])
    cut.goes_on()
    assert cut.lw.get(ROOT)[ROOT].incarnation == incarnation
    # A part: what is left of the slice holds the whole up as before.
    number, other = next((number, span) for number, span in working.spans.items() if number)
    middle = other[0] + b"\x10"
    cut.lw.retire(ROOT, other[0], middle, force=True)
    cut.goes_on()
    assert {each.state.value for each in cut.lw.ranges(f"{ROOT}~{number}")} <= {"retired", "owned", "unowned"}
    # Claimed again it begins where nothing is known, and what was published stays.
    at_least = cut.lw.get(ROOT)[ROOT].low
    working.spans[SLICES - 1] = span
    eventually(lambda: [each.state.value for each in cut.lw.ranges(ROOT) if each.start == start] == ["owned"])
    eventually(lambda: working.values.get(SLICES - 1, START) > at_least.micros)
    cut.goes_on()


@pytest.mark.slow
def test_one_process_with_an_embedded_journal(tmp_path: Path) -> None:
    with (
        Serving(tmp_path / "data") as server,
        Cut([server.address], lambda: lowwater.connect(server.address, timeout=60)) as cut,
    ):
        cut.begin()
        change(cut)
        retire(cut)
        server.kill()
        server.start()
        cut.goes_on()
        cut.check()
