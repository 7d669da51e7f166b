"""What a sidecar tells and does while it is not well."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lowwater import errors
from lowwater_spark.sidecar.command import Heartbeat, QueryWatch, may_pass


def test_a_heartbeat_waits_for_each_query_that_is_still_tracked(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    heartbeat = Heartbeat(file)
    for turns, beats in (
        ({"a": (0, 0), "b": (0, 0)}, True),
        ({"a": (0, 1), "b": (0, 0)}, False),
        ({"a": (0, 2), "b": (0, 0)}, False),
        ({"a": (0, 2), "b": (1, 0)}, True),
        ({"a": (0, 2)}, False),
        ({"a": (1, 0)}, True),
    ):
        file.unlink()
        heartbeat.look(turns)
        assert file.exists() == beats, turns
        file.touch()
    with pytest.raises(FileNotFoundError):
        Heartbeat(tmp_path / "no folder" / "heartbeat")
    Heartbeat(None).look({"a": (0, 1)})


class OneAttempt(threading.Event):
    """Set as soon as somebody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def test_a_query_is_tried_again_while_its_token_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOWWATER_TOKEN_FILE", str(tmp_path / "token"))
    query: dict[str, Any] = {
        "name": "a",
        "checkpoint": str(tmp_path),
        "inputs": ["b"],
        "sources": [f"files:{tmp_path}"],
    }
    watch = QueryWatch(
        {**query, "promises": ["sink-visible-before-commit", "nothing-skipped"]}, str(tmp_path), None, None
    )
    watch.run(OneAttempt())
    assert not watch.refused
    assert watch.turn == (2, 0), "the checkpoint is one step, and the attempt another"
    assert may_pass(errors.Unauthenticated("unknown token"))
    assert not may_pass(errors.PermissionDenied("of another principal"))
    assert not may_pass(errors.InvalidArgument("name", metadata={"field": "name"}))
