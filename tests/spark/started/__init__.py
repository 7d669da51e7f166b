"""A folder on the path of every Python that the Spark of a test process starts: what is in it is read when that begins."""
