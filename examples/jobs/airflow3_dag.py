"""Airflow 3.3 or newer: a report each hour, when its hour is complete.

Install the provider and copy this file into the Dags folder (docs/operate/schedule.md, Airflow).
The environment of scheduler, triggerer and workers says where the authority is:
    export AIRFLOW_CONN_LOWWATER_DEFAULT=lowwater://lowwater:7420
The task `complete` waits in the triggerer and takes no worker. Its log says who is late.
"""

from datetime import UTC, datetime

from airflow.sdk import DAG, task

from lowwater_airflow.sensor import LowWatermarkSensor

with DAG("report_airflow3", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    complete = LowWatermarkSensor(task_id="complete", computation="hourly", timeout=3 * 3600, retries=3)

    @task
    def report(data_interval_end: datetime) -> None:
        """Put your report here: all data before the end of the interval has arrived."""
        print(f"the report of the hour until {data_interval_end:%Y-%m-%d %H:%M}")

    complete >> report()
