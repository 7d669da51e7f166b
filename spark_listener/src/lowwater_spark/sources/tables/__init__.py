"""Tables of versions as a source: Delta and Iceberg."""
