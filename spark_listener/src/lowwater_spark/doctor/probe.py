"""What a process sees of itself and the authority: this one, and the workers of executors."""

from __future__ import annotations

import json
import pickle
import platform
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

import grpc

from lowwater import errors
from lowwater.core.attempts import error_of_call
from lowwater.core.call import Stubs
from lowwater.core.calls import full_name
from lowwater.core.channels import open_channel
from lowwater.core.file_settings import FileSettings
from lowwater.core.settings import Settings, proxy_of
from lowwater.core.text import without_secrets
from lowwater.v1 import watermarks_pb2
from lowwater_spark.doctor.facts import UNKNOWN, Place
from lowwater_spark.track.run.status import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_listens", "executors", "look_around", "version_of"]

_SECONDS: Final = 5.0
"""Longest wait for one answer of the authority."""

_TIMES: Final = 3
"""Number of answers by which the clocks are compared. The first one opens the connection; the
quickest one counts."""

_JOB_SECONDS: Final = 60.0
"""Longest wait for the job that looks at the executors: other jobs may have all cores."""

_TASKS: Final = 64
"""Greatest number of tasks of that job."""

_TAG: Final = "lowwater-doctor"

_PYTHON_ERROR: Final = re.compile(r"^\s*(?:\w+\.)*\w*(?:Error|Exception): .+$", re.MULTILINE)


def version_of(*distributions: str) -> str:
    """Return the version of the first distribution that is installed here; empty if none is."""
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def look_around(settings: Settings) -> Place:
    """Return what this process sees. Costs three reads of one watermark; nothing is registered."""
    problem, ahead, within = "", None, 0.0
    try:
        ahead, within = _reach(settings.read() if isinstance(settings, FileSettings) else settings)
    except (errors.LowwaterError, OSError) as failure:
        problem = str(failure)
    lowwater, listener = (version_of(name) or UNKNOWN for name in ("lowwater", "lowwater-spark"))
    return Place(socket.gethostname(), platform.python_version(), lowwater, listener, problem, ahead, within)


def _reach(settings: Settings) -> tuple[float | None, float]:
    """Return how far this clock is ahead of the authority's, and the greatest error; seconds.

    None when the token may not read, or the authority is of release 0.1. Raises LowwaterError and
    OSError, if no address answers.
    """
    failure: Exception | None = None
    for address in settings.addresses:
        try:
            check_listens(address, "lowwater serve")
            return _compare(settings, address)
        except errors.PermissionDenied:
            return None, 0.0
        except (errors.LowwaterError, OSError) as problem:
            failure = problem
    assert failure is not None
    raise failure


def check_listens(address: str, program: str) -> None:
    """Raise OSError if no program listens at an address. gRPC would wait, and not say why."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or (":" in host and not host.startswith("[")) or proxy_of(address):
        return  # only gRPC resolves a name of its own, or goes by a proxy
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except OSError as failure:
        msg = f"no connection to {address} ({failure}). Is {program} running there, and does a firewall or a network policy let this machine through?"
        raise OSError(msg) from failure


def _compare(settings: Settings, address: str) -> tuple[float | None, float]:
    # The name need not be registered. Each answer has the authority's clock.
    name = full_name(settings.namespace, "doctor")
    request = watermarks_pb2.WatchRequest(server_token=settings.server_token, computations=[name])
    seen = list[tuple[float, float]]()
    try:
        with open_channel(settings, address) as channel:
            for _ in range(_TIMES):
                began, since = time.time(), time.monotonic()
                stream = Stubs(channel).watermarks.Watch(request, timeout=_SECONDS, metadata=settings.metadata)
                clock = next(stream).clock_micros
                within = (time.monotonic() - since) / 2
                stream.cancel()
                if not clock:
                    return None, 0.0  # an authority of release 0.1
                seen.append((within, began + within - clock / 1_000_000))
    except grpc.RpcError as failure:
        raise error_of_call(failure, address) from failure
    within, ahead = min(seen)
    return ahead, within


def executors(spark: SparkSession, settings: Settings) -> tuple[tuple[Place, ...], str]:
    """Run one small job, and return what the workers of each host see, and why the job failed.

    Waits a minute at most, and then interrupts the job.
    """
    rows, failures = list[Any](), list[Exception]()

    def run() -> None:
        try:
            # Tags are of one thread, so the caller's other jobs do not get this one.
            spark.addTag(_TAG)
            frame = spark.range(1000).coalesce(_TASKS).mapInArrow(_look(settings), "place string")
            rows.extend(frame.collect())
        except Exception as failure:  # noqa: BLE001 - whatever Spark raises is what the report says
            failures.append(failure)
        finally:
            spark.removeTag(_TAG)

    thread = threading.Thread(target=run, name=_TAG, daemon=True)
    thread.start()
    thread.join(_JOB_SECONDS)
    if thread.is_alive():
        spark.interruptTag(_TAG)
        return (), f"it has not ended in {_JOB_SECONDS:g} s: are all cores busy, or is no executor running?"
    places = {place.host: place for place in (Place(**json.loads(row.place)) for row in rows)}
    return tuple(places[host] for host in sorted(places)), "".join(map(_first_cause, failures))


def _first_cause(failure: Exception) -> str:
    """Return the line of Spark's error that has the error of the Python worker, else the first."""
    cause = _PYTHON_ERROR.search(str(failure))
    return without_secrets(cause[0].strip()) if cause else first_line(failure)


def _look(settings: Settings) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function of a task.

    The function is pickled whole, because it is local to this one, and imports all that it uses. So
    it runs also where lowwater is not installed. It then only connects.
    """
    pickled, addresses = pickle.dumps(settings), settings.addresses

    def look(_batches: Iterator[Any]) -> Iterator[Any]:
        import json
        import pickle
        import platform
        import socket
        from dataclasses import asdict
        from importlib.metadata import PackageNotFoundError, version

        import pyarrow as pa

        try:
            from lowwater_spark.doctor.probe import look_around

            place = asdict(look_around(pickle.loads(pickled)))
        except ImportError as failure:
            place = {"host": socket.gethostname(), "python": platform.python_version(), "lowwater": "", "listener": ""}
            for field, distribution in (("lowwater", "lowwater"), ("listener", "lowwater-spark")):
                try:
                    place[field] = version(distribution)
                except PackageNotFoundError:
                    continue
            host, _, port = addresses[0].rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), 5).close()
            except (OSError, ValueError) as unreached:
                place["problem"] = f"{unreached}; and {failure}"
        yield pa.RecordBatch.from_pylist([{"place": json.dumps(place)}])

    return look
