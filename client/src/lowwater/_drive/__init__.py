"""Waiting, on threads, which forks interrupt, or on the tasks of one event loop.

Both have the same names, so that :mod:`lowwater._async` is written once, and :mod:`lowwater._sync`
is made of it: a connection, streams, a signal, and the place where a runtime may be used.
"""
