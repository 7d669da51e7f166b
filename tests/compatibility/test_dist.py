"""`make dist` builds the same files again, complete, and enough for a machine that has nothing else of the project."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import dist
from tests.compatibility.environments import ROOT, clean_environ, uv
from tests.kit.program import run_program

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist") / "dist"
    assert dist.main(["--out", str(out), "--engine", "none"]) == 0
    return out


def members(path: Path) -> Iterator[str]:
    if path.suffix == ".whl":
        yield from zipfile.ZipFile(path).namelist()
    else:
        with tarfile.open(path) as archive:
            yield from archive.getnames()


def test_each_distribution_is_there_as_wheel_and_source_with_its_licence(built: Path) -> None:
    version = dist.version()
    folders = dict.fromkeys(dist.DISTRIBUTIONS, "packages") | dict.fromkeys(dist.INTEGRATIONS, "integrations")
    for name, folder in folders.items():
        stem = f"{folder}/{name.replace('-', '_')}-{version}"
        for path in (built / f"{stem}-py3-none-any.whl", built / f"{stem}.tar.gz"):
            assert any(member.endswith("/LICENSE") for member in members(path)), path


def test_the_checksums_are_those_of_all_files(built: Path) -> None:
    lines = [line.split("  ") for line in (built / "SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    digests = {
        path.relative_to(built).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in built.rglob("*")
        if path.is_file() and path.name not in {"SHA256SUMS", dist.MARKER}
    }
    assert listed == digests


def test_helm_takes_the_chart_and_its_index(built: Path) -> None:
    (chart,) = (built / "charts").glob("*.tgz")
    rendered = subprocess.run(
        ["helm", "template", "lowwater", chart, "--set", "image.repository=r.example/lowwater"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "kind: StatefulSet" in rendered
    (entry,) = yaml.safe_load((built / "charts/index.yaml").read_text())["entries"]["lowwater"]
    assert entry["digest"] == hashlib.sha256(chart.read_bytes()).hexdigest()
    assert entry["urls"] == [chart.name]


def test_a_bill_of_materials_names_what_is_needed_with_hashes(built: Path) -> None:
    parts: dict[str, dict[str, Any]] = {}
    for name in (*dist.DISTRIBUTIONS, "image"):
        bill = json.loads((built / f"sbom/{name}.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        parts = {component["name"]: component for component in bill["components"]}
        assert parts["grpcio"]["version"]
        hashed = [one for one in parts["grpcio"]["externalReferences"] if one.get("hashes")]
        assert hashed, name
        assert ("preact" in parts) == (name in {"lowwater-page", "image"}), name
    assert "redis" in parts, "of the image, with its extras"
    assert "pyspark" not in parts


def test_the_lines_of_readme_install_from_the_folder_alone(built: Path, tmp_path: Path) -> None:
    """As pasted, but for `make dist`, which was done. No index is asked for our names."""
    install, demo, *_ = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert (install.splitlines()[0], demo) == ("make dist", "lowwater demo\n")
    (tmp_path / "Makefile").write_text("dist:\n")
    (tmp_path / "dist").symlink_to(built)
    environ = {**clean_environ(), "PIP_LOG": str(tmp_path / "pip.log")}
    command = ["bash", "-c", f"set -e\n{install}exec {demo}"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert "to type in another terminal:\n" in iter(shell.stdout.readline, "")
        shell.terminate()
        assert shell.wait(60) == 0
    asked = re.findall(r"location\(s\) to search for versions of ([\w-]+)", (tmp_path / "pip.log").read_text("utf-8"))
    assert "grpcio" in asked
    assert not [name for name in asked if "lowwater" in name]
    versions = _versions(str(tmp_path / "venv/bin/python"))
    assert {name: versions.get(name) for name in dist.DISTRIBUTIONS} == dict.fromkeys(
        dist.DISTRIBUTIONS, dist.version()
    )
    for script in ("lowwater-page", "lowwater-spark", "lowwater-pipeline"):
        done = run_program([tmp_path / "venv/bin" / script, "--help"], env=clean_environ())
        assert (done.returncode, done.stderr) == (0, ""), script


def _versions(python: str) -> dict[str, str]:
    lines = uv("pip", "list", "--python", python, "--format", "freeze").splitlines()
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "SHA256SUMS").write_text("mine")
    with pytest.raises(SystemExit):
        dist.main(["--out", str(tmp_path)])
    assert "--out" in capsys.readouterr().err
    assert (tmp_path / "SHA256SUMS").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    for folder in (tmp_path / "link", tmp_path / "SHA256SUMS"):
        with pytest.raises(SystemExit):
            dist.main(["--out", str(folder)])
        assert "--out" in capsys.readouterr().err


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    assert dist.main(["--out", str(tmp_path / "dist"), "--engine", "none"]) == 0
    assert (tmp_path / "dist/SHA256SUMS").read_text() == (built / "SHA256SUMS").read_text()
