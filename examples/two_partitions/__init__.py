"""Two partitions, one three hours behind: what Spark's watermark drops, what attach shows of it, and the same windows driven."""
