"""A checkpoint keeps its versions; two runs write at once, and the files of older releases are read."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.checkpoint.manifest import SECTIONS, Manifest
from lowwater_spark.errors import CheckpointMismatch
from lowwater_spark.track.state.store import StageSection

OLD: dict[str, dict[str, Any]] = {
    "query.json": {
        "format": 1,
        "kind": "function",
        "sources": 1,
        "operators": ["aggregation"],
        "retention": 3_600_000_000,
    },
    "stages.json": {"stages": ["enriched", "hourly"]},
    "reading.json": {
        "format": 1,
        "batch": 17,
        "low": 14,
        "heuristics": {"990000": 15},
        "input_version": 3,
        "input_incarnations": [1, 1],
    },
    "roots.json": {
        "format": 1,
        "roots": {"/data/in": [[131074, 1763800000000000000], [["/data/in/b.json", 1763800000123]]]},
    },
    "sink.json": {"format": 1, "batch": 17, "boot": "5a8e 259:2"},
    "read.json": {"format": 1, "batch": 17, "read": [[0, "/data/in", 16, -1, "abc"]]},
    "state.json": {"root": "/data/ck/lowwater/state", "ranges": 64, "first": 3},
}
"""The files of releases before the manifest, as they wrote them."""

CONTENT: dict[str, Any] = {
    "query": {"kind": "function", "sources": 1, "operators": ["aggregation"], "retention": 3_600_000_000},
    "stages": ["enriched", "hourly"],
    "reading": {"batch": 17, "low": 14, "heuristics": {"990000": 15}, "input_version": 3, "input_incarnations": [1, 1]},
    "roots": {"/data/in": [[131074, 1763800000000000000], [["/data/in/b.json", 1763800000123]]]},
    "kafka": None,
    "kafka_ids": None,
    "kafka_out": None,
    "outputs": None,
    "delta": None,
    "iceberg": None,
    "watched": None,
    "sink": {"batch": 17, "boot": "5a8e 259:2"},
    "read": {"batch": 17, "read": [[0, "/data/in", 16, -1, "abc"]]},
    "state": {".": {"root": "/data/ck/lowwater/state", "ranges": 64, "first": 3, "made": None}},
}

KEPT = {"query.json", "state.json"}
"""The files that stay."""

SECTION_OF = {name: Path(name).stem for name in OLD}


def write_old(checkpoint: Path, *missing: str) -> None:
    for name, content in OLD.items():
        if name not in missing:
            path = checkpoint / "lowwater" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))


def read_old(checkpoint: Path) -> dict[str, Any]:
    """Return what a release without the manifest reads; it refuses a ``query.json`` of another format."""
    contents = {}
    for name in OLD:
        path = checkpoint / "lowwater" / name
        if path.exists():
            contents[name] = json.loads(path.read_bytes())
    if contents.get("query.json", {"format": 1})["format"] != 1:
        msg = "of another format"
        raise CheckpointMismatch(msg)
    return contents


def content(manifest: Manifest) -> dict[str, Any]:
    return {section: manifest[section] for section in SECTIONS}


def names_in(checkpoint: Path) -> set[str]:
    return {path.name for path in (checkpoint / "lowwater").iterdir() if path.is_file()}


def versions(checkpoint: Path) -> list[int]:
    return sorted(int(path.stem) for path in (checkpoint / "lowwater/manifest").iterdir())


def begun(checkpoint: Path, run: int = 0) -> Manifest:
    manifest = Manifest(checkpoint)
    manifest.take_over()
    manifest.run = run
    return manifest


def test_a_version_is_what_it_was(tmp_path: Path) -> None:
    manifest = begun(tmp_path, 7)
    for section, value in CONTENT.items():
        manifest.change(section, value)
    manifest.save()
    assert json.loads((tmp_path / "lowwater/manifest/2.json").read_text()) == {
        "format": 2,
        "version": 2,
        "run": 7,
        **CONTENT,
    }
    assert content(Manifest(tmp_path)) == CONTENT


def test_an_older_run_takes_nothing_back(tmp_path: Path) -> None:
    older = begun(tmp_path, 7)
    newer = Manifest(tmp_path)
    newer.run = 8
    newer.change("sink", CONTENT["sink"])
    newer.save()
    older.change("roots", CONTENT["roots"])
    with pytest.raises(CheckpointMismatch, match="newer run, number 8, has taken"):
        older.save()
    assert Manifest(tmp_path)["sink"] == CONTENT["sink"], "the next start would begin behind it"


def test_an_older_run_is_found_out_though_its_version_is_deleted_meanwhile(tmp_path: Path) -> None:
    older = begun(tmp_path, 7)
    newer = Manifest(tmp_path)
    newer.run = 8
    for name in "abcd":
        newer.change("stages", [name])
        newer.save()
    assert 2 not in versions(tmp_path), "its number is free again"
    older.change("roots", CONTENT["roots"])
    with pytest.raises(CheckpointMismatch, match="newer run"):
        older.save()
    assert (Manifest(tmp_path)["stages"], Manifest(tmp_path)["roots"]) == (["d"], None)
    newer.change("stages", ["e"])
    newer.save()
    assert versions(tmp_path) == [5, 6]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 3}, "of format 3; this release reads"),
        ({"more": 1}, "other sections .*: more"),
        ({"sink": ...}, "other sections .*: sink"),
    ],
)
def test_a_manifest_of_another_release_is_refused_by_name(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    begun(tmp_path)
    path = tmp_path / "lowwater/manifest/1.json"
    entry = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in entry.items() if value is not ...}))
    with pytest.raises(CheckpointMismatch, match=f"manifest/1.json .*{text}"):
        Manifest(tmp_path)


def test_a_checkpoint_without_its_manifest_is_none_of_an_older_release(tmp_path: Path) -> None:
    begun(tmp_path)
    shutil.rmtree(tmp_path / "lowwater/manifest")
    with pytest.raises(CheckpointMismatch, match="restore the checkpoint"):
        Manifest(tmp_path)
    (tmp_path / "lowwater/query.json").write_text('{"format": 3}')
    with pytest.raises(CheckpointMismatch, match=r"query.json is of format 3"):
        Manifest(tmp_path)
    (tmp_path / "lowwater/query.json").write_text("{")
    with pytest.raises(CheckpointMismatch, match=r"query.json is no JSON"):
        Manifest(tmp_path)


@pytest.mark.parametrize("missing", [None, *SECTION_OF])
def test_the_files_of_older_releases_are_read_and_each_may_be_missing(tmp_path: Path, missing: str | None) -> None:
    write_old(tmp_path, *([] if missing is None else [missing]))
    expected = dict(CONTENT)
    if missing is not None:
        expected[SECTION_OF[missing]] = None
    assert content(Manifest(tmp_path)) == expected
    assert content(begun(tmp_path)) == expected
    assert content(Manifest(tmp_path)) == expected
    assert names_in(tmp_path) == KEPT - {missing} | {"query.json"}


def test_each_stage_of_an_older_release_has_its_state(tmp_path: Path) -> None:
    write_old(tmp_path)
    later = tmp_path / "lowwater/stages/hourly"
    place = {"root": "/data/hourly", "ranges": 2, "first": 0, "made": {"key": "key STRING"}}
    (later / "lowwater").mkdir(parents=True)
    (later / "lowwater/state.json").write_text(json.dumps(place))
    (tmp_path / "lowwater/stages/enriched/lowwater").mkdir(parents=True)
    manifest = begun(tmp_path)
    assert manifest["state"] == {**CONTENT["state"], "lowwater/stages/hourly": place}
    assert StageSection(manifest, later).read() == place
    assert StageSection(manifest, tmp_path / "lowwater/stages/enriched").read() is None
    other = {**place, "first": 7}
    StageSection(manifest, tmp_path / "lowwater/stages/enriched").keep(other)
    assert Manifest(tmp_path)["state"] == {**manifest["state"], "lowwater/stages/enriched": other}
    assert StageSection(manifest, tmp_path).read() == CONTENT["state"]["."], "a neighbour's stays"
    assert (later / "lowwater/state.json").exists(), "a release that does not know the manifest would go on without"


class Killed(BaseException):
    """kill -9 at a step."""


def steps(tmp_path: Path) -> list[str]:
    write_old(tmp_path)
    names: list[str] = []
    Manifest(tmp_path, names.append).take_over()
    return names


def killed_at(checkpoint: Path, number: int) -> None:
    names: list[str] = []

    def probe(step: str) -> None:
        names.append(step)
        if len(names) == number:
            raise Killed

    with pytest.raises(Killed):
        Manifest(checkpoint, probe).take_over()


def test_a_take_over_that_is_killed_leaves_one_truth_whole(tmp_path: Path) -> None:
    names = steps(tmp_path / "whole")
    assert names[:2] == ["created", "decided"]
    assert len(names) == 2 + len(OLD.keys() - KEPT)
    for number, step in enumerate(names, 1):
        checkpoint = tmp_path / str(number)
        write_old(checkpoint)
        killed_at(checkpoint, number)
        if step == "created":
            assert read_old(checkpoint) == OLD, "a release without the manifest goes on"
        else:
            with pytest.raises(CheckpointMismatch, match="another format"):
                read_old(checkpoint)
        assert content(Manifest(checkpoint)) == CONTENT
        assert content(begun(checkpoint)) == CONTENT
        again = Manifest(checkpoint)
        assert content(again) == CONTENT
        assert names_in(checkpoint) == KEPT


def test_what_could_not_be_made_durable_was_not_noted(tmp_path: Path) -> None:
    manifest = begun(tmp_path)
    home, away = tmp_path / "lowwater/manifest", tmp_path / "away"
    home.rename(away)
    with pytest.raises(OSError, match=r"\w"):
        manifest.keep("stages", ["a"])
    away.rename(home)
    assert manifest["stages"] is None
    manifest.keep("stages", ["a"])
    assert Manifest(tmp_path)["stages"] == ["a"]


def test_a_newer_run_keeps_what_an_older_one_has_noted_last(tmp_path: Path) -> None:
    newer = begun(tmp_path, 8)
    older = Manifest(tmp_path)
    older.run = 7
    older.change("roots", CONTENT["roots"])
    older.change("sink", {"batch": 1, "boot": ""})
    older.save()
    newer.change("sink", CONTENT["sink"])
    newer.save()
    assert (newer["roots"], newer["sink"]) == (CONTENT["roots"], CONTENT["sink"])
    assert content(Manifest(tmp_path)) == content(newer)


def test_a_run_that_looks_again_sees_what_was_noted_before_its_claim(tmp_path: Path) -> None:
    older, newer = begun(tmp_path, 7), begun(tmp_path, 8)
    older.keep("sink", CONTENT["sink"])
    newer.look()
    assert newer["sink"] == CONTENT["sink"]


@pytest.mark.parametrize(("decided", "batch"), [(False, 18), (True, 17)])
def test_an_older_release_s_writes_count_until_a_decided_take_over(tmp_path: Path, decided: bool, batch: int) -> None:
    write_old(tmp_path)
    killed_at(tmp_path, 1 + decided)
    (tmp_path / "lowwater/reading.json").write_text(json.dumps({**OLD["reading.json"], "batch": 18}))
    assert begun(tmp_path)["reading"]["batch"] == batch
    assert Manifest(tmp_path)["reading"]["batch"] == batch
    assert versions(tmp_path)[-1] == 2 - decided


def test_entries_that_threads_note_at_the_same_time_all_stay(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    manifest.take_over()
    together = threading.Barrier(8)

    def note(number: int) -> None:
        together.wait()
        for turn in range(5):
            manifest.keep_entry("delta", str(number), turn)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(note, range(8)))
    assert Manifest(tmp_path)["delta"] == {str(number): 4 for number in range(8)}
