"""What the client does, without network, threads or clock: states, and functions of them.

Clock and chance are passed in. The shells own the sockets and the waiting: :mod:`lowwater._sync` has threads, and holds a lock
around every call into here; :mod:`lowwater._aio` has tasks of one event loop, and needs none.
"""
