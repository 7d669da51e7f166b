"""Only a line feed ends a line of what the product reads."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lowwater_spark.checkpoint.lines import lines_of
from lowwater_spark.sources.delta import Commit, app_id, marked

ROOT = Path(__file__).parents[2]
PRODUCT = ("client/src", "authority/src", "page/src", "spark_listener/src", "pipeline/src", "integrations")
FOR_PEOPLE = {
    "client/src/lowwater/_server/logging.py": "a traceback, of which each line becomes a field of a log record",
    "client/src/lowwater/cli/live.py": "an answer that is wrapped for a terminal",
    "pipeline/src/lowwater_pipeline/graph/running.py": "the first line of an exception",
    "spark_listener/src/lowwater_spark/attach/embedded.py": "the end of the log of a process that did not start",
}
"""Files that may break a text at more than line feeds: the text is only shown."""

BREAKS = re.compile(r"\.(splitlines|readlines)\(|\bStringIO\b")

BREAKING = ["\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"]


@pytest.mark.parametrize("mark", BREAKING)
def test_only_a_line_feed_ends_a_line(mark: str) -> None:
    assert f"one{mark}line\n".splitlines() == ["one", "line"]
    assert lines_of(f"one{mark}line\nanother\n") == [f"one{mark}line", "another"]


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\u2029"])
def test_a_commit_of_delta_may_have_any_text_in_its_statistics(mark: str) -> None:
    stats = json.dumps({"maxValues": {"key": f"{mark}wait"}}, ensure_ascii=False)
    add = json.dumps({"add": {"path": "a", "dataChange": True, "stats": stats}}, ensure_ascii=False)
    assert mark in add
    assert Commit.parse(3, f"{add}\n{add}\n").added == 2


def test_a_commit_of_delta_says_who_has_written_it() -> None:
    txn = json.dumps({"txn": {"appId": app_id("default/hourly", "c0ffee"), "version": 3}})
    info = json.dumps({"commitInfo": {"operation": "WRITE", "userMetadata": marked("default/daily")}})
    foreign = json.dumps({"txn": {"appId": "another's", "version": 3}})
    assert Commit.parse(3, f"{txn}\n{info}\n").writer == "default/hourly"
    assert Commit.parse(3, f"{info}\n{foreign}\n").writer == "default/daily"
    assert not Commit.parse(3, foreign).writer


def test_no_product_code_breaks_data_into_lines_by_other_characters() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if not {"_pb", "tests"} & {*path.parts} and BREAKS.search(path.read_text(encoding="utf-8"))
    }
    assert found == FOR_PEOPLE.keys(), "use lowwater_spark.checkpoint.lines.lines_of, or say here for whom the text is"
