"""The queries of ``lowwater-spark track``: which flows start, end and follow one another. No Spark runs, and no authority."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from lowwater_spark.sidecar import command
from lowwater_spark.sidecar.command import QueryWatch, Watches
from lowwater_spark.sidecar.pipeline import Pipeline
from tests.kit.eventually import eventually
from tests.kit.pipeline_storage import Storage


class Watch(QueryWatch):
    """A query that is tracked until it is told to end, and ends when it may."""

    made: list[Watch]

    def __init__(self, query: Mapping[str, Any], *, patient: bool) -> None:
        self.name: str = query["name"]
        self.query = query
        self.patient = patient
        self.stopping = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.refused = False
        self.made.append(self)

    def run(self) -> None:
        self.stopping.wait(20)
        self.may_end.wait(20)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Storage:
    monkeypatch.setattr(command, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(Watch, "made", [], raising=False)
    storage = Storage(tmp_path)
    # Declared before the flows are there, because a pipeline is declared once.
    storage.names("a.b", "b", "enriched", "later", "other", "third")
    return storage


@pytest.fixture
def watches(storage: Storage) -> Iterator[Watches]:
    watches = Watches(Watch, [Pipeline.parse(storage.declared)])
    yield watches
    watches.stop()
    for watch in Watch.made:
        watch.may_end.set()
        watch.stopping.set()


def followed(watches: Watches, condition: Callable[[], bool], what: str) -> None:
    def look() -> bool:
        watches.look()
        return condition()

    eventually(look, what)


def checkpoints(watches: Watches) -> list[str]:
    return [str(watch.query["checkpoint"]).rpartition("/")[2] for watch in watches.running]


def test_a_full_refresh_ends_the_old_checkpoint_before_the_new_one_has_a_batch(
    storage: Storage, watches: Watches
) -> None:
    old = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    followed(watches, lambda: checkpoints(watches) == ["0"], "the flow is tracked")
    (old.parent / "1").mkdir()
    followed(
        watches, lambda: checkpoints(watches) == [], "a table that is emptied is not followed by the old checkpoint"
    )
    (old.parent / "1").rmdir()
    storage.flow("default/enriched/enriched/1", "/data/in/1.json")
    followed(watches, lambda: checkpoints(watches) == ["1"], "the new one is tracked once it shows what it reads")


def test_a_query_that_ends_slowly_holds_nothing_up_and_its_successor_waits(storage: Storage, watches: Watches) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    storage.flow("default/other/other/0", "/data/in/1.json")
    followed(watches, lambda: len(watches.running) == 2, "both are tracked")
    [slow] = [watch for watch in Watch.made if watch.name == "f.enriched"]
    slow.may_end.clear()
    storage.flow("default/enriched/enriched/1", "/data/in/1.json")
    storage.flow("default/third/third/0", "/data/in/1.json")
    followed(watches, lambda: len(watches.running) == 3, "another flow begins meanwhile")
    assert slow.stopping.is_set()
    assert [watch.query["checkpoint"][-1] for watch in Watch.made if watch.name == "f.enriched"] == ["0"]
    slow.may_end.set()
    followed(watches, lambda: sorted(checkpoints(watches)) == ["0", "0", "1"], "the successor begins")


def test_an_outage_of_the_files_ends_no_query(storage: Storage, watches: Watches) -> None:
    checkpoint = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    followed(watches, lambda: checkpoints(watches) == ["0"], "the flow is tracked")
    (checkpoint / "commits/0").unlink()
    (storage.folder / "storage").rename(storage.folder / "away")
    storage.flow("default/later/later/0", "/data/in/1.json")
    followed(watches, lambda: len(watches.running) == 2, "the looks go on")
    (storage.folder / "away").rename(storage.folder / "back")
    assert not Watch.made[0].stopping.is_set()
    assert not watches.refused


def test_a_writer_that_is_gone_refuses_its_readers_only(storage: Storage, watches: Watches) -> None:
    writer = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'enriched')}/1.parquet")
    storage.flow("default/other/other/0", "/data/in/1.json")
    followed(watches, lambda: len(watches.running) == 3, "all are tracked")
    shutil.rmtree(writer.parent)
    followed(watches, lambda: watches.refused, "the reader is refused")
    followed(
        watches, lambda: {watch.name for watch in watches.running} == {"f.enriched", "f.other"}, "the others go on"
    )


def test_a_declared_query_beside_a_pipeline_waits_for_its_flows(storage: Storage, watches: Watches) -> None:
    watches.declare({"name": "f.enriched", "checkpoint": "/own"})
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    storage.flow("default/other/other/0", "/data/in/1.json")
    followed(watches, lambda: len(watches.running) == 2, "the flow of another name is tracked")
    assert Watch.made[0].patient
    assert [watch.query["checkpoint"] for watch in watches.running if watch.name == "f.enriched"] == ["/own"]
    alone = Watches(Watch, [])
    alone.declare({"name": "alone", "checkpoint": "/own"})
    assert not Watch.made[-1].patient


def test_a_pipeline_whose_storage_hangs_is_told_and_hides_no_other_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command, "LONG_SECONDS", 0.01)
    first, second = (Pipeline.parse({**storage.declared, "prefix": prefix}) for prefix in ("hangs.", "f."))
    answers, look = threading.Event(), command._look_at

    def hanging(pipeline: Pipeline, folders: Any) -> Any:
        if pipeline is first:
            answers.wait(20)
        return look(pipeline, folders)

    monkeypatch.setattr(command, "_look_at", hanging)
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    watches = Watches(Watch, [first, second])
    followed(watches, lambda: [watch.name for watch in watches.running] == ["f.enriched"], "the second is tracked")
    followed(watches, lambda: "takes longer than 0.01 s" in caplog.text, "the hanging look is told")
    answers.set()
    followed(watches, lambda: len(watches.running) == 2, "the first is tracked as well")
    watches.stop()


def test_two_pipelines_whose_flows_have_one_name_track_the_first(storage: Storage) -> None:
    storage.flow("a/b/b/0", "/data/in/1.json")
    storage.flow("default/b/b/1", "/data/in/1.json")
    first, second = (Pipeline.parse({**storage.declared, "prefix": prefix}) for prefix in ("", "a."))
    watches = Watches(Watch, [first, second])
    followed(watches, lambda: watches.refused, "the second is refused")
    names = {watch.name for watch in watches.running}
    assert names == {"a.b", "b", "a.a.b"}, json.dumps(sorted(names))
    assert len([watch for watch in Watch.made if watch.name == "a.b"]) == 1
    watches.stop()
