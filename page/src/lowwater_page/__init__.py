"""The status page of lowwater: a client of the authority, and an HTTP server for browsers."""
