"""What a report says of facts, what is said of stored checkpoints, and what the command refuses. No Spark runs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from pyspark import cloudpickle

import lowwater
from lowwater_spark.command import main
from lowwater_spark.doctor.facts import Checkpoint, Facts, Place, Query, Rung
from lowwater_spark.doctor.judge import look_at_checkpoint
from lowwater_spark.doctor.probe import _look, look_around
from lowwater_spark.doctor.report import FIX, NOTE, OK, Report, report

HERE = Place("driver", "3.12.1", "0.3.0", "0.3.0", ahead=0.001, within=0.002)
FACTS = Facts(HERE, "authority:7420", pyspark="4.2.0", spark="4.2.0", session="classic", java="17")
ATTACH = Rung("attach", "possible, an estimate", paste='lws.attach(spark, "authority:7420")')


def levels(found: Report, topic: str) -> list[str]:
    return [finding.level for finding in found.findings if finding.topic == topic]


def texts(found: Report, topic: str) -> str:
    return "\n".join(finding.text for finding in found.findings if finding.topic == topic)


def no_session() -> NoReturn:
    raise AssertionError("no session is needed")


def test_where_all_fits_nothing_is_to_be_fixed() -> None:
    found = report(replace(FACTS, executors=(replace(HERE, host="one"),), queries=(Query("hourly", rungs=(ATTACH,)),)))
    assert found.good
    assert {finding.level for finding in found.findings} == {OK}
    assert texts(found, "authority") == "authority:7420 answers here\nauthority:7420 is reached from 1 executor host"
    assert "driver" not in texts(found, "clocks"), "the clock of this machine is that of the driver"
    assert "one 1.0 ms ahead of the authority, to 2.0 ms" in texts(found, "clocks")


@pytest.mark.parametrize(
    ("spark", "pyspark", "level", "says"),
    [
        ("4.2.0", "4.2.1", OK, "Spark 4.2.0, PySpark 4.2.1"),
        ("4.1.0", "4.2.0", FIX, "pyspark==4.1.0"),
        ("3.5.7", "3.5.7", FIX, "a sidecar beside it"),
        ("4.3.0", "4.3.0", NOTE, "newer than what is tested"),
        ("4.2.0", "", NOTE, "PySpark is not installed here"),
    ],
)
def test_versions_that_do_not_fit_are_named(spark: str, pyspark: str, level: str, says: str) -> None:
    found = report(replace(FACTS, spark=spark, pyspark=pyspark))
    assert levels(found, "spark") == [level]
    assert says in texts(found, "spark")


@pytest.mark.parametrize(("session", "level"), [("classic", OK), ("Connect", NOTE), ("unknown", NOTE)])
def test_the_kind_of_the_session_is_told(session: str, level: str) -> None:
    assert levels(report(replace(FACTS, session=session)), "session") == [level]


def test_an_authority_that_is_away_is_to_be_fixed_here_and_noted_of_an_executor() -> None:
    away = replace(HERE, host="one", problem="no connection to authority:7420", ahead=None)
    assert levels(report(replace(FACTS, executors=(away,))), "authority") == [OK, NOTE]
    found = report(replace(FACTS, here=away))
    assert levels(found, "authority") == [FIX]
    assert levels(found, "clocks") == [], "nothing is known of the clocks"


def test_executors_without_the_code_and_with_another_release_are_told_apart() -> None:
    without = replace(HERE, host="one", lowwater="", listener="")
    older, zipped = replace(HERE, host="two", lowwater="0.2.0"), replace(HERE, host="three", lowwater="unknown")
    assert levels(report(replace(FACTS, executors=(without, older, zipped))), "executors") == [OK, NOTE, FIX]
    assert levels(report(replace(FACTS, job="no pyarrow")), "executors") == [FIX]


@pytest.mark.parametrize(("ahead", "within", "level"), [(1.5, 0.1, FIX), (-1.5, 0.1, FIX), (1.5, 0.6, OK)])
def test_clocks_that_are_surely_apart_are_to_be_fixed(ahead: float, within: float, level: str) -> None:
    found = report(replace(FACTS, here=replace(HERE, ahead=ahead, within=within)))
    assert levels(found, "clocks") == [level]


def test_a_rung_that_is_not_possible_says_why_and_one_that_is_has_lines_to_paste() -> None:
    drive = Rung("drive", "possible", refused="Spark keeps nothing in its state")
    query = Query("hourly", ("FileStreamSource[/in]",), "FileSink[/out]", "", "/mnt/ck", "fuse.s3fs", (ATTACH, drive))
    found = report(replace(FACTS, queries=(query,)))
    assert levels(found, "query hourly") == [OK, NOTE, OK, NOTE], "a file system in user space was not tested"
    text = str(found)
    assert '\n      | lws.attach(spark, "authority:7420")\n' in text
    assert "drive: not possible. Spark keeps nothing in its state" in text
    assert "<pre" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["good"]
    assert "a stage tracks it already" in str(report(replace(FACTS, queries=(Query("q"),))))


def test_a_checkpoint_that_is_refused_is_to_be_fixed() -> None:
    found = report(
        replace(FACTS, session="", checkpoints=(Checkpoint("/ck", "ext4", "continuous"), Checkpoint("/c", "nfs4")))
    )
    assert levels(found, "checkpoint") == [FIX, OK]


def stored(folder: Path, line: str) -> Path:
    for name, text in (
        ("metadata", '{"id":"one"}'),
        ("offsets/0", f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{line}'),
        ("commits/0", 'v1\n{"nextBatchWatermarkMs":0}'),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_checkpoint_is_judged_as_the_sidecar_judges_it_and_stays_as_it_is(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "ck", '{"logOffset":0}')
    before = sorted(tmp_path.rglob("*"))
    seen = look_at_checkpoint(str(checkpoint), no_session)
    assert not seen.refused
    assert '"<files:/data/in>",  # {"logOffset":0}' in seen.paste
    assert sorted(tmp_path.rglob("*")) == before
    of_rate = look_at_checkpoint(str(stored(tmp_path / "rate", '{"0":{"value":3,"runTimeMs":4}}')), no_session)
    assert "this release cannot tell where it ends" in of_rate.refused
    (checkpoint / "lowwater").mkdir()
    assert "its own job tracks it" in look_at_checkpoint(str(checkpoint), no_session).refused
    assert "no query has begun there" in look_at_checkpoint(str(tmp_path / "none"), no_session).refused


def test_where_no_program_listens_the_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    place = look_around(lowwater.Settings(address))
    assert f"no connection to {address}" in place.problem
    assert place.ahead is None


def test_a_task_runs_where_lowwater_is_not_installed() -> None:
    task = cloudpickle.dumps(_look(lowwater.Settings("127.0.0.1:1")))
    program = """import sys
sys.modules |= {"lowwater": None, "lowwater_spark": None}
from pyspark import cloudpickle
print(next(cloudpickle.loads(sys.stdin.buffer.read())(iter(()))).to_pylist()[0]["place"])"""
    done = subprocess.run([sys.executable, "-c", program], input=task, capture_output=True, check=True)
    place = Place(**json.loads(done.stdout))
    assert "refused" in place.problem
    assert place.ahead is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--checkpoint", "data/ck"], "a checkpoint is an absolute path or a URI, not 'data/ck'"),
        (["--remote", "spark:15002"], "--remote is the URL of a Spark Connect server, like sc://spark:15002"),
        (["--remote", "sc://127.0.0.1:1"], "no connection to 127.0.0.1:1"),
        (["--authority", "one two:x"], "host:port, such as localhost:7420"),
        (["--conf", "spark.x"], "--conf takes NAME=VALUE"),
        (["--remote", "sc://spark", "--conf", "spark.x=1"], "leave it out with --remote"),
    ],
)
def test_the_command_refuses_what_means_nothing(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *arguments]) == 2
    answer = capsys.readouterr()
    assert says in answer.err
    assert answer.out == ""
