"""A driver that asks its executors where they run, whose code they have, and how they would reach the authority.

spark-submit ... tests/cluster/settings_driver.py '{"found": PATH}'
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

import lowwater_spark as lws
from lowwater_spark.settings import connection
from tests.cluster.job import FOUND, look_around


def main(found: str) -> None:
    spark = SparkSession.builder.appName("settings").getOrCreate()
    settings = connection(lambda name: spark.conf.get(name, None))
    # More tasks than there are slots: each executor has some.
    rows = spark.range(0, 4, 1, 4).mapInArrow(partial(look_around, settings), FOUND).collect()
    facts = {"driver": str(lws.__file__), "executors": [row.asDict() for row in rows]}
    beside = Path(found).with_suffix(".tmp")
    beside.write_text(json.dumps(facts), encoding="utf-8")
    beside.rename(found)
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
