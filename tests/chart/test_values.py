"""The values: all in the schema, all explained, and the versions those of the project."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowwater_authority import serve
from lowwater_authority.access.policy import LIMITS
from lowwater_authority.core import batches, topology
from lowwater_authority.rpc import rooms, streams
from scripts import document_values
from tests.chart.rendering import CHART, SETS, parsed, rendered

VALUES = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def explained() -> set[str]:
    return {document_value.path for document_value in document_values.values(VALUES)}


def in_the_schema(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of all properties; raises for a mapping of named values that takes others too."""
    node = SCHEMA["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    if "properties" not in node:
        yield prefix
        return
    assert node.get("additionalProperties") is False, f"{prefix or 'the top'} is open"
    for name, property_ in node["properties"].items():
        yield from in_the_schema(property_, f"{prefix}.{name}" if prefix else name)


def test_the_schema_is_closed_and_has_exactly_the_values() -> None:
    documented = explained()
    # What is one value in the table, and two mappings in the schema.
    listed = {re.sub(r"(?<=resources)[.]\w+$", "", path) for path in in_the_schema(SCHEMA)}
    assert listed - documented == {"global", "enabled"}, "a chart that has this one as a part gives these"
    assert documented <= listed


def test_rule7_the_memory_that_clients_can_make_a_process_hold_is_below_its_limit() -> None:
    bounds = (
        batches.ALL_PART_BYTES,
        streams.ALL_BYTES,
        streams.UNREAD_BYTES,
        rooms.WATCHED_BYTES,
        topology.TOMBSTONE_BYTES,
        serve.PENDING_CALLS * 16_384,
    )
    limit = yaml.safe_load(VALUES)["resources"]["limits"]["memory"]
    assert limit.endswith("Gi")
    assert sum(bounds) <= 0.75 * (int(limit.removesuffix("Gi")) << 30)


def test_the_limits_are_those_of_the_server() -> None:
    assert tuple(SCHEMA["properties"]["limits"]["propertyNames"]["enum"]) == LIMITS


def test_the_sets_between_them_set_what_there_is() -> None:

    def below(node: Any, prefix: str = "") -> Iterator[str]:
        yield prefix
        if isinstance(node, dict):
            for name, value in node.items():
                yield from below(value, f"{prefix}.{name}" if prefix else name)

    tried = {path for source in SETS.values() for path in below(yaml.safe_load(source.read_text()))}
    assert explained() <= tried


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("lowwater-authority")


@pytest.mark.parametrize("enabled", [True, False])
def test_another_chart_may_have_it_as_a_part(tmp_path: Path, enabled: bool) -> None:
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0"}
    part = {"name": "lowwater", "version": version("lowwater-authority"), "condition": "lowwater.enabled"}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump({**parent, "dependencies": [part]}))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"lowwater": {"enabled": enabled, "logFormat": "text"}}))
    shutil.copytree(CHART, tmp_path / "charts/lowwater")
    items = parsed(rendered(chart=tmp_path))
    assert [item["metadata"]["name"] for item in items if item["kind"] == "StatefulSet"] == ["lw-lowwater"] * enabled
