"""What a program uses, written once, for the tasks of an event loop. :mod:`lowwater._sync` is made of it.

Everything that waits is in :mod:`lowwater._drive`, everything that decides in :mod:`lowwater.core`.
"""
