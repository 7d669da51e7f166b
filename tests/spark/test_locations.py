"""Where checkpoints are: the same promises on a local file system, on HDFS and on S3, each by the real one."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from pyspark.sql import SparkSession

from lowwater_spark.checkpoint import hadoop
from lowwater_spark.checkpoint.durable import create, make_directory, sync_directory, sync_file, write_once, write_over
from lowwater_spark.checkpoint.hadoop import HadoopPath
from lowwater_spark.checkpoint.identity import identity, new_ordinal
from lowwater_spark.checkpoint.location import Location, checkpoint_of, location_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.writers import HANDED_OVER
from lowwater_spark.track.handover import publish_directory, sweep
from tests.kit.eventually import eventually
from tests.kit.hdfs import Hdfs
from tests.kit.ports import free_port
from tests.kit.s3 import S3


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")).start() as hdfs:
        yield hdfs


@pytest.fixture(scope="module")
def s3(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with S3(tmp_path_factory.mktemp("s3")).start() as s3:
        for name, value in s3.settings.items():
            spark.conf.set(name, value)
        yield s3


@pytest.fixture(params=["local", "hdfs", "s3"])
def folder(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Location:
    """A directory that is not there yet."""
    if request.param == "local":
        return tmp_path / "a folder%20"
    there: Hdfs | S3 = request.getfixturevalue(request.param)
    return checkpoint_of(spark, there.path(f"{tmp_path.name}/a folder%20"), single_driver=True)


def test_what_is_written_is_read(folder: Location) -> None:
    make_directory(folder / "below")
    make_directory(folder / "below")
    assert folder.is_dir()
    assert (folder / "below").is_dir()
    assert not (folder / "below").is_file()
    assert list((folder / "below").iterdir()) == []
    content = bytes(range(256)) * 1_000

    write_over(folder / "x, [y].json", content)
    write_over(folder / "x, [y].json", content[1:])
    assert create(folder / "empty")
    assert not create(folder / "empty")

    assert sorted(entry.name for entry in folder.iterdir()) == ["below", "empty", "x, [y].json"]
    assert (folder / "x, [y].json").read_bytes() == content[1:]
    assert (folder / "empty").is_file()
    assert (folder / "empty").read_text(encoding="utf-8") == ""
    assert {entry.name for entry in folder.rglob("*")} == {"below", "empty", "x, [y].json"}
    assert (folder / "x, [y].json").suffix == ".json"
    assert (folder / "below" / "7.json").stem == "7"
    sync_file(folder / "empty")
    sync_directory(folder)
    (folder / "empty").unlink()
    (folder / "empty").unlink(missing_ok=True)
    assert not (folder / "empty").exists()


def test_what_is_absent_is_told_from_what_fails(folder: Location) -> None:
    nothing = folder / "nothing"
    assert not nothing.exists()
    assert not nothing.is_dir()
    assert not nothing.is_file()
    for asked in (
        nothing.read_bytes,
        nothing.unlink,
        nothing.stat,
        lambda: list(nothing.iterdir()),
        lambda: sync_file(nothing),
    ):
        with pytest.raises(FileNotFoundError):
            asked()
    # Nobody makes a checkpoint anew that was taken away meanwhile.
    with pytest.raises(FileNotFoundError):
        write_once(folder / "gone" / "1.json", b"")
    assert not folder.exists()


def test_a_name_is_taken_once(folder: Location) -> None:
    make_directory(folder)
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda n: write_once(folder / "name", str(n).encode()), range(16)))
        created = list(pool.map(lambda _n: create(folder / "run"), range(16)))
        ordinals = list(pool.map(lambda _n: new_ordinal(folder), range(16)))

    assert written.count(True) == created.count(True) == 1
    assert (folder / "name").read_bytes() == str(written.index(True)).encode()
    assert sorted(ordinals) == list(range(1, 17))
    assert {entry.name for entry in folder.iterdir()} == {"name", "run", "lowwater"}, "nothing is left beside"


@pytest.mark.parametrize("folder", ["local", "hdfs"], indirect=True)
def test_a_directory_appears_once_and_whole(folder: Location) -> None:
    """Whoever fills it: of several at once one gives it the name, and none moves its own into it."""
    make_directory(folder)

    def publish(n: int) -> bool:
        return publish_directory(
            folder, "batch=0", "digest", lambda made: write_over(made / "part", b"%d" % n), ordinal=1
        )

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(publish, range(16)))

    assert written.count(True) == 1
    assert [entry.name for entry in folder.iterdir()] == ["batch=0"]
    assert sorted(entry.name for entry in (folder / "batch=0").iterdir()) == [HANDED_OVER, "part"]
    assert (folder / "batch=0/part").read_bytes() == b"%d" % written.index(True)
    with pytest.raises(CheckpointMismatch, match="was not made from this batch"):
        publish_directory(folder, "batch=0", "other", lambda _made: None, ordinal=1)
    make_directory(folder / ".lowwater-1-batch=1-x/rows")
    sweep(folder, 2)
    assert [entry.name for entry in folder.iterdir()] == ["batch=0"]


def test_a_checkpoint_knows_who_it_is_and_what_was_noted(folder: Location) -> None:
    make_directory(folder)
    assert identity(folder) == identity(folder)
    older, newer = Manifest(folder), Manifest(folder)
    older.begin(new_ordinal(folder))
    older.keep("stages", ["a"])
    newer.begin(new_ordinal(folder))
    newer.keep("stages", ["b"])

    with pytest.raises(CheckpointMismatch, match="a newer run"):
        older.keep("stages", ["c"])

    assert Manifest(folder)["stages"] == ["b"]
    assert CheckpointLog(folder).last_committed() is None
    assert CheckpointLog(folder).newest() is None


def test_a_location_is_no_burden_to_what_tasks_take_along(folder: Location) -> None:
    assert str(pickle.loads(pickle.dumps(folder))) == str(folder)


def test_a_name_node_that_is_away_is_no_absence(spark: SparkSession, hdfs: Hdfs) -> None:
    """It is killed, or stops answering: an error each time, and soon; and when it is back, everything is there.

    Hadoop's client would ask for minutes, and whoever waits for what a look holds would wait as well.
    """
    folder = location_of(spark, hdfs.path("away"), "The folder")
    make_directory(folder / "commits")
    create(folder / "commits" / "7")
    log = CheckpointLog(folder)
    hdfs.pause()
    since = time.monotonic()
    with pytest.raises(OSError, match="SocketTimeoutException"):
        log.last_committed()
    assert time.monotonic() - since < 60
    hdfs.resume()
    eventually(lambda: answers(log), "the name node answers")
    hdfs.kill()

    for asked in (
        log.last_committed,
        lambda: log.committed(7),
        lambda: log.plan(7),
        lambda: Manifest(folder),
        folder.stat,
    ):
        with pytest.raises(OSError, match=str(hdfs.port)) as failure:
            asked()
        assert not isinstance(failure.value, FileNotFoundError)

    hdfs.start()
    eventually(lambda: answers(log) and log.last_committed() == 7, "the name node is back")


def test_s3_that_does_not_answer_is_no_absence(spark: SparkSession, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, and soon, and what was there is there when it answers again. How soon is said by the limits of the client, which are shorter here."""
    folder = checkpoint_of(spark, s3.path("away"), single_driver=True)
    make_directory(folder / "commits")
    create(folder / "commits" / "7")
    limits = [name for name in hadoop._PROMPT if name.startswith("fs.s3a") and name.endswith("timeout")]
    assert {hadoop._PROMPT[name] for name in limits} == {"15s"}
    monkeypatch.setattr(hadoop, "_PROMPT", {**hadoop._PROMPT, **dict.fromkeys(limits, "2s")})
    monkeypatch.setattr(hadoop, "_known", WeakKeyDictionary())
    jvm: Any = spark._jvm
    client = jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig
    client.setMinimumOperationDuration(jvm.java.time.Duration.ofSeconds(2))  # else it takes no limit below its own 15 s
    s3.pause()
    try:
        hurried = checkpoint_of(spark, s3.path("away"), single_driver=True)
        for asked in (CheckpointLog(hurried).last_committed, lambda: create(hurried / "commits" / "8")):
            since = time.monotonic()
            with pytest.raises(OSError, match=s3.bucket) as failure:
                asked()
            assert not isinstance(failure.value, FileNotFoundError)
            assert time.monotonic() - since < 30, "two seconds, some times; Hadoop's own limits are minutes"
    finally:
        s3.resume()
        client.resetMinimumOperationDuration()
    log = CheckpointLog(folder)
    eventually(lambda: answers(log) and log.committed(7), "it answers")


def test_what_could_not_be_written_whole_is_not_put(spark: SparkSession, s3: S3) -> None:
    folder = checkpoint_of(spark, s3.path("part"), single_driver=True)
    make_directory(folder)
    for write in (write_once, write_over):
        with pytest.raises(OSError, match="write"):
            write(folder / "file", "a text")  # type: ignore[arg-type]
    assert list(folder.iterdir()) == []


def test_a_bucket_that_is_not_there_is_no_empty_directory(spark: SparkSession, s3: S3) -> None:
    folder = checkpoint_of(spark, f"s3a://no-{s3.bucket}/ck", single_driver=True)
    with pytest.raises(OSError, match="UnknownStore"):
        CheckpointLog(folder).last_committed()


@pytest.mark.parametrize(
    ("path", "looked_at", "said"),
    [
        ("s3a://bucket/ck", False, r"both take batch N.*single_driver=True"),
        ("abfss://b@a.dfs.core.windows.net/ck", True, r"both take batch N.*single_driver=True"),
        ("abfss://b@a.dfs.core.windows.net/ck", False, r"abfss: is none of them.*lowwater-spark track"),
        ("viewfs://mount/ck", True, "viewfs: is none of them"),
    ],
)
def test_what_keeps_no_two_drivers_apart_is_refused_without_its_declaration(
    path: str, looked_at: bool, said: str, spark: SparkSession
) -> None:
    with pytest.raises(Unsupported, match=said):
        checkpoint_of(spark, path, single_driver=False, looked_at=looked_at)


def test_a_jvm_that_has_ended_is_no_absence_either() -> None:
    """Nobody serves at its port any more."""
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_port()))
    files: Any = SimpleNamespace(path=str, system=gateway.entry_point)
    with pytest.raises(BrokenPipeError, match="hdfs://name/left"):
        HadoopPath(files, "hdfs://name/left").stat()


def answers(log: CheckpointLog) -> bool:
    try:
        log.last_committed()
    except OSError:
        return False
    return True
