"""Tests look at the status page's API by plain HTTP, and by a viewer of the event stream as a browser is one."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Json:
        content: Json = json.loads(self.body)
        return content


def ask(
    page: str,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    *,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    **parameters: object,
) -> Answer:
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    request = urllib.request.Request(f"{page}{path}{query}", data=body, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as response:
            return Answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    data: str
    at: float
    """When it came, on the monotonic clock."""


@dataclass
class Viewer:
    """Follows the events of a page in a thread, and connects again when they end; keeps what a page would show."""

    page: str
    events: list[Event] = field(default_factory=list)
    shown: dict[str, Json] = field(default_factory=dict)
    """The computations by name."""
    lows: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(incarnation, low) of each computation as they came, while it was a time."""
    ends: int = 0
    """The number of times that the stream has ended."""

    def __enter__(self) -> Self:
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopping.set()
        self.disconnect()
        self._thread.join()

    def disconnect(self) -> None:
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def until(self, condition: Callable[[Self], object], seconds: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), seconds), (self.ends, self.shown)

    def low(self, name: str) -> int | None:
        low: int | None = self.shown[name]["low"]["micros"] if name in self.shown else None
        return low

    def _follow(self) -> None:
        place = urllib.parse.urlsplit(self.page)
        while not self._stopping.wait(0.05):
            connection = http.client.HTTPConnection(place.netloc, timeout=10)
            try:
                connection.connect()
                self._connection = connection.sock
                connection.request("GET", "/api/events")
                with connection.getresponse() as response:
                    assert response.status == 200, response.read()
                    self._read(response)
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            with self._changed:
                self.ends += 1
                self._changed.notify_all()

    def _read(self, response: Any) -> None:
        kind = ""
        for line in response:
            if self._stopping.is_set():
                return
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                self._take(Event(kind, value, time.monotonic()))

    def _take(self, event: Event) -> None:
        change = json.loads(event.data)
        with self._changed:
            self.events.append(event)
            if event.kind == "snapshot":
                self.shown.clear()
            for name in change.get("removed", ()):
                self.shown.pop(name, None)
            for view in change.get("computations", ()):
                self.shown[view["name"]] = view
                if view["low"]["state"] == "time":
                    self.lows.setdefault(view["name"], []).append((view["incarnation"], view["low"]["micros"]))
            self._changed.notify_all()
