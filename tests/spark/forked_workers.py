"""The daemon that Spark's Python workers are forked from (``spark.python.daemon.module``), with what they import already imported.

Each worker spends more than a second of a core on those imports otherwise. PySpark's own daemon makes the workers of
`tests/floors` and `tests/cluster`.
"""

from __future__ import annotations

import sys


def main() -> None:
    # Spark puts an archive of PySpark, which is compiled anew each time, before the same that is installed.
    sys.path[:] = [place for place in sys.path if not place.endswith("pyspark.zip")]

    import pandas as pd  # noqa: F401
    import pyspark.daemon
    import pyspark.sql.functions
    import pyspark.sql.pandas.types
    import pyspark.worker

    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
