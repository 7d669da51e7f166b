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
from lowwater_spark.errors import CheckpointMismatch, Unsupported
from lowwater_spark.sidecar.declaration import Declaration
from lowwater_spark.sidecar.description import describe
from lowwater_spark.sidecar.evidence import Evidence
from lowwater_spark.sidecar.stateful import StoreSchema, operators, word_of

CHECKPOINTS = Path(__file__).parents[1] / "floors/checkpoints"
QUERY = {
    "name": "q",
    "checkpoint": "/ck",
    "inputs": ["i"],
    "sources": ["files:/in"],
    "promises": ["sink-visible-before-commit", "nothing-skipped", "same-operators"],
}
HELD = {"retention": "2h", "output_mode": "append"}

Restore = Callable[..., Path]


@cache
def checkpoints(run: str) -> dict[str, dict[str, str | None]]:
    loaded: dict[str, dict[str, str | None]] = json.loads((CHECKPOINTS / f"{run}.json").read_text(encoding="ascii"))
    return loaded


@pytest.fixture
def restore(tmp_path: Path) -> Restore:
    def checkpoint(query: str, run: str = "hdfs") -> Path:
        for name, content in checkpoints(run)[query].items():
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
    stateful = operators(checkpoint, CheckpointLog(checkpoint).newest_committed())
    return [word_of(operator.name) for operator in stateful]


def provided_by(checkpoint: Path, provider: str) -> None:
    """Let the state of a checkpoint be kept by a provider that Spark does not ship."""
    for entry in (checkpoint / "offsets").iterdir():
        entry.write_text(entry.read_text().replace("HDFSBackedStateStoreProvider", provider))


OPERATORS = {
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
    "flatMapGroupsWithState": ["function"],
    "mapGroupsWithState": ["function"],
    "limit": ["limit"],
    "changed": ["aggregation", ""],  # the newest batch has not written the second
    # An aggregation without a watermark has nothing of its own in its schema.
    "window without a watermark": [""],
    "key": [""],
    "no key": [""],
}


@pytest.mark.parametrize(
    ("run", "query"), [(run, query) for run in ("hdfs", "rocksdb", "changelog") for query in checkpoints(run)]
)
def test_operators_are_recognized_by_their_state_stores(restore: Restore, run: str, query: str) -> None:
    assert words(restore(query, run)) == OPERATORS[query]


@pytest.mark.parametrize(
    ("run", "query", "declared"),
    [
        ("hdfs", "distinct", {}),
        ("hdfs", "limit", {"operators": ["limit"]}),
        ("hdfs", "flatMapGroupsWithState", {"retention": "2h"}),
        ("hdfs", "mapGroupsWithState", {"retention": "2h", "operators": ["function"]}),
        ("hdfs", "window over a join", {**HELD, "operators": ["aggregation", "join"]}),
        ("hdfs", "window of windows", HELD),
        ("hdfs", "event time", HELD),
        ("rocksdb", "dropDuplicates", {}),
        ("rocksdb", "dropDuplicatesWithinWatermark", {}),
        ("rocksdb", "session", HELD),
        ("rocksdb", "left outer join", {"retention": "2h"}),
        ("changelog", "window", {"windows": "1h", "output_mode": "append"}),
    ],
)
def test_operators_that_are_declared_are_tracked(
    restore: Restore, run: str, query: str, declared: dict[str, Any]
) -> None:
    check(restore(query, run), **declared)


@pytest.mark.parametrize(
    ("query", "declared", "message"),
    [
        ("window", {}, "how far below its watermark"),
        ("window", {"retention": "2h"}, "in which output mode"),
        (
            "window",
            {**HELD, "operators": ["sessions"]},
            r'operators = \["sessions"\] is declared.*state of aggregation',
        ),
        ("window", {**HELD, "operators": ["aggregation", "join"]}, r'\["aggregation", "join"\] is declared'),
        ("window", {**HELD, "operators": []}, r"operators = \[\] is declared"),
        ("window", {**HELD, "promises": QUERY["promises"][:2]}, 'add "same-operators" to its promises'),
        ("limit", {"retention": "2h"}, "Spark holds nothing in it"),
        ("window of windows", {"windows": "1h", "output_mode": "append"}, "all that Spark holds"),
        ("session without a watermark", HELD, "none of its columns is under a watermark"),
        ("join with one watermark", HELD, "none of its columns is under a watermark"),
        (
            "window without a watermark",
            HELD,
            r"default has key \(window\) and value \(count\).*put withWatermark.*and begin with a new checkpoint",
        ),
        ("key", HELD, "without a watermark"),  # the value has a time under a watermark, and no group ends by it
        ("no key", HELD, "without a watermark"),
        (
            "changed",
            HELD,
            "state/1.*batch 4, .*has not written .*: a new version of the query has left the operator out",
        ),
    ],
)
def test_rule1_what_could_lead_is_refused(restore: Restore, query: str, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        check(restore(query), **declared)


def test_rule1_state_of_an_earlier_plan_is_refused_in_every_store(restore: Restore) -> None:
    with pytest.raises(Unsupported, match=r"state/1.*has not written .*state/1/0"):
        check(restore("changed", "rocksdb"), **HELD)
    join = restore("left outer join")
    newest = max((join / "state/0/0/right-keyToNumValues").glob("*.delta"), key=lambda path: int(path.stem))
    newest.unlink()
    with pytest.raises(Unsupported, match=r"has not written .*right-keyToNumValues"):
        check(join, retention="2h")


@pytest.mark.parametrize(
    "leftover", ["state/1/0/_metadata/schema", "state/1/0/left-keyToNumValues/_metadata/schema", "state/1/1/x"]
)
def test_what_a_version_that_failed_has_left_is_passed_over(restore: Restore, leftover: str) -> None:
    window = restore("window")
    path = window / leftover
    path.parent.mkdir(parents=True)
    path.write_bytes((window / "state/0/0/_metadata/schema").read_bytes())
    assert words(window) == ["aggregation"]
    check(window, **HELD, operators=["aggregation"])
    assert '# operators = ["aggregation"]' in describe(str(window), None)


def test_a_window_that_failed_over_a_join_is_passed_over(restore: Restore) -> None:
    join = restore("left outer join")
    schema = join / "state/0/0/_metadata/schema"
    schema.parent.mkdir()
    schema.write_bytes((restore("window") / "state/0/0/_metadata/schema").read_bytes())
    assert words(join) == ["join"]
    check(join, retention="2h")


def test_rule1_an_operator_without_schemas_is_refused(restore: Restore) -> None:
    window = restore("window")
    (window / "state/0/0/_metadata/schema").unlink()
    with pytest.raises(Unsupported, match="default has no schema that can be read"):
        check(window, **HELD)


@pytest.mark.parametrize("content", [b"", None])
def test_rule1_a_store_too_many_is_refused(restore: Restore, content: bytes | None) -> None:
    window = restore("window")
    schema = (window / "state/0/0/_metadata/schema").read_bytes()
    more = window / "state/0/0/more"
    (more / "_metadata").mkdir(parents=True)
    (more / "_metadata/schema").write_bytes(schema if content is None else content)
    (more / "3.delta").touch()
    with pytest.raises(Unsupported, match=r"those of no operator that is known: default has .*; more has "):
        check(window, **HELD)


def test_rule1_functions_of_an_old_format_are_not_taken_for_aggregations(restore: Restore) -> None:
    window = restore("window")
    for entry in (window / "offsets").iterdir():
        setting = "flatMapGroupsWithState.stateFormatVersion"
        entry.write_text(entry.read_text().replace(f'{setting}":"2"', f'{setting}":"1"'))
    with pytest.raises(Unsupported, match="those of no operator that is known"):
        check(window, **HELD)


def test_a_job_that_has_gone_on_is_looked_at_again(restore: Restore) -> None:
    window = restore("window")
    (window / "state/0/0/1.delta").unlink()  # as Spark removes the versions that it does not keep
    evidence = Evidence(window, None, Declaration.parse({**QUERY, **HELD}), [])  # type: ignore[arg-type]
    log = CheckpointLog(window)
    first, newest = log.plan(0), log.newest_committed()
    assert first is not None
    assert newest is not None
    with pytest.raises(OSError, match="has gone on beyond batch 0"):
        evidence.check_operators(first)
    assert evidence.check_operators(newest)


def test_a_join_whose_versions_are_being_removed_is_looked_at_again(restore: Restore) -> None:
    join = restore("left outer join")
    (join / "state/0/0/right-keyToNumValues/1.delta").unlink()
    first = CheckpointLog(join).plan(0)
    assert first is not None
    evidence = Evidence(join, None, Declaration.parse({**QUERY, "retention": "2h"}), [])  # type: ignore[arg-type]
    with pytest.raises(OSError, match="has gone on beyond batch 0"):
        evidence.check_operators(first)


def test_rule1_an_operator_that_is_left_out_is_refused_while_the_job_goes_on(restore: Restore) -> None:
    changed = restore("changed")
    evidence = Evidence(changed, None, Declaration.parse({**QUERY, **HELD}), [])  # type: ignore[arg-type]
    before = CheckpointLog(changed).plan(3)
    assert before is not None
    with pytest.raises(Unsupported, match=r"batch 4, the newest that is committed, has not written .*state/1/0"):
        evidence.check_operators(before)


def test_a_store_whose_files_are_not_known_is_named_and_its_operators_are_declared(restore: Restore) -> None:
    window = restore("window")
    provided_by(window, "TieredProvider")
    with pytest.raises(Unsupported, match=r'streaming.state.TieredProvider.*operators = \["aggregation"\]'):
        check(window, **HELD)
    check(window, **HELD, operators=["aggregation"])
    (window / "state/0/0/_metadata/schema").write_bytes(b"\x00\x02v3")
    with pytest.raises(Unsupported, match="default has no schema that can be read"):
        check(window, **HELD, operators=["aggregation"])


def test_an_entry_of_version_2_is_read_by_the_numbers_of_its_sources(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    entries = ['v2\n{}\n1:{"b":2}\n0:-\n', 'v2\n{}\n1:{"b":2}\n', "v2\n{}\norders:1\n", "v3\n{}\n"]
    for batch, entry in enumerate(entries):
        (tmp_path / f"offsets/{batch}").write_text(entry)
    log = CheckpointLog(tmp_path)
    assert log.plan(0).lines == ["-", '{"b":2}']  # type: ignore[union-attr]
    for batch, reason in (1, "names the sources 1,"), (2, "names the sources orders,"), (3, "of version 'v3'"):
        with pytest.raises(CheckpointMismatch, match=reason):
            log.plan(batch)


def test_an_entry_without_settings_is_read(restore: Restore) -> None:
    limit = restore("limit")
    entry = limit / "offsets/1"
    version, settings, *lines = entry.read_text().split("\n")
    entry.write_text("\n".join([version, json.dumps({**json.loads(settings), "conf": None}), *lines]))
    with pytest.raises(Unsupported, match="provider: none is named"):
        check(limit)


def test_an_unknown_operator_is_refused_before_its_provider_is_spoken_of(restore: Restore) -> None:
    both = restore("window of windows")
    provided_by(both, "TieredProvider")
    (both / "state/1/0/_metadata/schema").write_bytes(b"")
    with pytest.raises(Unsupported, match=r"the operator in .*state/1"):
        check(both, **HELD)


def test_a_wrong_operator_is_named(restore: Restore) -> None:
    with pytest.raises(ValueError, match=r"has the operator agregation.*did you mean aggregation"):
        check(restore("window"), operators=["agregation"])


@pytest.mark.parametrize("wrong", ["", "join", False, 0, [""], {}])
def test_operators_are_a_list(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r'operators is a list like \["aggregation", "join"\], or \[\]'):
        Declaration.parse({**QUERY, "operators": wrong})


def test_no_operators_can_be_declared() -> None:
    assert Declaration.parse({**QUERY, "operators": []}).operators == ()
    assert Declaration.parse(QUERY).operators is None


def test_a_checkpoint_is_described_with_its_operators(restore: Restore) -> None:
    text = describe(str(restore("window over a join")), None)
    assert "In Spark's state: aggregation, join." in text
    assert '# operators = ["aggregation", "join"]' in text
    assert '# "same-operators",' in text
    text = describe(str(restore("key")), None)
    assert "an operator that is not known" in text
    assert "operators = [" not in text
    assert "what is in state/1 is not known" in describe(str(restore("changed")), None)


def test_a_schema_is_read_whole_or_not_at_all(restore: Restore) -> None:
    content = (restore("window") / "state/0/0/_metadata/schema").read_bytes()
    schema = StoreSchema.parse(content)
    assert schema is not None
    assert [column["name"] for column in schema.key] == ["window", "key"]
    columns = [json.dumps({"type": "struct", "fields": list(part)}).encode() for part in (schema.key, schema.value)]
    texts = [b"v1", *columns]  # of Spark before 3.0: each in one piece
    assert StoreSchema.parse(b"".join(len(text).to_bytes(2, "big") + text for text in texts)) == schema
    for wrong in (content[:-1], content + b"\x00", content.replace(b"v2", b"v3"), b"", b"\x00"):
        assert StoreSchema.parse(wrong) is None


def test_a_schema_of_many_texts_is_joined() -> None:
    columns = [{"name": "k\U0001f600", "type": "string", "metadata": {}}]
    text = json.dumps({"type": "struct", "fields": columns}, ensure_ascii=False)
    # Java writes a character beyond 16 bits as two, and a text may end between them.
    units = text.encode("utf-16-le", "surrogatepass")
    middle = units.index("\U0001f600".encode("utf-16-le")) + 2
    parts = [
        part.decode("utf-16-le", "surrogatepass").encode("utf-8", "surrogatepass")
        for part in (units[:20], units[20:middle], units[middle:])
    ]
    key = (3).to_bytes(4, "big") + b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    value = (1).to_bytes(4, "big") + len(text.encode()).to_bytes(2, "big") + text.encode()
    schema = StoreSchema.parse(b"\x00\x02v2" + key + value)
    assert schema is not None
    assert schema.value == columns
    assert [column["type"] for column in schema.key] == ["string"]


@pytest.mark.parametrize("fields", [[{}], ["key"], {"key": 1}, [{"name": "k", "type": "long", "metadata": None}], None])
def test_columns_that_are_none_of_sparks_cannot_be_read(fields: Any) -> None:
    text = json.dumps({"fields": fields}).encode()
    assert StoreSchema.parse(b"\x00\x02v1" + 2 * (len(text).to_bytes(2, "big") + text)) is None
