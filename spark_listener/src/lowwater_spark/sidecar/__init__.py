"""Tracks unchanged queries by their checkpoints alone."""
