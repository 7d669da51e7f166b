"""Build everything that a release hands out, in one folder, with checksums.

These are wheels, source archives, the chart, bills of materials, and the image where an engine is
installed. ``make dist`` runs it. The folder works as it is, or behind any web server: ``pip
install`` takes the wheels of ``packages/`` by their paths, ``helm install`` the chart, ``helm repo
add`` the folder ``charts/``. The packages for Airflow, Dagster and OpenLineage are apart, in
``integrations/``, because each of them brings the program that it is for. The same commit gives the
same bytes, except for the image: times are the commit's, and build tools are pinned by hash
(container/build.txt). A tree with changes is marked.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import yaml

from scripts.vendor_page import PACKAGES, Package

ROOT: Final = Path(__file__).parents[1]
DISTRIBUTIONS: Final = {
    "lowwater": "client",
    "lowwater-server": "server",
    "lowwater-authority": "authority",
    "lowwater-regions": "regions",
    "lowwater-page": "page",
    "lowwater-spark": "spark_listener",
    "lowwater-pipeline": "pipeline",
}
"""Folders of the distributions by name."""
INTEGRATIONS: Final = {
    "airflow-provider-lowwater": "integrations/airflow",
    "dagster-lowwater": "integrations/dagster",
    "openlineage-lowwater": "integrations/openlineage",
}
"""Folders of the distributions for other programs by name. They are outside of the workspace."""
_IMAGE: Final = ("lowwater-authority", "lowwater-page", "lowwater-regions")
_IMAGE_EXTRAS: Final = ("redis", "otel")
_CHART: Final = ROOT / "helm/lowwater"
ENGINES: Final = ("docker", "podman", "buildah")
MARKER: Final = ".lowwater-dist"
"""File that marks a folder as written, and so replaceable, by this command. Unlike SHA256SUMS, no
other tool writes it."""
_ZERO: Final = "urn:uuid:00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit that is built."""

    name: str
    """Full hash of the commit; "unknown" outside of a checkout."""
    epoch: int
    """Time of the commit in seconds since the Unix epoch."""
    changed: bool
    """True when the tree has uncommitted changes."""

    @classmethod
    def here(cls) -> Commit:
        """Return the commit that is checked out.

        Outside of a checkout times are those of ``SOURCE_DATE_EPOCH``, else of 1 January 1980, the
        first that a wheel can have.
        """
        try:
            name, epoch = _output("git", "log", "-1", "--format=%H %ct").split()
            changed = bool(_output("git", "status", "--porcelain"))
        except (OSError, subprocess.CalledProcessError):
            return cls("unknown", int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")), changed=False)
        return cls(name, int(epoch), changed)

    @property
    def time(self) -> str:
        """Time of the commit in the format of RFC 3339."""
        return datetime.fromtimestamp(self.epoch, UTC).isoformat().replace("+00:00", "Z")


def version() -> str:
    """Return the version that all distributions and the chart have (scripts/version.py)."""
    number: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lowwater"]["version"]
    return number


def packages(out: Path, commit: Commit) -> None:
    """Build source archives, their wheels, and an index page for installs over HTTP."""
    _build(out, commit, "--all-packages")


def integrations(out: Path, commit: Commit) -> None:
    """Build the same of the packages for other programs."""
    for folder in INTEGRATIONS.values():
        _build(out, commit, folder)


def _build(out: Path, commit: Commit, what: str) -> None:
    """Build what ``uv build`` takes as an argument, and write the index page anew."""
    out.mkdir(parents=True, exist_ok=True)
    constraints = ("--require-hashes", "--build-constraints", "container/build.txt")
    _run("uv", "build", "--quiet", what, "--out-dir", os.fspath(out), *constraints, epoch=commit.epoch)
    (out / ".gitignore").unlink(missing_ok=True)
    (out / "index.html").unlink(missing_ok=True)
    links = "".join(
        f'<a href="{escape(path.name)}#sha256={_digest(path)}">{escape(path.name)}</a><br>\n'
        for path in sorted(out.iterdir())
    )
    page = f"<!doctype html>\n<title>lowwater {version()}</title>\n{links}"
    (out / "index.html").write_text(page, encoding="utf-8")


def chart(out: Path, commit: Commit) -> None:
    """Pack the chart as helm does, with the commit's times, and write its repository's index."""
    out.mkdir(parents=True)
    _run("helm", "package", os.fspath(_CHART), "--destination", os.fspath(out))
    (packed,) = out.glob("*.tgz")
    packed.write_bytes(_with_times(packed.read_bytes(), commit.epoch))
    _run("helm", "repo", "index", os.fspath(out))
    index = yaml.safe_load((out / "index.yaml").read_text(encoding="utf-8"))
    index["generated"] = commit.time
    for entries in index["entries"].values():
        for entry in entries:
            entry["created"] = commit.time
    (out / "index.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")


def _with_times(packed: bytes, epoch: int) -> bytes:
    """Return a .tgz with the same files, sorted, with one time and without owners."""
    inner, files = io.BytesIO(), []
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            files.append((member.name, file.read() if file else b""))
    with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(inner.getvalue(), mtime=0)


def materials(out: Path, commit: Commit) -> None:
    """Write bills of materials (CycloneDX) of distributions with all extras, and of the image."""
    out.mkdir(parents=True)
    for name in DISTRIBUTIONS:
        vendored = PACKAGES if name == "lowwater-page" else ()
        _material(out / f"{name}.cdx.json", commit, vendored, "--package", name, "--all-extras")
    named = [part for name in _IMAGE for part in ("--package", name)]
    extras = [part for extra in _IMAGE_EXTRAS for part in ("--extra", extra)]
    _material(out / "image.cdx.json", commit, PACKAGES, *named, *extras)


def _material(path: Path, commit: Commit, vendored: Sequence[Package], *what: str) -> None:
    bill: dict[str, Any] = json.loads(
        _output(
            "uv", "export", "--quiet", "--frozen", "--preview", "--format", "cyclonedx1.5", "--no-default-groups", *what
        )
    )
    bill["components"] += [_component(package) for package in vendored]
    bill["metadata"]["timestamp"], bill["serialNumber"] = commit.time, _ZERO
    bill["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(bill, sort_keys=True)).urn
    path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def _component(package: Package) -> dict[str, Any]:
    """Return what a bill of materials says of a library of the status page."""
    purl = f"pkg:npm/{quote(package.name)}@{package.version}"
    algorithm, digest = package.integrity.split("-", 1)
    archive = {"alg": {"sha512": "SHA-512"}[algorithm], "content": b64decode(digest).hex()}
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "licenses": [{"license": {"id": package.licence}}],
        "externalReferences": [{"type": "distribution", "url": purl, "hashes": [archive]}],
    }


def answers(engine: str) -> bool:
    """Return whether an engine can build: docker needs its daemon, which may not run."""
    try:
        done = subprocess.run((engine, "info"), capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def image(out: Path, commit: Commit, engine: str, base: str | None) -> Path:
    """Build the image by an engine, and save it as an archive that ``docker load`` takes.

    Returns the archive.
    """
    out.mkdir(parents=True)
    tag = f"lowwater:{version()}"
    archive = out / f"lowwater-{version()}.tar"
    options = [*(["--build-arg", f"BASE={base}"] if base else []), "--build-arg", f"REVISION={commit.name}"]
    options += ["--build-arg", f"VERSION={version()}", "--file", "container/Dockerfile", "--tag", tag, "."]
    if engine == "buildah":
        # Docker's format: OCI's has no health check.
        _run("buildah", "build", "--format", "docker", *options)
        _run("buildah", "push", "--quiet", tag, f"docker-archive:{archive}:{tag}")
    else:
        _run(engine, "build", *(["--format", "docker"] if engine == "podman" else []), *options)
        _run(engine, "save", "--output", os.fspath(archive), tag)
    return archive


def sums(out: Path) -> None:
    """Write SHA256SUMS over all files, as ``sha256sum --check`` reads it."""
    lines = [f"{_digest(path)}  {path.relative_to(out).as_posix()}\n" for path in _files(out)]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _files(out: Path) -> Iterator[Path]:
    own = {out / "SHA256SUMS", out / MARKER}
    yield from sorted(path for path in out.rglob("*") if path.is_file() and path not in own)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(out: Path) -> str:
    sizes = [path.stat().st_size for path in _files(out)]
    return f"{len(sizes)} files of {sum(sizes) / 1e6:.1f} MB"


STEPS: Final = (
    ("packages", packages, "takes about half a minute: wheels and source archives"),
    ("integrations", integrations, "takes some seconds: the packages for Airflow, Dagster and OpenLineage"),
    ("charts", chart, "takes some seconds: the Helm chart"),
    ("sbom", materials, "takes some seconds: bills of materials"),
)
"""Folder, function and cost of each step but the image."""


def _run(*command: str, epoch: int | None = None) -> None:
    times = {} if epoch is None else {"SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | times,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        msg = f"dist: {' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
        raise SystemExit(msg)


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Build everything; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="make dist", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        help="where to; what an earlier run left there is replaced (default: dist)",
    )
    parser.add_argument(
        "--engine",
        choices=(*ENGINES, "none"),
        help="what builds the image (default: the first of these that is installed and answers)",
    )
    parser.add_argument(
        "--base", help="another base image than the Dockerfile's, for example one of your registry, with its digest"
    )
    args = parser.parse_args(arguments)
    out: Path = args.out.absolute()
    commit = Commit.here()
    engines = [args.engine] if args.engine else [name for name in ENGINES if shutil.which(name)]
    if out.is_symlink() or (
        out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARKER).is_file()))
    ):
        parser.error(f"--out: {out} is there, and is no folder with a {MARKER} of an earlier run; name another folder")
    print(f"dist: lowwater {version()}, commit {commit.name[:12]}, into {out}", flush=True)
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).touch()  # first, so that the next run may replace what an interrupted one leaves
    if commit.changed:
        print(
            "dist: the tree has changes that are not committed; what is built is not what the commit says",
            file=sys.stderr,
        )
    for name, step, cost in STEPS:
        print(f"dist: {name}/ {cost}", flush=True)
        step(out / name, commit)
        print(f"dist: {name}/ has {_size(out / name)}", flush=True)
    sums(out)  # counts also when the image fails
    engine = next(filter(answers, engines), "")
    if engine:
        print(f"dist: image/ takes minutes, by {engine}; --engine none leaves it out", flush=True)
        image(out / "image", commit, engine, args.base)
        print(f"dist: image/ has {_size(out / 'image')}", flush=True)
        sums(out)
    elif engines and engines != ["none"]:
        which = " and ".join(engines)
        print(f"dist: no image: {which} cannot be reached; start one, or pass --engine none", file=sys.stderr)
        if args.engine:
            return 1
    else:
        print("dist: no image: install docker, podman or buildah (docs/operate/operations.md)", file=sys.stderr)
    print(f"dist: {out}: {_size(out)}, checksums in SHA256SUMS")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
