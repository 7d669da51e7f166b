"""Files that an operator writes: read whole or refused, and followed while the process runs."""
