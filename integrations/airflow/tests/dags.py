"""The Dags of tests/integrations/test_airflow.py, as Airflow reads them."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Asset, AssetWatcher, task

from lowwater_airflow.sensor import LowWatermarkSensor
from lowwater_airflow.watch import IntervalTrigger

FOURTEEN = datetime(2013, 1, 9, 14, tzinfo=UTC)

with DAG("hourly", schedule=None, start_date=FOURTEEN) as hourly:

    @task
    def report() -> None:
        """The task that runs when the hour is complete."""

    waits = LowWatermarkSensor(task_id="waits", computation="flights", until="{{ dag_run.conf['until'] }}", timeout=300)
    waits >> report()
    LowWatermarkSensor(task_id="is_complete", computation="flights", until=datetime(2013, 1, 9, 13, tzinfo=UTC))
    LowWatermarkSensor(task_id="pokes", computation="flights", until="2013-01-09T13:00:00+00:00", deferrable=False)
    LowWatermarkSensor(task_id="misspelt", computation="flihgts", until=FOURTEEN, timeout=300)
    LowWatermarkSensor(task_id="estimated", computation="guess", until=FOURTEEN, timeout=300)
    LowWatermarkSensor(task_id="naive", computation="flights", until="2013-01-09T13:00", timeout=300)

hour = Asset(
    "flights_hour",
    watchers=[AssetWatcher(name="hours", trigger=IntervalTrigger("flights", every=3600, start="2013-01-09T10:00Z"))],
)

with DAG("on_hour", schedule=[hour], start_date=FOURTEEN) as on_hour:

    @task
    def count() -> None:
        """The task that runs for each hour."""

    count()
