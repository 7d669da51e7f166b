"""What a query reads: where each source ends, how far it was read, and who else writes or reads there."""
