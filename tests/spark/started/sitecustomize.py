"""Has PySpark and Py4J be taken from where they are installed, and not from the archives that Spark puts before them on the path.

The modules of an archive are compiled anew in each process, for more than a second of a core: also in the one that is started for each
source of each query that is driven.
"""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("/pyspark.zip", "-src.zip"))]
