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
from tests.process.accessing import SOON, Tokens, rules_of, write
from tests.process.cutting import INPUTS, KEYS, ROOT, SLICES, START, Cut, Held
from tests.process.serving import Serving
from tests.process.sharding import Shard, Sharded, move, served


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


def all_serve(lw: lowwater.Client, shards: Sequence[Shard]) -> bool:
    """Whether each has got something back."""
    return all(served(lw, shard) for shard in shards)


def owner_at_root(cut: Cut, number: int) -> str:
    """Who reports for a slice at the root."""
    start = (b"", *KEYS)[number]
    [found] = [each for each in cut.lw.ranges(ROOT) if each.start == start]
    return found.host


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


@pytest.mark.slow
def test_kills_of_a_slice_of_the_root_and_of_both(tmp_path: Path) -> None:
    with Sharded(tmp_path, 3) as deployment, cut_over(deployment) as cut:
        first, second, third = deployment.shards
        for victims in ([second], [first], [first, third]):
            for victim in victims:
                victim.kill()
            cut.goes_on()
            for victim in victims:
                victim.start()
            eventually(lambda: len(cut.lw.shards()) == 3)
            cut.goes_on()
            eventually(partial(all_serve, cut.lw, victims))
        cut.goes_on()
        cut.check()


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
@pytest.mark.parametrize("before", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_slice_is_cut_in_two_while_the_shards_of_both_and_of_the_root_are_killed(
    tmp_path: Path, before: bool
) -> None:
    """Before the cut, so that another shard does all of it, or as soon as it is known, wherever it has come to by then."""
    with Sharded(tmp_path, 3) as deployment, cut_over(deployment, HALVES) as cut:
        shards = deployment.shards
        for victim, name, at in (("source", "~1", b"\x60"), ("new", "~0", b"\x20"), ("root", "~2", b"\xa0")):
            if before and victim == "new":
                continue
            name = f"{ROOT}{name}"
            dies = server_of(cut, shards, ROOT if victim == "root" else name)
            if before:
                dies.kill()
            made = cut_anew(cut, name, at)
            if not before:
                dies = server_of(cut, shards, made) if victim == "new" else dies
                dies.kill()
            cut.goes_on()
            dies.start()
            eventually(lambda: len(cut.lw.shards()) == len(shards))
            eventually(partial(taken_over, cut, made))
            eventually(partial(taken_over, cut, name))
            cut.goes_on()
        cut.check()


@pytest.mark.long  # unit/test_slices.py T3 and test_shards_zombies.py tell its parts
@pytest.mark.slow
def test_a_thawed_shard_of_a_slice_changes_nothing(tmp_path: Path) -> None:
    with Sharded(tmp_path, 3) as deployment, cut_over(deployment) as cut:
        _, frozen, other = deployment.shards
        eventually(lambda: owner_at_root(cut, 0) == frozen.address)
        frozen.freeze()
        eventually(lambda: owner_at_root(cut, 0) not in ("", frozen.address))
        cut.goes_on()
        replacement = owner_at_root(cut, 0)
        for number in range(0, SLICES, 2):
            cut.lw.pin(f"{ROOT}~{number}", replacement)  # so that nobody gives it back
        frozen.thaw()
        eventually(lambda: frozen.address in {each.address for each in cut.lw.shards()})
        cut.goes_on()
        assert not any(name.startswith(f"{ROOT}~") for name in served(cut.lw, frozen))
        assert owner_at_root(cut, 0) == replacement
        assert other.running
        cut.check()


@pytest.mark.slow
def test_a_reset_new_inputs_and_a_drop_while_workers_run(tmp_path: Path) -> None:
    with Sharded(tmp_path, 2) as deployment, cut_over(deployment) as cut:
        change(cut)
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


@pytest.mark.slow
def test_a_slice_and_a_part_of_one_are_retired_and_come_back(tmp_path: Path) -> None:
    with Sharded(tmp_path, 2) as deployment, cut_over(deployment) as cut:
        retire(cut)
        cut.check()


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


# -- with access rules -----------------------------------------------------------------------------------------------------

TOKENS = Tokens()
PEERS = "p" * 43


class Guarded(Sharded):
    """Shards with an access file: an administrator, and one who may report for the root, and for nothing else."""

    def more(self, store: str = "") -> Shard:
        path = self.folder / "access.toml"
        everything = [("*", {"report": ["*"], "read": ["*"], "operate": ["*"]})]
        etl = [("", {"report": [ROOT], "read": [ROOT, *INPUTS]})]
        self.folder.mkdir(parents=True, exist_ok=True)
        limits = "[limits]\nranges = 2\nstreams = 100\n"
        write(
            path,
            rules_of("admin", TOKENS["admin"], everything) + rules_of("etl", TOKENS["etl"], etl) + limits,
        )
        self._made = getattr(self, "_made", 0) + 1
        shard = Shard(self.folder / f"shard-{self._made}", store or self.redis.url, "--access", str(path))
        shard.constants = SOON
        return shard

    def start(self, *shards: Shard) -> None:
        for each in shards:
            each.start()
        with self.connect() as lw:
            eventually(lambda: len(lw.shards()) == len(shards))

    def connect(self, **options: object) -> lowwater.Client:
        return super().connect(token=TOKENS["admin"], **options)


@pytest.mark.slow
def test_who_may_report_for_the_root_may_report_for_its_slices_and_only_shards_report_for_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWWATER_PEER_TOKEN", PEERS)
    with Guarded(tmp_path, 2) as deployment:
        cut = Cut([], deployment.connect)
        with cut:
            place(deployment, cut)
            with lowwater.connect(deployment.addresses, token=TOKENS["etl"], timeout=60) as etl:
                worker = etl.worker(ROOT)
                leases = [worker.claim(each.start, each.end) for each in cut.lw.slices(ROOT)]
                eventually(lambda: not worker.inputs().low.unknown)
                seen = worker.inputs()
                for lease in leases:
                    lease.advance(seen, oldest=START)
                    lease.flush(60)
                assert etl.wait(ROOT, until=START, timeout=60).low.micros == START
                with pytest.raises(errors.PermissionDenied, match="etl is no shard"):
                    etl.worker(ROOT, identity=f"{ROOT}~").claim(b"", KEYS[0])
                with pytest.raises(errors.PermissionDenied):
                    etl.worker(INPUTS[0]).claim()
            with lowwater.connect(deployment.addresses, token=PEERS, timeout=60) as peer:
                for name, identity in ((ROOT, ""), (f"{ROOT}~0", ""), (INPUTS[0], ""), (f"{ROOT}~0", f"{ROOT}~")):
                    with pytest.raises(errors.PermissionDenied, match="peer lacks"):
                        peer.worker(name, identity=identity).claim()
                with pytest.raises(errors.InvalidArgument, match="not cut into slices"):
                    peer.worker(INPUTS[0], identity=f"{INPUTS[0]}~").claim()
                for act in (lambda: peer.retire(ROOT, b"", b""), lambda: peer.reset(ROOT), lambda: peer.drop(ROOT)):
                    with pytest.raises(errors.PermissionDenied, match="peer lacks"):
                        act()
            # A slice that is retired tells the root so, too: by the sequencer of its claim there.
            cut.lw.retire(ROOT, b"", KEYS[0], force=True)
            eventually(lambda: [each.state.value for each in cut.lw.ranges(ROOT) if each.start == b""] == ["retired"])
