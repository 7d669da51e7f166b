"""Signal that wakes the threads which wait for a change."""

from __future__ import annotations

import threading
from collections.abc import Set
from types import TracebackType

__all__ = ["Signal"]


class Signal(threading.Condition):
    """Wakes threads after a possible change; each looks for itself whether it is concerned.

    Hold it (``with``) around every use of the guarded state; only ``wait`` releases it for a while.
    """

    def __init__(self) -> None:
        self._guard = threading.RLock()
        super().__init__(self._guard)
        self._named: dict[tuple[str, ...], _Named] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock.

        A thread that is interrupted within ``wait``, as by Ctrl-C, may not hold the lock at that
        moment: then there is none to release.
        """
        try:
            super().__exit__(kind, error, traceback)
        except RuntimeError:
            if kind is None:
                raise

    def wait(self, timeout: float | None = None, about: tuple[str, ...] = ()) -> bool:
        """Return after the next signal about these names, or after ``timeout`` seconds, if given.

        Without names every signal counts. Returns False after the time-out.
        """
        if not about:
            return super().wait(timeout)
        named = self._named.setdefault(about, _Named(self._guard))
        named.waiting += 1
        try:
            return named.wait(timeout)
        finally:
            named.waiting -= 1
            if not named.waiting:
                self._named.pop(about, None)

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        super().notify_all()
        for named in list(self._named.values()):
            named.notify_all()

    def notify_about(self, names: Set[str]) -> None:
        """Wake threads that wait for one of these names, or for anything. O(names waited for)."""
        super().notify_all()
        for about, named in list(self._named.items()):
            if not names.isdisjoint(about):
                named.notify_all()


class _Named(threading.Condition):
    """Threads that wait for the same names."""

    def __init__(self, guard: threading.RLock) -> None:
        super().__init__(guard)
        self.waiting = 0
