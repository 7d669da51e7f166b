"""The script that makes the environments of the integrations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.program import run_program

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("arguments", [[], [""], ["../x"], ["airflow/../dagster"], ["tests"], ["dagster "]], ids=str)
def test_what_is_no_environment_is_refused_before_anything_is_removed(arguments: list[str], tmp_path: Path) -> None:
    script = tmp_path / "integrations" / "setup.sh"
    script.parent.mkdir()
    script.write_bytes((ROOT / "integrations" / "setup.sh").read_bytes())
    file = tmp_path / "x" / "kept"
    file.parent.mkdir()
    file.touch()
    done = run_program(["bash", script, *arguments])
    assert (done.returncode, "pass airflow, dagster or openlineage" in done.stderr) == (2, True), done.stderr
    assert file.exists()
