# Made by scripts/generate_sync.py from _async/inputs.py: change that one.
"""A reader of several computations that folds them in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Self

from lowwater import errors
from lowwater._drive.threads.runtimes import Runtimes
from lowwater._sync.runtime import Runtime
from lowwater.core.fold import Reading
from lowwater.core.watches import FoldChanges, Folding, Subscription, WatchState, closed_reader
from lowwater.views import Inputs

__all__ = ["InputReader"]


class InputReader:
    """The minimum over some computations, updated in the background and folded when it is read.

    Only the first read waits for the network, for the first value. Without the authority the values
    stop, and ``stale_for`` grows. Every value was published, hence durable, and none is lower than
    one seen before (within an incarnation). Safe for threads; a
    forked child may go on with an inherited reader.
    """

    def __init__(self, runtimes: Runtimes[Runtime], names: Mapping[str, str], reading: Reading | None = None) -> None:
        self._runtimes = runtimes
        self._folding = Folding(names, reading)
        self._owner: Runtime | None = None
        self._subscription: Subscription | None = None
        self._waited = False
        self._closed = False

    def read(self) -> Inputs:
        """Return the current minimum.

        The first call waits for the first value, at most the client's timeout. Without one the
        inputs are unknown, and ``stale_for`` is infinite. Raises ServerTokenMismatch when another
        deployment answers, and Closed.
        """
        runtime, subscription = self._ready()
        watcher = runtime.watcher
        with watcher.changed:
            watcher.state.check()
            if not self._waited:
                deadline = runtime.deadline(runtime.connection.settings.timeout)
                come = partial(self._folding.come, watcher.state, subscription)
                watcher.wait(lambda: self._closed or come(), subscription, deadline)
                self._waited = True
            return self._folding.fold(watcher.state, subscription)

    def watch(self) -> Iterator[Inputs]:
        """Yield the minimum, and again whenever it or its holder has changed.

        Conflated: a slow loop gets the newest only. Waits between changes, without end while the
        authority is away. Ends when the reader or its client is closed. Raises ServerTokenMismatch
        when another deployment answers.
        """
        changes = FoldChanges(self._folding)
        while not self._is_over():
            try:
                runtime, subscription = self._ready()
                come = partial(self._come, changes, runtime.watcher.state, subscription)
                with runtime.watcher.changed:
                    runtime.watcher.wait(come, subscription, None)
            except errors.Closed:
                if self._is_over():
                    return
                raise
            if changes.newest is not None and not self._is_over():
                yield changes.newest

    def _come(self, changes: FoldChanges, state: WatchState, subscription: Subscription) -> bool:
        return self._closed or changes.come(state, subscription)

    def _is_over(self) -> bool:
        return self._closed or self._runtimes.closed

    def _ready(self) -> tuple[Runtime, Subscription]:
        if self._closed:
            raise closed_reader()
        runtime = self._runtimes.get()
        if self._owner is not runtime or self._subscription is None:
            self._owner, self._waited = runtime, False
            self._subscription = runtime.watcher.subscribe(self._folding.followed)
        return runtime, self._subscription

    def close(self) -> None:
        """Stop following the computations. A ``watch()`` in another thread ends."""
        already, self._closed = self._closed, True
        runtime = self._runtimes.existing()
        if not already and runtime is not None and runtime is self._owner and self._subscription is not None:
            runtime.watcher.unsubscribe(self._subscription)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
