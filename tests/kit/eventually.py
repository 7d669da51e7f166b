"""Waiting for what another thread, task or process brings about.

Where there is an event, wait for the event. This is for what tells nobody: a value that an authority publishes, a file that appears, the
state of a query.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 180.0
"""Seconds. A busy machine may need long; only a defect needs all of it."""

_PAUSES: Final = (0.001, 0.2)
"""Seconds between two looks, at least and at most."""
_LATE: Final = 0.05
"""A pause is this part of the time that was waited: so much longer takes a wait than what it waits for."""
_REST: Final = 4
"""A pause is so many times as long as the look before it: looking takes a fifth of a core at most."""
_SHOWN: Final = 2_000
"""Characters of a value in a failure."""


class TooLate(AssertionError):
    """A condition did not come true in time. The message says which, and what its last value was."""


def eventually(
    look: Callable[[], T],
    what: str = "",
    *,
    seconds: float = PATIENCE,
    check: Callable[[], object] | None = None,
    seen: Callable[[], object] | None = None,
) -> T:
    """Look until what is found is true, and return it.

    Args:
        look: What is asked again and again. What it raises ends the wait.
        what: What is waited for, in words.
        seconds: How long at most.
        check: Called after each look that was in vain; raises why what is waited for will never come, such as the error that has ended a query.
        seen: Asked when it is too late, and shown. The names that a lambda uses are shown anyway.

    Raises:
        TooLate: It did not come true in time.
    """
    pauses = _Pauses(seconds, time.monotonic)
    while not (value := look()):
        if check is not None:
            try:
                check()
            except Exception:
                if value := look():  # it came true just before the end
                    return value
                raise
        if pauses.over:
            raise TooLate(_failure(look, what, seconds, value, seen))
        threading.Event().wait(pauses.next())
    return value


async def eventually_async(look: Callable[[], object], what: str = "", *, seconds: float = PATIENCE) -> None:
    """Do the same beside other tasks, which go on meanwhile. ``look`` may be a coroutine function; a look that hangs is too late as well.

    Seconds are those of the loop, also where its time is simulated.
    """
    value: object = None

    async def once() -> object:
        nonlocal value
        value = look()
        if inspect.isawaitable(value):
            value = await value
        return value

    pauses, limit = _Pauses(seconds, asyncio.get_running_loop().time), asyncio.timeout(seconds)
    try:
        async with limit:
            while not await once():  # noqa: ASYNC110 - what is looked for sets no event
                await asyncio.sleep(pauses.next())
    except TimeoutError:
        if not limit.expired():
            raise
        raise TooLate(_failure(look, what, seconds, value, None)) from None


class _Pauses:
    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._looked = clock()
        self._deadline = self._began + seconds

    @property
    def over(self) -> bool:
        return self._clock() >= self._deadline

    def next(self) -> float:
        """The pause after a look that began when the last pause ended, until the deadline at most."""
        now, (shortest, longest) = self._clock(), _PAUSES
        pause = max(shortest, _LATE * (now - self._began), _REST * (now - self._looked))
        self._looked = now + min(pause, longest)
        return min(pause, longest, max(self._deadline - now, 0.0))


def _failure(
    look: Callable[[], object], what: str, seconds: float, value: object, seen: Callable[[], object] | None
) -> str:
    """Return the message for a condition that is too late: the condition, its last value, and the names that ``look`` uses."""
    names: dict[str, object] = {}
    if inspect.isfunction(look):
        names = {**inspect.getclosurevars(look).nonlocals, **inspect.getclosurevars(look).globals}
        names |= {name: parameter.default for name, parameter in inspect.signature(look).parameters.items()}
    values = {name: value for name, value in names.items() if not callable(value)} | {"found": value}
    if seen is not None:
        values["seen"] = seen()
    lines = [f"{name} = {repr(value)[:_SHOWN]}" for name, value in values.items()]
    return "\n    ".join([f"not within {seconds:g} s: {what or getattr(look, '__qualname__', look)}", *lines])
