"""Files as a source: the listing, Spark's logs of them, and the marks of other writers."""
