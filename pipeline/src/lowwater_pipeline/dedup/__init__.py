"""Deduplication of a Kafka topic: each message passes into another topic once, whatever its senders repeat and wherever this is killed.

docs/dedup.md says what is promised. :mod:`~lowwater_pipeline.dedup.lane` is one partition and has the protocol, :mod:`~lowwater_pipeline.dedup.job` runs the lanes
of a process.
"""
