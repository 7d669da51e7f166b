"""Tracked queries: a run follows the batches of declared stages, and reports their watermarks."""
