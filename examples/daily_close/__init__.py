"""A daily close: one task for each day of event time, made when the low watermark passes midnight, done once, whoever sleeps or dies."""
