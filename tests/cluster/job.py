"""What the application's tasks run. It is shipped to the executors by --py-files, with nothing else of the repository."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import lowwater
from tests.spark.updates import hourly

STALLED = 60.0
"""Seconds after which a stalled task goes on that nobody has replaced."""

FOUND = "place string, python string, lowwater string, spark string, settings string, credentials string"


def hourly_under_orders(
    orders: str, handle: int, state: pa.Table | None, rows: pa.Table, low: lowwater.Watermark
) -> tuple[pa.Table, pa.Table | None, Any, pa.Array]:
    """Hourly counts; the task that finds an order carries it out first."""
    obey(Path(orders))
    return hourly(handle, state, rows, low)


def obey(orders: Path) -> None:
    """Take an order ``KIND-NUMBER``, if there is one: only one task can rename it. What it says of itself is evidence."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for order in sorted(orders.glob("*-*.order")):
        kind = order.name.partition("-")[0]
        if kind == "stall" and context.attemptNumber():
            continue  # a copy, or a second attempt: it is not held up
        taken = order.with_suffix(".taken")
        try:
            order.rename(taken)
        except FileNotFoundError:
            continue
        work = Path.cwd()
        told = {"application": work.parent.name, "executor": work.name, "stage": context.stageId()}
        told |= {"partition": context.partitionId(), "task": context.taskAttemptId(), "pid": os.getpid()}
        beside = taken.with_suffix(".tmp")
        beside.write_text(json.dumps(told), encoding="utf-8")
        beside.rename(taken.with_suffix(".json"))
        _carry_out(kind, taken)
        if kind == "executor":
            return  # what is left of it does no more than the dead do


def _carry_out(kind: str, order: Path) -> None:
    if kind == "fail":
        msg = f"planted: {order.stem}"
        raise RuntimeError(msg)
    if kind == "python":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "executor":
        # A worker is forked by a daemon, and that one is started by the executor.
        status = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
        os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
    else:
        threading.Event().wait(STALLED)


def look_around(settings: lowwater.Settings, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say where a task runs, whose code it has, and how it would reach the authority."""
    import lowwater_spark
    from lowwater_spark.settings import SparkSettings

    assert isinstance(settings, SparkSettings)
    for _ in batches:
        pass
    here = settings.read()
    contents = [each or b"" for each in (here.root_certificates, here.private_key, here.certificate_chain)]
    found = {
        "place": str(Path.cwd()),
        "python": sys.executable,
        "lowwater": str(lowwater.__file__),
        "spark": str(lowwater_spark.__file__),
        "settings": json.dumps([settings.address, settings.token, settings.namespace, settings.encrypted]),
        "credentials": json.dumps([hashlib.sha256(each).hexdigest() for each in contents]),
    }
    yield pa.RecordBatch.from_pylist([found])
