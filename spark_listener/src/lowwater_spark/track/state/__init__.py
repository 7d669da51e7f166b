"""State by key range: versions, the tasks that make them, and the receipts of those tasks."""
