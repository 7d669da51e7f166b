"""A sidecar that hangs is told by the age of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowwater_spark.sidecar.command import Heartbeat


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
