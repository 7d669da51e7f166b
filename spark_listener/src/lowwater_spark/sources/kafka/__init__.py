"""Kafka as a source: the ends of its topics, the marks of their writers, and paced reading."""
