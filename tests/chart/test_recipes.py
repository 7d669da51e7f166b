"""The commands of docs/helm.md that move a journal: what they run in a pod is run here, over a folder in the place of the volume."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from tests.chart.test_page import PAGE
from tests.kit.eventually import eventually
from tests.process.serving import Serving

pytestmark = pytest.mark.process

SECONDS = 60.0


def blocks(title: str) -> list[list[str]]:
    """The commands of a section of the page, by block."""
    section = PAGE.split(f"\n## {title}\n")[1].partition("\n## ")[0]
    return [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)]


class Hands:
    """Does what a page says, with what runs here: ``serving`` is what the StatefulSet would be."""

    def __init__(self, folder: Path, volume: Path, serving: Serving) -> None:
        self.folder = folder
        self.volume = volume
        self.serving = serving
        self.environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.deleted: list[str] = []

    def follow(self, commands: list[str]) -> None:
        """Run the commands of a block, in order. Raises CalledProcessError."""
        for command in commands:
            match shlex.split(command):
                case ["kubectl", "-n", "lowwater", "exec", _, "--", *words]:
                    self.run([self.inside(word) for word in words])
                case ["kubectl", "-n", "lowwater", "cp", source, target]:
                    shutil.copyfile(self.outside(source), self.outside(target))
                case ["kubectl", "-n", "lowwater", "scale", "statefulset", "lowwater", "--replicas=0"]:
                    assert self.serving.stop() == 0
                case ["kubectl", "-n", "lowwater", "scale", "statefulset", "lowwater", "--replicas=1"]:
                    self.serving.start()
                case ["kubectl", "-n", "lowwater", "delete", kind, name]:
                    self.deleted.append(f"{kind}/{name}")
                case ["kubectl", "-n", "lowwater", "wait" | "apply", *_] | ["helm", "upgrade", *_]:
                    """Only a cluster does it."""
                case words:
                    self.run(words)

    def run(self, words: list[str]) -> None:
        """Run a command."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def inside(self, word: str) -> str:
        """A word of a command in a pod, with the folder for the volume."""
        return re.sub(r"(?<!\w)/data\b", str(self.volume), word)

    def outside(self, place: str) -> Path:
        """A side of `kubectl cp`."""
        _, colon, path = place.rpartition(":")
        return Path(self.inside(path)) if colon else self.folder / path


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    """A served journal, and who works on it."""
    (tmp_path / "volume").mkdir()
    with Serving(tmp_path / "volume") as server:
        yield Hands(tmp_path, server.data, server)


def report(address: str, frontier: int, *, register: bool = False) -> None:
    """Claim, and report durably."""
    with lowwater.connect(address, timeout=SECONDS) as lw:
        if register:
            lw.register("a")
        lease = lw.worker("a").claim()
        lease.advance(None, oldest=None, frontier=frontier)
        lease.flush(SECONDS)


def holds(address: str) -> tuple[int, str]:
    """The watermark, and which deployment answers."""
    with lowwater.connect(address, timeout=SECONDS) as lw:
        eventually(lambda: not lw.get("a")["a"].low.unknown)
        return lw.get("a")["a"].low.micros, lw.server_token


def test_a_backup_of_a_served_volume_is_restored(hands: Hands) -> None:
    backup, restore = blocks("Backup and restore")
    address = hands.serving.address
    report(address, 10, register=True)
    before = holds(address)
    hands.follow(backup)
    assert [path.name for path in hands.volume.iterdir() if path.is_dir()] == [], "nothing is left on the volume"
    report(address, 20)
    assert holds(address)[0] == 20
    hands.follow(restore)
    assert holds(address) == before
    names = {path.name for path in hands.volume.iterdir()}
    assert names >= {"journal.sqlite", "lost"}
    assert "restored" not in names
    hands.run(["lowwater", "journal", "show", str(hands.volume / "lost")])
    report(address, 30)
    assert holds(address)[0] == 30
