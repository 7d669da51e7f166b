"""The status page of lowwater: a client of the authority that it shows, which serves what it hears to browsers."""
