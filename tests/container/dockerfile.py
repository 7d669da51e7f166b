"""The Dockerfile as far as it can be run without an engine: its steps, in order, in a folder that stands in for the image.

No shell takes part in any step, so a path of the image becomes one below the folder wherever it is written, and the rest is done as it
stands. What would change the machine, or needs the base image, is left out by name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.kit.program import run_program

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("/build", "/opt/lowwater", "/usr/local", "/data")
"""Folders of the image that the Dockerfile names."""
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Step:
    stage: int
    """Which FROM it stands behind, from 1 on; 0 before the first."""
    word: str
    text: str

    @property
    def arguments(self) -> list[str]:
        """The command of a RUN, ENTRYPOINT or CMD. Raises ValueError when that needs a shell."""
        words = json.loads(self.text[self.text.index("[") :])
        assert isinstance(words, list)
        return [str(word) for word in words]

    @property
    def settings(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in shlex.split(self.text))


def steps(text: str) -> list[Step]:
    r"""The instructions of a Dockerfile, in order.

    >>> steps("FROM a\n# no\nENV X=1 \\\n    Y=2\n")
    [Step(stage=1, word='FROM', text='a'), Step(stage=1, word='ENV', text='X=1      Y=2')]
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    steps_: list[Step] = []
    stage = 0
    for line in lines.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        stage += word == "FROM"
        if word:
            steps_.append(Step(stage, word, rest.strip()))
    return steps_


def ignored(path: str, patterns: list[str]) -> bool:
    """Return True if a .dockerignore keeps a path out of the context: the last pattern decides that names it, or a folder above it."""
    parts = path.split("/")
    ways = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    out = False
    for pattern in patterns:
        name = pattern.removeprefix("!")
        hit = fnmatch(parts[0], name) if "/" not in name else any(way == name for way in ways)
        if name.startswith("**/"):
            hit = any(fnmatch(part, name[3:]) for part in parts)
        if hit:
            out = not pattern.startswith("!")
    return out


def patterns() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@dataclass
class Image:
    folder: Path
    leave: frozenset[tuple[str, ...]]
    """The beginnings of steps that are not run."""
    environment: dict[str, str] = field(default_factory=dict)
    unrun: list[str] = field(default_factory=list)
    """Steps that were not run."""
    where: str = "/"

    def place(self, text: str) -> str:
        """A text with every path of the image in it below the folder, and this Python's version for the image's."""
        text = text.replace("python3.11", PYTHON)
        return re.sub(rf"(?<![\w/.])({'|'.join(map(re.escape, PLACES))})(?=[/:]|$)", rf"{self.folder}\1", text)

    def base(self) -> None:
        """Stand in for the base image: this interpreter and its library below /usr/local, without what was installed."""
        local = self.folder / "usr/local"
        (local / "bin").mkdir(parents=True)
        for name in (PYTHON, "python3", "python"):
            shutil.copy2(Path(sys.executable).resolve(), local / "bin" / name)
        library = Path(sysconfig.get_path("stdlib"))
        without = shutil.ignore_patterns(
            *("site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__", "config-*", "lib2to3")
        )
        shutil.copytree(library, local / "lib" / PYTHON, ignore=without, symlinks=True)
        for shared in Path(str(sysconfig.get_config_var("LIBDIR"))).glob("libpython3*.so*"):
            shutil.copy2(shared, local / "lib")

    def build(self, steps_: list[Step], outside: Mapping[str, str]) -> None:
        """Run the steps; ``outside`` are more variables for them, which are not the image's."""
        for step in steps_:
            if step.word == "FROM":
                self.environment, self.where = {}, "/"
            elif step.word == "ENV":
                self.environment |= {name: self.place(value) for name, value in step.settings.items()}
            elif step.word == "WORKDIR":
                self.where = step.text
                Path(self.place(step.text)).mkdir(parents=True, exist_ok=True)
            elif step.word == "COPY" and not step.text.startswith("--from"):
                *sources, target = step.text.split()
                for source in sources:
                    self._copy(source, Path(self.place(self.where)) / target)
            elif step.word == "RUN":
                self._run(step.arguments, outside)

    def _copy(self, item: str, target: Path) -> None:
        rules = patterns()
        files = [at for at in (ROOT / item).rglob("*") if at.is_file()] if (ROOT / item).is_dir() else [ROOT / item]
        for path in files:
            if not ignored(path.relative_to(ROOT).as_posix(), rules):
                inside = path.relative_to(ROOT / item) if path != ROOT / item else Path(path.name)
                (target / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target / inside)

    def _run(self, arguments: list[str], outside: Mapping[str, str]) -> None:
        if any(tuple(arguments[: len(prefix)]) == prefix for prefix in self.leave):
            self.unrun.append(" ".join(arguments))
            return
        done = run_program(
            [self.place(argument) for argument in arguments],
            cwd=self.place(self.where) if self.where != "/" else self.folder,
            env={**outside, **self.environment},
        )
        assert done.returncode == 0, f"{' '.join(arguments)}:\n{done.stdout}{done.stderr}"
