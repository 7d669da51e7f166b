"""Reads a Delta table by plain Python, from the JSON of its log and the files that this names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from tests.cluster.output import Committed, Row, rows_of


class Version(NamedTuple):
    added: tuple[str, ...]
    removed: tuple[str, ...]
    batch: int | None
    """Whose rows it brings; None if it brings none."""


class Table(Committed):
    """A table that a stage writes by ``batch.write_table``. Its log keeps every version of the days that a run lasts."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self.folder = folder
        self.versions: list[Version] = []
        """The versions of the last look."""
        self._rows: dict[int, list[Row]] = {}
        """The rows by the version that has brought them: a VACUUM may remove the files later."""

    def look(self) -> None:
        while (commit := self.folder / "_delta_log" / f"{len(self.versions):020}.json").exists():
            version = _version(commit)
            if version.batch is not None:
                self._rows[len(self.versions)] = [row for file in version.added for row in self._read(file)]
            self.versions.append(version)

    def rows(self) -> Iterator[tuple[Row, float]]:
        self.look()
        for number, rows in self._rows.items():
            batch = self.versions[number].batch
            assert batch is not None
            yield from ((row, self.committed(batch)) for row in rows)

    def files(self) -> list[str]:
        self.look()
        live: dict[str, None] = {}
        for version in self.versions:
            for file in version.removed:
                del live[file]
            live |= dict.fromkeys(version.added)
        return list(live)

    def snapshot(self) -> list[Row]:
        return [row for file in self.files() for row in self._read(file)]

    def path_of(self, file: str) -> Path:
        return self.folder / unquote(file)

    def _read(self, file: str) -> list[Row]:
        return rows_of(self.path_of(file))


def _version(commit: Path) -> Version:
    actions: list[Mapping[str, Any]] = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    by_kind: dict[str, list[Any]] = {kind: [action[kind] for action in actions if kind in action] for kind in _KINDS}
    added, removed = (tuple(action["path"] for action in by_kind[kind]) for kind in ("add", "remove"))
    brings = any(action["dataChange"] for action in by_kind["add"])
    batches = [action["version"] for action in by_kind["txn"]]
    assert not brings or len(batches) == 1, f"{commit} has rows, and not of one batch"
    return Version(added, removed, batches[0] if brings else None)


_KINDS = ("add", "remove", "txn")
