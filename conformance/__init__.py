"""Checks that a client, or an authority, speaks the protocol: docs/protocol.md says how to run it."""
