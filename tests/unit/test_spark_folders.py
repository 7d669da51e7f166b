"""A listing by Hadoop's client comes from the JVM as text: what the texts say, whatever the names are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowwater_spark.checkpoint import location
from lowwater_spark.checkpoint.hadoop import HadoopPath, Status, statuses_in
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sources.base import SourceDeclared
from lowwater_spark.sources.files.folders import Listing
from lowwater_spark.sources.files.roots import Identity, Replaced, Roots
from lowwater_spark.sources.files.sink_log import SINK_LOG
from lowwater_spark.sources.files.source import FileSource, OpenFiles, Settled, _refuse_options
from lowwater_spark.sources.files.source_log import NOTHING, WRITTEN_AGAIN, File, Head, SourceLog
from lowwater_spark.sources.files.writers import HANDED_OVER
from tests.spark.support import Log, begun, lines

ROOT = "s3a://bucket/in"
HDFS = "hdfs://127.0.0.1:8020/in"


def texts(entries: list[tuple[str, str]]) -> tuple[str, str]:
    """Return what the JVM says of entries: their paths, and all their fields."""
    paths = ", ".join(path for path, _ in entries)
    return f"Array({paths})", f"Array({', '.join(fields.format(path=path) for path, fields in entries)})"


def stored(modified: int, tag: str, folder: str = "false") -> str:
    """Return what S3A says of an object, or of a directory."""
    fields = f"isDirectory={folder}; length=1; modification_time={modified}; access_time=0; owner=o, {{path=x}}"
    return f"S3AFileStatus{{{{path={{path}}; {fields.replace('{', '{{').replace('}', '}}')}; isErasureCoded=false}}}} eTag={tag} versionId=null"


def test_each_entry_is_told_from_its_neighbours() -> None:
    entries = [
        (f"{ROOT}/a, s3a:/bucket/in/b", stored(1, '"t1"')),
        (f"{ROOT}/x; isDirectory=true; length=1; modification_time=9; eTag=no", stored(2, '"t2"')),
        (f"{ROOT}/folder", stored(0, "null", "true")),
        (f"{ROOT}/a\nline", stored(4_000, "[eTag='\"t4\"'")),
    ]

    assert [
        (entry.path.removeprefix(ROOT), entry.folder, entry.modified) for entry in statuses_in(*texts(entries))
    ] == [
        ("/a, s3a:/bucket/in/b", False, 1),
        ("/x; isDirectory=true; length=1; modification_time=9; eTag=no", False, 2),
        ("/folder", True, 0),
        ("/a\nline", False, 4_000),
    ]
    assert [entry.version for entry in statuses_in(*texts(entries))][:2] == ["t1", "t2"]


def test_a_file_system_without_versions_has_none() -> None:
    text = "HdfsNamedFileStatus{{path={path}; isDirectory=false; length=0; modification_time=7; owner=o; group=g}}"
    assert list(statuses_in(*texts([(f"{HDFS}/a", text)]))) == [
        Status(f"{HDFS}/a", folder=False, modified=7, version="")
    ]


@pytest.mark.parametrize(
    "fields", ["Status{{at={path}; modification_time=7;}}", "Status{{path={path}; isDirectory=false; when=7;}}"]
)
def test_a_text_of_another_form_is_an_error_and_no_empty_listing(fields: str) -> None:
    with pytest.raises(OSError, match="in a form that this release does not know"):
        list(statuses_in(*texts([(f"{ROOT}/a", fields), (f"{ROOT}/b", stored(1, "null"))])))


@pytest.mark.parametrize("tag", ["null", "''", '""'])
def test_an_object_without_an_etag_is_an_error(tag: str) -> None:
    with pytest.raises(OSError, match="has no ETag of this object"):
        list(statuses_in(*texts([(f"{ROOT}/a", stored(1, tag)), (f"{ROOT}/b", stored(1, '"t"'))])))


def test_the_name_of_the_next_entry_is_no_etag() -> None:
    named = "HdfsNamedFileStatus{{path={path}; isDirectory=false; length=0; modification_time=7; owner=o; group=g}}"
    entries = [(f"{HDFS}/a.json", named), (f"{HDFS}/eTag=5/x", named)]
    assert [status.version for status in statuses_in(*texts(entries))] == ["", ""]
    weak = [(f"{ROOT}/a", stored(1, 'W/"one"')), (f"{ROOT}/eTag=no", stored(1, '"two"'))]
    assert [status.version for status in statuses_in(*texts(weak))] == ["one", "two"]


@pytest.mark.parametrize(
    ("path", "scheme", "reason"),
    [
        ("abfss://c@account.dfs.core.windows.net/in", "abfss", "Azure lists a file while its writer still writes it"),
        ("abfs://c@account.dfs.core.windows.net/in", "abfs", "Azure lists a file while its writer still writes it"),
        ("oss://bucket/in", "oss", "oss: was not tested for that"),
    ],
)
def test_a_source_where_a_listing_may_show_a_part_of_a_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, path: str, scheme: str, reason: str
) -> None:
    spark: Any = None
    monkeypatch.setattr(location, "_scheme", lambda _spark, _path: scheme)
    with pytest.raises(Unsupported, match=reason):
        location.source_at(spark, path, "The path")
    with pytest.raises(ValueError, match="a URI of gs, hdfs, s3a, and no pattern"):
        FileSource.allowed(SourceDeclared("files", path))


@pytest.mark.parametrize("option", ["fs.s3a.endpoint", "dfs.client.use.datanode.hostname"])
def test_an_option_of_the_file_system_is_refused(option: str) -> None:
    with pytest.raises(Unsupported, match=f"Set it for the whole session, as spark.hadoop.{option}"):
        _refuse_options("json", {"path": "s3a://bucket/in", option: "x"})
    _refuse_options("json", {"path": "s3a://bucket/in", "maxfilespertrigger": "1"})


class Store:
    """A file system of a source, by its content."""

    pause = 0.0
    settles = False

    def __init__(self) -> None:
        self.files: dict[str, Status] = {}
        self.open: set[str] = set()
        self.asked: list[str] = []

    def put(self, modified: int, version: str, name: str = "a") -> None:
        self.files[name] = Status(f"{ROOT}/{name}", folder=False, modified=modified, version=version)

    def at(self, path: str) -> Any:
        return Path("nothing", path)

    def listing(self, root: str) -> Listing:
        return lambda folder: list(self.files.values()) if folder == root else []

    def is_whole(self, path: str, modified: int) -> bool:
        del modified
        self.asked.append(path)
        return path not in self.open

    def identity(self, root: str) -> Identity:
        return Identity(root, None)

    def above(self, root: str) -> Iterator[str]:
        del root
        return iter(())


def opened(store: Store, log: Log, checkpoint: Path) -> OpenFiles:
    return OpenFiles(FileSource(ROOT, recursive=True, folders=store), 0, begun(checkpoint), log)


def waited_for(files: OpenFiles, batch: int = 0) -> list[str]:
    head = files.head(lines(batch)[0])
    return files.missing(files.wait(head, None), 5)


def test_a_rewrite_that_was_found_holds_in_the_next_run_as_well(tmp_path: Path) -> None:
    store, log = Store(), Log()
    store.put(5, "v1")
    log.take(File(f"{ROOT}/a", 5), 0)
    files = opened(store, log, tmp_path)
    assert waited_for(files) == []
    store.put(5, "v2")
    reason = [f"{ROOT}/a (written again after it was read: give it another name)"]
    assert waited_for(files) == reason
    for _ in range(2):
        files = opened(store, log, tmp_path)
        for _ in range(2):
            assert waited_for(files) == reason
    del store.files["a"]
    assert waited_for(files) == []
    assert begun(tmp_path).pin("files", 0) == [], "nothing is left of it"


def test_a_file_that_is_open_holds_until_it_is_closed(tmp_path: Path) -> None:
    store, log = Store(), Log()
    store.put(5, "")
    store.open.add(f"{ROOT}/a")
    log.take(File(f"{ROOT}/a", 5), 0)
    files = opened(store, log, tmp_path)
    for _ in range(2):
        assert waited_for(files) == [f"{ROOT}/a (its writer has not closed it)"]
    store.open.clear()
    store.put(6, "")
    assert waited_for(files) == [f"{ROOT}/a (written again after it was read: give it another name)"]
    log.take(File(f"{ROOT}/a", 6), 1)
    assert waited_for(files, 1) == []
    store.asked.clear()
    assert waited_for(files, 1) == []
    assert store.asked == [], "each file is asked once"


class Hdfs(Store):
    """Directories of HDFS: batches that are handed over."""

    settles = True

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, int] = {}
        self.listed: list[str] = []

    def hand_over(self, name: str, *files: str, at: int) -> None:
        self.times[name] = at
        for file in (*files, HANDED_OVER):
            self.files[f"{name}/{file}"] = Status(f"{ROOT}/{name}/{file}", folder=False, modified=at, version="")

    def listing(self, root: str) -> Listing:
        def entries(folder: str) -> list[Status]:
            self.listed.append(folder.removeprefix(root))
            if folder == root:
                return [Status(f"{root}/{name}", folder=True, modified=t, version="") for name, t in self.times.items()]
            return [file for file in self.files.values() if file.path.startswith(f"{folder}/")]

        return entries


def test_a_batch_on_hdfs_that_was_read_is_not_listed_again_while_its_directory_has_its_time(tmp_path: Path) -> None:
    hdfs, log = Hdfs(), Log()
    hdfs.hand_over("batch=0", "a.json", at=5)
    log.take(File(f"{ROOT}/batch=0/a.json", 5), 0)
    files = opened(hdfs, log, tmp_path)
    assert waited_for(files) == []
    assert hdfs.asked == [], "its files were closed before it was renamed"
    hdfs.listed.clear()
    assert waited_for(files) == []
    assert set(hdfs.listed) == {""}
    hdfs.hand_over("batch=0", "b.json", at=6)
    assert waited_for(files) == [f"{ROOT}/batch=0/b.json"]


def test_a_path_by_another_name_of_its_server_is_told_how_to_be_declared(tmp_path: Path) -> None:
    (tmp_path / "0").write_text('v1\n{"path":"hdfs://nn/in/a","timestamp":1,"batchId":0}')
    with pytest.raises(CheckpointMismatch, match="If both names are of one server, declare hdfs://nn/in"):
        SourceLog(tmp_path, HDFS).read_to(0)
    with pytest.raises(CheckpointMismatch, match=r"start from a new checkpoint\.$"):
        SourceLog(tmp_path, "hdfs://nn/elsewhere").read_to(0)


def test_a_rewritten_file_that_no_batch_has_read_is_not_called_too_old(tmp_path: Path) -> None:
    entry = {"path": f"{ROOT}/new", "timestamp": 10, "batchId": 0}
    (tmp_path / "0").write_text(f"v1\n{json.dumps(entry)}")
    log = SourceLog(tmp_path, ROOT, max_age=1)
    log.read_to(0)
    assert log.passes_over(File(f"{ROOT}/a", 5))
    head = log.wait(Head([File(f"{ROOT}/a", WRITTEN_AGAIN)]))
    assert log.missing(head, 5) == [f"{ROOT}/a (written again after it was listed: give it another name)"]


def test_another_endpoint_is_named_with_the_one_of_before(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    Roots(manifest).recognize(ROOT, Identity("s3a://bucket at http://one", None), Head())
    with pytest.raises(Replaced, match="it was s3a://bucket at http://one, and is now s3a://bucket at http://two"):
        Roots(manifest).recognize(ROOT, Identity("s3a://bucket at http://two", None), Head())
    Roots(begun(tmp_path)).recognize(ROOT, Identity("s3a://bucket at http://one", None), Head())


def test_rule1_a_table_that_was_begun_anew_is_not_forgiven_by_a_file(tmp_path: Path) -> None:
    roots = Roots(begun(tmp_path))
    roots.recognize("/tables/hourly", Identity(1, 1), Head(), sink=True)
    with pytest.raises(Replaced, match=r"touch .*Not after the writer was begun anew.*lowwater reset the writer"):
        roots.recognize("/tables/hourly", Identity(2, 2), Head(), sink=True)


class Client(HadoopPath):
    """A path of HDFS whose client is told what to answer, and notes what it is asked."""

    __slots__ = ("asked", "closed", "modified", "provider")

    def __init__(self, provider: str = "") -> None:
        files: Any = SimpleNamespace(system=SimpleNamespace(msync=lambda: self.asked.append("msync")))
        super().__init__(files, "hdfs://nameservice/in/a")
        self.asked: list[str] = []
        self.closed, self.modified, self.provider = True, 5, provider

    def setting(self, name: str) -> str:
        return {"dfs.client.failover.proxy.provider.nameservice": self.provider}.get(name, "")

    def _call(self, method: str, *arguments: Any) -> Any:
        del arguments
        self.asked.append(method)
        if method == "isFileClosed":
            return self.closed
        return SimpleNamespace(getModificationTime=lambda: self.modified)


def test_a_file_of_hdfs_is_whole_when_it_is_closed_and_has_the_time_of_the_listing() -> None:
    client = Client()
    assert client.is_closed(5)
    assert client.asked == ["isFileClosed", "getFileStatus"], "the time is read last"
    client.modified = 6
    assert not client.is_closed(5), "it was closed after the listing"
    client.closed = False
    assert not client.is_closed(6)


def test_a_client_that_joins_several_file_systems_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = None
    kind = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
    monkeypatch.setattr(location, "_scheme", lambda _spark, _path: "hdfs")
    monkeypatch.setattr(location, "_located", lambda *_: Client())
    monkeypatch.setattr(Client, "client", property(lambda _: kind))
    with pytest.raises(Unsupported, match=kind):
        location.source_at(spark, HDFS, "The path")
    kind = "org.apache.hadoop.hdfs.DistributedFileSystem"
    assert isinstance(location.source_at(spark, HDFS, "The path"), Client)


def test_a_listing_of_another_directory_is_an_error_and_no_empty_listing() -> None:
    entry = Status("s3a://bucket/another/x", folder=False, modified=1, version="v")
    files: Any = SimpleNamespace(path=str, statuses=lambda _path, *, below: [entry] if below else [])
    with pytest.raises(OSError, match="has s3a://bucket/another/x, which is not below it"):
        HadoopPath(files, ROOT).statuses()


def test_the_output_of_a_sink_in_a_store_is_refused_with_its_whole_path() -> None:
    store = Store()
    store.put(1, "v", SINK_LOG)
    with pytest.raises(Unsupported, match=f"Spark's file sink writes to {ROOT}, and .*Delta or Iceberg"):
        FileSource(ROOT, recursive=True, folders=store).refuse_logs()


def test_a_listing_that_has_failed_is_paid_for_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    files = opened(store, Log(), tmp_path)
    store.pause = 1.0
    assert files.pause == 1.0

    def failing(root: str) -> Listing:
        raise OSError(root)

    store.listing = failing  # type: ignore[method-assign]
    monkeypatch.setattr("lowwater_spark.sources.files.source.time.monotonic", iter([0.0, 7.0]).__next__)
    with pytest.raises(OSError, match=ROOT):
        files.head("-")
    monkeypatch.undo()
    assert files.pause == 7.0


@pytest.mark.parametrize(
    ("provider", "asked"),
    [
        ("", []),
        ("org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider", []),
        ("org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider", ["msync"]),
        ("org.example.Unknown", ["msync"]),
    ],
)
def test_a_client_that_may_read_from_an_observer_catches_up(provider: str, asked: list[str]) -> None:
    client = Client(provider)
    client.catch_up()
    assert client.asked == asked


def test_a_file_of_the_same_time_and_another_version_was_written_again(tmp_path: Path) -> None:
    settled = Settled(SourceLog(tmp_path))

    def looks(*versions: tuple[int, str], whole: bool = True) -> list[bool]:
        settled.begin(NOTHING)
        found = [settled.time_of(Status(f"{ROOT}/a", False, *version), None) for version in versions]
        if whole:
            settled.end()
        return [time == WRITTEN_AGAIN for time in found]

    assert looks((5, "v1"), whole=False) == [False]
    assert looks((5, "v2")) == [True], "a listing that has failed has seen it as well"
    assert looks((5, "v2")) == [True], "it stays so"
    assert looks((6, "v3")) == [False], "its time tells that"
    assert looks() == []
    assert looks((6, "v4")) == [False], "it was removed in between"
