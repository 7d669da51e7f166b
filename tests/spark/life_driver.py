"""The pipeline of a record's life in a process of its own, which is killed with its JVM and its workers where that is planned.

python -m tests.spark.life_driver ADDRESS FOLDER BROKERS INCOMING OUTGOING DOOM

It starts its Spark, and the pipeline when a line comes in: so a driver is ready when the one before it dies.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark.life import Doom, Place, doomed, start
from tests.spark.session import QUICK, spark_session
from tests.spark.support import SETTINGS


def main(*arguments: str) -> None:
    *where, file = arguments
    spark = spark_session("life", "local[2,3]", SETTINGS | QUICK)
    if not sys.stdin.readline():
        return
    doom = Doom(Path(file))
    doom.group.write_text(str(os.getpgrp()))
    with doomed(doom):
        start(spark, Place(*where), doom).await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
