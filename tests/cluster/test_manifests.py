"""The Kubernetes examples are YAML that says what is needed, and what Spark's own Kubernetes models have a field for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import launch_gateway

from tests.compatibility.environments import ROOT

EXAMPLES = ROOT / "examples/kubernetes"


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """Spark's own jars have a YAML parser and the models of Kubernetes; a session is not needed for them."""
    gateway = launch_gateway(popen_kwargs={"start_new_session": True})
    yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


def documents(jvm: Any, name: str) -> list[dict[str, Any]]:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    manifests = []
    parsed = jvm.org.yaml.snakeyaml.Yaml().loadAll(text).iterator()
    while parsed.hasNext():
        manifests.append(json.loads(jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson(parsed.next())))
    return manifests


def modelled(jvm: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the fields alone that its model has, after checking that the required ones are there."""
    kind = jvm.java.lang.Class.forName(f"io.fabric8.kubernetes.api.model.{document['kind']}")
    mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()
    model = mapper.readValue(json.dumps(document), kind)
    fields: dict[str, Any] = json.loads(mapper.writeValueAsString(model))
    return fields


def mounted(spec: Mapping[str, Any]) -> dict[str, str]:
    return {mount["name"]: mount["mountPath"] for mount in spec["volumeMounts"]}


def test_the_spark_application(jvm: Any) -> None:
    [application] = documents(jvm, "spark-operator.yaml")
    assert (application["apiVersion"], application["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    spec = application["spec"]
    required = {"type", "mode", "image", "sparkVersion", "mainApplicationFile", "restartPolicy", "driver", "executor"}
    assert required <= spec.keys()
    assert (spec["type"], spec["mode"], spec["restartPolicy"]["type"]) == ("Python", "cluster", "Always")
    assert spec["driver"]["serviceAccount"]
    conf = spec["sparkConf"]
    assert all(isinstance(value, str) for value in conf.values()), "the operator takes strings alone"
    for pod in (spec["driver"], spec["executor"]):
        # A file is named by its path only when it is at the same one everywhere, and so are the checkpoints.
        assert mounted(pod) == {"lowwater": str(Path(conf["spark.lowwater.ca"]).parent), "data": "/data"}
    assert {volume["name"] for volume in spec["volumes"]} == {"lowwater", "data"}
    assert conf["spark.lowwater.address"].endswith(":7420")


def test_the_drivers_pod(jvm: Any) -> None:
    service, pod = documents(jvm, "driver-pod.yaml")
    for document in (service, pod):
        assert modelled(jvm, document) == document, "Kubernetes would drop a field, or has it otherwise"
    [container] = pod["spec"]["containers"]
    script = container["args"][0]
    conf = dict(word.split("=", 1) for word in script.split() if word.startswith("spark.") and "=" in word)
    assert mounted(container)["lowwater"] == str(Path(conf["spark.lowwater.ca"]).parent)
    assert conf["spark.kubernetes.executor.secrets.lowwater-client"] == mounted(container)["lowwater"]
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data"
    assert conf[f"{volume}.mount.path"] == mounted(container)["data"]
    claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["spec"]["volumes"]}
    assert claims["data"] == {"claimName": conf[f"{volume}.options.claimName"]}
    assert conf["spark.kubernetes.driver.pod.name"] == pod["metadata"]["name"]
    # The executors find the driver by the service, at its ports.
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert conf["spark.driver.host"].startswith(f"{service['metadata']['name']}.{service['metadata']['namespace']}.")
    ports = {int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])}
    assert ports == {port["port"] for port in service["spec"]["ports"]}
    assert "spark.lowwater.token=" not in script, "a token in an argument can be read by others"
