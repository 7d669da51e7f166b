"""Waking the threads that wait for something to change."""

from __future__ import annotations

import threading

__all__ = ["Signal"]


class Signal(threading.Condition):
    """Wakes all that wait, whenever something may have changed; they look for themselves what did.

    Hold it (``with``) around every use of what it tells of; only ``wait`` gives it up for a while.
    """
