"""Deduplication of a Kafka topic: each message passes once, whatever its senders repeat.

docs/concepts/exactly-once.md has the guarantees. :mod:`~lowwater_pipeline.dedup.lane` has the
protocol of one partition, :mod:`~lowwater_pipeline.dedup.job` runs the lanes of a process.
"""
