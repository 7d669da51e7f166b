"""Who the living shards are, and which of them serves what: ``membership`` decides, a ``Directory`` keeps it."""
