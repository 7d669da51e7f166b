"""The values: all in the schema, all explained, and the versions those of the project."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowwater_authority import serve
from lowwater_authority.access.policy import LIMITS
from lowwater_authority.core import batches, topology
from lowwater_authority.rpc import streams
from scripts import document_values
from scripts.tables import filled
from tests.chart.rendering import CHART, ROOT, SETS, parsed, rendered

VALUES = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def explained() -> set[str]:
    """The paths of all values in values.yaml."""
    return {each.path for each in document_values.values(VALUES)}


def in_the_schema(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of all properties; raises for a mapping of named values that takes others too."""
    node = SCHEMA["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    if "properties" not in node:
        yield prefix
        return
    assert node.get("additionalProperties") is False, f"{prefix or 'the top'} is open"
    for name, each in node["properties"].items():
        yield from in_the_schema(each, f"{prefix}.{name}" if prefix else name)


def test_the_schema_is_closed_and_has_exactly_the_values() -> None:
    documented = explained()
    # What is one value in the table, and two mappings in the schema.
    known = {re.sub(r"(?<=resources)[.]\w+$", "", path) for path in in_the_schema(SCHEMA)}
    assert known - documented == {"global", "enabled"}, (
        "a chart that has this one as a part gives these; all others stand in values.yaml"
    )
    assert documented <= known


def test_rule7_the_memory_that_clients_can_make_a_process_hold_is_below_its_limit() -> None:
    """The bounds of docs/operations.md; a quarter of the limit is left for the process itself and the key ranges of a small deployment."""
    bounds = (
        batches.ALL_PART_BYTES,
        streams.ALL_BYTES,
        streams.UNREAD_BYTES,
        streams.WATCHED_BYTES,
        topology.TOMBSTONE_BYTES,
        serve.PENDING_CALLS * 16_384,
    )
    limit = yaml.safe_load(VALUES)["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert sum(bounds) <= 0.75 * (int(limit.removesuffix("Gi")) << 30)


def test_the_limits_are_those_of_the_server() -> None:
    assert tuple(SCHEMA["properties"]["limits"]["propertyNames"]["enum"]) == LIMITS


def test_no_value_can_be_taken_away() -> None:
    """One that is null is none: a template would stop with where it is, or leave out what it guards."""

    def closed(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            if node.get("additionalProperties") is False:
                yield node
            for each in node.values():
                yield from closed(each)

    for node in closed(SCHEMA):
        optional = node["properties"].keys() - set(node.get("required", []))
        # What a parent chart gives, a pod without limits, and what nobody promised.
        promise = {"late", "owner", "team", "runbook", "logs"}
        assert optional in (set(), {"global", "enabled"}, {"requests", "limits"}, promise)


def test_the_table_of_values_is_as_it_would_be_written() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "scripts.document_values", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr


def test_another_default_makes_the_table_stale() -> None:
    page = (ROOT / "docs/helm.md").read_text()
    other = VALUES.replace("replicaCount: 1", "replicaCount: 2")
    assert filled(page, {"values": document_values.table(VALUES)}) == page
    assert filled(page, {"values": document_values.table(other)}) != page


def test_a_value_that_nobody_explained_is_refused() -> None:
    with pytest.raises(ValueError, match=r"line 3: a\.c has no comment"):
        list(document_values.values("a:\n\n  c: 1\n"))


def test_the_sets_between_them_set_what_there_is() -> None:
    """A value that no set sets is rendered in one way only, and its template may be wrong unseen."""

    def below(node: Any, prefix: str = "") -> Iterator[str]:
        yield prefix
        if isinstance(node, dict):
            for name, each in node.items():
                yield from below(each, f"{prefix}.{name}" if prefix else name)

    tried = {path for source in SETS.values() for path in below(yaml.safe_load(source.read_text()))}
    assert explained() <= tried


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("lowwater-authority")


@pytest.mark.parametrize("enabled", [True, False])
def test_another_chart_may_have_it_as_a_part(tmp_path: Path, enabled: bool) -> None:
    """Helm hands a part all values below its name, and so the condition by which it is one."""
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    part = {"name": "lowwater", "version": version("lowwater-authority"), "condition": "lowwater.enabled"}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump({**parent, "dependencies": [part]}))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"lowwater": {"enabled": enabled, "logFormat": "text"}}))
    shutil.copytree(CHART, tmp_path / "charts/lowwater")
    found = parsed(rendered(chart=tmp_path))
    assert [each["metadata"]["name"] for each in found if each["kind"] == "StatefulSet"] == ["lw-lowwater"] * enabled


NOTES = {
    "default": ("helm test lw -n prod", "http://localhost:7422", "everybody who reaches port 7420"),
    "off": ("WARNING: persistence.enabled is false", "lost with the pod"),
    "redis": ("3 shard(s) over Redis",),
    "secured": ("https://localhost:7422", "(TLS; the client trusts ca.crt of the Secret lowwater-tls)"),
    "access-secret": ("kubectl -n prod logs statefulset/lw-lowwater", "tokens cross the network in clear text"),
}


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with its notes as an object: without a cluster helm shows no notes."""
    chart = shutil.copytree(CHART, tmp_path_factory.mktemp("noting") / "lowwater")
    shutil.move(chart / "templates/NOTES.txt", chart / "notes.txt")
    (chart / "templates/notes.yaml").write_text(
        '{kind: Notes, metadata: {name: x}, text: {{ tpl (.Files.Get "notes.txt") . | toJson }}}'
    )
    return chart


@pytest.mark.parametrize("name", NOTES)
def test_the_notes_say_what_is_next(name: str, noting: Path) -> None:
    [found] = parsed(rendered("--show-only", "templates/notes.yaml", "--values", SETS[name], chart=noting))
    for words in (*NOTES[name], "lw-lowwater.prod.svc:7420", "rollout status statefulset/lw-lowwater"):
        assert words in found["text"]
    assert ("WARNING" in found["text"]) == (name == "off")
