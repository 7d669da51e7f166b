"""Runnable examples; not a distribution."""
