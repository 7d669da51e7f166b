"""What the client does, without network, threads or clock: states, and functions of them.

The shells in :mod:`lowwater._sync` own the sockets, the threads and the time, and hold a lock around every call into here.
"""
