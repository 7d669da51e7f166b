"""A daily close: one task for each day of event time, done once despite crashes and pauses.

The task is created when the low watermark passes midnight.
"""
