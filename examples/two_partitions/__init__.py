"""Two partitions, one three hours behind: Spark's watermark alone, attached, and driven."""
