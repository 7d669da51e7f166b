"""The sources of a query: their heads, how far a query has read them, their writers and readers."""
