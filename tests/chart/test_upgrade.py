"""An upgrade from one set of values to another changes what it should, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.chart.rendering import CHART, SETS, changes, parsed, rendered, stateful_set

STATEFUL_SET = "StatefulSet/lw-lowwater"
TEMPLATE = f"{STATEFUL_SET} spec.template"
POD = f"{TEMPLATE}.spec"

REDIS = ["redis.url=redis://:old@redis:6379", "replicaCount=2"]
SECURED = [*REDIS, "peerToken.existingSecret=peers", "page.tokenSecret.name=board"]

UPGRADES: dict[str, tuple[list[str], list[str], set[str]]] = {
    "more shards": (REDIS, [*REDIS, "replicaCount=5"], {f"{STATEFUL_SET} spec.replicas"}),
    "another password of Redis restarts the shards": (
        REDIS,
        ["redis.url=redis://:new@redis:6379", "replicaCount=2"],
        {"Secret/lw-lowwater-redis data.url", f"{TEMPLATE}.metadata.annotations.checksum/redis"},
    ),
    "another principal restarts nothing": (
        [*SECURED, "access.config=one"],
        [*SECURED, "access.config=two"],
        {"Secret/lw-lowwater-access data.access.toml"},
    ),
    "monitoring restarts nothing": (
        [],
        ["serviceMonitor.enabled=true", "prometheusRule.enabled=true", "dashboards.enabled=true"],
        {
            "+ ServiceMonitor/lw-lowwater",
            "+ PrometheusRule/lw-lowwater-alerts",
            "+ PrometheusRule/lw-lowwater-recording",
            "+ ConfigMap/lw-lowwater-dashboard-authority",
            "+ ConfigMap/lw-lowwater-dashboard-dedup",
            "+ ConfigMap/lw-lowwater-dashboard-lag",
            "+ ConfigMap/lw-lowwater-dashboard-promises",
            "+ ConfigMap/lw-lowwater-dashboard-workloads",
        },
    ),
    "from a file to Redis": (
        [],
        REDIS,
        {
            # Kept all the same: it has the annotation.
            "- PersistentVolumeClaim/lw-lowwater-data",
            "+ Secret/lw-lowwater-redis",
            "+ PodDisruptionBudget/lw-lowwater",
            f"{STATEFUL_SET} spec.replicas",
            f"{STATEFUL_SET} spec.minReadySeconds",
            f"{TEMPLATE}.metadata.annotations",
            f"{POD}.containers",
            f"{POD}.topologySpreadConstraints",
            f"{POD}.volumes",
        },
    ),
}


@pytest.mark.parametrize("case", UPGRADES)
def test_an_upgrade_changes_only_what_it_should(case: str) -> None:
    before, after, expected = UPGRADES[case]
    old, new = (parsed(rendered(*(part for text in values for part in ("--set", text)))) for values in (before, after))
    assert changes(old, new) == expected


@pytest.mark.parametrize("name", sorted(set(SETS) - {"everything"}))
def test_no_upgrade_changes_what_cannot_be_changed(name: str) -> None:
    may = {"replicas", "minReadySeconds", "template", "updateStrategy"}
    old, new = (
        {part: item for part, item in stateful_set(one)["spec"].items() if part not in may} for one in ("default", name)
    )
    assert new == old
    assert old.keys() == {"serviceName", "podManagementPolicy", "selector"}


def test_a_new_version_of_the_chart_with_the_same_image_restarts_nothing(tmp_path: Path) -> None:
    newer = shutil.copytree(CHART, tmp_path / "lowwater")
    text = (newer / "Chart.yaml").read_text()
    version = text.split("version: ")[1].split()[0]
    (newer / "Chart.yaml").write_text(text.replace(f"version: {version}", "version: 9.9.9"))
    values = ("--values", SETS["redis"], "--set", "image.tag=pinned")
    differences = changes(parsed(rendered(*values)), parsed(rendered(*values, chart=newer)))
    assert differences, "the chart's version is in the labels"
    # The checksum is of the URL alone, not of the labels around it.
    assert {difference.split()[1] for difference in differences} == {"metadata.labels.helm.sh/chart"}


def test_the_redis_of_a_pod_is_found_in_a_variable_of_older_charts_too(tmp_path: Path) -> None:
    secret = {"key": "url", "name": "redis"}
    pods = [
        {"containers": [{"env": [{"name": "LOWWATER_STORE", "valueFrom": {"secretKeyRef": secret}}]}]},
        {"volumes": [{"name": "redis-url", "secret": {"secretName": "redis", "items": [{"key": "url"}]}}]},
    ]
    chart = shutil.copytree(CHART, tmp_path / "lowwater")
    calls = [f'{{{{ include "lowwater.store" (fromJson {json.dumps(json.dumps(pod))}) }}}}' for pod in pods]
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: found}}\ndata: [{', '.join(calls)}]\n"
    (chart / "templates/found.yaml").write_text(text)
    [data] = [document["data"] for document in parsed(rendered(chart=chart)) if document["metadata"]["name"] == "found"]
    assert data == [secret] * len(pods)
