"""The sensor in a real Dagster, in an environment of its own, against a real authority."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.kit.program import run_program
from tests.process.serving import serving

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(900)


def test_each_hour_that_is_complete_gets_one_run(tmp_path: Path) -> None:
    subprocess.run([ROOT / "integrations" / "setup.sh", "dagster"], check=True)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    child = ROOT / "integrations" / "dagster" / "tests" / "child.py"
    with serving(tmp_path) as server:
        ran = run_program([str(ROOT / "build" / "dagster" / "bin" / "python"), str(child), server.address], env=environ)
    assert ran.returncode == 0, ran.stderr[-5000:]
    results = json.loads(ran.stdout.splitlines()[-1])
    hours = [[key.split("/")[2:] for key in keys] for keys in results["keys"]]
    day = "2013-01-09T"
    assert hours == [
        [],
        [["1", f"{day}10:00:00Z", f"{day}11:00:00Z"], ["1", f"{day}11:00:00Z", f"{day}12:00:00Z"]],
        [],
        [["1", f"{day}12:00:00Z", f"{day}13:00:00Z"], ["1", f"{day}13:00:00Z", f"{day}14:00:00Z"]],
        [["2", f"{day}10:00:00Z", f"{day}11:00:00Z"], ["2", f"{day}11:00:00Z", f"{day}12:00:00Z"]],
        [],
    ]
    assert results["made"] == [f"2013-01-09-{hour}:00" for hour in (10, 11, 12, 13, 10, 11)]
    assert results["skipped"] == [
        "there is no computation flights",
        None,
        "flights is at 2013-01-09T12:45:00Z",
        None,
        None,
        "flights is at finished",
    ]
    assert results["reset"].startswith("IncarnationChanged('flights was reset: incarnation 2 began")
    assert results["local"].startswith(
        "partition 2026-11-01 is 2026-11-01T04:00:00Z to 2026-11-02T05:00:00Z, and the interval that is complete is "
        "2026-11-01T04:00:00Z to 2026-11-02T04:00:00Z: define the partitions in UTC"
    )
