"""What Spark's own event log says of an application, while it is being written: the evidence that a fault took effect."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

_WANTED: Final = ("SparkListenerTaskEnd", "SparkListenerExecutorRemoved", "SparkListenerExecutorAdded")


class EventLog:
    """The events of all applications that log into one folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, int] = {}
        self._events: dict[str, list[Mapping[str, Any]]] = {}

    def of(self, application: str) -> list[Mapping[str, Any]]:
        """Return the ended tasks, and the executors that came and went, of an application so far."""
        for file in self.folder.glob(f"{application}*"):
            known = self._events.setdefault(application, [])
            with file.open("rb") as log:
                log.seek(self._read.get(application, 0))
                for line in log:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read[application] = self._read.get(application, 0) + len(line)
                    event = json.loads(line)
                    if event["Event"] in _WANTED:
                        known.append(event)
        return self._events.get(application, [])

    def applications(self) -> list[str]:
        """Return the applications, the newest last."""
        return sorted({file.name.removesuffix(".inprogress") for file in self.folder.glob("app-*")})

    def failed(self, told: Mapping[str, Any], saying: str) -> bool:
        """Whether the attempt that told this has failed, and the reason says so."""
        return any(
            event["Task Info"]["Task ID"] == told["task"] and saying in json.dumps(event["Task End Reason"])
            for event in self._ended(told)
        )

    def copied(self, told: Mapping[str, Any]) -> bool:
        """Whether a speculative copy of the attempt that told this has won, on another host."""
        stalled = self._hosts(told["application"])[told["executor"]]
        return any(
            event["Task Info"]["Index"] == told["partition"]
            and event["Task Info"]["Speculative"]
            and event["Task End Reason"]["Reason"] == "Success"
            and event["Task Info"]["Host"] != stalled
            for event in self._ended(told)
        )

    def removed(self, application: str, executor: str) -> bool:
        """Whether Spark has lost an executor."""
        return any(
            event["Event"] == "SparkListenerExecutorRemoved" and event["Executor ID"] == executor
            for event in self.of(application)
        )

    def executors(self, application: str, host: str) -> list[str]:
        """Return the executors that an application has on a host now."""
        return [
            executor
            for executor, at in self._hosts(application).items()
            if at == host and not self.removed(application, executor)
        ]

    def _hosts(self, application: str) -> dict[str, str]:
        """Return where each executor is, or was; Spark does not use a name again."""
        return {
            event["Executor ID"]: event["Executor Info"]["Host"]
            for event in self.of(application)
            if event["Event"] == "SparkListenerExecutorAdded"
        }

    def _ended(self, told: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        for event in self.of(told["application"]):
            if event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] == told["stage"]:
                yield event
