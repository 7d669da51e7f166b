"""What the chart refuses, and what it says then: the value, and the way out."""

from __future__ import annotations

import pytest

from tests.chart.rendering import CHART, helm

REDIS = "redis.url=redis://redis:6379"

REFUSED = {
    "several without Redis": (
        ["replicaCount=3"],
        "replicaCount is 3, but without Redis each replica would be an authority of its own, and tell something else: "
        "set redis.url or redis.existingSecret, or replicaCount: 1",
    ),
    "Redis twice": (
        [REDIS, "redis.existingSecret=there"],
        "redis.url and redis.existingSecret both say where Redis is: keep one of them",
    ),
    "client certificates without TLS": (["tls.clientAuth=true"], "tls.clientAuth needs TLS: set tls.existingSecret"),
    "access twice": (
        ["access.config=x", "access.existingSecret=there"],
        "access.config and access.existingSecret both say who may do what: keep one of them",
    ),
    "shards without a token": (
        [REDIS, "access.config=x"],
        "shards that ask for tokens must present one to each other: set peerToken.existingSecret",
    ),
    "a scrape without a token": (
        ["access.config=x", "serviceMonitor.enabled=true"],
        "with access a scrape needs a token: set serviceMonitor.tokenSecret.name",
    ),
    "a password in the arguments": (
        ["extraArgs[0]=--store", "extraArgs[1]=redis://:secret@redis"],
        "extraArgs has --store, which the chart sets itself: use the values redis, persistence, tls, access and logFormat",
    ),
    "the same, with =": (["extraArgs[0]=--data=/elsewhere"], "extraArgs has --data, which the chart sets itself"),
    "a label of the selector": (
        [r"commonLabels.app\.kubernetes\.io/name=x"],
        "commonLabels has app.kubernetes.io/name, by which the Services find the pods",
    ),
    "the same, of pods": (
        [r"podLabels.app\.kubernetes\.io/component=x"],
        "podLabels has app.kubernetes.io/component, by which the Services find the pods",
    ),
    # And what the schema refuses.
    "an unknown value": (["replicas=3"], "Additional property replicas is not allowed"),
    "an unknown value below": (["redis.host=redis"], "redis: Additional property host is not allowed"),
    "another scheme": (["redis.url=http://redis"], "redis.url: Does not match pattern"),
    "no number": (["replicaCount=many"], "replicaCount: Invalid type. Expected: integer, given: string"),
    "less than none": (["replicaCount=-1"], "replicaCount: Must be greater than or equal to 0"),
    "a volume that two may write": (
        ["persistence.accessModes={ReadWriteMany}"],
        "persistence.accessModes.0: persistence.accessModes.0 must be one of the following",
    ),
    "a digest that is none": (["image.digest=latest"], "image.digest: Does not match pattern"),
    "no time to hand over": (["terminationGracePeriodSeconds=5"], "Must be greater than or equal to 20"),
    "braces in a key of Redis": ([REDIS, "redis.deployment={a}"], "redis.deployment"),
    "another format": (["logFormat=xml"], "logFormat must be one of the following"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_cannot_be(case: str) -> None:
    values, message = REFUSED[case]
    said = helm("template", "lw", CHART, *(part for value in values for part in ("--set", value)))
    assert said.returncode != 0, "it was rendered"
    assert message in said.stderr
    assert "secret@" not in said.stderr, "a password is not repeated"


def test_a_kubernetes_without_grpc_probes() -> None:
    said = helm("template", "lw", CHART, "--kube-version", "1.26.9")
    assert said.returncode != 0
    assert "chart requires kubeVersion: >=1.27.0-0" in said.stderr


def test_what_is_near_a_refusal_is_not_refused() -> None:
    for values in (
        [REDIS, "replicaCount=3"],
        ["redis.existingSecret=there", "replicaCount=3"],
        ["replicaCount=0"],
        ["tls.existingSecret=there", "tls.clientAuth=true"],
        [REDIS, "access.config=x", "peerToken.existingSecret=there"],
        ["access.config=x", "serviceMonitor.enabled=true", "serviceMonitor.tokenSecret.name=there"],
        ["extraArgs[0]=--verbose"],
        ["global.of.a.parent=x"],
    ):
        said = helm("template", "lw", CHART, *(part for value in values for part in ("--set", value)))
        assert said.returncode == 0, said.stderr
