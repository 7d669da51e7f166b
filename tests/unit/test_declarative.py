"""What the storage of a declarative pipeline shows, and what is refused, without Spark: the files are written as PySpark 4.2 writes them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.errors import Unsupported
from lowwater_spark.sidecar.command import main
from lowwater_spark.sidecar.pipeline import Pipeline, describe_pipeline

PROMISES = ["sink-visible-before-commit", "nothing-skipped", "history"]


class Storage:
    """A pipeline's storage and tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "spark-pipeline.yml"
        self.file.write_text(f"name: flights\nstorage: file://{folder}/storage\n")
        self.declared: dict[str, Any] = {
            "storage": str(folder / "storage"),
            "warehouse": str(folder / "tables"),
            "prefix": "f.",
            "promises": PROMISES,
            "inputs": {"files:/data/in": ["source"]},
        }

    def flow(self, path: str, *sources: str, state: str = "") -> Path:
        """Write the checkpoint of a flow, and its table; a source is a file that was read, or an offset."""
        database, table, *_ = path.split("/")
        checkpoint = self.folder / "storage/_checkpoints/spark_catalog" / path
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
        (checkpoint / "metadata").write_text('{"id":"x"}')
        (checkpoint / "commits/0").write_text("v1\n{}")
        lines = ['{"batchWatermarkMs":0}', *(s if s.startswith("{") else '{"logOffset":0}' for s in sources)]
        (checkpoint / "offsets/0").write_text("\n".join(["v1", *lines]))
        for number, source in enumerate(sources):
            if not source.startswith("{"):
                (checkpoint / f"sources/{number}").mkdir(parents=True)
                entry = {"path": f"file://{source}", "timestamp": 1, "batchId": 0}
                (checkpoint / f"sources/{number}/0").write_text(f"v1\n{json.dumps(entry)}")
        if state:
            meta = checkpoint / "state/0/_metadata/metadata"
            meta.parent.mkdir(parents=True)
            meta.write_text("v1\n" + json.dumps({"operatorInfo": {"operatorId": 0, "operatorName": state}}))
        (self.table(database, table) / "_spark_metadata").mkdir(parents=True, exist_ok=True)
        return checkpoint

    def table(self, database: str, table: str) -> Path:
        return self.folder / "tables" / ("" if database == "default" else f"{database}.db") / table

    def look(self) -> tuple[dict[str, dict[str, Any]], dict[str, Exception]]:
        return Pipeline.parse(self.declared).look()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def test_the_graph_of_flows_becomes_the_inputs(storage: Storage) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/x=1/1.json")
    storage.flow("eu/hourly/hourly/0", f"{storage.table('default', 'enriched')}/part-0.parquet", state="stateStoreSave")
    storage.flow("default/daily/from_hours/0", f"{storage.table('eu', 'hourly')}/part-0.parquet", "/data/in/2.json")
    storage.declared["flows"] = {"eu.hourly": {"windows": "1h", "output_mode": "append"}}
    queries, refused = storage.look()
    assert refused == {}
    assert {name: query["inputs"] for name, query in queries.items()} == {
        "daily.from_hours": ["f.eu.hourly", "source"],
        "enriched": ["source"],
        "eu.hourly": ["f.enriched"],
    }
    assert queries["eu.hourly"]["sources"] == [{"kind": "sink", "path": str(storage.table("default", "enriched"))}]
    assert queries["eu.hourly"]["windows"] == "1h"
    assert queries["eu.hourly"]["output"] == str(storage.table("eu", "hourly"))
    # A full refresh begins the next checkpoint.
    newest = storage.flow("default/enriched/enriched/10", "/data/in/1.json")
    storage.flow("default/enriched/enriched/9", "/data/in/1.json")
    assert storage.look()[0]["enriched"]["checkpoint"] == str(newest)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("/data/other/1.json", r'source 0.*"files:/data/other" = \["<the computation>"\]'),
        ('{"flights":{"0":7}}', r'"kafka:flights,lowwater.brokers=<3>,kafka.bootstrap.servers=<broker:9092>" ='),
        ('{"reservoirId":"x"}', r"does not show what its source 0 is.*Declare it as a \[\[query\]\]"),
        ("", "has read no rows of its source 0 yet"),
    ],
)
def test_a_flow_whose_source_is_not_known_is_not_tracked(storage: Storage, source: str, why: str) -> None:
    checkpoint = storage.flow("default/enriched/enriched/0", source or "/data/in/1.json")
    if not source:
        (checkpoint / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n-')
    queries, refused = storage.look()
    assert queries == {}
    with pytest.raises((Unsupported, OSError), match=why):
        raise refused["enriched"]


def test_two_flows_into_one_table_of_files_are_refused_with_its_readers(storage: Storage) -> None:
    storage.flow("default/both/left/0", "/data/in/1.json")
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'both')}/part-0.parquet")
    assert storage.look()[1] == {}
    storage.flow("default/both/right/0", "/data/in/1.json")
    queries, refused = storage.look()
    assert queries == {}
    assert {*refused} == {"both.left", "both.right", "reader"}
    assert "Spark's file sink drops batches" in str(refused["reader"])


def test_a_pipeline_is_described_as_far_as_its_storage_shows(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    enriched = storage.table("default", "enriched")
    storage.flow("default/hourly/hourly/0", f"{enriched}/part-0.parquet", state="stateStoreSave")
    assert main(["describe", "--pipeline", str(storage.file)]) == 0
    text = capsys.readouterr().out
    assert "hourly/0, reads the table of enriched" in text
    [table] = tomllib.loads(text.replace('# "', '"').replace("<computation>", "source"))["pipeline"]
    assert Pipeline.parse(table) == Pipeline(
        storage.folder / "storage",
        storage.folder / "tables",
        "flights.",
        tuple(PROMISES),
        {"files:/data/in": ["source"]},
        {"hourly": {"retention": "<1h>", "output_mode": "append"}},
    )
    assert 'warehouse = "/elsewhere"' in describe_pipeline(storage.file, Path("/elsewhere"))
    for arguments, message in {
        ("describe",): "describe takes a checkpoint, or --pipeline",
        ("describe", "--pipeline", str(enriched / "none.yml")): "none.yml",
    }.items():
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"storage": "s3a://bucket/storage"}, "storage of a pipeline is a local directory"),
        ({"warehouse": None}, "warehouse of a pipeline is a local directory"),
        ({"promises": PROMISES[:2]}, 'add "history" to its promises'),
        ({"inputs": {"files:/data/in": "source"}}, 'like "files:/data/in" = '),
        ({"inputs": {"file:/data/in": ["source"]}}, "a source of the kind 'file'"),
        ({"flows": {"hourly": {"checkpoint": "/x"}}}, "checkpoint is no key of the flow hourly"),
        ({"flow": {}}, "flow is no key of a pipeline.*did you mean flows"),
    ],
)
def test_a_wrong_declaration_of_a_pipeline_is_refused_by_its_key(
    storage: Storage, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Pipeline.parse({**storage.declared, **wrong})
