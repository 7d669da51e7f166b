"""What a query does, read from its plan and its writer: what is refused, what Spark holds."""
