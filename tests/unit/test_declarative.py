"""What the storage of a declarative pipeline shows, and what is refused, without Spark: the files are written as PySpark 4.2 writes them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.errors import Unsupported
from lowwater_spark.sidecar.command import main
from lowwater_spark.sidecar.pipeline import Pipeline, describe_pipeline
from tests.kit.pipeline_storage import PROMISES, Storage


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
