"""The listener in a session of Spark Connect, over a bus as PySpark has it. No Spark runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lowwater_spark.attach import connect
from lowwater_spark.attach.attachment import _attached, attach
from lowwater_spark.attach.connect import ConnectEvents, EventGate
from tests.kit.eventually import eventually


class Bus:
    """PySpark's ``StreamingQueryListenerBus``, as far as it is used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener_bus: list[Any] = []
        self._execution_thread: threading.Thread | None = None
        self.refuses = False
        self.end = threading.Event()
        """Set to end the server's answer."""

    def append(self, listener: Any) -> None:
        with self._lock:
            if self.refuses:
                return
            self._listener_bus.append(listener)
            if len(self._listener_bus) == 1:
                assert self._execution_thread is None
                self.end = threading.Event()
                self._execution_thread = threading.Thread(target=self.end.wait, daemon=True)
                self._execution_thread.start()

    def breaks(self) -> None:
        """End the answer with an exception."""
        with self._lock:
            self._listener_bus.clear()
            self._execution_thread = None

    def is_taken(self) -> None:
        """End the answer without an exception, as when another client has the listener removed."""
        self.end.set()
        assert self._execution_thread is not None
        self._execution_thread.join()


class Session:
    """A session with a bus and no queries."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.bus = Bus()
        self.streams: Any = self
        self._sqlb = self.bus
        self.conf: Any = {}
        self.session_id = str(id(self))
        self.looks: list[Exception | None] = []
        """What the next calls of the server fail with."""
        self.released = 0

    @property
    def active(self) -> list[Any]:
        if self.looks and (failure := self.looks.pop(0)) is not None:
            raise failure
        return []

    def addListener(self, listener: Any) -> None:
        self.bus.append(listener)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(connect, "LOOK_SECONDS", 0.01)

    def release(events: Any) -> None:
        events._spark.released += 1

    monkeypatch.setattr(ConnectEvents, "_release", release)
    return Session()


@contextmanager
def begun(session: Any, catch_up: Any) -> Iterator[ConnectEvents]:
    events = ConnectEvents(session, "ours", catch_up, EventGate())  # type: ignore[arg-type]  # nothing is called
    events.begin()
    try:
        yield events
    finally:
        events.stop()


def test_a_catch_up_that_fails_is_repeated_until_it_succeeds(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError("too large"), OSError("too large")]
    calls: list[None] = []

    def catch_up() -> None:
        calls.append(None)
        if failures:
            raise failures.pop()

    with caplog.at_level(logging.WARNING, "lowwater.spark"), begun(session, catch_up):
        session.bus.breaks()
        eventually(lambda: len(calls) == 3, "it is repeated")
        eventually(lambda: "come again" in caplog.text, "the end is told")
        assert session.bus._listener_bus == ["ours"], "the listener was added once"
        time.sleep(0.1)
        assert len(calls) == 3, "after a success it is not repeated"
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1
    assert "what was missed" in caplog.records[0].message


def test_events_that_come_while_earlier_ones_are_noted_count_after_them() -> None:
    gate, noted = EventGate(), list[str]()
    gate.note(lambda: noted.append("before"))
    with gate.closed():
        gate.note(lambda: noted.append("after"))
        noted.append("missed")
    gate.note(lambda: noted.append("now"))
    assert noted == ["before", "missed", "after", "now"]


def test_a_listener_that_the_server_refuses_fails_the_beginning(session: Session) -> None:
    session.bus.refuses = True
    with pytest.raises(RuntimeError, match="did not take the listener"), begun(session, lambda: None):
        pass


def threads() -> list[str]:
    names = {"lowwater-attach", "lowwater-connect"}
    return sorted(thread.name for thread in threading.enumerate() if thread.name in names)


def test_an_attachment_whose_start_fails_late_leaves_nothing(session: Any) -> None:
    session.looks = [None, OSError("the connection is lost")]
    with pytest.raises(OSError, match="the connection is lost"):
        attach(session, "localhost:1")
    eventually(lambda: threads() == [], "it has ended")
    with attach(session, "localhost:1") as attachment:
        assert attach(session, "localhost:1") is attachment
        assert threads() == ["lowwater-attach", "lowwater-connect"], "the session is attached once"
    eventually(lambda: threads() == [], "it has ended")


def test_a_server_that_does_not_answer_holds_no_other_attachment(session: Any) -> None:
    frozen: Any = Session()
    attachment = attach(session, "localhost:1")
    with frozen.bus._lock:  # as while PySpark waits for the server
        waiting = threading.Thread(target=attach, args=(frozen, "localhost:1"))
        waiting.start()
        eventually(lambda: len(_attached) == 2, "it waits for the server")
        attachment.stop()
        assert waiting.is_alive()
    waiting.join(20)
    attach(frozen, "localhost:1").stop()
    assert _attached == []


def test_a_server_that_does_not_answer_fails_the_beginning(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "ADD_SECONDS", 0.01)
    with session.bus._lock, pytest.raises(TimeoutError, match=r"within 0\.01 s"), begun(session, lambda: None):
        pass


def test_events_that_another_client_has_taken_are_told_and_come_back_by_a_new_attachment(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lowwater.spark"), begun(session, lambda: None):
        session.addListener("the user's")
        session.bus.is_taken()
        eventually(lambda: "has ended the events of this client" in caplog.text, "it is told")
        assert session.released == 1, "the two clients do not take the events from each other again and again"
    with begun(session, lambda: None):
        assert session.released == 2
        assert session.bus._listener_bus == ["ours", "the user's"]
        assert session.bus._execution_thread is not None
        assert session.bus._execution_thread.is_alive()
