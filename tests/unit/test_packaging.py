"""The built distributions hold and need what they should."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from scripts.jars import SETS
from tests.compatibility.environments import ROOT, UV
from tests.kit.program import run_program

MEMBERS = {
    "client": "lowwater",
    "server": "lowwater_server",
    "authority": "lowwater_authority",
    "regions": "lowwater_regions",
    "page": "lowwater_page",
    "spark_listener": "lowwater_spark",
    "pipeline": "lowwater_pipeline",
}

INTEGRATIONS = ("airflow", "dagster", "openlineage")

DATA = {"client": {".bash", ".zsh", ".fish"}, "page": {".html", ".js", ".css", ".svg", ".md", ".LICENSE"}}
"""The other files in a package: the completion scripts of the command, and the status page with the libraries it uses."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all wheels and all source archives."""
    folder = tmp_path_factory.mktemp("dist")
    done = run_program([UV, "build", "--quiet", "--all-packages", "--out-dir", str(folder)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def wheel(built: Path, package: str) -> zipfile.ZipFile:
    (path,) = built.glob(f"{package}-*.whl")
    return zipfile.ZipFile(path)


def metadata(built: Path, package: str) -> Message:
    with wheel(built, package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def requirements(built: Path, package: str) -> set[str]:
    lines = metadata(built, package).get_all("Requires-Dist") or []
    return {re.split(r"[^\w-]", line)[0] for line in lines if "extra ==" not in line}


@pytest.mark.parametrize("package", MEMBERS.values())
def test_a_wheel_holds_its_package_and_nothing_else(built: Path, package: str) -> None:
    """But for the module that the script of the client begins with, before it imports the package."""
    with wheel(built, package) as archive:
        names = archive.namelist()
    assert f"{package}/__init__.py" in names
    assert f"{package}/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} - {"lowwater_command.py"} == {package}
    licenses = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    contained = {name.rpartition("/")[2] for name in names if name.endswith(".LICENSE")}
    assert licenses == {"LICENSE"} | contained
    assert not [name for name in names if re.search(r"(^|/)(tests?/|test_|conftest)|\.(pyc|proto)$", name)]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_wheel_holds_what_its_source_folder_holds(built: Path, member: str) -> None:
    """No module is forgotten, and nothing lies there that is no part of the package."""
    source = ROOT / member / "src"
    sources = {
        path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    with wheel(built, MEMBERS[member]) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == sources
    assert {Path(name).suffix for name in sources} - DATA.get(member, set()) == {".py", ".pyi", ".typed"} - (
        {".pyi"} if member in {"page", "pipeline", "server", "spark_listener"} else set()
    )


def test_the_client_needs_only_the_transport(built: Path) -> None:
    assert requirements(built, "lowwater") == {"grpcio", "protobuf"}


def test_the_pipeline_needs_the_client_and_no_authority_or_spark(built: Path) -> None:
    assert requirements(built, "lowwater_pipeline") == {
        *("lowwater", "confluent-kafka", "numpy", "prometheus-client", "rocksdict")
    }


def test_versions_move_in_lock_step(built: Path) -> None:
    (version,) = {metadata(built, package)["Version"] for package in MEMBERS.values()}
    for package in set(MEMBERS.values()) - {"lowwater"}:
        assert f"lowwater=={version}" in (metadata(built, package).get_all("Requires-Dist") or [])


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_an_integration_goes_with_the_client_of_its_version(name: str) -> None:
    folder = ROOT / "integrations" / name
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]["version"]
    assert (project["version"], f"lowwater=={version}" in project["dependencies"]) == (version, True)
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert not re.search(r"https?://|file:", (folder / "requirements.txt").read_text()), "only the public index"


def test_the_lock_names_only_the_public_index() -> None:
    lock = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"https?://([^/\"]+)", lock)) == {"pypi.org", "files.pythonhosted.org"}


def test_the_lock_covers_every_member_at_its_version() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert {package.replace("_", "-") for package in MEMBERS.values()} <= set(lock["manifest"]["members"])
    locked = {package["name"]: package["version"] for package in lock["package"]}
    for member, package in MEMBERS.items():
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
        assert locked[package.replace("_", "-")] == project["version"]


def test_readme_names_the_pyspark_that_is_tested() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (tested,) = (package["version"] for package in packages if package["name"] == "pyspark")
    assert re.findall(r"pyspark\[sql\]==([\w.]+)", (ROOT / "README.md").read_text()) == [tested]


def test_pages_name_the_connectors_that_are_tested() -> None:
    tested = {artifact for artifacts in SETS.values() for artifact in artifacts}
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = set(re.findall(r"\b(?:org\.apache|io\.delta)[\w.]*:[\w.-]+:\d[\d.]*\d", pages))
    assert len(named) >= 3
    assert named <= tested


def test_the_version_is_newer_than_every_release() -> None:
    """A release keeps its contract and its wheels; the next one must not be taken for it."""
    version = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]["version"]
    released = [path.stem for path in (ROOT / "proto/released").glob("*.binpb")]
    newest = max(tuple(map(int, version.split("."))) for version in released)
    assert tuple(map(int, version.split("."))) > newest


SHELLS = "client/src/lowwater"

TREES = ("client/src/lowwater/v1", "authority/src/lowwater_authority/records", "regions/src/lowwater_regions/records")


def modules() -> list[str]:
    names = []
    for tree in TREES:
        source = (ROOT / tree).parent.parent
        names += [".".join(path.relative_to(source).with_suffix("").parts) for path in (ROOT / tree).rglob("*_pb2*.py")]
    return sorted(names)


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run_program(command, cwd=cwd)


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return run(UV, "run", "--quiet", "--script", str(root / "scripts/generate_protos.py"), "--check", cwd=root)


def test_the_committed_code_is_what_the_generator_writes() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


def test_it_imports_without_a_warning() -> None:
    done = run(sys.executable, "-W", "error", "-c", f"import {', '.join(modules())}")
    assert done.returncode == 0, done.stderr


def generate_sync(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "scripts.generate_sync", *arguments, cwd=root)


def test_the_committed_client_on_threads_is_what_the_generator_writes() -> None:
    done = generate_sync(ROOT, "--check")
    assert done.returncode == 0, done.stderr


def test_nothing_of_asyncio_is_left_in_the_client_on_threads() -> None:
    for path in sorted((ROOT / SHELLS / "_sync").glob("*.py")):
        first, _, rest = path.read_text("utf-8").partition("\n")
        assert first.endswith(f"from _async/{path.name}: change that one.")
        assert not re.search(r"(?i)async|await|cancelled|event loop", rest), path
