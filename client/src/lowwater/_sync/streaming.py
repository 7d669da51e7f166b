"""A thread that opens one stream after the other, for as long as the client lives."""

from __future__ import annotations

import threading
from typing import Any, Final

from lowwater import errors
from lowwater._core.attempts import closed_client
from lowwater._core.calls import Stubs
from lowwater._core.streams import Streamed
from lowwater._sync.connection import Connection

__all__ = ["Streaming"]

_STOP_TIMEOUT: Final = 5.0
"""Seconds that the end of a client waits at most for its thread."""


class Streaming:
    """Drives a state machine: opens its streams, feeds it what they bring, and wakes those that wait for it."""

    def __init__(self, connection: Connection, streamed: Streamed, name: str) -> None:
        self.changed: threading.Condition = threading.Condition()
        """Notified after every message, and at the end of every stream. Guards the state machine."""
        self._connection = connection
        self._streamed = streamed
        self._name = name
        self._thread: threading.Thread | None = None
        self._call: Any = None

    def _open(self, stubs: Stubs) -> Any:
        """Open a stream; returns the call. ``changed`` is held."""
        raise NotImplementedError

    def _take(self, response: Any) -> bool:
        """Take a message; returns whether the stream is to be left."""
        with self.changed:
            leaving = self._streamed.take(response)
            self.changed.notify_all()
        return leaving

    def start(self) -> None:
        """Start the thread, unless it runs. Hold ``changed``."""
        if self._thread is None and not self._connection.closed.is_set():
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def renew(self) -> None:
        """End the open stream, if there is one; the next one follows. Hold ``changed``."""
        if self._call is not None:
            self._call.cancel()

    def stop(self) -> None:
        """End the stream and the thread; the connection must have been closed."""
        with self.changed:
            self.renew()
            self.changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_STOP_TIMEOUT)

    def _run(self) -> None:
        closed, streamed = self._connection.closed, self._streamed
        while not closed.is_set() and streamed.failure is None:
            with self.changed:
                self.changed.wait_for(lambda: streamed.wanted or closed.is_set())
            failure: Exception | None = None
            pauses = self._connection.pauses
            try:
                self._stream()
            except errors.Closed:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the state machine decides
                failure = error
            if closed.is_set():
                break
            with self.changed:
                # One that was ended by a fork did not fail.
                forked = self._connection.pauses != pauses
                delay = streamed.ended(None if forked else failure)
                self.changed.notify_all()
            closed.wait(0.0 if forked else delay)
        with self.changed:
            self.changed.notify_all()

    def _stream(self) -> None:
        """Follow one stream to its end."""
        with self._connection.use() as stubs:
            with self.changed:
                if self._connection.closed.is_set():
                    raise closed_client()
                self._call = call = self._open(stubs)
            try:
                for response in call:
                    if self._take(response):
                        break
            finally:
                call.cancel()
                with self.changed:
                    self._call = None
