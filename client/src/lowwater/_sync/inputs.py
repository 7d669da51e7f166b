"""Following several computations and folding them locally."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from lowwater import errors
from lowwater._core.fold import Reading, fold_inputs
from lowwater._sync.runtime import PerProcess, Runtime
from lowwater._sync.watcher import Subscription
from lowwater.views import Inputs, WatermarkView

__all__ = ["InputReader"]


class InputReader:
    """The minimum over some computations, kept up to date in the background and folded where it is read.

    Reading never waits for the network but once: the first time, for the first value. Without the authority the values
    stop, and ``stale_for`` grows. Every value was published, hence durable, and none goes below one seen before
    (within an incarnation). Safe for threads; a forked child may go on with an inherited reader.
    """

    def __init__(self, per_process: PerProcess, names: Mapping[str, str], reading: Reading | None = None) -> None:
        self._per_process = per_process
        self._names = dict(names)
        self._reading = reading
        self._owner: Runtime | None = None
        self._subscription: Subscription | None = None
        self._waited = False
        self._closed = False

    def read(self) -> Inputs:
        """Return the minimum as it is known now.

        The first call waits for the first value, at most the client's timeout; when there is none by then, the inputs are
        unknown and stale for ever. Raises ServerTokenMismatch when another deployment answers, and Closed.
        """
        runtime = self._ready()
        watcher, timeout = runtime.watcher, runtime.connection.settings.timeout
        with watcher.changed:
            watcher.check()
            if not self._waited:
                watcher.wait(self._confirmed, time.monotonic() + timeout)
                self._waited = True
            return self._fold(runtime)

    def watch(self) -> Iterator[Inputs]:
        """Yield the minimum, and again whenever it or who holds it has changed. Conflated: a slow loop sees the newest only.

        Blocks between changes, without end while the authority is away. Ends when the reader or its client is
        closed. Raises ServerTokenMismatch when another deployment answers.
        """
        seen: Inputs | None = None
        while not self._closed:
            runtime = self._ready()
            watcher = runtime.watcher
            with watcher.changed:
                try:
                    watcher.wait(lambda: self._closed or self._confirmed(), None)
                    new = self._fold(runtime)
                    while _same(seen, new) and not self._closed:
                        watcher.wait_beyond(watcher.ratchet.version, None, unless=lambda: self._closed)
                        new = self._fold(runtime)
                except errors.Closed:
                    return
            if not self._closed:
                seen = new
                yield new

    def _confirmed(self) -> bool:
        return self._subscription is not None and self._subscription.confirmed

    @property
    def _followed(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    def _ready(self) -> Runtime:
        if self._closed:
            msg = "the reader is closed; lw.inputs(...) makes a new one"
            raise errors.Closed(msg)
        runtime = self._per_process.get()
        if self._owner is not runtime:
            self._owner, self._waited = runtime, False
            self._subscription = runtime.watcher.subscribe(self._followed)
        return runtime

    def _fold(self, runtime: Runtime) -> Inputs:
        # What somebody else in this process heard before this reader may be of a life that has ended since.
        watcher, confirmed = runtime.watcher, self._confirmed()
        views = {
            asked: watcher.ratchet.get(name) if confirmed else WatermarkView(name)
            for asked, name in self._names.items()
        }
        stale_for = watcher.stale_for(self._followed) if confirmed else float("inf")
        return fold_inputs(tuple(self._names), views, self._reading, stale_for)

    def close(self) -> None:
        """Follow them no longer. A ``watch()`` in another thread ends."""
        self._closed = True
        runtime = self._per_process.existing()
        if runtime is not None and runtime is self._owner and self._subscription is not None:
            self._subscription.close()
            with runtime.watcher.changed:
                runtime.watcher.changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _same(old: Inputs | None, new: Inputs) -> bool:
    return old is not None and (old.low, old.heuristic, old.held_by, old.incarnations) == (
        new.low,
        new.heuristic,
        new.held_by,
        new.incarnations,
    )
