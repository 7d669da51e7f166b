"""Every set of values: helm's linter, Kubernetes' own schemas, and the manifest as a reviewer last saw it."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.chart.crds import SCHEMAS
from tests.chart.rendering import CHART, SETS, by_key, documents, helm

FLOOR = "1.27"
"""The first Kubernetes that the chart installs on."""


def valid(document: dict[str, Any], version: str) -> None:
    schema = SCHEMAS.get(document["kind"])
    if schema is not None:
        jsonschema.Draft202012Validator(schema).validate(document)
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_the_linter_has_nothing_to_say(name: str) -> None:
    result = helm("lint", "--strict", CHART, "--values", SETS[name])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_has_every_field(name: str) -> None:
    for document in by_key(documents(name)).values():
        for version in (FLOOR, kubernetes_validate.latest_version()):
            valid(document, version)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("StatefulSet", ("spec", "template", "spec", "containers", 0, "readynessProbe"), {"grpc": {"port": 7420}}),
        ("ServiceMonitor", ("spec", "endpoints", 0, "tlsConfig", "caFile"), "/ca.crt"),
    ],
)
def test_a_misspelt_field_is_found(kind: str, path: tuple[str | int, ...], value: object) -> None:
    [document] = [each for each in yaml.safe_load_all(yaml.safe_dump_all(documents("secured"))) if each["kind"] == kind]
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        valid(document, FLOOR)


@pytest.mark.parametrize("name", ["default", "everything", "regions"])
def test_the_manifest_is_as_it_was_reviewed(name: str, manifest: SnapshotAssertion) -> None:
    shown = []
    for document in documents(name):
        if document["kind"] in {"ConfigMap", "PrometheusRule"}:
            # Generated, and compared with what they are copies of in test_objects.py.
            document = {part: document[part] for part in ("apiVersion", "kind", "metadata")}
        shown.append(document)
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert manifest == yaml.safe_dump_all(shown, sort_keys=False, width=120).replace(version, "VERSION")


def test_the_package_has_what_an_installation_needs(tmp_path: Path) -> None:
    result = helm("package", CHART, "--destination", tmp_path)
    assert result.returncode == 0, result.stderr
    [package] = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        packed = {Path(name).relative_to("lowwater").as_posix() for name in archive.getnames()}
    files = {path.relative_to(CHART).as_posix() for path in CHART.rglob("*") if path.is_file()}
    assert packed == {name for name in files if not name.startswith("ci/")}
    # A release, chart and all, is kept in one Secret of at most 1 MiB.
    assert package.stat().st_size < 200_000
    assert helm("template", "lw", package).returncode == 0
