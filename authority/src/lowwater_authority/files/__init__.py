"""Files of rules that an operator writes: read whole or refused, and followed while they are served."""
