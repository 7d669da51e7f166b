"""Low watermarks of Spark Structured Streaming queries."""
