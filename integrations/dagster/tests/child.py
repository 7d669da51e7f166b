"""Program in Dagster's environment: evaluates a sensor, executes its runs, prints the results."""

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DailyPartitionsDefinition,
    Definitions,
    HourlyPartitionsDefinition,
    asset,
    build_sensor_context,
    define_asset_job,
)

import lowwater
from lowwater_dagster import LowwaterResource, interval_sensor

TEN = datetime(2013, 1, 9, 10, tzinfo=UTC)
HOURS = HourlyPartitionsDefinition(start_date=TEN, fmt="%Y-%m-%d-%H:%M", timezone="UTC")
executed: list[str] = []


@asset(partitions_def=HOURS)
def report(context: AssetExecutionContext) -> None:
    """The asset with a partition for each hour."""
    executed.append(context.partition_key)


job = define_asset_job("reports", AssetSelection.assets(report))
sensor = interval_sensor(
    name="on_hour", computation="flights", every=timedelta(hours=1), start=TEN, job=job, partition="%Y-%m-%d-%H:%M"
)


def local_days(address: str) -> str:
    """Return what a sensor says of daily partitions of a local time zone."""

    @asset(partitions_def=DailyPartitionsDefinition(start_date="2026-10-01", timezone="America/New_York"))
    def day() -> None:
        """A day of New York."""

    days = define_asset_job("days", AssetSelection.assets(day))
    on_day = interval_sensor(
        name="on_day",
        computation="days",
        every=timedelta(days=1),
        start=datetime(2026, 10, 30, 4, tzinfo=UTC),
        job=days,
        partition="%Y-%m-%d",
    )
    resource = LowwaterResource(address=address)
    definitions = Definitions(assets=[day], jobs=[days], sensors=[on_day], resources={"lowwater": resource})
    with lowwater.connect(address) as lw:
        lw.register("days", max_skew=timedelta(days=10_000))
        lease = lw.worker("days").claim()
        lease.advance(None, oldest=None, frontier=datetime(2026, 11, 2, 4, tzinfo=UTC))
        lease.flush()
    with build_sensor_context(
        instance=DagsterInstance.ephemeral(), resources={"lowwater": resource}, definitions=definitions
    ) as context:
        try:
            on_day.evaluate_tick(context)
        except Exception as error:  # noqa: BLE001 - Dagster has one of its own around it
            return str(error.__cause__ or error)
    return ""


def main() -> None:
    """Look, make an hour more complete, look again, and so on."""
    address = sys.argv[1]
    resource = LowwaterResource(address=address)
    definitions = Definitions(assets=[report], jobs=[job], sensors=[sensor], resources={"lowwater": resource})
    instance = DagsterInstance.ephemeral()
    cursor: str | None = None
    keys: list[list[str]] = []

    def look() -> Any:
        nonlocal cursor
        with build_sensor_context(
            instance=instance, cursor=cursor, resources={"lowwater": resource}, definitions=definitions
        ) as context:
            result = sensor.evaluate_tick(context)
        cursor = result.cursor if result.cursor is not None else cursor
        keys.append([request.run_key or "" for request in result.run_requests or ()])
        for request in result.run_requests or ():
            done = definitions.resolve_job_def("reports").execute_in_process(
                instance=instance, partition_key=request.partition_key, tags=dict(request.tags)
            )
            assert done.success
        return result.skip_message

    skipped = []
    with lowwater.connect(address) as lw:
        skipped.append(look())
        lw.register("flights")
        lease = lw.worker("flights").claim()
        for hour in (12.5, 12.75, 14.0):
            lease.advance(None, oldest=None, frontier=TEN + timedelta(hours=hour - 10))
            lease.flush()
            skipped.append(look())
        lw.reset("flights")
        try:
            look()
            reset = ""
        except Exception as error:  # noqa: BLE001 - Dagster has one of its own around it
            reset = repr(error.__cause__ or error)
        lease = lw.worker("flights").claim()
        lease.advance(None, oldest=None, frontier=TEN + timedelta(hours=1.5))
        lease.flush()
        lease.finish()
        cursor = None
        skipped.append(look())
        skipped.append(look())
    print(
        json.dumps({"local": local_days(address), "made": executed, "keys": keys, "skipped": skipped, "reset": reset})
    )


if __name__ == "__main__":
    main()
