"""Program in Airflow's environment: reads the Dags, and prints Airflow's view of the provider."""

from __future__ import annotations

import json
from typing import Any

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.module_loading import import_string
from airflow.utils.session import create_session

from lowwater_airflow.sensor import LowWatermarkSensor


def read_dags() -> None:
    """Read the Dags twice, as the Dag processor does.

    The second reading finds the asset in use, and gives its watcher a trigger.
    """
    with create_session() as session:
        manager = DagBundlesManager()
        manager.sync_bundles_to_db(session=session)
        session.commit()
        for bundle in manager.get_all_dag_bundles():
            bundle.initialize()
            for _ in range(2):
                bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
                assert not bag.import_errors, bag.import_errors
                sync_bag_to_db(bag, bundle.name, bundle.version)


def there_and_back(name: str, **arguments: Any) -> list[Any]:
    """Return what a trigger says of itself, and what one that was made by that says."""
    path, arguments_out = import_string(name)(**arguments).serialize()
    return [[path, arguments_out], list(import_string(path)(**json.loads(json.dumps(arguments_out))).serialize())]


def without_interval() -> str:
    """Return a sensor's error without ``until`` in a run that has no data interval.

    A run that an asset has started is such a run.
    """
    with DAG("assets", schedule=None):
        sensor = LowWatermarkSensor(task_id="waits", computation="x")
    sensor.render_template_fields({})
    try:
        sensor.poke({})
    except AirflowFailException as error:
        return str(error)
    return ""


def main() -> None:
    """Print it as JSON, behind what Airflow has to say."""
    read_dags()
    manager = ProvidersManager()
    hook = manager.hooks["lowwater"]
    assert hook is not None
    trigger = "lowwater_airflow.trigger.LowWatermarkTrigger"
    interval = "lowwater_airflow.watch.IntervalTrigger"
    facts = {
        "provider": manager.providers["airflow-provider-lowwater"].version,
        "hook": [hook.hook_class_name, hook.hook_name, hook.connection_type],
        "connection": import_string("lowwater_airflow.hook.LowwaterHook")().test_connection(),
        "without_interval": without_interval(),
        "triggers": [
            there_and_back(trigger, computation="x", until_micros=-5, lowwater_conn_id="c"),
            there_and_back(interval, computation="x", every=1.5, start="2013-01-09T10:00+01:00"),
        ],
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
