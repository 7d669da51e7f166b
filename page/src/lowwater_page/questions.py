"""Questions of viewers to the authority: few at once, and each answer serves for a second."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from lowwater import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater import Client

THREADS: Final = 2
"""Number of threads, each with one question to the authority at a time."""

MOST_ASKED: Final = 16
"""Most questions that run or wait for a thread; more are refused."""

GOOD_SECONDS: Final = 1.0
"""Time in seconds for which an answer, or a failure, serves all who ask the same."""

MOST_KEPT: Final = 32
"""Most kept answers, of up to some hundred kilobytes each."""


class Questions:
    """Questions through ``client``. It belongs to one event loop."""

    def __init__(self, client: Callable[[], Client], good_seconds: float = GOOD_SECONDS) -> None:
        self._client = client
        self._good_seconds = good_seconds
        self._threads = ThreadPoolExecutor(THREADS, "lowwater-ask")
        self._running = 0
        self._answers: dict[tuple[str, ...], asyncio.Future[bytes]] = {}

    async def ask(self, key: tuple[str, ...], question: Callable[[Client], Any]) -> bytes:
        """Return the answer to a question as JSON. ``key`` is equal for equal questions.

        Raises LowwaterError: what the client raises, and Overloaded.
        """
        answer = self._answers.get(key)
        if answer is None:
            if self._running >= MOST_ASKED:
                msg = f"{MOST_ASKED} questions of this page are being answered already; ask again in a second"
                raise errors.Overloaded(msg)
            self._running += 1
            answer = asyncio.ensure_future(self._answer(key, question))
            # If the viewer has gone by then, asyncio would log the failure as never retrieved.
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._answers[key] = answer
            self._drop_oldest()
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Begin no more questions. Those that run end when the client is closed."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, key: tuple[str, ...], question: Callable[[Client], Any]) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, self._ask, question)
        finally:
            self._running -= 1
            loop.call_later(self._good_seconds, self._drop, key, self._answers.get(key))

    def _ask(self, question: Callable[[Client], Any]) -> bytes:
        return json.dumps(question(self._client()), separators=(",", ":")).encode()

    def _drop(self, key: tuple[str, ...], answer: asyncio.Future[bytes] | None) -> None:
        if self._answers.get(key) is answer:
            self._answers.pop(key, None)

    def _drop_oldest(self) -> None:
        done = [key for key, answer in self._answers.items() if answer.done()]
        for key in done[: max(0, len(self._answers) - MOST_KEPT)]:
            del self._answers[key]
