"""Outputs of a batch: the protocol, the kinds, and the removal of old batches."""
