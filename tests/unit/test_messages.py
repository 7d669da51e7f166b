"""What a user reads after a mistake: the name that was meant, what differs, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import DataType, DateType, LongType, StringType, TimestampNTZType

from lowwater import errors
from lowwater.core import checks
from lowwater.core.text import did_you_mean
from lowwater_authority.core.times import DAY
from lowwater_authority.core.topology import Spec, Topology
from lowwater_pipeline.graph.pipeline import Pipeline
from lowwater_spark.columns import as_timestamp
from lowwater_spark.drive.frame import drive
from lowwater_spark.sidecar.declaration import Declaration, source_of
from lowwater_spark.stages import stage
from lowwater_spark.workers import lacking

CHECKED = Spec("checked", ("reading",), (990_000,), "", DAY)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"inputs": ("readings", "b")},
            "inputs reading, and not readings, b: register the same; `lowwater set-inputs checked readings b` changes the inputs.",
        ),
        (
            {"inputs": ()},
            "inputs reading, and not none: register the same; to change that, drop it (`lowwater drop checked`) and register it anew.",
        ),
        (
            {"inputs": ("b",), "heuristics": (900_000,)},
            "inputs reading, and not b; heuristics 0.99, and not 0.9: register the same; `lowwater set-inputs checked b` changes "
            "the inputs; to change the rest, drop it (`lowwater drop checked`) and register it anew.",
        ),
    ],
)
def test_a_conflict_names_what_differs_and_what_to_do(asked: dict[str, tuple[int | str, ...]], message: str) -> None:
    with pytest.raises(errors.RegistrationConflict) as refused:
        Topology().register(CHECKED).register(replace(CHECKED, **asked))  # type: ignore[arg-type]
    assert str(refused.value) == f"checked is registered with {message}"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checks.names("inputs", "orders"), "inputs='orders' is refused: pass a list: inputs=[\"orders\"]"),
        (lambda: stage(None, "s", inputs="orders", key="k", event_time="t"), 'pass a list: inputs=["orders"]'),  # type: ignore[arg-type]
        (lambda: drive(None, inputs="trips", event_time="t"), 'pass a list: inputs=["trips"]'),  # type: ignore[arg-type]
        (
            lambda: Declaration.parse({"name": "s", "checkpoint": "/c", "inputs": "orders"}),
            'pass a list: inputs = ["orders"]',
        ),
        (lambda: Pipeline("p", "Counts"), "pass a list: computations=[Counts]"),  # type: ignore[arg-type]
        (lambda: checks.names("inputs", 3), "inputs=3 is refused: pass a list or another iterable"),
    ],
)
def test_one_name_in_place_of_a_list_is_refused_with_the_list(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert str(refused.value).endswith(message)


@pytest.mark.parametrize(
    ("name", "names", "question"),
    [
        ("reading", ["readings", "orders"], "; did you mean readings?"),
        ("prd/ledger", ["prod/ledger"], "; did you mean prod/ledger?"),
        ("senser", ["sensor", "sense", "t"], "; did you mean sense or sensor?"),
        ("x", ["hourly"], ""),
    ],
)
def test_a_name_that_does_not_exist_is_answered_with_similar_ones(name: str, names: list[str], question: str) -> None:
    assert did_you_mean(name, names) == question
    dropped = errors.UnknownComputation("gone.", metadata={"computation": name})
    assert str(checks.offering(dropped, names)) == ("gone" + question.replace("; ", ": ") if question else "gone.")


@pytest.mark.parametrize(
    ("call", "question"),
    [
        (lambda: stage(None, "s", inputs=["a"], key="k", event_time="t", retension=None), "did you mean retention?"),  # type: ignore[arg-type,call-arg]
        (lambda: Declaration.parse({"input": ["a"]}), "did you mean inputs?"),
        (lambda: source_of("files:/in,maxFileAg=1d"), "did you mean maxfileage?"),
    ],
)
def test_an_option_that_does_not_exist_is_answered_by_a_similar_one(call: Callable[[], object], question: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert str(refused.value).endswith(question)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TimestampNTZType(), 'sf.col("t").cast("timestamp"), which reads it in the time zone'),
        (DateType(), 'sf.col("t").cast("timestamp"), the midnight'),
        (StringType(), 'sf.to_timestamp(sf.col("t"), "yyyy-'),
        (LongType(), 'sf.timestamp_micros(sf.col("t"))'),
    ],
)
def test_each_type_that_is_no_timestamp_has_its_own_way_to_one(kind: DataType, words: str) -> None:
    assert words in as_timestamp("t", kind)


def test_only_workers_that_surely_lack_the_package_are_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    assert lacking("bare", "lowwater_spark", {"PATH": str(tmp_path)}) == str(bare)
    assert lacking("bare", "json", {"PATH": str(tmp_path)}) == ""
    for python in ("absent", sys.executable, "/bin/false"):
        assert lacking(python, "lowwater_spark", {"PATH": str(tmp_path)}) == ""
