"""The provider in a real Airflow, in an environment of its own, over a database of its own, against a real authority."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import lowwater
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.kit.program import run_program
from tests.kit.times import at, mark, micros
from tests.process.serving import Serving, serving

ROOT = Path(__file__).parents[2]
INSIDE = ROOT / "integrations" / "airflow" / "tests"
"""The tests that run in Airflow's environment."""
PATIENCE = 240.0
"""Airflow takes many seconds of processor time to start anything."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Airflow:
    """An Airflow whose home is a folder, and whose connection leads to an authority."""

    def __init__(self, home: Path, server: Serving) -> None:
        self.home = home
        self.database = home / "airflow.db"
        self.bin = ROOT / "build" / "airflow" / "bin"
        connection = {"conn_type": "lowwater", "host": "127.0.0.1", "port": server.port}
        self.environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW_CONN_LOWWATER_DEFAULT": json.dumps(connection),
            # For the command `lowwater` in a task of bash.
            "LOWWATER_ADDRESS": server.address,
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Run a program of its environment, in a group of its own; what it says goes into a file."""
        with (self.home / f"{name}.log").open("ab") as log:
            command = [str(self.bin / name), *arguments]
            return subprocess.Popen(command, env=self.environ, stdout=log, stderr=log, start_new_session=True)

    def run(self, name: str, *arguments: str) -> str:
        done = run_program([str(self.bin / name), *arguments], env=self.environ)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def rows(self, question: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            return database.execute(question).fetchall()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("authority")) as authority:
        yield authority


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, server: Serving) -> Airflow:
    subprocess.run([ROOT / "integrations" / "setup.sh", "airflow"], check=True)
    environment = Airflow(tmp_path_factory.mktemp("airflow"), server)
    (environment.home / "dags").mkdir()
    shutil.copy(INSIDE / "dags.py", environment.home / "dags" / "hourly.py")
    for dag in ("airflow2_dag.py", "airflow3_dag.py"):
        shutil.copy(ROOT / "examples" / "jobs" / dag, environment.home / "dags")
    environment.run("airflow", "db", "migrate")
    return environment


@pytest.fixture(scope="module")
def lw(server: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(server.address) as client:
        client.register("guess", estimated=True)
        client.register("flights")
        yield client


@pytest.fixture(scope="module")
def lease(lw: lowwater.Client) -> lowwater.Lease:
    """flights, of which everything before 13:00 is here."""
    lease_ = lw.worker("flights", name="exec-7").claim()
    come(lease_, 13)
    return lease_


def come(lease: lowwater.Lease, hour: int) -> None:
    lease.advance(None, oldest=None, frontier=at(hour))
    lease.flush()


def test_airflow_knows_provider_and_triggers(airflow: Airflow, lw: lowwater.Client, lease: lowwater.Lease) -> None:
    facts = json.loads(airflow.run("python", str(INSIDE / "child.py")).splitlines()[-1])
    assert facts["provider"] == version("lowwater")
    assert facts["hook"] == ["lowwater_airflow.hook.LowwaterHook", "lowwater", "lowwater"]
    assert facts["connection"] == [True, f"the deployment {lw.server_token} answers"]
    assert facts["without_interval"].startswith("this run has no data interval: pass until=")
    for sent, restored in facts["triggers"]:
        assert sent == restored


def test_a_task_waits_in_the_triggerer_until_its_hour_is_complete(airflow: Airflow, lease: lowwater.Lease) -> None:
    conf = json.dumps({"until": at(14).isoformat()})
    running = airflow.start("airflow", "dags", "test", "hourly", "-c", conf)
    try:
        # What keeps the trigger is what waits: `dags test` writes states of its own over that of the task.
        waits = "select kwargs from trigger where classpath = 'lowwater_airflow.trigger.LowWatermarkTrigger'"
        [(arguments,)] = eventually(lambda: airflow.rows(waits), "the sensor is deferred", seconds=PATIENCE)
        assert json.loads(arguments)["until_micros"] == lowwater.Watermark.of(at(14)).micros
        assert airflow.rows("select state from task_instance where task_id = 'report'") == [(None,)]
        come(lease, 14)
        running.wait(PATIENCE)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert dict(airflow.rows("select task_id, state from task_instance")) == {
        "waits": "success",
        "report": "success",
        "is_complete": "success",
        "pokes": "success",
        "misspelt": "failed",
        "estimated": "failed",
        "naive": "failed",
    }


def test_each_complete_hour_is_an_event_of_its_asset_whatever_dies(airflow: Airflow, lease: lowwater.Lease) -> None:
    def events() -> list[str]:
        rows = airflow.rows("select extra from asset_event order by id")
        return [json.loads(extra)["payload"]["from"] for (extra,) in rows]

    def cursor() -> list[Any]:
        return [json.loads(value)["next_micros"] for (value,) in airflow.rows("select value from asset_state_store")]

    def never_ahead() -> None:
        """Wherever it is killed: the cursor is at an event that is in the database, or behind it."""
        [(value, extra)] = airflow.rows(
            "select (select value from asset_state_store), (select extra from asset_event order by id desc limit 1)"
        )
        if value is not None:
            last = lowwater.Watermark.of(datetime.fromisoformat(json.loads(extra)["payload"]["to"])) if extra else None
            assert last is not None
            assert json.loads(value)["next_micros"] <= last.micros

    def run_until(look: Callable[[], bool]) -> None:
        triggerer = airflow.start("airflow", "triggerer")
        try:
            eventually(look, "events", seconds=PATIENCE, check=never_ahead, seen=lambda: (events(), cursor()))
        finally:
            os.killpg(triggerer.pid, signal.SIGKILL)
            triggerer.wait()

    come(lease, 14)
    run_until(lambda: len(events()) == 4 and cursor() == [micros(14)])
    come(lease, 74)
    run_until(lambda: len(events()) > 4)  # somewhere among the next sixty
    run_until(lambda: cursor() == [micros(74)])
    assert list(dict.fromkeys(events())) == [str(mark(hour)) for hour in range(10, 74)], "in order, none left out"


@pytest.mark.parametrize("dag", ["report_airflow2", "report_airflow3"])
def test_the_dags_to_copy_report_when_their_hour_is_complete(airflow: Airflow, lw: lowwater.Client, dag: str) -> None:
    lw.register("hourly")
    with lw.worker("hourly") as worker:
        lease_ = worker.claim()
        lease_.advance(None, oldest=None, frontier="2026-01-01T11:00Z")
        lease_.flush()
    output = airflow.run("airflow", "dags", "test", dag, "2026-01-01T11:00Z")
    assert "the report of the hour until 2026-01-01" in output
    states = airflow.rows(f"select task_id, state from task_instance where dag_id = '{dag}'")
    assert dict(states) == {"complete": "success", "report": "success"}
