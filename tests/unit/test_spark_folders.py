"""A listing by Hadoop's client comes from the JVM as text: what the texts say, whatever the names are."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowwater_spark.checkpoint.hadoop import Status, statuses_in
from lowwater_spark.sources.files.folders import Stored
from lowwater_spark.sources.files.source import Settled
from lowwater_spark.sources.files.source_log import NOTHING, SourceLog

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


def test_a_file_of_the_same_time_and_another_version_was_written_again(tmp_path: Path) -> None:
    settled = Settled(SourceLog(tmp_path))

    def looks(*versions: tuple[int, str], whole: bool = True) -> list[bool]:
        settled.begin(NOTHING)
        found = [settled.differs(Stored(Status(f"{ROOT}/a", False, *version))) for version in versions]
        if whole:
            settled.end()
        return found

    assert looks((5, "v1"), whole=False) == [False]
    assert looks((5, "v2")) == [True], "a listing that has failed has seen it as well"
    assert looks((5, "v2")) == [True], "it stays so"
    assert looks((6, "v3")) == [False], "its time tells that"
    assert looks() == []
    assert looks((6, "v4")) == [False], "it was removed in between"
    assert looks((6, "")) == [False]
