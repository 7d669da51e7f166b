"""A shard: rounds of requests over held computations, take-overs, and subscriptions."""
