# Made by scripts/generate_sync.py from _async/__init__.py: change that one.
"""The client that a program uses, for threads: made of :mod:`lowwater._sync`.

Everything that waits is in :mod:`lowwater._drive`, everything that decides in :mod:`lowwater.core`.
"""
