"""What a checkpoint of Spark 3.5 shows of the operators with state, and which of them a sidecar refuses.

The checkpoints were made by real queries: ``tests/floors/make_checkpoints.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.errors import Unsupported
from lowwater_spark.sidecar.command import describe
from lowwater_spark.sidecar.declaration import Declaration
from lowwater_spark.sidecar.evidence import Evidence
from lowwater_spark.sidecar.stateful import StoreSchema, operators, word_of

MADE = Path(__file__).parents[1] / "floors/checkpoints"
QUERY = {
    "name": "q",
    "checkpoint": "/ck",
    "inputs": ["i"],
    "sources": ["files:/in"],
    "promises": ["sink-visible-before-commit", "nothing-skipped"],
}
HELD = {"retention": "2h", "output_mode": "append"}

Make = Callable[..., Path]


@cache
def made(run: str) -> dict[str, dict[str, str | None]]:
    loaded: dict[str, dict[str, str | None]] = json.loads((MADE / f"{run}.json").read_text(encoding="ascii"))
    return loaded


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def checkpoint(query: str, run: str = "hdfs") -> Path:
        for name, content in made(run)[query].items():
            path = tmp_path / query / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"" if content is None else content.encode("latin-1"))
        return tmp_path / query

    return checkpoint


def check(checkpoint: Path, **declared: Any) -> None:
    """Compare the operators of a checkpoint with a declaration, as each look of a sidecar does."""
    plan = CheckpointLog(checkpoint).newest_committed()
    assert plan is not None
    Evidence(checkpoint, None, Declaration.parse({**QUERY, **declared}), []).check_operators(plan)  # type: ignore[arg-type]


def words(checkpoint: Path) -> list[str]:
    return [word_of(operator.name) for operator in operators(checkpoint)]


KNOWN = {
    "window": ["aggregation"],
    "event time": ["aggregation"],
    "window of windows": ["aggregation", "aggregation"],
    "session": ["sessions"],
    "session without a watermark": ["sessions"],
    "distinct": ["deduplication"],
    "dropDuplicates": ["deduplication"],
    "dropDuplicatesWithinWatermark": ["deduplication-within-watermark"],
    "inner join": ["join"],
    "left outer join": ["join"],
    "join with one watermark": ["join"],
    "window over a join": ["aggregation", "join"],
    "function with a timeout": ["function"],
    "function without a timeout": ["function"],
    "limit": ["limit"],
    "changed": ["aggregation", "deduplication"],
    # An aggregation without a watermark has nothing of its own in its schema.
    "window without a watermark": [""],
    "key": [""],
    "no key": [""],
}


@pytest.mark.parametrize(("run", "query"), [(run, query) for run in ("hdfs", "rocksdb") for query in made(run)])
def test_operators_are_recognized_by_their_state_stores(make: Make, run: str, query: str) -> None:
    assert words(make(query, run)) == KNOWN[query]


@pytest.mark.parametrize(
    ("run", "query", "declared"),
    [
        ("hdfs", "distinct", {}),
        ("hdfs", "limit", {"operators": ["limit"]}),
        ("hdfs", "function without a timeout", {"retention": "2h", "operators": ["function"]}),
        ("hdfs", "window over a join", {**HELD, "operators": ["aggregation", "join"]}),
        ("hdfs", "window of windows", HELD),
        ("hdfs", "event time", HELD),
        ("rocksdb", "window", {"windows": "1h", "output_mode": "append"}),
    ],
)
def test_operators_that_are_declared_are_tracked(make: Make, run: str, query: str, declared: dict[str, Any]) -> None:
    check(make(query, run), **declared)


@pytest.mark.parametrize(
    ("query", "declared", "message"),
    [
        ("window", {}, "how far below its watermark"),
        ("window", {"retention": "2h"}, "in which output mode"),
        ("window", {**HELD, "operators": ["sessions"]}, r'sessions are declared.*operators = \["aggregation"\]'),
        ("window", {**HELD, "operators": ["aggregation", "join"]}, "aggregation, join are declared"),
        ("limit", {"retention": "2h"}, "Spark holds nothing in it"),
        ("window of windows", {"windows": "1h", "output_mode": "append"}, "all that Spark holds"),
        ("session without a watermark", HELD, "none of its columns is under a watermark"),
        ("join with one watermark", HELD, "none of its columns is under a watermark"),
        ("window without a watermark", HELD, r"default has key \(window\) and value \(count\).*Put withWatermark"),
        ("key", HELD, "without a watermark"),  # the value has a time under a watermark, and no group ends by it
        ("no key", HELD, "without a watermark"),
        ("changed", HELD, "state/1.*batch 4, .*has not written it: it is of an earlier plan"),
    ],
)
def test_rule1_what_could_lead_is_refused(make: Make, query: str, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check(make(query), **declared)


def test_rule1_state_of_an_earlier_plan_is_refused_in_every_store(make: Make) -> None:
    with pytest.raises(Unsupported, match=r"state/1.*has not written it"):
        check(make("changed", "rocksdb"), **HELD)
    join = make("left outer join")
    newest = max((join / "state/0/0/right-keyToNumValues").glob("*.delta"), key=lambda path: int(path.stem))
    newest.unlink()
    with pytest.raises(Unsupported, match="has not written it"):
        check(join, retention="2h")


def test_a_job_that_has_gone_on_is_looked_at_again(make: Make) -> None:
    window = make("window")
    (window / "state/0/0/1.delta").unlink()  # as Spark removes the versions that it does not keep
    evidence = Evidence(window, None, Declaration.parse({**QUERY, **HELD}), [])  # type: ignore[arg-type]
    log = CheckpointLog(window)
    first, newest = log.plan(0), log.newest_committed()
    assert first is not None
    assert newest is not None
    with pytest.raises(OSError, match="was written by a newer batch"):
        evidence.check_operators(first)
    assert evidence.check_operators(newest)


def test_a_store_whose_files_are_not_known_is_named_and_its_operators_are_declared(make: Make) -> None:
    window = make("window")
    for entry in (window / "offsets").iterdir():
        entry.write_text(entry.read_text().replace("HDFSBackedStateStoreProvider", "TieredProvider"))
    with pytest.raises(Unsupported, match=r'streaming.state.TieredProvider.*operators = \["aggregation"\]'):
        check(window, **HELD)
    check(window, **HELD, operators=["aggregation"])
    (window / "state/0/0/_metadata/schema").write_bytes(b"\x00\x02v3")
    with pytest.raises(Unsupported, match="none has a schema"):
        check(window, **HELD, operators=["aggregation"])


def test_a_wrong_operator_is_named(make: Make) -> None:
    with pytest.raises(ValueError, match=r"has the operator agregation.*did you mean aggregation"):
        check(make("window"), operators=["agregation"])


def test_a_checkpoint_is_described_with_its_operators(make: Make) -> None:
    text = describe(str(make("window over a join")), None)
    assert "In Spark's state: stateStoreSave, symmetricHashJoin." in text
    assert '# operators = ["aggregation", "join"]' in text
    assert "an operator that is not known" in describe(str(make("key")), None)


def test_a_schema_is_read_whole_or_not_at_all(make: Make) -> None:
    content = (make("window") / "state/0/0/_metadata/schema").read_bytes()
    schema = StoreSchema.parse(content)
    assert schema is not None
    assert [column["name"] for column in schema.key] == ["window", "key"]
    columns = [json.dumps({"type": "struct", "fields": list(part)}).encode() for part in (schema.key, schema.value)]
    texts = [b"v1", *columns]  # of Spark before 3.0: each in one piece
    assert StoreSchema.parse(b"".join(len(text).to_bytes(2, "big") + text for text in texts)) == schema
    for wrong in (content[:-1], content + b"\x00", content.replace(b"v2", b"v3"), b"", b"\x00"):
        assert StoreSchema.parse(wrong) is None
