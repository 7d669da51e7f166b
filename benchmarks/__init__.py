"""Costs of lowwater, as ratios to other ways to do the same: ``python -m benchmarks --help``."""
