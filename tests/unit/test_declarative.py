"""What the storage of a declarative pipeline shows, and what is refused, without Spark: the files are written as PySpark 4.2 writes them."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.checkpoint.manifest import Manifest
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.command import main
from lowwater_spark.sidecar.declaration import Declaration
from lowwater_spark.sidecar.evidence import Evidence, newer_checkpoint
from lowwater_spark.sidecar.pipeline import Pipeline, describe_pipeline
from tests.kit.pipeline_storage import PROMISES, Storage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


def test_the_graph_of_flows_becomes_the_inputs(storage: Storage) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/x=1/1.json")
    storage.flow("eu/hourly/hourly/0", f"{storage.table('default', 'enriched')}/part-0.parquet", state="stateStoreSave")
    storage.flow("default/daily/from_hours/0", f"{storage.table('eu', 'hourly')}/part-0.parquet", "/data/in/2.json")
    storage.declared["flows"]["eu.hourly"] = {"windows": "1h", "output_mode": "append"}
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
        (
            "/data/other/dt=1/1.json",
            r'source 0.*"<files:/data/other>" = \["<the computation>"\].*pipeline\.flows\."enriched"\]: sources = \["<files:/data/other>"\].*names in load',
        ),
        ('{"flights":{"0":7}}', r'kafka.bootstrap.servers=<broker of enriched:9092>" =.*pipeline\.flows\."enriched"'),
        ("s3a://bucket/in/1.json", "reads s3a://bucket/in, which is no local directory"),
        ("/data/a,b/1.json", "a comma cannot be in a key"),
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
    [table] = tomllib.loads(text)["pipeline"]
    with pytest.raises(ValueError, match="warehouse of a pipeline"):
        Pipeline.parse(table)
    filled = text.replace('# "', '"').replace("<computation>", "source").replace(": spark.sql.warehouse.dir>", "")
    [table] = tomllib.loads(filled.replace('"</', '"/'))["pipeline"]
    with pytest.raises(ValueError, match="'<files:/data/in>' in inputs of a pipeline is not filled in"):
        Pipeline.parse(table)
    [table] = tomllib.loads(filled.replace('"</', '"/').replace("<files:/data/in>", "files:/data/in"))["pipeline"]
    with pytest.raises(ValueError, match=r"flights\.hourly: retention: '<1h>' is no duration"):
        Pipeline.parse(table)
    table["flows"]["hourly"]["retention"] = "1h"
    assert Pipeline.parse(table) == Pipeline(
        storage.folder / "storage",
        storage.folder / "tables",
        "flights.",
        tuple(PROMISES),
        {"files:/data/in": ["source"]},
        {"enriched": {"sources": ["files:/data/in"]}, "hourly": {"retention": "1h", "output_mode": "append"}},
    )
    assert 'warehouse = "/elsewhere"' in describe_pipeline(storage.file, Path("/elsewhere"))
    for arguments, message in {
        ("describe",): "describe takes a checkpoint, or --pipeline",
        ("describe", "/ck", "--warehouse", "/w"): "pass --pipeline with it",
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
        ({"flows": {"hourly": {"sources": ["files:/data/on"]}}}, "sources of the flow hourly is a list of keys"),
        ({"flows": {"hourly": {"windows": "1x"}}}, "f.hourly: windows: '1x' is no duration"),
        ({"promises": 5}, "promises of a pipeline is a list of texts"),
        ({"promises": "history"}, "promises of a pipeline is a list of texts"),
        ({"promises": [*PROMISES, "histori"]}, "promises histori, which is none of.*did you mean history"),
        ({"prefix": ["a"]}, "prefix of a pipeline is a text"),
        ({"prefix": "my flights."}, "prefix of a pipeline has 1 to 128 of A-Z"),
        ({"storage": "file://data/storage"}, "storage of a pipeline is a local directory"),
        ({"inputs": {"kafka:a,lowwater.brokers=<3>": ["source"]}}, "is not filled in"),
        ({"flow": {}}, "flow is no key of a pipeline.*did you mean flows"),
    ],
)
def test_a_wrong_declaration_of_a_pipeline_is_refused_by_its_key(
    storage: Storage, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Pipeline.parse({**storage.declared, **wrong})


EU, US = (f"kafka:flights,lowwater.brokers=3,kafka.bootstrap.servers={place}:9092" for place in ("eu", "us"))


def test_flows_over_topics_of_one_name_in_two_clusters_each_name_theirs(storage: Storage) -> None:
    for name in ("eu", "us"):
        storage.flow(f"default/{name}/{name}/0", '{"flights":{"0":7}}')
    storage.declared["inputs"] = {EU: ["of-eu"], US: ["of-us"]}
    assert {*storage.look()[1]} == {"eu", "us"}, "the topics do not tell the cluster"
    storage.declared["flows"] |= {"eu": {"sources": [EU]}, "us": {"sources": [US]}}
    queries, refused = storage.look()
    assert refused == {}
    assert [(queries[name]["sources"], queries[name]["inputs"]) for name in ("eu", "us")] == [
        ([EU], ["of-eu"]),
        ([US], ["of-us"]),
    ]
    text = describe_pipeline(storage.file, storage.folder / "tables")
    assert "broker of eu:9092" in text
    assert "broker of us:9092" in text


def test_of_two_directories_that_cover_what_was_read_the_flow_names_its_own(storage: Storage) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    whole = "files:/data,recursiveFileLookup=true"
    storage.declared["inputs"] = {"files:/data/in": ["in"], whole: ["all"]}
    storage.declared["flows"] = {"enriched": {"sources": ["files:/data/in", whole]}}
    assert "it may read either" in str(storage.look()[1]["enriched"])
    storage.declared["flows"] = {"enriched": {"sources": [whole]}}
    assert storage.look()[0]["enriched"]["inputs"] == ["all"]


def test_rule1_a_declared_directory_counts_only_for_a_flow_that_names_it(storage: Storage) -> None:
    """The new flow may read /data, of which only /data/in has rows so far."""
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    storage.flow("default/later/later/0", "/data/in/1.json")
    del storage.declared["flows"]["later"]
    queries, refused = storage.look()
    assert {*queries} == {"enriched"}
    fix = 'If that is "files:/data/in", write the text into sources of [pipeline.flows."later"]: sources = ["files:/data/in"]'
    assert fix in str(refused["later"])


def test_rule1_a_source_that_a_flow_names_is_not_taken_for_one_table_below_it(storage: Storage) -> None:
    storage.flow("sales/eu/eu/0", "/data/in/1.json")
    storage.flow("sales/us/us/0", "/data/in/1.json")
    storage.flow("default/both/both/0", f"{storage.table('sales', 'eu')}/1.parquet")
    whole = f"files:{storage.table('sales', 'eu').parent},recursiveFileLookup=true"
    storage.declared["inputs"][whole] = ["f.sales.eu", "f.sales.us"]
    storage.declared["flows"]["both"] = {"sources": [whole]}
    assert storage.look()[0]["both"]["inputs"] == ["f.sales.eu", "f.sales.us"]
    # A table itself is the pipeline's, also if it is declared: its flows are known.
    table = f"sink:{storage.table('sales', 'eu')}"
    storage.declared["inputs"][table] = ["another"]
    storage.declared["flows"]["both"] = {"sources": [table]}
    assert storage.look()[0]["both"]["inputs"] == ["f.sales.eu"]


def test_a_directory_that_has_the_name_of_a_table_is_not_taken_for_it(storage: Storage) -> None:
    landing = storage.folder / "landing/orders"
    (landing / "_spark_metadata").mkdir(parents=True)
    storage.flow("default/orders/orders/0", "/data/in/1.json")
    storage.flow("default/audit/audit/0", f"{landing}/1.json")
    text = describe_pipeline(storage.file, None)
    assert "<directory of the tables: spark.sql.warehouse.dir>" in text
    assert f'"<sink:{landing}>" = ["<computation>"]  # read by audit' in text


def test_a_flow_that_would_read_its_own_table_is_refused(storage: Storage) -> None:
    storage.flow("default/orders/orders/0", f"{storage.table('default', 'orders')}/1.json")
    assert "would be its own table" in str(storage.look()[1]["orders"])


def test_rule1_a_flow_whose_table_is_not_in_the_warehouse_is_refused(storage: Storage) -> None:
    """Two flows into a table with a LOCATION would both be tracked, and rows of one are lost."""
    storage.flow("eu/t/left/0", "/data/in/1.json")
    storage.table("eu", "t").rename(storage.folder / "elsewhere")
    assert "write spark.sql.warehouse.dir into warehouse" in str(storage.look()[1]["eu.t.left"])
    storage.flow("eu/t/right/0", "/data/in/1.json")
    shutil.rmtree(storage.table("eu", "t"))
    assert {*storage.look()[1]} == {"eu.t.left", "eu.t.right"}
    assert "Spark's file sink drops batches" in str(storage.look()[1]["eu.t.left"])
    (storage.table("eu", "t") / "_delta_log").mkdir(parents=True)
    assert storage.look()[1] == {}


def test_a_full_refresh_counts_from_its_directory_on(storage: Storage) -> None:
    old = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    assert newer_checkpoint(old) is None
    new = old.parent / "1"
    new.mkdir()
    assert newer_checkpoint(old) == new
    assert newer_checkpoint(storage.folder / "0") is None
    looked = Pipeline.parse(storage.declared).look()
    assert looked.queries == {}
    assert looked.checkpoints == {"enriched": new}
    assert "has committed no batch yet" in str(looked.refused["enriched"])


def test_rule1_evidence_of_a_checkpoint_ends_with_a_full_refresh(storage: Storage) -> None:
    old = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    [query] = storage.look()[0].values()
    evidence = begun(storage, query)
    evidence.attend()
    (old.parent / "1").mkdir()
    with pytest.raises(CheckpointMismatch, match=r"refresh has begun .*/enriched/1 after .*lowwater reset f\.enriched"):
        evidence.attend()


def begun(storage: Storage, query: Any) -> Evidence:
    checkpoint = Path(query["checkpoint"])
    manifest = Manifest(checkpoint, home=storage.folder / "state" / query["name"])
    manifest.begin(manifest.last_run + 1)
    evidence = Evidence(checkpoint, manifest, Declaration.parse(query), [AnySource()])  # type: ignore[list-item]  # only check() is called
    evidence.begin()
    return evidence


class AnySource:
    """A source that takes any line."""

    def check(self, line: str) -> None:
        pass


def test_rule1_readers_of_a_table_end_with_its_full_refresh(storage: Storage) -> None:
    """The table is emptied, and older rows come again than what the readers have reported."""
    writer = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    storage.write("default", "enriched")
    storage.flow("default/copied/copied/0", f"{storage.table('default', 'enriched')}/part-0.parquet")
    storage.write("default", "copied")
    storage.flow("default/last/last/0", f"{storage.table('default', 'copied')}/part-0.parquet")
    queries, _ = storage.look()
    readers = [begun(storage, queries[name]) for name in ("copied", "last")]
    (writer.parent / "1").mkdir()
    for evidence in readers:
        with pytest.raises(CheckpointMismatch, match=r"has begun .*/enriched/1, whose table f\.(copied|last) reads"):
            evidence.attend()
    # While the new checkpoint has no batch, nobody knows what its flow reads: no reader begins.
    queries, refused = storage.look()
    assert queries == {}
    assert "enriched has committed no batch yet" in str(refused["last"])
    storage.flow("default/enriched/enriched/2", "/data/in/1.json")
    queries, _ = storage.look()
    assert queries["last"]["writers"] == [queries["copied"]["checkpoint"], str(writer.parent / "2")]
    with pytest.raises(CheckpointMismatch, match=r"has begun .*/enriched/2"):
        begun(storage, queries["last"])


def test_a_table_that_is_being_emptied_is_waited_for(storage: Storage) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'enriched')}/1.parquet")
    log = storage.table("default", "enriched") / "_spark_metadata"
    log.rmdir()
    refused = storage.look()[1]
    assert {*refused} == {"reader"}
    with pytest.raises(OSError, match="no log of Spark's file sink at the moment"):
        raise refused["reader"]
    log.mkdir()
    assert storage.look()[1] == {}


def test_a_folder_that_cannot_be_read_refuses_its_flow_and_readers_only(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = storage.flow("default/closed/closed/0", "/data/in/1.json").parent
    hidden = storage.flow("eu/hidden/hidden/0", "/data/in/1.json").parents[2]
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'closed')}/1.parquet")
    storage.flow("default/other/other/0", f"{storage.table('eu', 'hidden')}/1.parquet")
    storage.flow("default/open/open/0", "/data/in/1.json")
    iterdir = Path.iterdir

    def refusing(folder: Path) -> Iterator[Path]:
        # The tests may run as root, whom no mode of a directory stops.
        if folder in (closed, hidden):
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)
    queries, refused = storage.look()
    assert {*queries} == {"open"}
    assert {*refused} == {"closed", "reader", "other", "spark_catalog/eu", "eu.hidden"}
    assert all(isinstance(problem, OSError) for problem in refused.values())
    assert "Permission denied" in describe_pipeline(storage.file, storage.folder / "tables")
    storage.flow("default/closed/second/0", "/data/in/1.json")
    assert "Spark's file sink drops batches" in str(storage.look()[1]["closed.second"])


def test_names_that_no_computation_may_have_are_refused_by_key_or_flow(storage: Storage) -> None:
    storage.flow("default/both/left side/0", "/data/in/1.json")
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'both')}/1.parquet")
    refused = storage.look()[1]
    assert {*refused} == {"both.left side", "reader"}
    assert "'f.both.left side' cannot be the name of a computation" in str(refused["reader"])
    storage.file.write_text(f"name: my flights\nstorage: {storage.folder}/storage\n")
    assert 'prefix = "my-flights."' in describe_pipeline(storage.file, None)


def test_flows_of_one_name_are_refused_with_their_readers(storage: Storage) -> None:
    storage.flow("default/raw/orders/0", "/data/in/1.json")
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'raw')}/1.parquet")
    assert storage.look()[1] == {}
    storage.flow("raw/orders/orders/0", "/data/in/1.json")
    queries, refused = storage.look()
    assert queries == {}
    assert {*refused} == {"raw.orders", "reader"}
    assert "default/raw/orders/0" in str(refused["reader"])
    assert "raw/orders/orders/0" in str(refused["reader"])


def test_a_table_of_another_catalog_has_its_own_name_and_no_directory_here(storage: Storage) -> None:
    storage.flow("default/events/events/0", "/data/in/1.json")
    storage.flow("default/events/events/1", "/data/in/1.json", catalog="ice")
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'events')}/1.parquet")
    queries, refused = storage.look()
    assert refused == {}
    assert queries["reader"]["inputs"] == ["f.events"]
    assert queries["ice.default.events"]["output"] == ""
    assert queries["events"]["checkpoint"].endswith("/spark_catalog/default/events/events/0")


def test_two_flows_into_a_table_whose_directory_is_in_lower_case_are_refused(storage: Storage) -> None:
    for name in ("left", "right"):
        storage.flow(f"default/Both/{name}/0", "/data/in/1.json")
    storage.table("default", "Both").rename(storage.table("default", "both"))
    assert "Spark's file sink drops batches" in str(storage.look()[1]["Both.left"])


def test_what_a_flow_reads_is_matched_anew_at_each_look(storage: Storage) -> None:
    storage.flow("default/reader/reader/0", f"{storage.table('default', 'enriched')}/1.parquet")
    assert "nothing says which computation writes that" in str(storage.look()[1]["reader"])
    writer = storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    assert storage.look()[1] == {}
    shutil.rmtree(writer.parent)
    queries, refused = storage.look()
    assert queries == {}
    assert "reads files in" in str(refused["reader"])


def test_a_damaged_log_refuses_its_flow_only(storage: Storage) -> None:
    damaged = storage.flow("default/damaged/damaged/0", "/data/in/1.json")
    (damaged / "sources/0/0").write_text('v1\n{"path":')
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    queries, refused = storage.look()
    assert {*queries} == {"enriched"}
    assert {*refused} == {"damaged"}
    assert "# damaged: " in describe_pipeline(storage.file, storage.folder / "tables")


def test_a_storage_a_warehouse_and_a_flow_that_are_not_there_are_told(storage: Storage) -> None:
    storage.declared["flows"] = {"enrichd": {"retention": "1h"}}
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    assert "did you mean enriched" in str(storage.look()[1]["enrichd"])
    with pytest.raises(FileNotFoundError, match="the storage /no/such is no directory here"):
        Pipeline.parse({**storage.declared, "storage": "/no/such"}).look()
    storage.flow("default/events/events/0", "/data/in/1.json", catalog="ice")
    looked = Pipeline.parse({**storage.declared, "warehouse": "/no/such"}).look()
    assert {*looked.queries} == {"ice.default.events"}
    assert "the warehouse /no/such is no directory here" in str(looked.refused["enriched"])


@pytest.mark.parametrize("writers", ["/ck/0", ["ck/0"], ["/ck/flow"], [0]])
def test_writers_that_are_no_checkpoints_of_flows_are_refused(storage: Storage, writers: Any) -> None:
    storage.flow("default/enriched/enriched/0", "/data/in/1.json")
    with pytest.raises(ValueError, match=r"the query f\.enriched: writers is a list of local checkpoints"):
        Declaration.parse({**storage.look()[0]["enriched"], "writers": writers})


def test_two_pipelines_with_one_prefix_are_refused(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{key} = {json.dumps(storage.declared[key])}" for key in ("storage", "warehouse", "promises")]
    file = storage.folder / "queries.toml"
    file.write_text("\n".join(2 * ["[[pipeline]]", *lines]))
    assert main(["track", str(file), "--state", str(storage.folder / "state")]) == 2
    assert "two pipelines with the prefix ''" in capsys.readouterr().err
