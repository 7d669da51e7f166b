"""Files on HDFS, S3 and GCS as the source of a stage, and of a job that nobody changes: the rules of a local directory hold."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import DataFrame, SparkSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.durable import make_directory, write_once, write_over
from lowwater_spark.checkpoint.hadoop import HadoopPath
from lowwater_spark.checkpoint.location import source_at
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.spark_path import SparkPath
from lowwater_spark.errors import Unsupported
from lowwater_spark.sources.files.folders import folders_of
from lowwater_spark.sources.files.sink_log import SINK_LOG
from lowwater_spark.sources.files.source import FileSource, OpenFiles, list_head
from lowwater_spark.sources.files.source_log import NO_FILE, OPEN, WRITTEN_AGAIN
from lowwater_spark.sources.files.writers import mark_writer
from tests.kit.eventually import eventually
from tests.kit.gcs import Front, Gcs
from tests.kit.hdfs import Hdfs
from tests.kit.s3 import S3
from tests.kit.times import mark
from tests.process.serving import Serving
from tests.spark.drive_support import Driven
from tests.spark.flow import Flow, Readable
from tests.spark.support import Upstream, begun, low, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")).start() as hdfs:
        yield hdfs


@pytest.fixture(params=["hdfs", "s3", "gcs"])
def folder(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> HadoopPath:
    store: Hdfs | S3 | Gcs = request.getfixturevalue(request.param)
    folder = source_at(spark, store.path(f"{tmp_path.name}/a folder%20"), "The path")
    assert isinstance(folder, HadoopPath)
    make_directory(folder)
    return folder


only_s3 = pytest.mark.parametrize("folder", ["s3"], indirect=True)


def put(folder: HadoopPath, name: str, *rows: dict[str, str]) -> None:
    path = folder / name
    make_directory(path.parent)
    write_over(path, "".join(json.dumps(entry) + "\n" for entry in rows).encode())


def source(folder: HadoopPath, **options: Any) -> FileSource:
    return FileSource(str(folder), **{"recursive": True, "folders": folders_of(folder), **options})


def names(source: FileSource) -> dict[str, bool]:
    """Return the files of a listing, each with whether Spark reads rows from it."""
    return {file.path.removeprefix(source.root): file.modified != NO_FILE for file in list_head(source)}


class StoredFlow(Readable):
    def __init__(self, flow: Flow, folder: HadoopPath) -> None:
        self.flow, self.folder, self.count = flow, folder, 0
        put(folder, ".keep")

    def put(self, *rows: tuple[str, int]) -> None:
        self.count += 1
        put(self.folder, f"day={self.count % 2}/{self.count}, [x].json", *(row(*each) for each in rows))

    def read(self, **options: str) -> DataFrame:
        stream = self.flow.spark.readStream.schema("key string, t timestamp").options(recursiveFileLookup="true")
        return stream.options(**options).json(str(self.folder))


@pytest.fixture
def stored(flow: Flow, folder: HadoopPath) -> StoredFlow:
    return StoredFlow(flow, folder)


def test_a_listing_has_what_spark_reads(folder: HadoopPath, spark: SparkSession) -> None:
    read = ("x, [y] isDirectory=true.json", "d=1/e=2/z.json", "d=1/w.json")
    for name in (*read, "_hidden/h.json", ".h", "d=1/_t/h"):
        put(folder, name)

    assert names(source(folder)) == dict.fromkeys((f"/{name}" for name in read), True)
    frame = spark.read.schema("key string").option("recursiveFileLookup", "true").json(str(folder))
    assert {SparkPath.of_uri(uri).text for uri in frame.inputFiles()} == {f"{folder}/{name}" for name in read}
    partitioned = source(folder, recursive=False, columns=("d", "e"))
    assert names(partitioned) == {
        "/x, [y] isDirectory=true.json": False,
        "/d=1/e=2/z.json": True,
        "/d=1/w.json": False,
    }, "Spark logs files outside of the partitions, and reads no rows from them"
    mark_writer(folder, "default/other")
    with pytest.raises(Unsupported, match="default/other writes there"):
        source(folder, inputs=frozenset({"default/source"})).check_writers()
    with pytest.raises(FileNotFoundError):
        list_head(source(folder / "nothing"))


@only_s3
def test_a_thousand_and_more_objects_come_in_pages(folder: HadoopPath, s3: S3) -> None:
    keys = [f"day={number % 30}/{number}.json" for number in range(1_050)]
    place = quote(str(folder).split("/", 3)[3])
    for key in keys:
        url = f"{s3.endpoint}/{s3.bucket}/{place}/{quote(key)}"
        urllib.request.urlopen(urllib.request.Request(url, b"", method="PUT")).close()
    assert s3.said("list-type") == [], "the last lines of its log are about the objects"

    assert names(source(folder)) == dict.fromkeys((f"/{key}" for key in keys), True)
    # Two listings have two pages each, whatever the directories.
    eventually(lambda: len(s3.said("list-type")) == 4, "it was listed")


@only_s3
def test_an_object_that_was_written_again_in_the_same_second_holds(folder: HadoopPath, tmp_path: Path) -> None:
    files = source(folder).open(begun(tmp_path / "ck"), 0)
    assert isinstance(files, OpenFiles)
    for number in range(20):
        put(folder, f"{number}.json", row("a", 9))
        [first] = (file for file in files.head("-") if file.path.endswith(f"/{number}.json"))
        put(folder, f"{number}.json", row("b", 9))
        status = (folder / f"{number}.json").stat()
        if status.getModificationTime() == first.modified:
            break
    else:
        pytest.fail("no second is long enough")

    for _ in range(2):
        for _ in range(2):
            [again] = (file for file in files.head("-") if file.path == first.path)
            assert again.modified == WRITTEN_AGAIN
        files = source(folder).open(begun(tmp_path / "ck"), 0)
        assert isinstance(files, OpenFiles), "the next run goes by what the first one has found"


@pytest.mark.parametrize("folder", ["hdfs"], indirect=True)
def test_a_file_of_hdfs_that_is_open_holds(folder: HadoopPath, spark: SparkSession, tmp_path: Path) -> None:
    files = source(folder).open(begun(tmp_path / "ck"), 0)
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{folder}/open.json")
    writer = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).create(path)
    writer.write(b"{}")
    writer.hflush()
    for _ in range(2):
        assert [file.modified for file in files.head("-")] == [OPEN]
    writer.close()
    status = (folder / "open.json").stat()
    assert [file.modified for file in files.head("-")] == [status.getModificationTime()]


@pytest.mark.parametrize("folder", ["gcs"], indirect=True)
def test_a_put_on_gcs_demands_that_the_name_is_free(folder: HadoopPath) -> None:
    """This shows the request alone. Google says, and the front of our tests does, what GCS makes of it."""
    demands = len(Front.demands)
    assert write_once(folder / "once", b"1")
    assert len(Front.demands) == demands + 1


def test_a_stage_follows_its_inputs(stored: StoredFlow, lw: lowwater.Client, upstream: Upstream) -> None:
    log = CheckpointLog(stored.flow.folder / "ck")
    query = stored.story(lw, upstream, lambda _query: log.last_planned() != log.last_committed())
    put(stored.folder, "day=1/1, [x].json", row("again", 9))
    upstream.at(14)
    stored.flow.eventually(
        lambda: any("written again" in name for name in query.stage_status().waiting_for), "a rewritten file is found"
    )
    assert low(lw, "stage") == mark(13)


@only_s3
def test_a_store_that_does_not_answer_holds(
    stored: StoredFlow, lw: lowwater.Client, upstream: Upstream, s3: S3
) -> None:
    query = stored.followed(lw, upstream, ("a", 9))
    s3.pause()
    try:
        upstream.at(10)
        stored.flow.eventually(
            lambda: any("can be listed" in name for name in query.stage_status().waiting_for), "it says so"
        )
        assert low(lw, "stage") == mark(9)
    finally:
        s3.resume()
    stored.flow.eventually(lambda: low(lw, "stage") == mark(10), "it goes on")


def test_a_job_that_nobody_changes_is_followed(
    stored: StoredFlow, lw: lowwater.Client, upstream: Upstream, tmp_path: Path
) -> None:
    """The job and the sidecar are stopped in turns, and each goes on."""

    def job() -> Any:
        writer = stored.read(maxFilesPerTrigger="1").writeStream.format("json").option("path", str(tmp_path / "out"))
        return writer.option("checkpointLocation", str(tmp_path / "ck")).start()

    def follow() -> lws.Sidecar:
        return lws.track(
            "stage",
            checkpoint=str(tmp_path / "ck"),
            inputs=["source"],
            sources=[f"files:{stored.folder},recursiveFileLookup=true"],
            promises=["nothing-skipped", "sink-visible-before-commit", "history"],
            state=tmp_path / "state",
            spark=lambda: stored.flow.spark,
            address=stored.flow.address,
        )

    def stands(hour: int) -> None:
        stored.flow.eventually(lambda: low(lw, "stage") == mark(hour), "all is committed")

    def waits() -> bool:
        return any(f"/{stored.count}, " in name for name in sidecar.status().waiting_for)

    for number in range(4):
        stored.put((f"{number}", 9))
    upstream.at(10)
    query = job()
    eventually((tmp_path / "ck/metadata").exists, "the job has begun")
    sidecar = follow()
    try:
        for hour in (10, 11, 12):
            stands(hour)
            query.stop()
            stored.put((f"hour {hour}", hour))
            upstream.at(hour + 1)
            stored.flow.eventually(waits, "the job is away, so its file waits")
            assert low(lw, "stage") == mark(hour)
            sidecar.stop()
            query = job()
            sidecar = follow()
        stands(13)
    finally:
        query.stop()
        sidecar.stop()
    rows = stored.flow.spark.read.json(str(tmp_path / "out")).collect()
    assert sorted(entry.key for entry in rows) == ["0", "1", "2", "3", "hour 10", "hour 11", "hour 12"]


@only_s3
def test_driven_windows_close_when_all_objects_are_read(
    folder: HadoopPath, spark: SparkSession, authority: Serving, upstream: Upstream, tmp_path: Path
) -> None:
    driven = Driven(spark, authority.address, tmp_path)
    try:
        put(folder, "9.json", row("a", 9))
        stream = spark.readStream.schema("key string, t timestamp").json(str(folder))
        driven.start(driven.hourly(driven.drive(stream)))
        upstream.at(10)
        driven.eventually(lambda: [key for key, *_ in driven.rows] == ["a"], "the hour is over")
        put(folder, "10.json", row("b", 10))
        upstream.at(11)
        driven.eventually(lambda: [key for key, *_ in driven.rows] == ["a", "b"], "the next hour is over")
    finally:
        driven.stop()


@only_s3
def test_the_output_of_sparks_file_sink_is_refused_by_name(stored: StoredFlow) -> None:
    make_directory(stored.folder / SINK_LOG)
    write_over(stored.folder / SINK_LOG / "0", b"v1")
    with pytest.raises(Unsupported, match="whose log this release reads only in local directories"):
        stored.track()
