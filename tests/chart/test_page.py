"""docs/helm.md: its commands and values are accepted, and its objects are what Kubernetes takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from lowwater.cli.arguments import parser as client_parser
from lowwater_authority import journal_command
from tests.chart.rendering import ROOT, by_key, parsed, rendered
from tests.chart.test_rendered import FLOOR, valid

PAGE = (ROOT / "docs/helm.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line
    for language, block in BLOCKS
    if language == "sh"
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("helm ")
]
WRITTEN = [yaml.safe_load(block) for language, block in BLOCKS if language == "yaml"]


def settings(command: str) -> list[str]:
    """The values that a command sets, as arguments of helm."""
    words = shlex.split(command)
    return [each for at, word in enumerate(words) if word.startswith("--set") for each in (word, words[at + 1])]


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--set" in each])
def test_a_command_sets_values_that_there_are(command: str) -> None:
    assert by_key(parsed(rendered(*settings(command))))


def test_the_values_are_taken(tmp_path: Path) -> None:
    values = [each for each in WRITTEN if "kind" not in each]
    assert values
    for number, each in enumerate(values):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(each))
        assert by_key(parsed(rendered("--values", path)))


def test_the_pod_that_copies_a_journal() -> None:
    [pod] = [each for each in WRITTEN if each.get("kind") == "Pod"]
    valid(pod, FLOOR)
    [copy] = pod["spec"]["containers"]
    program, group, *arguments = copy["command"]
    assert (program, group) == ("lowwater", "journal")
    args = journal_command.parser().parse_args(arguments)
    # The names that the first command of the page leads to, and the deployment that the chart serves afterwards.
    found = by_key(parsed(rendered("--set", "fullnameOverride=lowwater", "--namespace", "lowwater")))
    [claim] = [each["metadata"]["name"] for each in found.values() if each["kind"] == "PersistentVolumeClaim"]
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim
    sharded = (
        "--set",
        "fullnameOverride=lowwater",
        "--namespace",
        "lowwater",
        "--set",
        "redis.existingSecret=redis-url",
    )
    [served] = [each for each in parsed(rendered(*sharded)) if each["kind"] == "StatefulSet"]
    [deployment] = re.findall(
        r"--deployment=(\S+)", " ".join(served["spec"]["template"]["spec"]["containers"][0]["args"])
    )
    assert args.target == f"env:STORE#{deployment}"


def test_the_certificate_is_for_every_name_that_is_called() -> None:
    [certificate] = [each for each in WRITTEN if each.get("kind") == "Certificate"]
    names = certificate["spec"]["dnsNames"]
    arguments = (
        "--set",
        "fullnameOverride=lowwater",
        "--namespace",
        "lowwater",
        "--set",
        "tls.existingSecret=lowwater-tls",
    )
    found = parsed(rendered(*arguments, "--set", "redis.existingSecret=x", "--set", "serviceMonitor.enabled=true"))
    [served] = [each for each in found if each["kind"] == "StatefulSet"]
    [advertised] = re.findall(
        r"--advertise=\$\(POD_NAME\)(\S+):7420", " ".join(served["spec"]["template"]["spec"]["containers"][0]["args"])
    )
    assert f"*{advertised}" in names
    [monitor] = [each for each in found if each["kind"] == "ServiceMonitor"]
    assert monitor["spec"]["endpoints"][0]["tlsConfig"]["serverName"] in names
    [test] = [each for each in found if each["kind"] == "Pod"]
    [host] = re.findall(r"--address=(\S+):7420", " ".join(test["spec"]["containers"][0]["args"]))
    assert host in names
    assert certificate["spec"]["secretName"] == "lowwater-tls"


def test_the_drain_is_a_command() -> None:
    [drain] = re.findall(r"`lowwater (drain [^`]+)`", PAGE)
    assert client_parser().parse_args(shlex.split(drain)).command == "drain"
