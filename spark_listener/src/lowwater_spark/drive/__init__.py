"""Driven queries: Spark's own watermark follows the low watermark of the inputs."""
