"""Fetch the libraries of the status page from npm, each with its licence.

Run ``python scripts/vendor_page.py`` when a version below changes; it needs npm and the network,
and writes to ``page/src/lowwater_page/static/vendor``. ``--check`` needs neither: it exits with 1
unless every vendored file is as ``vendor/README.md`` says.

The page has no build step, and its content security policy allows no import map. So the files are
changed in their import lines: ``from"preact"`` becomes ``from"./preact.js"``. References to source
maps, which are not vendored, are removed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
VENDOR: Final = ROOT / "page/src/lowwater_page/static/vendor"
README: Final = VENDOR / "README.md"
ADVICE: Final = "run: python scripts/vendor_page.py"


class Package(NamedTuple):
    """A package on npm, and which of its files the page uses."""

    name: str
    version: str
    purpose: str
    licence: str
    integrity: str
    """Checksum (sha512) of the archive, in npm's format."""
    files: Mapping[str, str]
    """Paths in the archive by the names of the vendored files."""


PACKAGES: Final = (
    Package(
        "preact",
        "11.2.0",
        "Components: brings the document to what the state says",
        "MIT",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"preact.js": "dist/preact.mjs", "preact-hooks.js": "hooks/dist/hooks.mjs", "preact.LICENSE": "LICENSE"},
    ),
    Package(
        "htm",
        "3.1.1",
        "Templates of components, without a compiler",
        "Apache-2.0",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"htm.js": "dist/htm.module.js", "htm.LICENSE": "LICENSE"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "The lines of the last hour",
        "MIT",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"uplot.js": "dist/uPlot.esm.js", "uplot.css": "dist/uPlot.min.css", "uplot.LICENSE": "LICENSE"},
    ),
    Package(
        "@dagrejs/dagre",
        "3.1.3",
        "Places the computations and edges of the graph; contains @dagrejs/graphlib",
        "MIT",
        "sha512-X4aUTwOReZvthaZWOVHqlJ52/ZdhZFEM4+Lh/uR4XooUSLE6p71bcy7MPGzYnNUcNh+nj+i/qJQpCMIdQnSmrg==",
        {"dagre.js": "dist/dagre.esm.js", "dagre.LICENSE": "LICENSE"},
    ),
)

IMPORTS: Final = re.compile(r'\bfrom\s*"(preact)"')
SOURCE_MAP: Final = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")

HEAD: Final = """# What the status page is made of

Written by `scripts/vendor_page.py`, which fetches these files from npm and says what it changes in them. Nothing here is loaded from another host.

| package | version | what for | licence | file | sha256 |
|---|---|---|---|---|---|
"""


def fetch(package: Package, scratch: Path) -> dict[str, bytes]:
    """Return the package's files as vendored; exits when the archive is not the pinned one."""
    print(f"fetching {package.name} {package.version}")
    command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    packed = subprocess.run(command, cwd=scratch, check=True, capture_output=True, text=True)
    archive = scratch / packed.stdout.split()[-1]
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package.integrity:
        sys.exit(f"{package.name} {package.version} is {digest}, but {package.integrity} is pinned: a new version?")
    contents: dict[str, bytes] = {}
    with tarfile.open(archive) as files:
        for target, source in package.files.items():
            member = files.extractfile(f"package/{source}")
            if member is None:
                sys.exit(f"{package.name} {package.version} has no {source}: look for its new place")
            contents[target] = adapt(target, member.read())
    return contents


def adapt(name: str, content: bytes) -> bytes:
    """Returns a file as the page can load it."""
    if not name.endswith(".js"):
        return content
    text = SOURCE_MAP.sub("\n", content.decode())
    return IMPORTS.sub(lambda match: f'from"./{match[1]}.js"', text).encode()


def readme(contents: Mapping[str, bytes]) -> str:
    """Returns the table of what is vendored."""
    rows = [
        f"| {package.name} | {package.version} | {package.purpose} | {package.licence} "
        f"| `{file}` | `{hashlib.sha256(contents[file]).hexdigest()}` |"
        for package in PACKAGES
        for file in package.files
    ]
    return HEAD + "\n".join(rows) + "\n"


def problems() -> list[str]:
    """Return the differences between the vendored files, their table and the versions above."""
    names = [file for package in PACKAGES for file in package.files]
    present = {path.name for path in VENDOR.iterdir()} - {README.name}
    differences = [f"{name} is missing" for name in names if name not in present]
    differences += [f"{name} belongs to no package" for name in sorted(present.difference(names))]
    if not differences and README.read_text() != readme({name: (VENDOR / name).read_bytes() for name in names}):
        differences.append("README.md names another version or sha256 than the files have")
    return differences


def write() -> None:
    """Replaces the vendored files, after all of them were fetched."""
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            contents |= fetch(package, Path(scratch))
    VENDOR.mkdir(exist_ok=True)
    for path in VENDOR.iterdir():
        path.unlink()
    for name, content in contents.items():
        (VENDOR / name).write_bytes(content)
    README.write_text(readme(contents))


def main() -> None:
    """Fetches, or compares with `--check`."""
    parser = argparse.ArgumentParser(description="Fetches the libraries of the status page.")
    parser.add_argument("--check", action="store_true", help="only compare the files with vendor/README.md")
    if not parser.parse_args().check:
        write()
    elif differences := problems():
        sys.exit(f"static/vendor: {'; '.join(differences)}; {ADVICE}")


if __name__ == "__main__":
    main()
