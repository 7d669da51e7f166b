"""What stands in a query's checkpoint: Spark's own logs, which are read, and lowwater's files, which are durable."""
