"""Airflow 2: a report each hour, when its hour is complete. It needs no provider.

Copy this file into the Dags folder. The workers need the command `lowwater`, from the wheel of the
client, and the address of the authority in their environment: `LOWWATER_ADDRESS=lowwater:7420`.
`lowwater wait` exits with 0 when everything before the end of the hour has arrived. After ten
minutes it exits with 1, and its last line says who is late. Then Airflow tries again, for three
hours.
"""

from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.operators.bash import BashOperator

WAIT = "lowwater wait hourly --until {{ data_interval_end | ts }} --timeout 10m"
REPORT = "echo the report of the hour until {{ data_interval_end | ts }}"

with DAG("report_airflow2", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    complete = BashOperator(task_id="complete", bash_command=WAIT, retries=17, retry_delay=timedelta(seconds=10))
    report = BashOperator(task_id="report", bash_command=REPORT)
    complete >> report
