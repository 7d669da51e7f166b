"""Waiting for what another thread, task or process brings about.

Where there is an event, wait for the event. This is for what tells nobody: a value that an authority publishes, a file that appears, the
state of a query.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

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
    """It did not come true in time. Says what was waited for, and what was seen."""


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
        seen: Asked when it is too late, and shown. What a lambda compares is shown anyway.

    Raises:
        TooLate: It did not come true in time.
    """
    pauses = _Pauses(seconds, time.monotonic)
    while not (found := look()):
        if check is not None:
            try:
                check()
            except Exception:
                if found := look():  # it came true just before the end
                    return found
                raise
        if pauses.over:
            raise TooLate(_failure(look, what, seconds, found, seen))
        threading.Event().wait(pauses.next())
    return found


async def eventually_async(
    look: Callable[[], object],
    what: str = "",
    *,
    seconds: float = PATIENCE,
    check: Callable[[], object] | None = None,
    seen: Callable[[], object] | None = None,
) -> None:
    """Do the same beside other tasks, which go on meanwhile. ``look`` may be a coroutine function; a look that hangs is too late as well.

    Seconds are those of the loop, also where its time is simulated.
    """
    found: object = None

    async def once() -> object:
        nonlocal found
        found = look()
        if inspect.isawaitable(found):
            found = await found
        return found

    pauses, limit = _Pauses(seconds, asyncio.get_running_loop().time), asyncio.timeout(seconds)
    try:
        async with limit:
            while not await once():
                if check is not None:
                    try:
                        check()
                    except Exception:
                        if await once():
                            break
                        raise
                await asyncio.sleep(pauses.next())
    except TimeoutError:
        if not limit.expired():
            raise
        raise TooLate(_failure(look, what, seconds, found, seen)) from None


class _Pauses:
    """How long to wait between two looks."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._looked = clock()
        self._deadline = self._began + seconds

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self._clock() >= self._deadline

    def next(self) -> float:
        """The pause after a look that began when the last pause ended, until the deadline at most."""
        now, (shortest, longest) = self._clock(), _PAUSES
        pause = max(shortest, _LATE * (now - self._began), _REST * (now - self._looked))
        self._looked = now + min(pause, longest)
        return min(pause, longest, max(self._deadline - now, 0.0))


def _failure(
    look: Callable[[], object], what: str, seconds: float, found: object, seen: Callable[[], object] | None
) -> str:
    """What is said when it is too late."""
    body = _body(look)
    asked = ast.unparse(body) if body is not None else str(getattr(look, "__qualname__", look))
    lines = [f"not within {seconds:g} s: {what or asked}"]
    if body is not None:
        lines += [f"{ast.unparse(each)} = {_value(look, each)}" for each in _operands(body)]
    else:
        lines.append(f"{asked} = {_short(found)}")
    if seen is not None:
        lines.append(f"seen: {_short(seen())}")
    return "\n    ".join(lines)


def _body(look: Any) -> ast.expr | None:
    """The source of a lambda; None of anything else."""
    code = getattr(look, "__code__", None)
    if code is None or code.co_name != "<lambda>":
        return None
    try:
        tree = ast.parse(Path(code.co_filename).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    starts = {(line, column) for line, _, column, _ in code.co_positions()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and (node.body.lineno, node.body.col_offset) in starts:
            return node.body
    return None


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """What a condition compares."""
    match node:
        case ast.BoolOp(values=values):
            for each in values:
                yield from _operands(each)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _operands(operand)
        case ast.Compare(left=left, comparators=others):
            for each in (left, *others):
                yield from _operands(each)
        case ast.Constant():
            pass
        case _:
            yield node


def _value(look: Any, node: ast.expr) -> str:
    """A part of a lambda as it is now."""
    try:
        names = look.__globals__ | inspect.getclosurevars(look).nonlocals
        names |= {name: each.default for name, each in inspect.signature(look).parameters.items()}
        return _short(eval(compile(ast.Expression(node), "<seen>", "eval"), names))
    except Exception as error:  # noqa: BLE001 - it is shown
        return f"raises {error!r}"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]} ..."
