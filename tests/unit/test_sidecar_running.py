"""The call that ``lws.track`` asks a notebook to paste: what is filled in, what is left out. No Spark runs."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lowwater_spark.sidecar.declaration import Declaration
from lowwater_spark.sidecar.running import Running, undeclared

DECLARED: dict[str, Any] = {
    "checkpoint": "/ck",
    "inputs": ["source"],
    "sources": ["files:/data/in"],
    "promises": ["sink-visible-before-commit", "nothing-skipped"],
    "state": "/state",
}


def test_a_whole_declaration_asks_for_nothing_whatever_its_sources_have_in_them() -> None:
    assert undeclared("hourly", DECLARED, None) == ""
    assert undeclared("hourly", {**DECLARED, "sources": ['kafka:a,kafka.password="a<b"', "files:/a<b>"]}, None) == ""


def test_a_source_of_the_query_that_has_blanks_is_asked_for() -> None:
    running = Running("id", "/ck", ("kafka:flights,lowwater.brokers=<3>,kafka.bootstrap.servers=<broker:9092>",))
    text = undeclared("hourly", {**DECLARED, "sources": running.sources}, running)
    assert text.startswith("hourly is not tracked: sources cannot be known here")
    assert "run lowwater-spark track" in text, "a client of Spark Connect has no JVM"
    with_jvm = undeclared("hourly", {**DECLARED, "sources": running.sources}, running, {"spark": print})
    assert "    spark=spark," in with_jvm
    assert "run lowwater-spark track" not in with_jvm


def test_the_call_to_paste_repeats_what_was_passed_and_shows_no_option() -> None:
    sources = [
        "kafka:flights,kafka.sasl.jaas.config=password",
        {"kind": "kafka", "topics": ["a"], "options": {"x": "password"}},
    ]
    declared = {**DECLARED, "sources": sources, "state": None, "stamp": timedelta(hours=1)}
    text = undeclared("hourly", declared, None, {"address": "authority:7420", "client": object(), "interval": 2.0})
    assert "is not tracked: state cannot be known here" in text
    assert '    address="authority:7420",\n    client=client,\n    interval=2.0,\n' in text
    assert '    stamp="3600s",' in text
    assert "password" not in text
    assert '"<source 0 as in this call>", "<source 1 as in this call>"' in text


def test_a_call_that_is_pasted_without_a_look_promises_nothing() -> None:
    text = undeclared("hourly", {**DECLARED, "promises": None}, None)
    assert '    promises=["<sink-visible-before-commit>", "<nothing-skipped>", "<history>"],' in text
    query = {key: value for key, value in DECLARED.items() if key != "state"}
    with pytest.raises(ValueError, match="promises <history>, which is none of"):
        Declaration.parse({**query, "name": "hourly", "promises": ["<history>", "<nothing-skipped>"]})


def test_of_a_query_that_failed_before_its_first_batch_the_failure_is_told() -> None:
    failed: Any = SimpleNamespace(
        id="q1", name=None, lastProgress=None, isActive=False, exception=lambda: "no such directory"
    )
    with pytest.raises(ValueError, match=r"q1 has failed before its first batch.*no such directory"):
        Running.of(failed)
    assert Running.of(failed, wait=False).sources == ()
