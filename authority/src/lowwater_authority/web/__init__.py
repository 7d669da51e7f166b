"""What the authority serves over HTTP."""
