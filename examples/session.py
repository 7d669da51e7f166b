"""A folder and a small local session for a demo on Spark."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
}
"""Options of a JVM that lives for some minutes: optimising its code would cost more than it saves.
Without optimisation the JVM gives compiled code 48 MB by default, which the demo fills."""


def clear(out: Path, name: str, parser: argparse.ArgumentParser) -> None:
    """Empty the folder of an earlier run of the demo; refuse one that holds anything else."""
    mark = out / f".lowwater-{name}"
    if out.exists() and any(out.iterdir()) and not mark.exists():
        parser.error(f"--out {out} holds something that is no earlier run of the demo; name an empty folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    mark.touch()


@contextlib.contextmanager
def spark_session(name: str, out: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A small local Spark, with further settings of the demo."""
    from pyspark.sql import SparkSession

    # Workers are this interpreter, also when its environment is not activated.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName(f"lowwater {name}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(out / "warehouse"))
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        # Plans of a few hundred rows run once: compiling them would cost more than running them.
        .config("spark.sql.codegen.wholeStage", "false")
    )
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
