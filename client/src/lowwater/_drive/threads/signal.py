"""Waking the threads that wait for something to change."""

from __future__ import annotations

import threading
from types import TracebackType

__all__ = ["Signal"]


class Signal(threading.Condition):
    """Wakes all that wait, whenever something may have changed; they look for themselves what did.

    Hold it (``with``) around every use of what it tells of; only ``wait`` gives it up for a while.
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of it.

        Whoever is interrupted within ``wait``, as by Ctrl-C, may not hold it at that moment: then nothing is left to do.
        """
        try:
            super().__exit__(kind, error, traceback)
        except RuntimeError:
            if kind is None:
                raise
