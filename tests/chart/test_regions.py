"""The agent of a region and the global authority: what the chart starts, whom they reach, and both as real processes beside an authority."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import lowwater
from lowwater import errors
from lowwater.regions import Token
from lowwater_authority.regions import region, serve
from lowwater_authority.regions.config import read_config
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
from tests.chart.test_serves import SERVING, healthy
from tests.contract.redis_server import DURABLE, RedisServer
from tests.kit.eventually import eventually
from tests.kit.ports import free_port
from tests.process.regions import HOURLY, Process
from tests.process.serving import Serving

TOGETHER = by_key(documents("regions"))


def made(found: Document | None) -> Document:
    assert found is not None
    return found


def secrets_of(pod: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Which key of which Secret stands in the file of each variable."""
    [container] = pod["containers"]
    volumes = {each["name"]: each.get("secret") for each in pod["volumes"]}
    found = {}
    for each in container["env"]:
        folder, _, file = each["value"].rpartition("/")
        [mount] = [mount for mount in container["volumeMounts"] if mount["mountPath"] == folder]
        secret = volumes[mount["name"]]
        assert (mount["readOnly"], secret["items"]) == (True, [{"key": file, "path": file}])
        found[each["name"].removesuffix("_FILE")] = (secret["secretName"], file)
    return found


def test_the_agent_is_a_command_with_references_that_are_taken(tmp_path: Path) -> None:
    assert [name for name in SETS if agent(name) is not None] == ["regions"]
    container = made(agent("regions"))
    assert container["command"] == ["lowwater", "region"]
    args = region.parser().parse_args(container["args"])
    services = {f"{each['metadata']['name']}.{NAMESPACE}.svc" for each in of_kind("regions", "Service")}
    assert {args.authority.rpartition(":")[0], args.global_address.rpartition(":")[0]} < services
    assert [str(each) for each in (args.ca, args.cert, args.key, args.tls_cert, args.tls_key)] == [
        f"/etc/lowwater/tls/{each}" for each in ("ca.crt", "tls.crt", "tls.key", "tls.crt", "tls.key")
    ]
    spec = TOGETHER["Deployment/lw-lowwater-region"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"}), "one agent speaks for a region"
    volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    claim = TOGETHER[f"PersistentVolumeClaim/{mounts[str(args.state)]['persistentVolumeClaim']['claimName']}"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    config = tmp_path / args.config.name
    config.write_text(
        TOGETHER[f"ConfigMap/{mounts[str(args.config.parent)]['configMap']['name']}"]["data"][config.name]
    )
    [kept] = read_config(config, args.name)
    assert (kept.computation, kept.replicated) == ("hourly", "mirror-clicks")
    assert secrets_of(spec["template"]["spec"]) == {
        "LOWWATER_TOKEN": ("lowwater-region", "local"),
        "LOWWATER_GLOBAL_TOKEN": ("lowwater-region", "global"),
        region.TOKENS: ("lowwater-region", "pipelines"),
    }
    alone = rendered("--values", SETS["regions"], "--set", "access.existingSecret=,region.globalTokenSecret.name=")
    found = secrets_of(by_key(parsed(alone))["Deployment/lw-lowwater-region"]["spec"]["template"]["spec"])
    assert found.pop(region.TOKENS) == ("lowwater-region", "pipelines")
    assert found == {"LOWWATER_TOKEN": ("lowwater-region", "local")}, "for the global authority too"
    own = rendered("--values", SETS["regions"], "--set", "region.globalAddress=,globalAuthority.redis.deployment=")
    assert f'"--global={args.global_address}"' in own, "by default that of the release"
    assert f'"--deployment={NAMESPACE}.lw-lowwater-global"' in own
    other = parsed(rendered("--values", SETS["regions"], "--set", "region.references=[[reference]]"))
    assert "Deployment/lw-lowwater-region spec.template.metadata.annotations.checksum/references" in changes(
        documents("regions"), other
    )


def test_the_global_authority_is_a_command_over_redis_or_a_volume() -> None:
    assert [name for name in SETS if global_authority(name) is not None] == ["global", "regions"]
    shared, alone = made(global_authority("regions")), made(global_authority("global"))
    for container in (shared, alone):
        assert container["command"] == ["lowwater", "global"]
        args = serve.parser().parse_args(container["args"])
        assert not args.store, "the URL of Redis may hold a password"
        assert {each["name"]: each["containerPort"] for each in container["ports"]} == {
            "grpc": int(args.listen.rpartition(":")[2]),
            "http": int(args.http.rpartition(":")[2]),
        }
    args = serve.parser().parse_args(shared["args"])
    assert (args.suspect_after, args.adopt_again_after, args.deployment) == (20, 300, "continuity")
    assert [str(each) for each in (args.tls_cert, args.tls_client_ca, args.access)] == [
        *(f"/etc/lowwater/tls/{each}" for each in ("tls.crt", "ca.crt")),
        "/etc/lowwater/access/access.toml",
    ]
    assert shared["env"] == [{"name": "LOWWATER_STORE_FILE", "value": "/etc/lowwater/redis/address"}]
    [mounted] = [each["name"] for each in shared["volumeMounts"] if each["mountPath"] == "/etc/lowwater/redis"]
    volumes = TOGETHER["Deployment/lw-lowwater-global"]["spec"]["template"]["spec"]["volumes"]
    [secret] = [each["secret"] for each in volumes if each["name"] == mounted]
    assert (secret["secretName"], secret["items"]) == (
        "lowwater-global-redis",
        [{"key": "address", "path": "address"}],
    )
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


@pytest.mark.process
def test_what_is_started_serves_each_other_and_answers_its_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands as rendered, over a Redis and with tokens. Folders and ports are those of this machine, and only the agent has a certificate."""
    ports = {number: f"127.0.0.1:{free_port()}" for number in ("7430", "7431", "7440")}
    objects = by_key(parsed(rendered("--values", SETS["regions"], "--set", "tls.existingSecret=,tls.clientAuth=false")))
    containers = {
        part: objects[f"Deployment/lw-lowwater-{part}"]["spec"]["template"]["spec"]["containers"][0]
        for part in ("global", "region")
    }
    encrypted = made(agent("regions"))
    containers["region"]["args"] += [each for each in encrypted["args"] if each.startswith("--tls-")]

    def command(part: str, authority: str) -> Process:
        said = []
        for each in containers[part]["args"]:
            there = re.sub(r"=[^/]*:7420$", f"={authority}", each).replace("=/", f"={tmp_path}/")
            said.append(re.sub(r"=[^/]*:(74[34]\d)$", lambda found: f"={ports[found[1]]}", there))
        return Process(tmp_path / part, containers[part]["command"][1], *said)

    tls = tmp_path / "etc/lowwater/tls"
    tls.mkdir(parents=True)
    signer = trustme.CA()
    signer.cert_pem.write_to_path(tls / "ca.crt")
    certificate = signer.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tls / "tls.key")
    (tls / "tls.crt").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    config = tmp_path / "etc/lowwater/region/region.toml"
    config.parent.mkdir()
    config.write_text(objects["ConfigMap/lw-lowwater-region"]["data"]["region.toml"])
    access = tmp_path / "etc/lowwater/access/access.toml"
    access.parent.mkdir()
    access.write_text(
        f'[[principal]]\nname = "eu"\ntoken_sha256 = ["{sha256(b"of the region").hexdigest()}"]\n'
        'regions = ["eu", "us"]\n'
    )
    tokens = {"LOWWATER_GLOBAL_TOKEN_FILE": "of the region", f"{region.TOKENS}_FILE": "p" * 32}
    for each in containers["region"]["env"]:
        file = tmp_path / each["value"].lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(tokens.get(each["name"], "of nobody"))
        monkeypatch.setenv(each["name"], str(file))
    with (
        RedisServer(tmp_path / "redis", *DURABLE) as redis,
        Serving(tmp_path / "local") as local,
        lowwater.connect(local.address, timeout=60) as lw,
    ):
        redis.start()
        monkeypatch.setenv("LOWWATER_STORE", redis.url)
        for name in ("hourly", "mirror-clicks"):
            lw.register(name)
        above, here = command("global", local.address), command("region", local.address)
        try:
            above.start()
            here.start()
            token = Token(HOURLY, f"https://{ports['7440']}", ca=str(tls / "ca.crt"))

            def owned() -> bool:
                try:
                    return token.read().number == 1
                except errors.LowwaterError:
                    return False

            eventually(owned, "the region owns what is its own", seen=here.log)
            ready, alive = (encrypted[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe"))
            assert ready == alive == {"path": "/healthz", "port": "region", "scheme": "HTTPS"}
            assert [each["name"] for each in encrypted["ports"]] == ["region"]
            trusted = ssl.create_default_context(cafile=tls / "ca.crt")
            with urllib.request.urlopen(f"{token.agent}/healthz", timeout=30, context=trusted) as answer:
                assert answer.status == 200, "a probe has no token"
            with pytest.raises(errors.Unauthenticated):
                Token(HOURLY, token.agent, token="x", ca=str(tls / "ca.crt")).read()
            with grpc.insecure_channel(ports["7430"]) as channel:
                for probe in ("startupProbe", "readinessProbe"):
                    assert containers["global"][probe]["grpc"]["port"] == 7430
                    assert healthy(channel, containers["global"][probe]) == SERVING
            assert containers["global"]["livenessProbe"]["tcpSocket"] == {"port": "grpc"}
        finally:
            for each in (here, above):
                if each.process is not None:
                    each.kill()
