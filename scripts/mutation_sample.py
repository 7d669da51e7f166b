"""Change the authority's core and engine by machine, one small change at a time, and list the changes that no test notices.

A tool for developers, not for CI: each change costs half a minute. Install it with ``uv pip install cosmic-ray`` and run
``python -m scripts.mutation_sample --number 50``. The copy that is changed is made in ``build/mutation``; the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

ROOM: Final = ROOT / "build" / "mutation"
"""Folder of the copy, of the session and of the report."""

DISTRIBUTIONS: Final = ("authority", "client", "pipeline")
"""Folders whose ``src`` the tests import from the copy."""

CHANGED: Final = ("core", "engine")
"""Packages of the authority that are changed."""

PROPERTIES: Final = (
    "tests/property/test_core_stateful.py",
    "tests/property/test_core_tasks.py",
    "tests/property/test_slices.py",
    "tests/property/test_core_topology.py",
)
"""Property tests that each change meets behind the simulated worlds, but for those that plant bugs of their own."""

CONFIGURATION: Final = """\
[cosmic-ray]
module-path = [{modules}]
timeout = {seconds}
excluded-modules = []
test-command = "{command}"

[cosmic-ray.distributor]
name = "local"
"""


def main() -> int:
    """Make the sample, run it, and print what survived."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--number", type=int, default=1000, help="number of changes (default: %(default)s)")
    parse.add_argument("--seed", type=int, default=1, help="seed of the sample (default: %(default)s)")
    parse.add_argument("--steps", type=int, default=120, help="moves of the simulated worlds (default: %(default)s)")
    parse.add_argument("--world", type=int, default=2013, help="seed of the first world (default: %(default)s)")
    parse.add_argument("--seconds", type=int, default=1200, help="time limit of one change (default: %(default)s)")
    parse.add_argument("--again", action="store_true", help="go on with the session that is there")
    asked = parse.parse_args()
    session = ROOM / "session.sqlite"
    if not asked.again or not session.exists():
        _begin(asked, session)
    sources = [str(ROOM / "tree" / each / "src") for each in DISTRIBUTIONS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOM / "tree"), *sources])}
    _cosmic_ray("exec", str(ROOM / "session.toml"), str(session), environment=environment)
    return report(session)


def _begin(asked: argparse.Namespace, session: Path) -> None:
    """Copy what is committed, and choose the changes."""
    shutil.rmtree(ROOM, ignore_errors=True)
    tree = ROOM / "tree"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    worlds = f"{sys.executable} -m tests.simulation run --seed {asked.world} --steps {asked.steps} --jobs 1 --no-shrink"
    tests = f"{sys.executable} -m pytest -q -x -p no:cacheprovider -k 'not notice' {' '.join(PROPERTIES)}"
    modules = ", ".join(f'"authority/src/lowwater_authority/{each}"' for each in CHANGED)
    (ROOM / "session.toml").write_text(
        CONFIGURATION.format(modules=modules, seconds=asked.seconds, command=f'sh -c \\"{worlds} && {tests}\\"')
    )
    _cosmic_ray("init", str(ROOM / "session.toml"), str(session))
    with sqlite3.connect(session) as database:
        jobs = sorted(row[0] for row in database.execute("SELECT job_id FROM work_items"))
        chosen = set(random.Random(asked.seed).sample(jobs, min(asked.number, len(jobs))))
        for table in ("mutation_specs", "work_items"):
            database.executemany(
                f"DELETE FROM {table} WHERE job_id = ?",
                [(job,) for job in jobs if job not in chosen],
            )
    print(f"{len(chosen)} of {len(jobs)} changes are in the sample", flush=True)


def _cosmic_ray(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [str(Path(sys.executable).with_name("cosmic-ray")), *arguments]
    subprocess.run(command, cwd=ROOM / "tree", env=environment, check=True)


def report(session: Path) -> int:
    """Print the changes that no test noticed, and how many ran."""
    with sqlite3.connect(session) as database:
        rows = database.execute(
            "SELECT s.module_path, s.start_pos_row, s.operator_name, r.test_outcome, r.worker_outcome, r.diff, r.output "
            "FROM mutation_specs s JOIN work_results r ON r.job_id = s.job_id ORDER BY 1, 2"
        ).fetchall()
    survivors = [row for row in rows if "SURVIVED" in str(row[3]).upper()]
    slow = sum(row[6].endswith("timeout") for row in rows)
    for module, line, operator, _, _, diff, _ in survivors:
        print(f"\n{module}:{line} {operator}\n{diff}")
    print(f"{len(rows)} changes ran, {len(survivors)} survived, {slow} had no result in time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
