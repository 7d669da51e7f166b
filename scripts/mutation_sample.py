"""Change core and engine, one small change at a time, and list those that no test notices.

A tool for developers, not for CI::

    nice -n 15 python -m scripts.mutation_sample --minutes 60

One process imports the product and the tests. For each change it forks a child, which plants the
changed code and runs the simulated worlds, property tests and some unit tests that reach the line,
cheapest first, until one fails. Results stay in ``build/mutation`` until core or engine changes:
the next run with the same seed continues there. Several processes share one sample with ``--part
1/2`` and ``--part 2/2``. ``--again 30`` gives each unnoticed change 30 further worlds, as long as
those of ``make simulate``.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import pickle
import random
import resource
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import coverage
import pytest
from hypothesis import Phase, settings

from tests.simulation.runs import MOVES, live

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "authority" / "src" / "lowwater_authority"
MODULES: Final = {
    str(path): path.relative_to(SOURCE).as_posix()
    for room in ("core", "engine")
    for path in sorted(SOURCE.glob(f"{room}/*.py"))
}
"""Names of the modules to change, by path."""

DIGEST: Final = blake2b(b"".join(Path(path).read_bytes() for path in MODULES), digest_size=4).hexdigest()
ROOM: Final = ROOT / "build" / "mutation" / DIGEST

WORLDS: Final = tuple((seed, 24) for seed in (2013, 2014, 2015, 2016, 2017, 2020, 2029, 2037))
"""Seeds and moves of the simulated worlds.

2029 has shards and damages the graph; 2037 has shards and a store that forgets.
"""

UNITS: Final = ["cluster", "damaged_graph", "drop", "half_changes", "isolation", "messages", "room", "shard", "slices"]
"""Files of unit tests that take a few seconds of processor each."""

TESTS: Final = [
    *(str(path) for path in sorted(ROOT.glob("tests/property/test_[cst][lo]*.py")) if "client" not in path.name),
    *(str(ROOT / "tests" / "unit" / f"test_{name}.py") for name in UNITS),
]
"""Files of tests. Those that plant bugs are excluded by name."""

SWAPPED: Final = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.And, ast.Or),
]
OTHERS: Final[dict[type[ast.AST], Callable[[], ast.AST]]] = {
    **{one: other for pair in SWAPPED for one, other in (pair, pair[::-1])},
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
UNNOTICED: Final = ("survived", "not reached", "no result")
"""Results of unnoticed changes; "no result": the time limit ended the tests."""

NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Change(NamedTuple):
    """A change: a node, one of its fields, and the new value."""

    path: str
    tree: ast.Module
    function: str
    statement: ast.stmt
    node: ast.AST
    field: str
    new: Any

    def diff(self) -> str:
        """Return the place of the change, and the line before and after it."""
        old, before = getattr(self.node, self.field), ast.unparse(self.statement).splitlines()
        setattr(self.node, self.field, self.new)
        after = ast.unparse(self.statement).splitlines()
        setattr(self.node, self.field, old)
        was, now = next(((a, b) for a, b in zip(before, after, strict=False) if a != b), ("", ""))
        return f"{MODULES[self.path]}:{self.statement.lineno} {self.function}\n  - {was.strip()}\n  + {now.strip()}"

    def lines(self) -> set[tuple[str, int]]:
        """Return the lines of the change; a test must reach one of them to notice it."""
        end = getattr(self.node, "end_lineno", self.statement.lineno)
        return {(MODULES[self.path], line) for line in range(self.statement.lineno, end + 1)}

    def plant(self) -> bool:
        """Put the changed code into all living functions; False when there is none."""
        setattr(self.node, self.field, self.new)
        code: types.CodeType = compile(ast.fix_missing_locations(self.tree), self.path, "exec")
        for name in self.function.split("."):
            code = next(part for part in code.co_consts if isinstance(part, types.CodeType) and part.co_name == name)
        gc.unfreeze()  # frozen objects are not listed
        living = [
            function
            for function in gc.get_objects()
            if isinstance(function, types.FunctionType) and place(function.__code__) == place(code)
        ]
        for function in living:
            function.__code__ = code
        return bool(living)


def place(code: types.CodeType) -> tuple[str, str, int]:
    """Return the place of a function in the source."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def variants(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Return the fields of a node that can change, with their new values."""
    match node:
        case ast.Compare(ops=[op]):
            yield "ops", [OTHERS[type(op)]()]
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in OTHERS:
            yield "op", OTHERS[type(op)]()
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "test", ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=[test, *others]):
            yield "ifs", others
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.Constant(value=bool(value)):
            yield "value", not value
        case ast.Constant(value=int(value)):
            yield "value", value + 1
        case ast.Name(id=name) if name in NAMES:
            yield "id", NAMES[name]
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "value", ast.Constant(None)
        case _:
            pass


def nodes(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """Return all nodes below one with their statements, except logs, f-strings and annotations."""
    if isinstance(node, ast.stmt):
        statement = node
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Expr) and ast.unparse(node).startswith("log.")):
        return
    yield node, statement
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in {"annotation", "returns"}:
                yield from nodes(child, statement)


def fork() -> int:
    """Start a child, whose tests print nothing; returns 0 in it."""
    if not (child := os.fork()):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return child


def functions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return the functions of a module and of its classes, by their qualified names."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from functions(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + statement.name, statement


def changes(path: str) -> Iterator[Change]:
    """Return all changes of a module."""
    tree = ast.parse(Path(path).read_text())
    for name, function in functions(tree.body):
        for node, statement in [pair for top in function.body for pair in nodes(top, top)]:
            for field, new in variants(node):
                yield Change(path, tree, name, statement, node, field, new)


class Sampler:
    """A plugin of pytest that runs changes in place of the collected tests."""

    def __init__(self, minutes: float, seed: int, seconds: int, part: tuple[int, int], again: int) -> None:
        self._until = time.monotonic() + 60 * minutes
        self._seed = seed
        self._seconds = seconds
        self._part = part
        self._again = again
        self._failed = False

    def pytest_sessionstart(self) -> None:
        """Let a failing property test end at its first example."""
        settings.register_profile(
            "mutation", settings.get_profile("lowwater"), database=None, phases=[Phase.explicit, Phase.generate]
        )
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember whether a test has failed."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record the lines that each test reaches, then run the sample."""
        tests: dict[str, Callable[[], bool]] = {
            f"world {seed}": partial(self._world, seed, moves) for seed, moves in WORLDS
        }
        tests |= {item.nodeid: partial(self._test, item) for item in session.items}
        gc.freeze()
        reach_file = ROOM / "reached.pickle"
        if not reach_file.exists():
            reach_file.write_bytes(pickle.dumps([self._reach(name, test) for name, test in tests.items()]))
        reached = sorted(pickle.loads(reach_file.read_bytes()))
        for seconds, name, lines in reached:
            print(f"{seconds:6.1f} s {len(lines):5} lines {name}", flush=True)
        sample = [change for path in MODULES for change in changes(path)]
        print(f"there are {len(sample)} changes", flush=True)
        random.Random(self._seed).shuffle(sample)
        number, parts = self._part
        sample = sample[number - 1 :: parts]
        results = ROOM / f"results-{self._seed}-{number}-of-{parts}.jsonl"
        worlds: dict[str, Callable[[], bool]] = {}
        if self._again:
            rows = map(json.loads, results.read_text().splitlines())
            unnoticed = {diff for _, result, diff in rows if result in UNNOTICED}
            sample = [change for change in sample if change.diff() in unnoticed]
            seeds = range(1_000_000, 1_000_000 + self._again)
            worlds = {f"world {seed}": partial(self._world, seed, MOVES) for seed in seeds}
            results = results.with_name(f"again-{results.name}")
        done = len(results.read_text().splitlines()) if results.exists() else 0
        with results.open("a") as file:
            for change in sample[done:]:
                if time.monotonic() > self._until:
                    break
                lines = change.lines()
                chosen = worlds or {name: tests[name] for _, name, reached_lines in reached if lines & reached_lines}
                result = self._run(change, chosen) if chosen else "not reached"
                file.write(json.dumps([MODULES[change.path], result, change.diff()]) + "\n")
                file.flush()
        report(results)
        return True

    def _world(self, seed: int, moves: int) -> bool:
        return not live((seed, moves)).violations

    def _test(self, item: pytest.Item) -> bool:
        self._failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self._failed

    def _reach(self, name: str, test: Callable[[], bool]) -> tuple[float, str, set[tuple[str, int]]]:
        """Run a test in a child; returns its seconds and the lines that it reaches."""
        print(f"{name} ...", flush=True)
        line_file = ROOM / f"lines-{os.getpid()}.pickle"
        if not (child := fork()):
            tracer = coverage.Coverage(data_file=None, include=list(MODULES), messages=False)
            tracer.start()
            passed = test()
            tracer.stop()
            data = tracer.get_data()
            lines = {(MODULES[path], line) for path in data.measured_files() for line in data.lines(path) or ()}
            line_file.write_bytes(pickle.dumps(lines))
            os._exit(int(not passed))
        started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        if os.waitpid(child, 0)[1]:
            print(f"{name} is left out: it fails without any change", flush=True)
            return 0.0, name, set()
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - started
        return seconds, name, pickle.loads(line_file.read_bytes())

    def _run(self, change: Change, tests: dict[str, Callable[[], bool]]) -> str:
        """Run tests on a change, in a child; returns the failed test, or another result."""
        if not (child := fork()):
            resource.setrlimit(resource.RLIMIT_CPU, (self._seconds, self._seconds + 5))
            resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            signal.alarm(20 * self._seconds)  # it may wait for ever, which takes no processor
            if not change.plant():
                os._exit(254)
            for number, test in enumerate(tests.values()):
                passed = False
                try:
                    passed = test()
                finally:
                    if not passed:
                        os._exit(1 + number)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status in {0, 254} or status < 0:
            return {0: "survived", 254: "no function"}.get(status, "no result")
        return list(tests)[status - 1]


def report(results: Path) -> None:
    """Print the results by module, and the changes that survived."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    others = (*UNNOTICED, "no function")
    counts = Counter((module, result if result in others else "killed") for module, result, _ in rows)
    for _, result, diff in rows:
        if result in {"survived", "not reached"}:
            print(f"{result}: {diff}")
    columns = ("killed", *others)
    print("| module | " + " | ".join(columns) + " |\n" + "|---" * (1 + len(columns)) + "|")
    for module in sorted({row[0] for row in rows}):
        print(f"| {module} | " + " | ".join(str(counts[module, column]) for column in columns) + " |")
    totals = [sum(n for (_, what), n in counts.items() if what == column) for column in columns]
    print("| all | " + " | ".join(map(str, totals)) + " |")


def main() -> int:
    """Run the sample for a while, and print the results so far."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--minutes", type=float, default=60, help="how long to go on (default: %(default)s)")
    parse.add_argument("--seed", type=int, default=1, help="seed of the sample (default: %(default)s)")
    parse.add_argument(
        "--seconds", type=int, default=60, help="seconds of processor that one change may take (default: %(default)s)"
    )
    parse.add_argument(
        "--part", default="1/1", help="number of this process and of all that share a sample (default: %(default)s)"
    )
    parse.add_argument("--again", type=int, default=0, help="give changes that survived so many further worlds")
    arguments = parse.parse_args()
    number, parts = map(int, arguments.part.split("/"))
    ROOM.mkdir(parents=True, exist_ok=True)
    chosen = "not notice and not switched and not broken and not breaks"
    options = ["-q", "-n0", "-s", "-W", "ignore:Module already imported", "-k", chosen, *TESTS]
    return int(
        pytest.main(
            options,
            plugins=[Sampler(arguments.minutes, arguments.seed, arguments.seconds, (number, parts), arguments.again)],
        )
    )


if __name__ == "__main__":
    sys.exit(main())
