"""The signal that threads of the client wait for, and signals of the system that come meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lowwater._drive.threads.signal import Signal


class _ToldToStop(BaseException):
    """What the handler of a signal of the system raises."""


@pytest.mark.parametrize("at", ["_release_save", "_acquire_restore"])
def test_a_handler_that_raises_at_the_edge_of_a_wait_is_what_the_waiter_sees(at: str) -> None:
    """Between two instructions of ``wait``: it has just let go of the lock, or has not got it back yet."""
    signal = Signal()
    given: Any = getattr(signal, at)

    def interrupted(*arguments: Any) -> None:
        if at == "_release_save":
            given(*arguments)
        raise _ToldToStop

    setattr(signal, at, interrupted)
    with pytest.raises(_ToldToStop), signal:
        signal.wait(0)
    _is_free(signal)


def test_a_signal_is_let_go_of_once_only() -> None:
    signal = Signal()
    with pytest.raises(RuntimeError), signal:
        signal.release()
    _is_free(signal)


def _is_free(signal: Signal) -> None:
    got: list[bool] = []
    other = threading.Thread(target=lambda: got.append(signal.acquire(blocking=False)))
    other.start()
    other.join()
    assert got == [True]
