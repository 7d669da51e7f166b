"""The agent of a region and the global authority: what the chart starts, and whom they reach."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowwater_regions import region, serve
from lowwater_regions.config import read_config
from tests.chart.rendering import (
    NAMESPACE,
    SETS,
    Document,
    agent,
    by_key,
    changes,
    documents,
    global_authority,
    of_kind,
    parsed,
    rendered,
)

TOGETHER = by_key(documents("regions"))


def present(document: Document | None) -> Document:
    assert document is not None
    return document


def secrets_of(pod: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    [container] = pod["containers"]
    volumes = {volume["name"]: volume.get("secret") for volume in pod["volumes"]}
    secrets = {}
    for variable in container["env"]:
        folder, _, file = variable["value"].rpartition("/")
        [mount] = [mount for mount in container["volumeMounts"] if mount["mountPath"] == folder]
        secret = volumes[mount["name"]]
        assert (mount["readOnly"], secret["items"]) == (True, [{"key": file, "path": file}])
        secrets[variable["name"].removesuffix("_FILE")] = (secret["secretName"], file)
    return secrets


def test_the_agent_is_a_command_with_references_that_are_taken(tmp_path: Path) -> None:
    assert [name for name in SETS if agent(name) is not None] == ["regions"]
    container = present(agent("regions"))
    assert container["command"] == ["lowwater", "region"]
    args = region.parser().parse_args(container["args"])
    services = {f"{manifest['metadata']['name']}.{NAMESPACE}.svc" for manifest in of_kind("regions", "Service")}
    assert {args.authority.rpartition(":")[0], args.global_address.rpartition(":")[0]} < services
    assert [str(path) for path in (args.ca, args.cert, args.key, args.tls_cert, args.tls_key)] == [
        f"/etc/lowwater/tls/{file}" for file in ("ca.crt", "tls.crt", "tls.key", "tls.crt", "tls.key")
    ]
    spec = TOGETHER["Deployment/lw-lowwater-region"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}), "one agent speaks for a region"
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    claim = TOGETHER[f"PersistentVolumeClaim/{mounts[str(args.state)]['persistentVolumeClaim']['claimName']}"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    config = tmp_path / args.config.name
    config.write_text(
        TOGETHER[f"ConfigMap/{mounts[str(args.config.parent)]['configMap']['name']}"]["data"][config.name]
    )
    [reference] = read_config(config, args.name)
    assert (reference.computation, reference.replicated) == ("hourly", "mirror-clicks")
    assert secrets_of(spec["template"]["spec"]) == {
        "LOWWATER_TOKEN": ("lowwater-region", "local"),
        "LOWWATER_GLOBAL_TOKEN": ("lowwater-region", "global"),
        region.TOKENS: ("lowwater-region", "pipelines"),
    }
    alone = rendered("--values", SETS["regions"], "--set", "access.existingSecret=,region.globalTokenSecret.name=")
    secrets = secrets_of(by_key(parsed(alone))["Deployment/lw-lowwater-region"]["spec"]["template"]["spec"])
    assert secrets.pop(region.TOKENS) == ("lowwater-region", "pipelines")
    assert secrets == {"LOWWATER_TOKEN": ("lowwater-region", "local")}, "for the global authority too"
    own = rendered("--values", SETS["regions"], "--set", "region.globalAddress=,globalAuthority.redis.deployment=")
    assert f'"--global={args.global_address}"' in own, "by default that of the release"
    assert f'"--deployment={NAMESPACE}.lw-lowwater-global"' in own
    other = parsed(rendered("--values", SETS["regions"], "--set", "region.references=[[reference]]"))
    assert "Deployment/lw-lowwater-region spec.template.metadata.annotations.checksum/references" in changes(
        documents("regions"), other
    )


def test_the_global_authority_is_a_command_over_redis_or_a_volume() -> None:
    assert [name for name in SETS if global_authority(name) is not None] == ["global", "regions"]
    shared, alone = present(global_authority("regions")), present(global_authority("global"))
    for container in (shared, alone):
        assert container["command"] == ["lowwater", "global"]
        args = serve.parser().parse_args(container["args"])
        assert not args.store, "the URL of Redis may hold a password"
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
            "grpc": int(args.listen.rpartition(":")[2]),
            "http": int(args.http.rpartition(":")[2]),
        }
    args = serve.parser().parse_args(shared["args"])
    assert (args.suspect_after, args.adopt_again_after, args.deployment) == (20, 300, "continuity")
    assert [str(path) for path in (args.tls_cert, args.tls_client_ca, args.access)] == [
        *(f"/etc/lowwater/tls/{file}" for file in ("tls.crt", "ca.crt")),
        "/etc/lowwater/access/access.toml",
    ]
    assert shared["env"] == [{"name": "LOWWATER_STORE_FILE", "value": "/etc/lowwater/redis/address"}]
    [mounted] = [mount["name"] for mount in shared["volumeMounts"] if mount["mountPath"] == "/etc/lowwater/redis"]
    volumes = TOGETHER["Deployment/lw-lowwater-global"]["spec"]["template"]["spec"]["volumes"]
    [secret] = [volume["secret"] for volume in volumes if volume["name"] == mounted]
    assert (secret["secretName"], secret["items"]) == ("lowwater-global-redis", [{"key": "address", "path": "address"}])
    assert "PersistentVolumeClaim/lw-lowwater-global" not in TOGETHER
    args = serve.parser().parse_args(alone["args"])
    objects = by_key(documents("global"))
    assert (str(args.data), "env" in alone, args.tls_cert) == ("/data", False, None)
    claim = objects["PersistentVolumeClaim/lw-lowwater-global"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert objects["StatefulSet/lw-lowwater"]["spec"]["replicas"] == 0, "where no pipelines are there is no authority"
    service = TOGETHER["Service/lw-lowwater-global"]
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["metadata"]["annotations"] == {"example.org/internal": "true"}


def test_the_probes_ask_what_both_answer() -> None:
    encrypted, shared = present(agent("regions")), present(global_authority("regions"))
    for probe in ("readinessProbe", "livenessProbe"):
        assert encrypted[probe]["httpGet"] == {"path": "/healthz", "port": "region", "scheme": "HTTPS"}
    assert [port["name"] for port in encrypted["ports"]] == ["region"]
    assert shared["livenessProbe"]["tcpSocket"] == {"port": "grpc"}
