"""Tracked queries: a stage is declared, a run of it follows its batches, and what it may claim is reported."""
