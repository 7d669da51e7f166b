"""A query's checkpoint: Spark's own logs, which are only read, and lowwater's durable files."""
