"""Tools that the Spark tests share: settings, feeds, an upstream and a follower."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lowwater
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.checkpoint.manifest import SECTIONS, Manifest
from lowwater_spark.sources.base import NONE, Line
from lowwater_spark.sources.source_log import File, SourceLog, Taken
from lowwater_spark.track.state.handover import publish_directory
from lowwater_spark.track.state.store import StageSection, StateStore, StateVersion
from tests.kit.times import at

if TYPE_CHECKING:
    from lowwater_spark import TrackedQuery

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=256m"
"""JVMs on few cores: compiling less is faster. One that runs hundreds of queries fills the 48 MB that it has for code then, and forgets and compiles
without end."""
if sys.platform == "linux":
    # Hadoop starts a program for each file whose mode it sets: at once, and not by way of another program.
    LIGHT += " -Djdk.lang.Process.launchMechanism=VFORK"

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": LIGHT,
    "spark.python.authenticate.socketTimeout": "60s",  # a worker of a busy machine takes long to begin
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class Feed:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def put(self, rows: Iterable[Mapping[str, Any]], name: str | None = None, *, mtime: float | None = None) -> Path:
        self._count += 1
        path = self.folder / (name or f"{self._count:05}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.folder.parent / f".{self._count}.{self.folder.name}.tmp"
        beside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        if mtime is not None:
            os.utime(beside, (mtime, mtime))
        beside.rename(path)
        return path


def row(key: str, hour: int, minute: int = 0) -> dict[str, str]:
    return {"key": key, "t": at(hour, minute).isoformat()}


class Upstream:
    def __init__(self, lw: lowwater.Client, name: str = "source") -> None:
        lw.register(name, heuristics=[0.99])
        self.name = name
        self.lease = lw.worker(name, identity="tests").claim()

    def at(self, hour: int, minute: int = 0) -> None:
        self.lease.advance(None, oldest=None, frontier=at(hour, minute))
        self.lease.flush(20)


def low(lw: lowwater.Client, name: str) -> lowwater.Watermark:
    return lw.get(name)[name].low


def begun(checkpoint: Path, run: int = 1) -> Manifest:
    manifest = Manifest(checkpoint)
    manifest.begin(run)
    return manifest


def place(checkpoint: Path) -> StageSection:
    """Where the manifest of a checkpoint has the state of its first stage."""
    return StageSection(begun(checkpoint), checkpoint)


def make_version(store: StateStore, batch: int, digest: str, fill: Callable[[Path], StateVersion]) -> StateVersion:
    """Make a version of a state as a batch does, unless it is there; return what the store has then."""

    def write(folder: Path) -> None:
        fill(folder).write(folder)

    publish_directory(store.root, str(batch), digest, write, ordinal=store.ordinal)
    version = store.version(batch)
    assert version is not None
    return version


def as_before(checkpoint: Path) -> None:
    """Leave a checkpoint as releases before the manifest did: with a file of its own for each section."""
    manifest, home = Manifest(checkpoint), checkpoint / "lowwater"
    shutil.rmtree(home / "manifest")
    (home / "query.json").unlink()
    for stage, place in (manifest["state"] or {}).items():
        (checkpoint / stage / "lowwater/state.json").write_text(json.dumps(place))
    for section in SECTIONS.keys() - {"state"}:
        content = manifest[section]
        if content is not None:
            content = content if isinstance(content, dict) and section != "roots" else {section: content}
            content = content if section == "stages" else {"format": 1, **content}
            (home / f"{section}.json").write_text(json.dumps(content))


def lines(*offsets: int) -> list[Line]:
    """Places in the logs of file sources, as Spark writes them into its offset log."""
    return [NONE if offset < 0 else json.dumps({"logOffset": offset}, separators=(",", ":")) for offset in offsets]


class Log(SourceLog):
    FEW = 0

    def __init__(self) -> None:
        super().__init__(Path("unused"))

    def take(self, file: File | Path, number: int) -> None:
        if isinstance(file, Path):
            file = File(os.fspath(file), file.stat().st_mtime_ns // 1_000_000)
        self._taken[file.path] = Taken(number, file.modified)
        self.read = max(self.read, number)


def waits(query: TrackedQuery, word: str) -> Callable[[], bool]:
    """Return a check that a query names a word among the inputs that it waits for, or in its reason to hold."""
    return lambda: any(word in text for text in (*query.stage_status().waiting_for, query.stage_status().holding))


class Follower:
    """Notes what a subscriber is told of the stage "stage", each time with the batch that is committed by then, up to a watermark."""

    def __init__(self, address: str, checkpoint: Path, last: lowwater.Watermark) -> None:
        self._pairs: list[tuple[lowwater.Watermark, int | None]] = []
        self._place = address, CheckpointLog(checkpoint), last
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        address, log, last = self._place
        with lowwater.connect(address) as reader:
            for view in reader.watch("stage"):
                self._pairs.append((view.low, log.last_committed()))
                if view.low == last:
                    return

    def seen(self, query: TrackedQuery) -> list[tuple[lowwater.Watermark, int | None]]:
        self._thread.join(120)
        assert not self._thread.is_alive(), query.stage_status()
        return self._pairs
