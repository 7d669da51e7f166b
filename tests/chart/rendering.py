"""The chart as the real helm renders it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.kit.program import run_program

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm/lowwater"
SETS: Final = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
"""The sets of values that everything is tried with, by name."""
RELEASE: Final = "lw"
NAMESPACE: Final = "prod"

Document = dict[str, Any]


class Strict(yaml.CSafeLoader):
    """Refuses a key that is there twice: Kubernetes would take the last one and say nothing. In C it reads ten times as fast."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{sorted(map(str, twice))} twice, {node.start_mark}"
        return super().construct_mapping(node, deep)


def program(name: str) -> str:
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert path is not None, f"there is no {name}: run scripts/setup.sh --tests"
    return path


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program([program("helm"), *map(str, arguments)])


@functools.cache
def rendered(*arguments: str | Path, chart: Path = CHART) -> str:
    """Return what a release of that name would install. Raises AssertionError with what helm said when it refuses."""
    result = helm("template", RELEASE, chart, "--namespace", NAMESPACE, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def parsed(text: str) -> list[Document]:
    return [document for document in yaml.load_all(text, Strict) if document]


@functools.cache
def documents(name: str) -> tuple[Document, ...]:
    """Return what a set of values makes; each is rendered once, so do not change it."""
    return tuple(parsed(rendered("--values", SETS[name])))


def key(document: Document) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def by_key(documents: tuple[Document, ...] | list[Document]) -> dict[str, Document]:
    objects = {key(document): document for document in documents}
    assert len(objects) == len(documents), "two objects have one name"
    return objects


def of_kind(name: str, kind: str) -> list[Document]:
    return [document for document in documents(name) if document["kind"] == kind]


def stateful_set(name: str) -> Document:
    [manifest] = of_kind(name, "StatefulSet")
    return manifest


def container(name: str) -> Document:
    container, *_ = stateful_set(name)["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "authority"
    assert isinstance(container, dict)
    return container


def page(name: str) -> Document | None:
    return _deployed(name, "page")


def sidecar(name: str) -> Document | None:
    """The container that tracks queries which nobody changes; None where it is switched off."""
    return _deployed(name, "sidecar")


def agent(name: str) -> Document | None:
    return _deployed(name, "region")


def global_authority(name: str) -> Document | None:
    return _deployed(name, "global")


def _deployed(name: str, part: str) -> Document | None:
    lists = [manifest["spec"]["template"]["spec"]["containers"] for manifest in of_kind(name, "Deployment")]
    return next((only for [only] in lists if only["name"] == part), None)


def expanded(argument: str, environment: Mapping[str, str]) -> str:
    """An argument as the kubelet hands it over: with the variables of the container's environment."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], argument)


def paths(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two values differ; lists are compared as a whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        for part in sorted({*before, *after}):
            yield from paths(before.get(part), after.get(part), f"{path}.{part}" if path else part)
    elif before != after:
        yield path


def changes(before: list[Document] | tuple[Document, ...], after: list[Document] | tuple[Document, ...]) -> set[str]:
    """Return what an upgrade does: `+ KIND/NAME`, `- KIND/NAME`, and `KIND/NAME PATH` for each value that is not the same."""
    old, new = by_key(before), by_key(after)
    differences = {f"+ {name}" for name in new.keys() - old.keys()} | {f"- {name}" for name in old.keys() - new.keys()}
    for name in old.keys() & new.keys():
        differences |= {f"{name} {path}" for path in paths(old[name], new[name])}
    return differences
