"""Examples as their commands run them, in small."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lowwater
from examples.daily_close.__main__ import main as daily_close
from examples.flights.advise import main as advise
from examples.zombie.__main__ import main as zombie
from tests.kit.program import run_program
from tests.kit.times import at, mark
from tests.process.serving import Serving

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
PLAIN_WORKER = """\
2013-01-09 09:00   550
2013-01-09 10:00   120
totals is complete until 2013-01-09T11:00:00Z
paris is complete until 2013-01-09T11:20:00Z
rome is complete until 2013-01-09T13:40:00Z
"""
DAILY_CLOSE = "2013-01-07   550\n2013-01-08  1190\nevery day until 2013-01-09T00:00:00Z is closed\n"


@pytest.mark.parametrize(("job", "printed"), [("plain_worker", PLAIN_WORKER), ("daily_close", DAILY_CLOSE)])
def test_a_job_to_copy_prints_what_is_complete_also_when_it_runs_again(
    job: str, printed: str, server: Serving, tmp_path: Path
) -> None:
    environment = {**os.environ, "LOWWATER_ADDRESS": server.address}
    for _ in range(2):
        done = run_program([sys.executable, JOBS / f"{job}.py"], cwd=tmp_path, env=environment)
        assert (done.stdout, done.returncode) == (printed, 0), done.stderr


def test_a_log_is_promised_until_its_last_whole_line_and_closes_no_hour_by_the_clock(
    server: Serving, lw: lowwater.Client, tmp_path: Path
) -> None:
    environment = {**os.environ, "LOWWATER_ADDRESS": server.address}
    folder = tmp_path / "follow_log"
    for hour, ended in ((11, "5Z GET /\n2013-01-09T12:00Z GE"), (12, "T /\n")):
        with subprocess.Popen([sys.executable, JOBS / "follow_log.py"], cwd=tmp_path, env=environment) as run:
            try:
                lw.wait("requests", until=at(hour - 1), timeout=60)
                assert lw.get("requests")["requests"].low == mark(hour - 1)
                with (folder / "access.log").open("a") as log:
                    log.write(ended)
                lw.wait("requests", until=at(hour), timeout=60)
                assert f"waiting for a line of follow_log/access.log after {hour}:59" in str(lw.why("requests"))
            finally:
                run.terminate()
        assert run.returncode == 0
        assert "which stopped at" in str(lw.why("requests"))
    assert (folder / "totals.txt").read_text() == "2013-01-09 09:00 2\n2013-01-09 10:00 1\n2013-01-09 11:00 1\n"


def test_the_command_of_airflow_2_exits_with_0_or_1_and_says_who_is_late(server: Serving, lw: lowwater.Client) -> None:
    [command] = re.findall('^WAIT = "(.+)"$', (JOBS / "airflow2_dag.py").read_text(encoding="utf-8"), re.MULTILINE)
    lw.register("hourly")
    lease = lw.worker("hourly", name="exec-7").claim()
    lease.advance(None, oldest=None, frontier=at(14))
    lease.flush()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment, errors = {**os.environ, "LOWWATER_ADDRESS": server.address, "PATH": path}, []
    for hour, code, patience in ((14, 0, "10m"), (15, 1, "2s")):
        wait = command.replace("{{ data_interval_end | ts }}", at(hour).isoformat()).replace("10m", patience)
        done = run_program(["bash", "-c", wait], env=environment)
        assert done.returncode == code, done.stderr
        errors += done.stderr.splitlines()
    assert "held by hourly all keys on exec-7" in errors[-1]


@pytest.mark.long  # the rule: test_tasks.py
def test_each_day_is_closed_once_and_the_sleeper_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert daily_close(["--out", str(tmp_path / "out"), "--days", "2"]) == 0, capsys.readouterr().out
    text = capsys.readouterr().out
    assert "sleeper: the lease of the interval from 2013-01-08T00:00:00Z counts no more: it is done by closer-" in text
    assert "each day is closed once" in text
    written = list((tmp_path / "out" / "closes" / "daily" / "2013-01-08T000000Z").iterdir())
    assert len(written) == 2, "the sleeper's close has a name of its own, and is in nobody's way"


def test_the_zombie_fails_visibly_where_there_is_a_guard_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert zombie([]) == 0
    output = dict(part.split("\n", 1) for part in capsys.readouterr().out.strip().split("\n\n"))
    assert len(output) == 6
    for store, steps in output.items():
        if store.endswith("guarded"):
            assert re.search(r"B   (goes on|tries again): Fenced: .* it is a zombie, and must stop", steps), steps
            assert "in the store: 09:00, 10:00; B' knows of all" in steps
        else:
            assert "B   goes on: its write lands" in steps
            assert "B' never fires 10:00" in steps


@pytest.mark.long  # the rules: property/test_advice.py
def test_the_advice_about_the_flights_is_what_the_page_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/lateness-budget.md").read_text(encoding="utf-8")
    shown = page.split("$ lowwater advise ")[1].split("```")[0].splitlines()[1:]
    assert advise(["--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert len(shown) > 5
    assert set(shown) <= set(output.splitlines())
    assert "Row by row, Spark would have dropped 45.05% with 1 h, 22.23% with 2 h, 0.56% with 6 h." in output
    assert "Rows that a constant delay would have lost" in (tmp_path / "out" / "advise.svg").read_text(encoding="utf-8")
