"""The chart refuses bad values with a message that names the value, and the way out."""

from __future__ import annotations

import re
import shlex

import pytest

from lowwater_authority.commands import serve_arguments
from lowwater_authority.commands.serve_arguments import LEAST_DEAD_AFTER, MOST_DEAD_AFTER
from lowwater_authority.journal.redis_link import OPTIONS
from tests.chart.rendering import CHART, helm

REDIS = "redis.url=redis://redis:6379"

SIDECAR = ("sidecar.enabled=true", "sidecar.image.repository=x", "sidecar.queries=[[query]]")

ALONE = (
    *("region.enabled=true", "region.name=eu", "region.references=[[reference]]"),
    "region.pipelineTokenSecret.name=pipelines",
)
REGION = (*ALONE, "region.globalAddress=g:7430")

POLICY = "networkPolicy.enabled=true"

NONE_OF = "is none of --listen=[::]:7420, --http=[::]:7421, the same with 0.0.0.0, --dead-after=SECONDS, --reflection and --verbose"
DEAD_AFTER = f"--dead-after is from {LEAST_DEAD_AFTER:g} to {MOST_DEAD_AFTER:g} seconds"

REFUSED = {
    "a token in the environment": (["extraEnv[0].name=LOWWATER_PEER_TOKEN"], "extraEnv has LOWWATER_PEER_TOKEN"),
    "a global authority that is scraped without a token": (
        ["globalAuthority.enabled=true", "globalAuthority.accessSecret=there", "serviceMonitor.enabled=true"],
        "with globalAuthority.accessSecret a scrape needs a token: set serviceMonitor.tokenSecret.name",
    ),
    "a region without a token for the global authority beside it": (
        [*ALONE, *("globalAuthority.enabled=true", "globalAuthority.accessSecret=x")],
        "with globalAuthority.accessSecret the region of this release needs a token: set region.globalTokenSecret.name",
    ),
    "a scrape without a token": (
        ["access.config=x", "page.enabled=false", "serviceMonitor.enabled=true"],
        "with access a scrape needs a token: set serviceMonitor.tokenSecret.name",
    ),
    "client certificates without TLS": (["tls.clientAuth=true"], "tls.clientAuth needs TLS: set tls.existingSecret"),
    "several without Redis": (
        ["replicaCount=3"],
        "replicaCount is 3, but without Redis each replica would be an authority of its own, with other watermarks: "
        "set redis.url or redis.existingSecret, or replicaCount: 1",
    ),
    "Redis twice": (
        [REDIS, "redis.existingSecret=there"],
        "redis.url and redis.existingSecret both say where Redis is: keep one of them",
    ),
    "a second container of the chart's name": (
        ["extraContainers[0].name=authority"],
        "extraContainers has authority, which is the chart's: give it another name",
    ),
    "an annotation by which helm keeps what it should delete": (
        ["commonAnnotations.helm\\.sh/resource-policy=keep"],
        "commonAnnotations has helm.sh/resource-policy, by which helm would treat objects otherwise than the chart means: leave it out",
    ),
    "access twice": (
        ["access.config=x", "access.existingSecret=there"],
        "access.config and access.existingSecret both say who may do what: keep one of them",
    ),
    "shards without a token": (
        [REDIS, "access.config=x"],
        "shards that ask for tokens must present one to each other: set peerToken.existingSecret",
    ),
    "a page without a token": (
        ["access.config=x"],
        "with access the status page needs a token: set page.tokenSecret.name, a Secret with the token of a principal that may read everything, "
        "or page.enabled: false",
    ),
    "a sidecar without declarations": (
        ["sidecar.enabled=true", "sidecar.image.repository=x"],
        "sidecar.queries has no table [[query]] or [[pipeline]]: give it the file of declarations",
    ),
    "a sidecar without a token": (
        ["access.config=x", "page.enabled=false", *SIDECAR],
        "with access the sidecar needs a token: set sidecar.tokenSecret.name",
    ),
    "a token in the sidecar's environment": (
        [*SIDECAR, "sidecar.extraEnv[0].name=LOWWATER_TOKEN"],
        "sidecar.extraEnv has LOWWATER_TOKEN, which the chart sets itself: use the values tls and sidecar.tokenSecret",
    ),
    "a region without a token": (
        ["access.config=x", "page.enabled=false", *REGION],
        "with access the region needs a token: set region.tokenSecret.name",
    ),
    "a region without references": (
        ["region.enabled=true", "region.name=eu"],
        "region.references has no line that begins with [[reference]]: give it the file of references, which lowwater region --help shows",
    ),
    "a global authority in the place of the shards": (
        [
            *(REDIS, "globalAuthority.enabled=true", "globalAuthority.redis.existingSecret=r"),
            "globalAuthority.redis.deployment=default.lw-lowwater",
        ],
        "globalAuthority.redis.deployment is that of the shards",
    ),
    "a region without a global authority": (
        [*ALONE],
        "the region needs a global authority: set region.globalAddress, or globalAuthority.enabled in one release of all",
    ),
    "an agent without a token for pipelines": (
        [*REGION, "region.pipelineTokenSecret.name="],
        "pipelines present a token to the agent of a region: set region.pipelineTokenSecret.name",
    ),
    "an agent that every client of gRPC reaches": (
        [*REGION, POLICY, "networkPolicy.clients[0].podSelector.a=b"],
        "the agent of a region is for pipelines, and not for all clients of gRPC: name their pods in networkPolicy.pipelines",
    ),
    "a password in the arguments": (
        ["extraArgs[0]=--store", "extraArgs[1]=redis://:secret@redis"],
        "extraArgs has --store, which the chart sets itself or leaves off: use the values redis, persistence, tls, access, limits, promises, page, expectDeployment and logFormat",
    ),
    "a label of the selector": (
        [r"commonLabels.app\.kubernetes\.io/name=x"],
        "commonLabels has app.kubernetes.io/name, by which the Services find the pods",
    ),
    "a claim that goes with the release": (
        [r"persistence.annotations.helm\.sh/resource-policy=delete"],
        "persistence.annotations has helm.sh/resource-policy, which the chart sets itself, to keep: leave it out",
    ),
    **{
        f"an address that no other reaches, {flag}": ([f"extraArgs[0]={flag}"], f"extraArgs[0] {NONE_OF}")
        for flag in ("--listen=127.0.0.1:7420", "--http=0x0x0x0:7421")
    },
    "the URL of the store as an address": (["extraArgs[0]=--listen=$(LOWWATER_STORE):7420"], f"extraArgs[0] {NONE_OF}"),
    "a time too short": (["extraArgs[0]=--verbose", "extraArgs[1]=--dead-after=0.1"], f"extraArgs[1]: {DEAD_AFTER}"),
    "a port of Redis that the policy closes": (
        ["redis.url=rediss://:secret@redis:6380/1?ssl_ca_certs=/a", POLICY],
        "redis.url has the port 6380, and the network policy lets the shards reach others only: add it to networkPolicy.redisPorts",
    ),
    "the same, of a sentinel": (["redis.url=redis+sentinel://:se@secret@a/main", POLICY], "has the port 26379"),
    **{
        f"the volume {name}": (
            [f"extraVolumes[0].name={name}"],
            f"extraVolumes has {name}, which is a volume of the chart: give it another name",
        )
        for name in ("data", "peer-token")
    },
    # And what the schema refuses.
    "a value that is taken away": (["redis=null"], "redis is required"),
    "no volume at all": (["persistence.size=0Gi"], "persistence.size: Does not match pattern"),
    "an unknown value below": (["redis.host=redis"], "redis: Additional property host is not allowed"),
    "a volume that two may write": (
        ["persistence.accessModes={ReadWriteMany}"],
        "persistence.accessModes.0: persistence.accessModes.0 must be one of the following",
    ),
    "no time to hand over": (["terminationGracePeriodSeconds=5"], "Must be greater than or equal to 20"),
    "a deployment of each pod": ([REDIS, "redis.deployment=$(POD_NAME)"], "redis.deployment: Does not match pattern"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_cannot_be(case: str) -> None:
    values, message = REFUSED[case]
    result = helm("template", "lw", CHART, *(part for value in values for part in ("--set", value)))
    assert result.returncode != 0, "it was rendered"
    assert message in result.stderr
    assert "secret@" not in result.stderr, "a password is not repeated"


def test_a_kubernetes_without_grpc_probes() -> None:
    result = helm("template", "lw", CHART, "--kube-version", "1.26.9")
    assert result.returncode != 0
    assert "chart requires kubeVersion: >=1.27.0-0" in result.stderr


def test_a_release_that_makes_names_no_service_can_have() -> None:
    name = "1day"
    result = helm("template", name, CHART)
    assert result.returncode != 0
    assert f"{name}-lowwater is no name for a Service" in result.stderr
    assert "set fullnameOverride" in result.stderr
    result = helm("template", name, CHART, "--set", "fullnameOverride=one")
    assert result.returncode == 0, result.stderr


def test_every_flag_is_the_charts_or_may_be_given() -> None:
    text = (CHART / "templates/_refusals.tpl").read_text()
    [own] = re.findall(r"has \$flag \(list ([^)]+)\)", text)
    [refused] = re.findall(r"\$allowed := list (.+) -}}", text)
    listed = [*shlex.split(own), *(flag.partition("=")[0] for flag in shlex.split(refused))]
    assert sorted(listed) == sorted(re.findall(r"--[a-z-]+", serve_arguments.parser().format_usage()))


def test_what_is_near_a_refusal_is_not_refused() -> None:
    for values in (
        ["tls.existingSecret=there", "tls.clientAuth=true"],
        [REDIS, "access.config=x", "peerToken.existingSecret=there", "page.enabled=false"],
        ["access.config=x", "page.tokenSecret.name=there"],
        [
            "access.config=x",
            "page.enabled=false",
            "serviceMonitor.enabled=true",
            "serviceMonitor.tokenSecret.name=there",
        ],
        [
            "extraArgs[0]=--verbose",
            "extraArgs[1]=--listen=[::]:7420",
            "extraArgs[2]=--http=[::]:7421",
            "extraArgs[3]=--dead-after=1.5",
        ],
        ["extraArgs[0]=--listen=0.0.0.0:7420", "extraArgs[1]=--http=0.0.0.0:7421"],
        [f"extraArgs[0]=--dead-after={LEAST_DEAD_AFTER:g}", f"extraArgs[1]=--dead-after={MOST_DEAD_AFTER:g}"],
        ["redis.url=rediss://:a:6381@redis:6380/1", POLICY, "networkPolicy.redisPorts={6380,6379}"],
        *([f"redis.url=rediss://:secret@redis:6379/0?{option}=a@b:1", POLICY] for option in OPTIONS["rediss"]),
        ["redis.existingSecret=there", POLICY, "networkPolicy.redisPorts={6380}"],
        [r"redis.url=redis+sentinel://a\,[::1]:26380/main", POLICY, "networkPolicy.redisPorts={6379,26379,26380}"],
        [REDIS, "redis.deployment=orders/eu-1"],
        ["extraEnv[0].name=LOWWATER_STORED", "extraVolumes[0].name=more-data"],
        ["persistence.size=0.5Gi", "serviceMonitor.interval=10s"],
    ):
        result = helm("template", "lw", CHART, *(part for value in values for part in ("--set", value)))
        assert result.returncode == 0, result.stderr
