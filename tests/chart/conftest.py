"""Snapshots of what the chart renders: a file for each set of values, which a reviewer reads."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode


class _Manifest(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "yaml"


@pytest.fixture
def manifest(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """The chart's output as it was last reviewed; --snapshot-update takes over what it renders now."""
    return snapshot.use_extension(_Manifest)
