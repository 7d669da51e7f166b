"""What the client does, without network, threads or clock: states, and functions of them.

Clock and chance are passed in. The shells own the sockets and the waiting: :mod:`lowwater._drive.threads` has threads, and
holds a lock around every call into here; :mod:`lowwater._drive.tasks` has the tasks of one event loop, and needs none.
"""
