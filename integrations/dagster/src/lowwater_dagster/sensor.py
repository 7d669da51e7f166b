"""A sensor that requests a run for each complete interval, and the resource of the authority."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dagster import (
    AssetSelection,
    ConfigurableResource,
    DefaultSensorStatus,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    TimeWindowPartitionsDefinition,
)
from dagster._core.errors import DagsterInvariantViolationError

import lowwater

if TYPE_CHECKING:
    from dagster import PartitionsDefinition
    from dagster._core.definitions.target import ExecutableDefinition

__all__ = ["LowwaterResource", "interval_sensor"]

_MICROSECOND: Final = timedelta(microseconds=1)

_MOST: Final = 100
"""Runs that one look asks for. The others come with the next."""


class LowwaterResource(ConfigurableResource):  # type: ignore[type-arg]
    """Where the authority is, as ``lowwater.connect`` takes it. Certificates are names of files."""

    address: str = "localhost:7420"
    token: str = ""
    namespace: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def connect(self) -> lowwater.Client:
        """Return a client; close it after use."""

        def file(name: str) -> bytes | None:
            return Path(name).read_bytes() if name else None

        return lowwater.connect(
            self.address,
            token=self.token or None,
            root_certificates=file(self.ca),
            certificate_chain=file(self.cert),
            private_key=file(self.key),
            namespace=self.namespace,
        )


def interval_sensor(
    *,
    name: str,
    computation: str,
    every: timedelta,
    start: datetime,
    job: ExecutableDefinition | None = None,
    asset_selection: AssetSelection | Sequence[Any] | None = None,
    partition: str | None = None,
    resource: str = "lowwater",
    minimum_interval_seconds: int = 30,
    default_status: DefaultSensorStatus = DefaultSensorStatus.STOPPED,
) -> SensorDefinition:
    """Return a sensor that requests a run for each complete interval, in order.

    The intervals are ``[start + k * every, start + (k + 1) * every)``.

    ``partition`` is the format of a partition's key, for the start of its interval in UTC, such as
    ``"%Y-%m-%d-%H:%M"`` for hours; None: runs without a partition. A partition whose own window is
    not the interval, such as a day of a local time zone, fails the sensor before any run is
    requested. The key of a run is the id of its interval, by which Dagster starts no run twice.
    ``resource`` names the LowwaterResource. Dagster looks every ``minimum_interval_seconds``. After
    a reset of the computation the sensor fails, because the intervals are computed anew: reset its
    cursor in Dagster to request all runs again from ``start`` on, under new keys. When the
    computation has finished, the rest after the last interval has no end, so it is no partition:
    with ``partition`` no run is requested for it.
    """

    def look(context: SensorEvaluationContext) -> SensorResult | SkipReason:
        cursor = {"next_micros": lowwater.Watermark.of(start).micros, "incarnation": 0, "server_token": ""}
        if context.cursor:
            cursor = json.loads(context.cursor)
        with getattr(context.resources, resource).connect() as lw:
            (view,) = lw.get(computation).values()
            if cursor["server_token"] not in {"", lw.server_token}:
                msg = f"the cursor belongs to the deployment {cursor['server_token']}, and {lw.server_token} answers: reset the cursor, or correct the address"
                raise lowwater.ServerTokenMismatch(msg)
            begin = lowwater.Watermark(cursor["next_micros"])
            until = _until(begin, every, view)
            fresh = cursor["incarnation"] not in {0, view.incarnation}
            if (begin.finished or until <= begin) and not fresh:
                return SkipReason(
                    f"{computation} is at {view.low}" if view.registered else f"there is no computation {computation}"
                )
            intervals = lw.intervals(
                computation, every, begin, incarnation=cursor["incarnation"], until=None if fresh else until
            )
            complete = list(islice(intervals, _MOST))
            token = lw.server_token
        last = complete[-1]
        cursor = {"next_micros": last.end.micros, "incarnation": last.incarnation, "server_token": token}
        runs = [_run(one, token, partition) for one in complete if partition is None or not one.end.finished]
        if partition is not None:
            for windows in _time_windows(context, job, asset_selection):
                for run, interval in zip(runs, complete, strict=False):
                    _check_window(windows, run.partition_key or "", interval)
        return SensorResult(run_requests=runs, cursor=json.dumps(cursor))

    return SensorDefinition(
        name=name,
        evaluation_fn=look,
        job=job,
        asset_selection=asset_selection,
        required_resource_keys={resource},
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
    )


def _until(begin: lowwater.Watermark, every: timedelta, view: lowwater.WatermarkView) -> lowwater.Watermark:
    """Return the end of the last interval that is complete."""
    if view.low.finished or view.low <= begin or not view.registered:
        return view.low
    step = every // _MICROSECOND
    return lowwater.Watermark(begin.micros + (view.low.micros - begin.micros) // step * step)


def _time_windows(
    context: SensorEvaluationContext,
    job: ExecutableDefinition | None,
    asset_selection: AssetSelection | Sequence[Any] | None,
) -> Iterable[TimeWindowPartitionsDefinition]:
    """Return the time-window partition definitions for which runs are requested."""
    repository = context.repository_def
    definitions: list[PartitionsDefinition[Any] | None] = []
    if repository is not None and job is not None:
        definitions.append(repository.get_job(job.name).partitions_def)
    if repository is not None and asset_selection is not None:
        graph = repository.asset_graph
        definitions += [
            graph.get(key).partitions_def for key in AssetSelection.from_coercible(asset_selection).resolve(graph)
        ]
    return {definition for definition in definitions if isinstance(definition, TimeWindowPartitionsDefinition)}


def _check_window(windows: TimeWindowPartitionsDefinition, key: str, interval: lowwater.Interval) -> None:
    window = windows.time_window_for_partition_key(key)
    begin, end = lowwater.Watermark.of(window.start), lowwater.Watermark.of(window.end)
    if (begin, end) != (interval.start, interval.end):
        msg = (
            f"partition {key} is {begin} to {end}, and the interval that is complete is {interval.start} to {interval.end}: "
            "define the partitions in UTC (timezone='UTC'), with the length `every`, and give `partition` their format"
        )
        raise DagsterInvariantViolationError(msg)


def _run(interval: lowwater.Interval, token: str, partition: str | None) -> RunRequest:
    key = (token, interval.computation, interval.incarnation, interval.start, interval.end)
    tags = {
        "lowwater/computation": interval.computation,
        "lowwater/from": str(interval.start),
        "lowwater/to": str(interval.end),
    }
    begins = None if partition is None else interval.start.datetime().strftime(partition)
    return RunRequest(run_key="/".join(map(str, key)), partition_key=begins, tags=tags)
