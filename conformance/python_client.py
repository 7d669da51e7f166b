"""The client in Python under test: ``python -m conformance client -- python -m conformance.python_client``."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import lowwater

_printing = threading.Lock()


def say(answer: dict[str, Any]) -> None:
    """Write a line."""
    with _printing:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Commands:
    """One method a command."""

    def __init__(self) -> None:
        self.client: lowwater.Client | None = None
        self.leases: dict[str, lowwater.Lease] = {}

    @property
    def connected(self) -> lowwater.Client:
        assert self.client is not None
        return self.client

    def connect(self, address: str) -> None:
        self.close()
        self.client, self.leases = lowwater.connect(address), {}

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        self.client = None

    def register(self, name: str, inputs: list[str]) -> None:
        self.connected.register(name, inputs=inputs, heuristics=[])

    def claim(self, name: str, bounds: list[str], **label: str) -> None:
        worker = self.connected.worker(name)
        self.leases[label["as"]] = worker.claim(bounds=[bytes.fromhex(bound) for bound in bounds])

    def advance(self, claim: str, micros: list[int]) -> None:
        self.leases[claim].advance(None, oldest=micros, frontier=max(micros))

    def flush(self, claim: str) -> None:
        self.leases[claim].flush()

    def release(self, claim: str) -> None:
        self.leases[claim].release()

    def get(self, name: str) -> dict[str, Any]:
        view = self.connected.get(name)[name]
        return {"low": view.low.micros, "registered": view.registered}

    def watch(self, name: str) -> None:
        threading.Thread(target=self._watch, args=(self.connected, name), daemon=True).start()

    def _watch(self, client: lowwater.Client, name: str) -> None:
        try:
            for view in client.watch(name):
                if self.client is client:
                    say({"seen": {"name": name, "incarnation": view.incarnation, "low": view.low.micros}})
        except lowwater.LowwaterError:
            return


def main() -> None:
    """Do what comes, one after the other."""
    commands = Commands()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(commands, command.pop("do"))(**command)
        except lowwater.LowwaterError as error:
            say({"error": error.reason, "message": error.message})
        else:
            say({"ok": answer or {}})
    commands.close()


if __name__ == "__main__":
    main()
