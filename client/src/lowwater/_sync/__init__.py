"""The client on threads: sockets, time and locks around :mod:`lowwater._core`."""
