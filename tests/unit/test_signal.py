"""The signal that threads and tasks of the client wait for, and signals of the system that come meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from lowwater._drive.tasks import signal as of_tasks
from lowwater._drive.threads.signal import Signal


class _ToldToStop(BaseException):
    """The exception that the handler of a signal of the system raises."""


@pytest.mark.parametrize("at", ["_release_save", "_acquire_restore"])
def test_a_handler_that_raises_at_the_edge_of_a_wait_is_what_the_waiter_sees(at: str) -> None:
    """Between two instructions of ``wait``: it has just let go of the lock, or has not got it back yet."""
    signal = Signal()
    original: Any = getattr(signal, at)

    def interrupted(*arguments: Any) -> None:
        if at == "_release_save":
            original(*arguments)
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


ABOUT: Final[dict[str, tuple[str, ...]]] = {"of a": ("a",), "of a and b": ("a", "b"), "of c": ("c",), "of all": ()}
"""Who waits for which names."""

WOKEN: Final[list[tuple[Callable[[Any], None], set[str]]]] = [
    (lambda signal: signal.notify_about({"b", "d"}), {"of a and b", "of all"}),
    (lambda signal: signal.notify_about({"d"}), {"of all"}),
    (lambda signal: signal.notify_all(), set(ABOUT)),
]


@pytest.mark.parametrize(("notify", "woken"), WOKEN)
def test_threads_are_woken_by_what_concerns_them(notify: Callable[[Any], None], woken: set[str]) -> None:
    signal, awake = Signal(), set[str]()
    waiting = threading.Semaphore(0)

    def wait(who: str) -> None:
        with signal:
            waiting.release()  # it lets go of the signal only when it waits
            while not signal.wait(None, ABOUT[who]):
                pass
            awake.add(who)

    threads = {who: threading.Thread(target=wait, args=(who,)) for who in ABOUT}
    for thread in threads.values():
        thread.start()
        waiting.acquire()
    with signal:
        notify(signal)
    for who in woken:
        threads[who].join()
    assert awake == woken
    with signal:
        signal.notify_all()
    for thread in threads.values():
        thread.join()
    assert not signal._named, "nothing is kept of those who are gone"


@pytest.mark.parametrize(("notify", "woken"), WOKEN)
def test_tasks_are_woken_by_what_concerns_them(notify: Callable[[Any], None], woken: set[str]) -> None:
    async def run() -> set[str]:
        signal, awake = of_tasks.Signal(), set[str]()

        async def wait(who: str) -> None:
            await signal.wait(None, ABOUT[who])
            awake.add(who)

        async with asyncio.TaskGroup() as group:
            for who in ABOUT:
                group.create_task(wait(who))
            await asyncio.sleep(0)
            notify(signal)
            for _ in ABOUT:
                await asyncio.sleep(0)
            first = set(awake)
            signal.notify_all()
        assert not signal._waiting, "nothing is kept of those who are gone"
        return first

    assert asyncio.run(run()) == woken
