"""docs/operate/helm.md: its commands and values are accepted, and its objects are what Kubernetes takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lowwater
from lowwater.cli.arguments import parser as client_parser
from lowwater_authority.commands import journal as journal_command
from tests.chart.rendering import ROOT, by_key, expanded, parsed, rendered
from tests.chart.test_rendered import FLOOR, valid
from tests.process.serving import Serving

PAGE = (ROOT / "docs/operate/helm.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LINES = [line for language, block in BLOCKS if language == "sh" for line in block.replace("\\\n", " ").splitlines()]
COMMANDS = [cmd for cmd in (*LINES, *re.findall(r"`([^`\n]+)`", PAGE)) if re.search(r"\b(helm|kubectl) -*\w+ .", cmd)]
"""The page's commands of helm and kubectl, in blocks and in sentences."""
FILE = "lowwater.yaml"
"""The page's name of the file with the values."""
WRITTEN = [yaml.safe_load(block) for language, block in BLOCKS if language == "yaml"]


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_names_the_namespace_and_forgets_no_value(command: str) -> None:
    words = shlex.split(command, comments=True)
    at = next(at for at, word in enumerate(words) if word in {"helm", "kubectl"})
    assert "-n lowwater" in command or words[at + 1 : at + 4] == ["create", "namespace", "lowwater"]
    if words[at] == "helm" and words[at + 1] in {"install", "upgrade"}:
        assert [word for word in words if word[0] != "-"][2:4] == ["lowwater", "helm/lowwater"]
        assert f"-f {FILE}" in command
        assert "--set" not in command, "the next one would not know it"
        assert "--atomic" not in command, "it might go back to a journal that was left"


def test_the_values_are_taken(tmp_path: Path) -> None:
    values = [document for document in WRITTEN if "kind" not in document]
    assert len(values) >= 5
    arguments: list[str | Path] = []
    for number, document in enumerate(values):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        assert by_key(parsed(rendered("--values", path)))
        arguments += ["--values", path]
        assert by_key(parsed(rendered(*arguments)))


def test_the_pod_that_has_the_volume() -> None:
    [pod] = [document for document in WRITTEN if document.get("kind") == "Pod"]
    valid(pod, FLOOR)
    [only] = pod["spec"]["containers"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"]["allowPrivilegeEscalation"] is False
    assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # What the first command of the page leads to, which may write as the authority does.
    manifests = by_key(parsed(rendered("--set", "fullnameOverride=lowwater", "--namespace", "lowwater")))
    [claim] = [each["metadata"]["name"] for each in manifests.values() if each["kind"] == "PersistentVolumeClaim"]
    assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    assert only["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    served = manifests["StatefulSet/lowwater"]["spec"]["template"]["spec"]["securityContext"]
    assert pod["spec"]["securityContext"].items() <= served.items()


def test_a_journal_is_copied_to_where_the_chart_serves_it() -> None:
    redis = ("--set", "redis.existingSecret=redis-url")
    manifests = by_key(parsed(rendered("--set", "fullnameOverride=lowwater", "--namespace", "lowwater", *redis)))
    [served] = manifests["StatefulSet/lowwater"]["spec"]["template"]["spec"]["containers"]
    [deployment] = re.findall(r"--deployment=(\S+)", " ".join(served["args"]))
    copies = [shlex.split(match) for match in re.findall(r"\blowwater journal (copy [^;\n]+)", "\n".join(LINES))]
    sides = [(args.source, args.target) for args in map(journal_command.parser().parse_args, copies)]
    shared = f"env:STORE#{deployment}"
    assert sides == [("/data", shared), (shared, "/data")]
    [pod] = [document for document in WRITTEN if document.get("kind") == "Pod"]
    [store] = pod["spec"]["containers"][0]["env"]
    volumes = manifests["StatefulSet/lowwater"]["spec"]["template"]["spec"]["volumes"]
    [url] = [volume["secret"] for volume in volumes if volume["name"] == "redis-url"]
    reference = store["valueFrom"]["secretKeyRef"]
    assert (url["secretName"], url["items"][0]["key"]) == (reference["name"], reference["key"])
    assert (store["name"], store["valueFrom"]["secretKeyRef"]["optional"]) == ("STORE", True)


def test_the_drains_ask_the_shard_by_its_name() -> None:
    redis = ("--set", "redis.existingSecret=redis-url")
    manifests = by_key(parsed(rendered("--set", "fullnameOverride=lowwater", "--namespace", "lowwater", *redis)))
    [served] = manifests["StatefulSet/lowwater"]["spec"]["template"]["spec"]["containers"]
    [advertised] = re.findall(r"--advertise=(\S+)", " ".join(served["args"]))
    drains = [re.sub(r".*\blowwater (drain [^'<]+).*", r"\1", line) for line in LINES if "lowwater drain" in line]
    plain, secured = (client_parser().parse_args(shlex.split(drain)) for drain in drains)
    for args in (plain, secured):
        assert args.shard == args.address == expanded(advertised, {"POD_NAME": "lowwater-2"})
    assert (plain.ca, secured.ca) == (None, Path("/etc/lowwater/tls/ca.crt"))
    assert PAGE.count("lowwater drain") == len(drains), "each of them is looked at"
    assert "LOWWATER_TOKEN" in PAGE


KUBECTL = """#!/bin/sh
shift 2
case $1 in
exec) shift 3; exec "$@" ;;
cp) cp "${2#*:}" "${3#*:}" ;;
esac
"""
"""Runs here what a pod would run, and copies to and from here; what only a cluster does is left out."""


@pytest.mark.process
def test_a_backup_of_a_served_volume_is_restored(tmp_path: Path) -> None:
    volume, kubectl = tmp_path / "volume", tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    path = f"{kubectl.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def follow(block: str) -> None:
        script = re.sub(r"(?<!\w)/data\b", str(volume), block)
        subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={**os.environ, "PATH": path}, check=True)

    section = PAGE.split("\n## Backup and restore\n")[1].partition("\n## ")[0]
    backup, restore = (block for language, block in BLOCKS if language == "sh" and block in section)
    with Serving(volume) as server, lowwater.connect(server.address) as lw:
        lw.register("before")
        follow(backup)
        assert not any(path.is_dir() for path in volume.iterdir()), "nothing is left on the volume"
        lw.register("behind")
    follow(restore)
    assert {path.name for path in volume.iterdir()} >= {"journal.sqlite", "lost"}
    with Serving(volume) as server, lowwater.connect(server.address) as lw:
        assert lw.get().keys() == {"before"}
