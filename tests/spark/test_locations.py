"""Where checkpoints are: the same promises on a local file system, on HDFS, S3 and GCS, each by the real one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lowwater_spark.checkpoint.durable import create, make_directory, sync_directory, sync_file, write_once, write_over
from lowwater_spark.checkpoint.identity import new_ordinal
from lowwater_spark.checkpoint.location import Location, checkpoint_of, location_of
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.sources.files.writers import HANDED_OVER
from lowwater_spark.track.state.handover import publish_directory, sweep
from tests.kit.gcs import Gcs
from tests.kit.hdfs import Hdfs
from tests.kit.s3 import S3


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")).start() as hdfs:
        yield hdfs


@pytest.fixture(params=["local", "hdfs", "s3", "gcs"])
def folder(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Location:
    if request.param == "local":
        return tmp_path / "a folder%20"
    store: Hdfs | S3 | Gcs = request.getfixturevalue(request.param)
    return checkpoint_of(spark, store.path(f"{tmp_path.name}/a folder%20"), single_driver=True)


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
    gone = folder / "nothing"
    assert not gone.exists()
    assert not gone.is_dir()
    assert not gone.is_file()
    for call in (gone.read_bytes, gone.unlink, gone.stat, lambda: list(gone.iterdir()), lambda: sync_file(gone)):
        with pytest.raises(FileNotFoundError):
            call()
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
    make_directory(folder)

    def publish(n: int) -> bool:
        return publish_directory(
            folder, "batch=0", "digest", lambda folder_: write_over(folder_ / "part", b"%d" % n), ordinal=1
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


def test_a_name_node_that_stops_answering_is_no_absence_and_is_told_soon(spark: SparkSession, hdfs: Hdfs) -> None:
    """Hadoop's client would ask for minutes, and whoever waits for what a look holds would wait as well."""
    folder = location_of(spark, hdfs.path("away"), "The folder")
    make_directory(folder / "commits")
    create(folder / "commits" / "7")
    hdfs.pause()
    since = time.monotonic()
    try:
        with pytest.raises(OSError, match="SocketTimeoutException") as failure:
            CheckpointLog(folder).last_committed()
        assert not isinstance(failure.value, FileNotFoundError)
        assert time.monotonic() - since < 60
    finally:
        hdfs.resume()
