# Made by scripts/generate_sync.py from _async/lease.py: change that one.
"""One claim: what its worker says about it, and what it hears."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from lowwater import errors
from lowwater._core import checks
from lowwater._core.claims import Grant
from lowwater._core.granted import CLOSE_TIMEOUT, RELEASED, WORKER_CLOSED, Granted
from lowwater._sync.runtime import Runtime

__all__ = ["Lease"]

logger = logging.getLogger("lowwater")


class Lease(Granted):
    """One claim: the ranges it got, and what their worker says about them.

    A range is called by its handle, its index in ``bounds``. :meth:`advance` stages states, which a background thread reports; only
    :meth:`flush`, :meth:`finish` and :meth:`release` wait for it. A lease that lost ranges to a newer claim, a reset
    or a retirement raises StaleSequencer: always once all are lost, else once for each loss. Safe for threads. After a fork it
    stays with the parent: in the child every call raises Closed.
    """

    def __init__(self, runtime: Runtime, grant: Grant) -> None:
        super().__init__(runtime.reporter, grant, runtime.connection.surroundings.monotonic)
        self._runtime = runtime

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the newest state is durable, at most ``timeout`` seconds (None: the client's).

        Raises Timeout, StaleSequencer, and TooFarAhead or whatever else the state was refused for.
        """
        self._check_open()
        seconds = self._runtime.connection.settings.timeout if timeout is None else checks.seconds("timeout", timeout)
        self._runtime.here().reporter.flush(self._state, seconds)

    def finish(self, handles: Iterable[int] | None = None) -> None:
        """Say that nothing will ever come in some ranges, or in all of them; durable when it returns.

        It is the only way past them for good, and cannot be taken back but by a reset. Raises Timeout when it is not acknowledged
        within the client's timeout (it stays staged), StaleSequencer.
        """
        self._stage_end(handles)
        self.flush()

    def release(self) -> None:
        """Give the ranges back; they hold their last value until somebody claims them. Durable when it returns.

        Raises StaleSequencer when they were lost before; Timeout or Unavailable, after which it may have happened or not: the lease
        stays as it is, and a repeat returns when the claim is at its end, by the first release or by whoever has claimed since.
        """
        self._check_open()
        runtime = self._runtime.here()
        self._drain(self._monotonic() + CLOSE_TIMEOUT)
        repeated, self._releasing = self._releasing, True
        try:
            runtime.call(runtime.calls.release(self.computation, self.sequencer))
        except errors.StaleSequencer:
            # The answer of the release before may have been lost; in any case the ranges are no longer this claim's.
            if not repeated:
                self._releasing = False
                raise
        self._closed = RELEASED
        runtime.reporter.remove(self._state)

    def retire(self, deadline: float) -> None:
        """Stop reporting, holding; its worker is closed. Waits for the last state to be durable, until a monotonic time at most."""
        if not self._ended_here:
            self._drain(deadline)
            self._closed = WORKER_CLOSED
            self._runtime.reporter.remove(self._state)

    def _drain(self, deadline: float) -> None:
        if self._settled:
            return
        try:
            self._runtime.reporter.flush(self._state, max(0.0, deadline - self._monotonic()))
        except errors.LowwaterError as error:
            logger.warning("leaving %s with its last state not durable: %s", self.computation, error)
