"""Attached queries: Spark's own watermark of every query of a session, published as an estimate."""
