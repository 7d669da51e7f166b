"""The client that a program uses, written for asyncio. :mod:`lowwater._sync` is made of it.

Everything that waits is in :mod:`lowwater._drive`, everything that decides in :mod:`lowwater.core`.
"""
