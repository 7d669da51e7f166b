"""The simulator in short: worlds without a violation, the same world twice, planted bugs found, failures shrunk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.message import Message

from lowwater_authority.core.computation import Computation
from lowwater_authority.journal import GRAPH, Ownership
from lowwater_authority.journal.frames import encode
from lowwater_authority.journal.rules import Writer
from lowwater_authority.records import journal_pb2
from tests.kit.faults import Operation
from tests.kit.memory_journal import StoredLog
from tests.kit.program import run_program
from tests.simulation import __main__ as program
from tests.simulation import chaos, mutants, points
from tests.simulation.__main__ import ENOUGH, LONG
from tests.simulation.oracle import HOUR, Oracle
from tests.simulation.runs import MOVES, live, moves_of
from tests.simulation.shrink import shrink
from tests.simulation.truth import MIN
from tests.simulation.world import Result, World

ROOT = Path(__file__).parents[2]


STEPS = 180


def command(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        timeout=380,
    )


@pytest.mark.parametrize(
    ("steps", "reached"),
    [pytest.param(STEPS, 0.75, id="a few"), pytest.param(LONG, ENOUGH, id="many", marks=pytest.mark.long)],
)
def test_worlds_under_chaos_keep_every_promise(steps: int, reached: float) -> None:
    completed = command("run", "--seed", "2013", "--steps", str(steps), "--jobs", "1")
    summary = json.loads(completed.stdout.splitlines()[-1])
    assert (completed.returncode, summary["violations"]) == (0, 0), completed.stdout + completed.stderr
    assert summary["fault_points_reached"] >= reached * summary["fault_points"], completed.stdout
    assert summary["faults"] > 1.5 * steps
    assert summary["observations_checked"] > 80 * steps
    assert summary["simulated_hours"] > steps / 2400


def test_a_world_is_the_same_whatever_the_hash_seed(tmp_path: Path) -> None:
    moves = moves_of(7, 30)
    file = tmp_path / "moves.json"
    file.write_text(chaos.dump(7, moves, chaos.length(moves)))
    completed = command("replay", str(file), hash_seed="1")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert json.loads(completed.stdout.splitlines()[-1])["digest"] == World(7, moves).run().digest


def test_an_output_that_says_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    says = Oracle.says

    def generous(self: Oracle, name: str, incarnation: int, cells: Iterable[int], through: int) -> None:
        says(self, name, incarnation, cells, through + HOUR)

    monkeypatch.setattr(Oracle, "says", generous)
    [violation, *_] = World(9, moves_of(9, 30)).run().violations
    assert "an output of daily/1 says " in violation


def late_news(log: str, *records: Message) -> World:
    """A world in which the news of a log's records comes in the order of their log, and that of the first once more."""
    world = World(3, ())
    writer = Writer(1, 1)
    frames = {at: encode(log, at, record.SerializeToString(), writer=writer) for at, record in enumerate(records, 1)}
    world.deployment.ledger.logs[log] = StoredLog(last=len(frames), records=frames)
    for place in (*frames, 1):
        world.oracle.durable("shard-1", Operation("append", [(log, place)], strong=True))
    assert not world.oracle.violations
    return world


def test_late_news_of_the_graph_undo_no_newer_ones() -> None:
    first, second = journal_pb2.Part(number=0), journal_pb2.Part(number=1, start=b"\x80")
    cuts = [[first], [first, second]]
    records = [journal_pb2.Topology(computations=[journal_pb2.Computation(name="flights", cut=cut)]) for cut in cuts]
    assert late_news(GRAPH, *records).pipeline.nodes["flights"].parts == ((0, 0), (1, 2))


def test_late_news_of_a_retirement_take_out_nothing_that_was_claimed_since() -> None:
    ops = [journal_pb2.Op(retire=journal_pb2.Retire()), journal_pb2.Op(claim=journal_pb2.Claim(bounds=[b"", b""]))]
    world = late_news("daily", *(journal_pb2.Record(incarnation=1, low_micros=MIN, ops=[op]) for op in ops))
    assert not any(cell.retired for cell in world.pipeline.nodes["daily"].cells)


def test_a_retirement_is_no_late_news_where_the_store_has_forgotten_its_positions() -> None:
    ops = [journal_pb2.Op(claim=journal_pb2.Claim(bounds=[b"", b""])), journal_pb2.Op(retire=journal_pb2.Retire())]
    claimed, retired = (journal_pb2.Record(incarnation=1, low_micros=MIN, ops=[op]) for op in ops)
    world = late_news("daily", claimed, claimed, claimed)
    frame = encode("daily", 2, retired.SerializeToString(), writer=Writer(1, 1))
    world.deployment.ledger.logs["daily"] = StoredLog(last=2, records={2: frame})
    world.deployment.ledger.owners["daily"] = Ownership(1, 1)
    world.oracle.durable("shard-1", Operation("append", [("daily", 2)], strong=True))
    assert all(cell.retired for cell in world.pipeline.nodes["daily"].cells)


def test_every_planted_bug_has_a_world_that_is_known_to_find_it() -> None:
    assert mutants.finders().keys() == mutants.MUTANTS.keys()


@pytest.mark.parametrize("name", mutants.finders())
def test_a_planted_bug_is_found(name: str) -> None:
    hunted = mutants.hunt(name, mutants.finders()[name])
    assert hunted.seed is not None, hunted.why


@pytest.mark.long
@pytest.mark.parametrize("third", [0, 1, 2])
def test_every_planted_bug_is_found_whichever_world_is_the_first(third: int) -> None:
    names = list(mutants.MUTANTS)[third::3]
    completed = command("mutants", *names)
    assert json.loads(completed.stdout.splitlines()[-1]) == {"mutants": len(names), "found": len(names)}, (
        completed.stdout
    )
    assert completed.returncode == 0


def test_a_bug_that_only_fails_itself_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def harmless(planted: mutants.Planted) -> None:
        del planted

    def broken(planted: mutants.Planted) -> None:
        planted.setattr(Computation, "take_record", lambda self: None)

    monkeypatch.setattr(mutants, "MUTANTS", {plant.__name__: mutants.Mutant(plant) for plant in (harmless, broken)})
    monkeypatch.setattr(mutants, "MOVES", 3)
    hunts = {name: mutants.hunt(name, most=1) for name in mutants.MUTANTS}
    assert all((hunt.seed, hunt.worlds) == (None, 1) for hunt in hunts.values())
    assert "TypeError" in hunts["broken"].why


def test_a_failing_world_names_its_seed_and_is_shrunk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "shrink", partial(shrink, attempts=12))
    arguments = ["run", "--seed", str(mutants.FIRST), "--steps", "20", "--jobs", "1"]
    with mutants.Planted.context() as planted:
        mutants.silence_counts_as_idle(planted)
        assert program.run(program.parser().parse_args(arguments)) == 1
        output = capsys.readouterr().out
        assert f"again: make simulate SEED={mutants.FIRST} STEPS=20" in output
        [file] = tmp_path.glob("build/simulation/*.json")
        assert len(chaos.load(file.read_text())[1]) <= 10
        assert program.again(program.parser().parse_args(["replay", str(file)])) == 1


def test_a_failure_that_does_not_come_again_is_said_to_be_the_simulator_s(capsys: pytest.CaptureFixture[str]) -> None:
    once = Result(3, 0.0, 0, {}, 0, ("once",), "", 0.0)
    program.report_failure(once, 1, shrinks=True)
    assert "broke no promise when it was run again" in capsys.readouterr().out


def test_a_run_with_few_fault_points_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(points, "POINTS", tuple(f"point {number}" for number in range(50)))
    monkeypatch.setattr(program, "LONG", 10)
    assert program.run(program.parser().parse_args(["run", "--seed", "3", "--steps", "10", "--jobs", "1"])) == 1
    out, err = capsys.readouterr()
    assert "too few fault points" in err
    assert json.loads(out.splitlines()[-1])["fault_points_reached"] == 0


def test_a_world_that_once_broke_a_promise_breaks_none() -> None:
    assert live((70003, MOVES), harsh=False).violations == ()
