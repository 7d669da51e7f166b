"""Checks that a client, or an authority, speaks the protocol: docs/reference/protocol.md says how to run it."""
