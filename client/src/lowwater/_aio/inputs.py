"""Following several computations and folding them locally."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from lowwater import errors
from lowwater._aio.runtime import Runtime
from lowwater._core.fold import Reading
from lowwater._core.watches import FoldChanges, Folding, Subscription, WatchState, closed_reader
from lowwater.views import Inputs

__all__ = ["InputReader"]


class InputReader:
    """The minimum over some computations, kept up to date in the background and folded where it is read.

    Reading never waits for the network but once: the first time, for the first value. Without the authority the values
    stop, and ``stale_for`` grows. Every value was published, hence durable, and none goes below one seen before
    (within an incarnation). Use it as an async context manager, or call :meth:`close`.
    """

    def __init__(
        self, runtime: Callable[[], Runtime], names: Mapping[str, str], reading: Reading | None = None
    ) -> None:
        self._runtime = runtime
        self._folding = Folding(names, reading)
        self._owner: Runtime | None = None
        self._subscription: Subscription | None = None
        self._waited = False
        self._closed = False

    async def read(self) -> Inputs:
        """Return the minimum as it is known now.

        The first call waits for the first value, at most the client's timeout; when there is none by then, the inputs are
        unknown and stale for ever. Raises ServerTokenMismatch when another deployment answers, and Closed.
        """
        runtime, subscription = self._ready()
        watcher = runtime.watcher
        watcher.state.check()
        if not self._waited:
            deadline = runtime.deadline(runtime.connection.settings.timeout)
            await watcher.wait(lambda: self._closed or self._folding.come(watcher.state, subscription), deadline)
            self._waited = True
        return self._folding.fold(watcher.state, subscription)

    async def watch(self) -> AsyncGenerator[Inputs, None]:
        """Yield the minimum, and again whenever it or who holds it has changed. Conflated: a slow loop sees the newest only.

        Waits between changes, without end while the authority is away. Ends when the reader or its client is
        closed. Raises ServerTokenMismatch when another deployment answers.
        """
        if self._is_closed():
            return
        runtime, subscription = self._ready()
        changes = FoldChanges(self._folding)
        while True:
            try:
                await runtime.watcher.wait(partial(self._come, changes, runtime.watcher.state, subscription), None)
            except errors.Closed:
                return
            if changes.newest is None or self._is_closed():
                return
            yield changes.newest

    def _come(self, changes: FoldChanges, known: WatchState, subscription: Subscription) -> bool:
        return self._closed or changes.come(known, subscription)

    def _is_closed(self) -> bool:
        return self._closed

    def _ready(self) -> tuple[Runtime, Subscription]:
        if self._closed:
            raise closed_reader()
        runtime = self._runtime()
        if self._subscription is None:
            self._owner = runtime
            self._subscription = runtime.watcher.subscribe(self._folding.followed)
        return runtime, self._subscription

    def close(self) -> None:
        """Follow them no longer. A ``watch()`` in another task ends."""
        if not self._closed and self._owner is not None and self._subscription is not None:
            self._owner.watcher.unsubscribe(self._subscription)
            self._owner.watcher.changed.notify()
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
