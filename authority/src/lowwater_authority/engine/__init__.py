"""What a shard does: rounds of requests over what it holds, take-overs, and whoever follows."""
