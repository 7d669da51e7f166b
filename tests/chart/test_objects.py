"""The objects of a release agree with each other, with the command and with what is generated elsewhere."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from lowwater.cli.arguments import parser as client_parser
from lowwater_authority import serve as server
from lowwater_authority.cluster.cluster import HAND_OVER_SECONDS
from lowwater_authority.commands import serve_arguments
from lowwater_authority.files.table import BadFile
from lowwater_authority.promises import Promises
from lowwater_page.process import parser as page_arguments
from lowwater_server.http import JOIN_SECONDS
from lowwater_spark.sidecar.command import declared
from lowwater_spark.sidecar.command import parser as sidecar_arguments
from monitoring.files import GENERATED
from tests.chart.rendering import (
    CHART,
    NAMESPACE,
    SETS,
    Document,
    by_key,
    changes,
    container,
    documents,
    expanded,
    helm,
    key,
    of_kind,
    page,
    parsed,
    rendered,
    sidecar,
    stateful_set,
)
from tests.chart.test_rendered import FLOOR, valid

SHARDED = {"redis", "redis-secret", "secured", "everything", "exposed", "regions"}


def pods(name: str) -> Iterator[Document]:
    """Every pod that a set of values makes, as metadata and spec: the authority's, the page's and the test's, if there are any."""
    yield stateful_set(name)["spec"]["template"]
    yield from (item["spec"]["template"] for item in of_kind(name, "Deployment"))
    yield from of_kind(name, "Pod")


def environment(name: str, pod: str) -> dict[str, str]:
    """Return the variables that the kubelet puts into the environment of a pod, as far as the chart knows them."""
    variables = {}
    for variable in container(name).get("env", []):
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            assert source["fieldRef"] == {"fieldPath": "metadata.name"}
            variables[variable["name"]] = pod
        else:
            variables[variable["name"]] = variable.get("value", "from a Secret")
    return variables


def flags(name: str, pod: str = "lw-lowwater-0") -> Any:
    command, arguments = container(name)["command"], container(name)["args"]
    assert command == ["lowwater", "serve"]
    return serve_arguments.parser().parse_args([expanded(argument, environment(name, pod)) for argument in arguments])


@pytest.mark.parametrize("name", SETS)
def test_the_server_takes_the_flags(name: str) -> None:
    args = flags(name)
    assert not args.store, "the URL of Redis may hold a password, and arguments can be read by everybody on the node"
    assert ("LOWWATER_STORE_FILE" in environment(name, "x")) == bool(args.advertise) == (name in SHARDED)
    # The ports are those that the server has by default, and that the container, Services and probes name.
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert {"grpc": int(args.listen.rpartition(":")[2]), "http": int(args.http.rpartition(":")[2])} == ports


@pytest.mark.parametrize("name", SETS)
def test_the_test_is_a_command_of_the_client(name: str) -> None:
    for pod in of_kind(name, "Pod"):
        test, *looks = pod["spec"]["containers"]
        args = client_parser().parse_args([*test["command"][1:], *test["args"]])
        found, space, _ = args.address.partition(":")[0].split(".")
        assert (f"Service/{found}" in by_key(documents(name)), space) == (True, NAMESPACE)
        assert {look["image"] for look in (test, *looks)} == {container(name)["image"]}
        assert bool(looks) == (page(name) is not None)
        for look in looks:
            compile(look["args"][0], "the look at the page", "exec")
            host, _, port = urlsplit(look["args"][1]).netloc.partition(":")
            [found] = [one for one in of_kind(name, "Service") if host == f"{one['metadata']['name']}.{NAMESPACE}.svc"]
            assert int(port) == found["spec"]["ports"][0]["port"]
    assert bool(of_kind(name, "Pod")) == (name not in {"access-secret", "sidecar", "regions", "global"})


@pytest.mark.parametrize("name", SETS)
def test_the_page_is_a_client_in_a_deployment_of_its_own(name: str) -> None:
    assert flags(name).page == "off", "nobody who looks takes anything from a shard"
    container = page(name)
    assert (container is None) == (name in {"off", "access-secret", "sidecar", "regions", "global"})
    if container is None:
        return
    assert container["command"] == ["lowwater-page"]
    args = page_arguments().parse_args(container["args"])
    [service] = [item for item in of_kind(name, "Service") if item["metadata"]["name"].endswith("-page")]
    assert args.address in {f"{item['metadata']['name']}.{NAMESPACE}.svc:7420" for item in of_kind(name, "Service")}
    assert args.listen == ("[::]:7422" if name == "everything" else "0.0.0.0:7422")
    assert service["spec"]["ports"] == [{"name": "page", "port": 7422, "targetPort": container["ports"][0]["name"]}]
    assert container["ports"] == [{"name": "page", "containerPort": 7422}]
    tls = flags(name).tls_cert is not None
    assert (args.tls_cert, args.tls_key) == (flags(name).tls_cert, flags(name).tls_key)
    assert (bool(args.ca), bool(args.cert)) == (tls, flags(name).tls_client_ca is not None)
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "page", "scheme": "HTTPS" if tls else "HTTP"}
    files = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    mounted = {mount["mountPath"] for mount in container.get("volumeMounts", [])}
    assert list(files) == ["LOWWATER_TOKEN_FILE"] * (flags(name).access is not None)
    assert {file.rpartition("/")[0] for file in files.values()} == mounted - {"/etc/lowwater/tls"}


def test_the_sidecar_is_a_command_with_declarations_that_are_taken(tmp_path: Path) -> None:
    manifests = by_key(documents("sidecar"))
    container = sidecar("sidecar")
    assert container is not None
    assert [name for name in SETS if sidecar(name) is not None] == ["sidecar"]
    spec = manifests["Deployment/lw-lowwater-sidecar"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert container["command"][0] == "lowwater-spark"
    args = sidecar_arguments().parse_args([*container["command"][1:], *container["args"]])
    [place] = [path for path in mounts if path == args.state]
    claim = manifests[f"PersistentVolumeClaim/{mounts[place]['persistentVolumeClaim']['claimName']}"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert args.address == f"lw-lowwater.{NAMESPACE}.svc:7420"
    [_, *alive] = container["livenessProbe"]["exec"]["command"]
    alive[-1] = alive[-1].replace(str(args.heartbeat), str(tmp_path / "heartbeat"))
    for minutes, exits in ((29, 0), (31, 1)):
        (tmp_path / "heartbeat").touch()
        os.utime(tmp_path / "heartbeat", (0, time.time() - 60 * minutes))
        assert subprocess.run([sys.executable, *alive], check=False).returncode == exits
    off = by_key(parsed(rendered("--values", SETS["sidecar"], "--set", "sidecar.heartbeatMinutes=0")))
    [bare] = off["Deployment/lw-lowwater-sidecar"]["spec"]["template"]["spec"]["containers"]
    assert "livenessProbe" not in bare
    assert not [arg for arg in bare["args"] if arg.startswith("--heartbeat")]
    assert args.conf == [
        "spark.hadoop.fs.s3a.endpoint.region=eu-central-1",
        "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0",
    ]
    folder, _, name = args.file.rpartition("/")
    queries = tmp_path / name
    queries.write_text(manifests[f"ConfigMap/{mounts[folder]['configMap']['name']}"]["data"][name])
    [query], _ = declared(sidecar_arguments().parse_args(["track", str(queries), "--state", args.state]))
    assert query["promises"][-1] == "single-driver"
    names = {variable["name"] for variable in container["env"]}
    assert names == {"HOME", "LOWWATER_CA", "LOWWATER_CERT", "LOWWATER_KEY", "LOWWATER_TOKEN_FILE", "AWS_ACCESS_KEY_ID"}
    other = parsed(rendered("--values", SETS["sidecar"], "--set", "sidecar.queries=[[query]]"))
    assert "Deployment/lw-lowwater-sidecar spec.template.metadata.annotations.checksum/queries" in changes(
        documents("sidecar"), other
    )


@pytest.mark.parametrize("values", ["extraArgs={--listen=[::]:7420,--http=[::]:7421}", "service.ipFamilies={IPv6}"])
def test_all_listen_where_the_services_lead(values: str) -> None:
    documents = parsed(rendered("--values", SETS["regions"], "--set", values))
    pods = [item["spec"]["template"]["spec"] for item in documents if item["kind"] in ("Deployment", "StatefulSet")]
    flags = [arg for pod in pods for part in pod["containers"] for arg in part["args"] if arg.startswith("--listen=")]
    assert flags
    assert [arg for arg in flags if not arg.startswith("--listen=[::]:")] == []
    name, _, value = values.removeprefix("service.").partition("=")
    families = {} if name == "extraArgs" else {name: value if name == "ipFamilyPolicy" else ["IPv6"]}
    for service in (item["spec"] for item in documents if item["kind"] == "Service"):
        assert {key: service[key] for key in service if key.startswith("ipFamil")} == families


@pytest.mark.parametrize("name", sorted(SHARDED))
def test_each_shard_has_an_address_of_its_own(name: str) -> None:
    item = stateful_set(name)
    headless = by_key(documents(name))[f"Service/{item['spec']['serviceName']}"]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True, "a shard calls itself before it is ready"
    names = [f"{item['metadata']['name']}-{number}" for number in range(item["spec"]["replicas"])]
    addresses = [flags(name, pod).advertise for pod in names]
    if name == "exposed":
        assert addresses == [f"{pod}.lowwater.example.org:443" for pod in names]
    else:
        assert addresses == [f"{pod}.{headless['metadata']['name']}.{NAMESPACE}.svc:7420" for pod in names]
    assert len(item["metadata"]["name"]) <= 52, "it stands in a label with a hash"


@pytest.mark.parametrize("name", SETS)
def test_whoever_selects_the_authority_selects_nothing_else(name: str) -> None:
    authority, *others = pods(name)
    part = "app.kubernetes.io/component"
    by_part = {f"-{other['metadata']['labels'][part]}": other for other in others}
    for document in documents(name):
        spec = document.get("spec", {})
        for selector in (spec.get("selector"), spec.get("podSelector")):
            if selector is None or document["kind"] == "ServiceMonitor" or key(document).endswith("-external"):
                continue
            labels = selector.get("matchLabels", selector)
            called = document["metadata"]["name"].removesuffix("-http")
            meant = next((by_part[end] for end in by_part if called.endswith(end)), authority)
            assert labels.items() <= meant["metadata"]["labels"].items(), document["kind"]
            for other in (pod for pod in (authority, *others) if pod is not meant):
                assert not labels.items() <= other["metadata"]["labels"].items(), document["kind"]
    for monitor in of_kind(name, "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        [service] = [item for item in of_kind(name, "Service") if labels <= item["metadata"]["labels"].items()]
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("name", SETS)
def test_every_pod_may_do_as_little_as_it_can(name: str) -> None:
    for pod in pods(name):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        security = spec["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (True, 65532, 65532)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for part in spec["containers"]:
            least = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert least.items() <= part["securityContext"].items()
            assert part["resources"]["limits"]["memory"]
            writable = {mount["mountPath"] for mount in part.get("volumeMounts", []) if not mount.get("readOnly")}
            assert writable <= {"/tmp", "/data", "/var/lib/lowwater-spark", "/var/lib/lowwater-region"}
        modes = {volume["secret"]["defaultMode"] for volume in spec.get("volumes", []) if "secret" in volume}
        assert modes <= {0o440}, "a key that everybody may read"


@pytest.mark.parametrize("name", SETS)
def test_the_probes_ask_what_the_server_answers(name: str) -> None:
    probes = {kind: container(name)[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
    flags = {arg.partition("=")[0] for arg in container(name)["args"]}
    if "--tls-cert" in flags:
        # Whoever opens all the connections that the page takes must not have the shards restarted.
        assert {kind: probe.get("httpGet") or probe["tcpSocket"] for kind, probe in probes.items()} == {
            "startup": {"path": "/healthz", "port": "http", "scheme": "HTTPS"},
            "readiness": {"path": "/healthz", "port": "http", "scheme": "HTTPS"},
            "liveness": {"port": "grpc"},
        }
    else:
        if "--access" in flags:
            # Nor whoever makes all the health checks at a time that there are for callers without a token.
            assert probes.pop("liveness")["tcpSocket"] == {"port": "grpc"}
            assert probes.keys() == {"startup", "readiness"}
        for probe in probes.values():
            assert probe["grpc"]["port"] == 7420
            assert probe["grpc"].get("service", "") in {"", *server.SERVICES}
    replay = probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"]
    assert replay >= 600, "a long journal is replayed before anything answers"


def test_the_dashboards_and_rules_are_the_generated_ones() -> None:
    shown: dict[str, str] = {}
    for item in of_kind("monitoring", "ConfigMap"):
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        shown |= item["data"]
    generated = {path.name: path.read_text() for path in (GENERATED / "dashboards").iterdir()}
    assert any("http://localhost:7422" in text for text in generated.values())
    assert shown == {
        name: text.replace("http://localhost:7422", "https://lowwater.example.org") for name, text in generated.items()
    }
    got = {one["metadata"]["name"].removeprefix("lw-"): one["spec"] for one in of_kind("monitoring", "PrometheusRule")}
    generated = {path.stem: path.read_text() for path in (GENERATED / "rules").iterdir()}
    runbooks = "runbook_url: https://wiki.example.org/lowwater/"
    assert got == {
        name: yaml.safe_load(text.replace("runbook_url: monitoring/runbooks/", runbooks))
        for name, text in generated.items()
    }


def test_a_name_that_looks_like_a_number_stays_a_name(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    texts: dict[str, Any] = {
        "fullnameOverride": "y",
        "priorityClassName": "1e3",
        "image": {"tag": "20261122"},
        "redis": {"existingSecret": "0x1", "existingSecretKey": "1", "deployment": "1"},
        "tls": {"existingSecret": "1e3"},
        "access": {"existingSecret": "12"},
        "peerToken": {"existingSecret": "12", "key": "1"},
        "test": {"tokenSecret": {"name": "1", "key": "2"}},
        "page": {"tokenSecret": {"name": "1", "key": "2"}},
        "serviceMonitor": {"enabled": True, "tokenSecret": {"name": "1", "key": "2"}},
        "serviceAccount": {"create": False, "name": "7"},
        "commonLabels": {"cost-centre": "0815"},
    }
    alone = {**texts, "redis": {}, "persistence": {"existingClaim": "1", "size": "1073741824"}}
    templated = {**alone, "persistence": {"storageClass": "1", "size": "1073741824"}}
    for values in (texts, alone, templated):
        path.write_text(json.dumps(values))
        result = helm("template", "1e3", CHART, "--namespace", "1", "--values", path)
        assert result.returncode == 0, result.stderr
        for document in parsed(result.stdout):
            valid(document, FLOOR)


def test_the_promises_are_a_file_that_the_server_takes_and_sees_change(tmp_path: Path) -> None:
    assert {name for name in SETS if flags(name).promises is not None} == {"everything"}
    path = flags("everything").promises
    [mount] = [mount for mount in container("everything")["volumeMounts"] if Path(mount["mountPath"]) == path.parent]
    assert "subPath" not in mount, "such a file is never changed"
    [volume] = [
        volume
        for volume in stateful_set("everything")["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == mount["name"]
    ]
    [config_map] = [
        item for item in of_kind("everything", "ConfigMap") if item["metadata"]["name"] == volume["configMap"]["name"]
    ]
    promises = yaml.safe_load(SETS["everything"].read_text())["promises"]
    taken_over = Promises.parse(config_map["data"][path.name].encode(), path.name)
    assert len(taken_over) == len(promises) == 2
    first = taken_over.of("payments/eu")
    assert (first.owner, first.team, first.late_micros) == (promises[0]["owner"], promises[0]["team"], 900_000_000)
    assert first.logs == "https://logs.example.org/?q=payments%2Feu&worker={worker}&host={host}"
    assert taken_over.of("hourly").owner == "platform@example.org"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("late", "soon"),
        ("owner", ""),
        ("runbook", "javascript:alert(1)"),
        ("logs", "https://{host}/"),
        ("color", "red"),
    ],
)
def test_helm_refuses_a_promise_that_keeps_a_shard_from_starting(tmp_path: Path, field: str, value: object) -> None:
    promise = {"computations": "a", field: value}
    with pytest.raises(BadFile):
        Promises.parse(
            "\n".join(["[[promise]]", *(f"{key} = {json.dumps(text)}" for key, text in promise.items())]).encode(), "x"
        )
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"promises": [promise]}))
    result = helm("template", "lw", CHART, "--values", values)
    assert result.returncode != 0
    assert "promises" in result.stderr


def test_a_password_is_in_the_secret_alone() -> None:
    leaks = [document for document in documents("redis") if "in-a-secret" in yaml.safe_dump(document)]
    assert not leaks
    [secret] = of_kind("redis", "Secret")
    assert base64.b64decode(secret["data"]["url"]) == b"redis://:in-a-secret@redis.data.svc:6379"


@pytest.mark.parametrize("name", SETS)
def test_every_secret_that_the_server_reads_is_a_file_that_is_mounted(name: str) -> None:
    files = {variable: path for variable, path in environment(name, "x").items() if variable.endswith("_FILE")}
    assert "from a Secret" not in set(environment(name, "x").values()) or name == "everything"
    volumes = {volume["name"]: volume for volume in stateful_set(name)["spec"]["template"]["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container(name)["volumeMounts"]}
    for path in files.values():
        folder, _, key = path.rpartition("/")
        assert [item["path"] for item in mounts[folder]["secret"]["items"]] == [key]


def test_two_releases_in_one_redis_are_two_deployments() -> None:
    assert flags("redis").deployment == "prod.lw-lowwater"
    assert flags("redis-secret").deployment == "orders"


@pytest.mark.parametrize("name", SETS)
def test_a_stop_has_time_to_hand_over(name: str) -> None:
    spec = stateful_set(name)["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= 2 * (HAND_OVER_SECONDS + server.GRACE_SECONDS + JOIN_SECONDS)
    assert "lifecycle" not in container(name), "SIGTERM drains by itself"


@pytest.mark.parametrize(
    "text", ['"', "'", "\\", "\n[[promise]]", "\\u0022", "{{ .Values }}", "a # b", "\u00e9\u6c34", "<&>", "$(x)", "~"]
)
def test_a_text_of_a_promise_is_a_text_and_nothing_else(tmp_path: Path, text: str) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(json.dumps({"promises": [{"computations": "a", "owner": f"x{text}x"}, {"computations": "b"}]}))
    result = helm("template", "lw", CHART, "--values", values, "--show-only", "templates/configmap-promises.yaml")
    if "\n" in text:
        assert result.returncode != 0, "an owner has no lines"
        assert "/promises/0/owner" in result.stderr or "promises.0.owner" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    [config_map] = parsed(result.stdout)
    promises = Promises.parse(config_map["data"]["promises.toml"].encode(), "promises.toml")
    assert (promises.of("a").owner, promises.of("b").owner, len(promises)) == (f"x{text}x", "", 2)
