"""What fits on the platform at hand: facts that are looked up, and the report that follows."""
