"""Tracks queries that nobody changes, by what stands in their checkpoints alone."""
