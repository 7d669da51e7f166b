"""What lowwater costs, as ratios to what else could do the same work: ``python -m benchmarks --help``."""
