"""docs/start/tutorial.md: every block is run, in the order of the page, and prints what the page says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.process.serving import Serving
from tests.spark.start_page import Reader

pytestmark = pytest.mark.timeout(1200)


def test_every_block_prints_what_is_said(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOWWATER_ADDRESS", "")  # the reader sets it; afterwards it is as it was
    serving = Serving(Path("authority"))

    def serve(arguments: Sequence[str]) -> str:
        assert [*arguments] == ["serve", *serving.journal()]
        return serving.start().address

    try:
        Reader(serve).follow()
    finally:
        serving.stop()
    assert not spark.streams.active, "the page stops what it has started"
