"""Which parts of the distributions may import which others: the folders stand on each other, and never in a ring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SPARK = {
    "errors": set[str](),
    "columns": set[str](),
    "settings": set[str](),
    "checkpoint": {"errors"},
    "sources": {"checkpoint", "errors"},
    "complete": {"checkpoint", "errors", "sources"},
    "track": {"checkpoint", "columns", "complete", "errors", "settings", "sources"},
    "drive": {"checkpoint", "columns", "errors", "settings", "sources", "track", "workers"},
    "tracked": set[str](),
    "attach": {"errors", "settings", "tracked"},
    "sidecar": {"checkpoint", "errors", "settings", "sources", "track"},
    "doctor": {"checkpoint", "drive", "errors", "settings", "sidecar", "sources", "track", "tracked"},
    "command": {"doctor", "sidecar"},
    "stages": {"checkpoint", "columns", "drive", "errors", "settings", "sources", "track", "tracked"},
    "notebook": {"attach", "stages", "track"},
    "prometheus": {"attach", "track"},
    "workers": {"errors"},
}
"""Every part but the front: a new one gets its place here."""

TRACK: Mapping[str, set[str]] = {
    "inputs": set(),
    "facts": {"inputs"},
    "plan": set(),
    "rows": {"plan"},
    "segments": set(),
    "state": {"facts", "rows", "segments"},
    "output": {"facts", "state"},
    "run": {"facts", "inputs", "output", "plan", "rows", "segments", "state"},
    "query": {"plan", "run"},
}
"""The rooms of `track/`, the modules that they share, and the one that others enter it by."""

PIPELINE: Mapping[str, set[str]] = {
    "command": {"dedup", "graph_command"},
    "computation": {"dedup"},
    "dedup": set(),
    "graph": {"computation"},
    "graph_command": {"graph"},
    "guard": set(),
}
"""The same: what runs beside what else is in a folder of its own, which stands on no other; but a pipeline is made of computations, and these drop copies."""

ALLOWED: Mapping[str, Mapping[str, set[str]]] = {
    "spark_listener/src/lowwater_spark": SPARK,
    "spark_listener/src/lowwater_spark/track": TRACK,
    "authority/src/lowwater_authority": {
        "records": set(),
        "core": {"records"},
        "journal": set(),
        "engine": {"core", "journal", "records"},
        "files": set(),
        "promises": {"files"},
        "access": {"core", "files"},
        "cluster": {"core", "engine", "journal", "records"},
        "rpc": {"access", "cluster", "core", "engine", "journal", "promises", "regions"},
        "ops": {"access", "core", "engine", "promises", "rpc"},
        "authority": {"access", "cluster", "engine", "journal", "promises", "rpc"},
        "page_child": {"access", "cluster"},
    },
    "pipeline/src/lowwater_pipeline": PIPELINE,
    "regions/src/lowwater_regions": {
        "reference": set(),
        "change": {"records", "reference"},
        "json_records": {"change", "reference"},
        "references": {"change", "json_records", "reference"},
        "registry": {"change", "json_records", "reference", "references"},
        "figures": {"reference", "registry"},
        "servicer": {"change", "json_records", "reference", "references", "registry"},
        "config": {"reference"},
        "agent": {"config", "reference"},
        "questions": {"agent", "reference"},
    },
    "client/src/lowwater": {
        "core": {"v1", "errors", "histogram", "layout", "views", "watermark"},
        "_drive": {"core", "errors"},
        "notebook": {"core", "views", "watermark"},
        "histogram": {"watermark"},
        "layout": {"errors"},
        "views": {"watermark"},
        "watermark": set(),
        "errors": set(),
    },
}
"""The other parts of its package that each part may import. The pure parts import nothing that waits, stores or sends."""


def parts(package: Path) -> set[str]:
    return {entry.stem for entry in package.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()}


def names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports by a relative name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def imported(package: Path, part: str) -> Iterator[tuple[str, str]]:
    prefix = ".".join((*package.parts[package.parts.index("src") + 1 :], ""))
    files = [package / f"{part}.py"] if (package / f"{part}.py").exists() else (package / part).rglob("*.py")
    for file in sorted(files):
        for name in names(file):
            if f"{name}.".startswith(prefix):
                yield f"{file.relative_to(ROOT)}: {name}", f"{name}.".removeprefix(prefix).split(".")[0]


@pytest.mark.parametrize(
    ("package", "part"), [(package, part) for package, allowed in ALLOWED.items() for part in allowed]
)
def test_a_part_imports_only_what_it_stands_on(package: str, part: str) -> None:
    allowed = ALLOWED[package][part] | {part}
    assert [place for place, name in imported(ROOT / package, part) if name not in allowed] == []


@pytest.mark.parametrize(("folder", "places"), [(".", SPARK), ("track", TRACK)])
def test_every_part_of_the_spark_package_has_its_place(folder: str, places: Mapping[str, set[str]]) -> None:
    assert parts(ROOT / "spark_listener/src/lowwater_spark" / folder) == places.keys() | {"__init__"}


def test_every_part_of_the_pipeline_package_has_its_place() -> None:
    assert parts(ROOT / "pipeline/src/lowwater_pipeline") == PIPELINE.keys() | {"__init__", "__main__"}


def test_no_distribution_imports_a_private_name_of_another() -> None:
    """An underscored module may change without its users in other distributions, so it must not have any."""
    packages = [package for folder in ("*/src/*", "integrations/*/src/*") for package in ROOT.glob(folder)]
    assert {"lowwater", "lowwater_server", "lowwater_airflow"} <= {package.name for package in packages}
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for package in packages
        for file in sorted(package.rglob("*.py"))
        for name in names(file)
        if name.startswith("lowwater") and name.split(".")[0] != package.name and re.search(r"\._(?!_)", name)
    ]
    assert wrong == []


def test_nothing_stands_on_itself() -> None:
    for allowed in ALLOWED.values():
        assert tuple(TopologicalSorter(allowed).static_order())


def test_the_authority_needs_no_regions_and_regions_use_its_public_names() -> None:
    authority, regions = (sorted((ROOT / folder / "src").rglob("*.py")) for folder in ("authority", "regions"))
    assert [path for path in authority if "lowwater_regions" in path.read_text("utf-8")] == []
    private = re.compile(r"(from|import) lowwater_authority[^\n]*[. ]_\w")
    assert [path for path in regions if private.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("part", ["access", "cluster", "engine", "files", "journal", "ops", "rpc"])
def test_no_module_of_the_authority_stands_on_itself(part: str) -> None:
    folder = ROOT / "authority/src/lowwater_authority" / part
    graph = {module: {name for _, name in imported(folder, module) if name != module} for module in parts(folder)}
    assert tuple(TopologicalSorter(graph).static_order())
