"""One run of a query: its batches, its stages, and their reports to the authority."""
