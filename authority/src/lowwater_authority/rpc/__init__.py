"""gRPC servicers: thin shells that decode, ask the shard, and encode."""
