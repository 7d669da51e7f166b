"""``doctor()``: looks at a session, or at this machine, and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import lowwater
from lowwater_spark.doctor.facts import Facts
from lowwater_spark.doctor.judge import look_at_checkpoint, look_at_query
from lowwater_spark.doctor.probe import executors, look_around, version_of
from lowwater_spark.doctor.report import Report, report
from lowwater_spark.settings import connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["doctor", "examine_machine"]

_CATALOG: Final = re.compile(r"spark\.sql\.catalog\.([^.]+)")

_PLATFORMS: Final = {"DATABRICKS_RUNTIME_VERSION": "Databricks", "EMR_CLUSTER_ID": "EMR"}
"""Platforms by a variable of their drivers."""

_DATABRICKS: Final = "spark.databricks.clusterUsageTags.sparkVersion"
"""Setting of each session of Databricks."""


def doctor(
    spark: SparkSession,
    address: str | None = None,
    *,
    client: lowwater.Client | None = None,
    job: bool = True,
    checkpoints: Sequence[str] = (),
) -> Report:
    """Return what fits the session at hand: versions, authority, clocks, and each running query.

    ``print`` shows the report as text, a notebook as a table, and ``to_dict()`` returns it for
    JSON. For each query it says which of attach, track and drive is possible, why another one is
    not, and the lines to paste. Nothing is registered, written or set.

    Args:
        spark: A classic session, or one of Spark Connect.
        address: Address of the authority; default the session's ``spark.lowwater.address``, else
            ``LOWWATER_ADDRESS``, else ``localhost:7420``.
        client: A client of your own, instead of the address and of token and certificates from
            ``spark.lowwater.*``. Only its settings are used.
        job: True runs one job of at most 64 small tasks, which look from the executors. It is
            given up after a minute.
        checkpoints: Checkpoints of other queries, to be looked at as well.

    Takes seconds: a few reads of the authority, and of each query's plan and checkpoint. Raises
    InvalidArgument for an address that can reach nothing, and ValueError for a checkpoint without
    an absolute path, and for contradictory settings.
    """
    check_checkpoints(checkpoints)
    settings = connection(lambda name: spark.conf.get(name, None), address) if client is None else client.settings
    places, problem = executors(spark, settings) if job else ((), "")
    return report(
        Facts(
            look_around(settings),
            settings.address,
            pyspark=_pyspark(),
            spark=spark.version,
            session=_kind(spark),
            platform=_platform(spark),
            java=_java_of(spark),
            catalogs=_catalogs(spark),
            executors=places,
            job=problem,
            queries=tuple(look_at_query(spark, query, settings.address) for query in spark.streams.active),
            checkpoints=tuple(look_at_checkpoint(checkpoint, lambda: spark) for checkpoint in checkpoints),
        )
    )


def examine_machine(
    settings: lowwater.Settings, checkpoints: Sequence[str], session: Callable[[], SparkSession]
) -> Report:
    """Return what fits this machine, without a session.

    ``session()`` makes one, and is called for a checkpoint on a URI. Raises ValueError for a
    checkpoint without an absolute path.
    """
    check_checkpoints(checkpoints)
    facts = Facts(
        look_around(settings),
        settings.address,
        pyspark=_pyspark(),
        java=_java_here(),
        checkpoints=tuple(look_at_checkpoint(checkpoint, session) for checkpoint in checkpoints),
    )
    return report(facts)


def check_checkpoints(checkpoints: Sequence[str]) -> None:
    """Raise ValueError for a checkpoint that has no absolute path."""
    for checkpoint in checkpoints:
        if not (checkpoint.startswith("/") or "://" in checkpoint):
            msg = f"a checkpoint is an absolute path or a URI, not {checkpoint!r}: pass the query's checkpointLocation as its driver has it"
            raise ValueError(msg)


def _pyspark() -> str:
    return version_of("pyspark", "pyspark-client", "pyspark-connect", "databricks-connect")


def _kind(spark: Any) -> str:
    if hasattr(spark, "_jsparkSession"):
        return "classic"
    return "Connect" if hasattr(spark, "client") else "unknown"


def _platform(spark: SparkSession) -> str:
    if spark.conf.get(_DATABRICKS, None):
        return "Databricks"
    return next((platform for variable, platform in _PLATFORMS.items() if variable in os.environ), "")


def _java_of(spark: Any) -> str:
    return str(spark._jvm.java.lang.System.getProperty("java.version")) if hasattr(spark, "_jvm") else ""


def _java_here() -> str:
    """Return the version of the Java that Spark would start here; empty if there is none."""
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin") or shutil.which("java")
    if java is None:
        return ""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    version = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return version[1] if version else ""


def _catalogs(spark: SparkSession) -> dict[str, str]:
    """Return the class of each catalogue of the session by its name."""
    pairs = spark.conf.getAll.items()
    return {match[1]: kind for name, kind in pairs if (match := _CATALOG.fullmatch(name))}
