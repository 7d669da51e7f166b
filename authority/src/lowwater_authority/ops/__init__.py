"""What an operator sees: events and logs, metrics, traces."""
