"""An upgrade of what runs: helm looks the StatefulSet up, here in a server that answers for it as the API does."""

from __future__ import annotations

import functools
import json
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.chart.rendering import CHART, NAMESPACE, RELEASE, SETS, Document, helm, key, parsed, rendered

KINDS: Final = {
    "/api/v1": ("ConfigMap", "PersistentVolumeClaim", "Pod", "Secret", "Service", "ServiceAccount"),
    "/apis/apps/v1": ("Deployment", "StatefulSet"),
}
"""The kinds that the API serves: no more than those of a release without anything besides."""


@contextmanager
def cluster(*objects: Document) -> Iterator[str]:
    """The address of an API that knows these StatefulSets and Secrets."""
    apps = {"groupVersion": "apps/v1", "version": "v1"}
    answers: dict[str, Document] = {
        "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [apps], "preferredVersion": apps}]},
    }
    for path, kinds in KINDS.items():
        has = [{"name": f"{kind.lower()}s", "namespaced": True, "kind": kind, "verbs": ["get"]} for kind in kinds]
        group = path.removeprefix("/apis/").removeprefix("/api/")
        answers[path] = {"kind": "APIResourceList", "groupVersion": group, "resources": has}
    for document in objects:
        [path] = [path for path, kinds in KINDS.items() if document["kind"] in kinds]
        answers[f"{path}/namespaces/{NAMESPACE}/{document['kind'].lower()}s/{document['metadata']['name']}"] = document

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            answer = answer or {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
            body = json.dumps(answer)
            self.send_response(answer.get("code", 200))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def upgraded(running: Sequence[Document], *values: str | Path) -> subprocess.CompletedProcess[str]:
    with cluster(*running) as address:
        options = ("--dry-run=server", "--kube-apiserver", address, "--namespace", NAMESPACE, "--is-upgrade")
        return helm("template", RELEASE, CHART, *options, *values)


def setting(*values: str) -> tuple[str, ...]:
    return tuple(part for value in values for part in ("--set", value))


@functools.cache
def lasting(*values: str | Path) -> tuple[Document, ...]:
    documents = parsed(rendered(*values))
    return tuple(
        document
        for document in documents
        if document["kind"] in {"StatefulSet", "Secret"}
        or (key(document).startswith("Deployment/") and key(document).endswith("-global"))
    )


def installed(replicas: int, *values: str | Path) -> list[Document]:
    documents = lasting(*values)
    return [item | ({"spec": item["spec"] | {"replicas": replicas}} if "spec" in item else {}) for item in documents]


def secret(name: str, url: str) -> Document:
    data = {"url": b64encode(url.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}


VOLUME = "lw-lowwater keeps its journal in the claim lw-lowwater-data, and with these values would begin another in "
SHARED = "lw-lowwater keeps its journal in Redis, as the deployment prod.lw-lowwater, and with these values would begin another in "
ONE = ["redis.url=redis://:secret@one.data.svc:6379/0"]
GIVEN = ["redis.existingSecret=given"]
MOVES: dict[str, tuple[list[str], list[str], str]] = {
    "a volume for Redis": ([], GIVEN, f"{VOLUME}Redis, as the deployment prod.lw-lowwater: "),
    "Redis for a volume": (GIVEN, [], f"{SHARED}the claim lw-lowwater-data: "),
    "a volume for none": ([], ["persistence.enabled=false"], f"{VOLUME}a folder that is lost with its pod: "),
    "a deployment for another": (ONE, [*ONE, "redis.deployment=b"], f"{SHARED}Redis, as the deployment b: "),
    "a Redis for another": (
        ONE,
        ["redis.url=redis://:secret@two.data.svc:6379/0"],
        "lw-lowwater uses the Redis one.data.svc:6379/0, and some shards would already use two.data.svc:6379/0: ",
    ),
    "sentinels for others": (
        [r"redis.url=redis+sentinel://a\,b/main"],
        [r"redis.url=redis+sentinel://c\,b:26380/main"],
        "uses the Redis a:26379,b:26379/main/0, and some shards would already use c:26379,b:26380/main/0: ",
    ),
    **{
        f"a Redis for one with a bare {character} in its password": (
            ONE,
            [f"redis.url=redis://:secret{character}secret@two"],
            "would already use two:6379/0: ",
        )
        for character in "#@"
    },
    "a Redis for that of a Secret": (ONE, GIVEN, "would already use given.data.svc:6379/0: "),
    "that of a Secret for that of another": (
        GIVEN,
        ["redis.existingSecret=moved"],
        "uses the Redis given.data.svc:6379/0, and some shards would already use moved.data.svc:6379/0: ",
    ),
}
SECRETS = [
    secret("given", "rediss://:secret@given.data.svc:6379?ssl_ca_certs=/etc/roots/ca.crt"),
    secret("same", "redis://:se@cret@given.data.svc:6379/\n"),
    secret("moved", "redis://:secret@moved.data.svc:6379"),
    secret("empty", ""),
    secret("password", "secret"),
]


@pytest.mark.parametrize("case", MOVES)
def test_nothing_that_runs_changes_its_journal_for_an_empty_one(case: str) -> None:
    before, after, message = MOVES[case]
    result = upgraded([*installed(1, *setting(*before)), *SECRETS], *setting(*after))
    assert result.returncode != 0, "it was rendered"
    assert message in result.stderr
    assert "scale to 0" in result.stderr
    assert "docs/operate/helm.md, From a volume to Redis" in result.stderr
    assert "secret" not in result.stderr, "a password is not repeated"
    done = upgraded([*installed(0, *setting(*before)), *SECRETS], *setting(*after))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, GIVEN, id="nothing runs"),
        pytest.param([], ["tls.existingSecret=certificate"], id="TLS"),
        pytest.param(["persistence.enabled=false"], [], id="a journal that would be lost anyway"),
        pytest.param(ONE, ["redis.url=redis://me:other@one.data.svc:6379/0"], id="another password"),
        pytest.param(GIVEN, ["redis.existingSecret=same"], id="another Secret of the same Redis"),
        pytest.param(GIVEN, ["redis.existingSecret=missing"], id="a Secret that is not there yet"),
        pytest.param(GIVEN, ["redis.existingSecret=password"], id="a Secret of something else"),
        pytest.param(["redis.url=redis://one"], ["redis.url=redis://one:6379"], id="the default port"),
        pytest.param(
            [r"redis.url=redis+cluster://a\,b"],
            [r"redis.url=redis+cluster://c\,b:6379/0"],
            id="another node of a cluster",
        ),
        pytest.param(ONE, [*ONE, "redis.deployment=prod.lw-lowwater", "replicaCount=5"], id="the same by its name"),
    ],
)
def test_other_upgrades_go_on(before: list[str] | None, after: list[str]) -> None:
    running = [] if before is None else installed(1, *setting(*before))
    result = upgraded([*running, *SECRETS], *setting(*after))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([], ["globalAuthority.redis.existingSecret=r"], "the claim lw-lowwater-global, and with these values would begin another in Redis, as the deployment prod.lw-lowwater-global"),
        (["globalAuthority.redis.existingSecret=r"], [], "in Redis, as the deployment prod.lw-lowwater-global, and with these values would begin another in the claim lw-lowwater-global"),
        (
            ["globalAuthority.redis.existingSecret=r"],
            ["globalAuthority.redis.existingSecret=r", "globalAuthority.redis.deployment=b"],
            "would begin another in Redis, as the deployment b",
        ),
        (
            ["globalAuthority.redis.existingSecret=given"],
            ["globalAuthority.redis.existingSecret=moved"],
            "lw-lowwater-global uses the Redis given.data.svc:6379/0, and with these values would use moved.data.svc:6379/0",
        ),
    ],
)  # fmt: skip
def test_a_global_authority_changes_for_no_empty_journal(before: list[str], after: list[str], message: str) -> None:
    enabled = "globalAuthority.enabled=true"
    running = [*installed(1, *setting(enabled, *before)), *SECRETS]
    assert upgraded(running, *setting(enabled, *before)).returncode == 0
    assert upgraded(running, *setting(enabled, *before), "--set", "tls.existingSecret=x").returncode == 0
    result = upgraded(running, *setting(enabled, *after))
    assert result.returncode != 0
    assert message in result.stderr
    assert "scale to 0 first" in result.stderr
    assert upgraded([*installed(0, *setting(enabled, *before)), *SECRETS], *setting(enabled, *after)).returncode == 0


def test_a_secret_that_stays_is_not_read() -> None:
    closed = {"kind": "Secret", "metadata": {"name": "given"}, "code": 403}
    running = installed(1, *setting(*GIVEN))
    result = upgraded([*running, closed], *setting(*GIVEN, "replicaCount=2"))
    assert result.returncode == 0, result.stderr
    result = upgraded([*running, closed], *setting("redis.existingSecret=moved"))
    assert result.returncode != 0, "it was not asked for"


@pytest.mark.parametrize("name", ["everything", "global", "redis-secret", "sidecar"])
def test_an_upgrade_to_the_same_values_goes_on(name: str) -> None:
    result = upgraded(installed(1, "--values", SETS[name]), "--values", SETS[name])
    assert result.returncode == 0, result.stderr


def test_what_is_asked_for_and_not_there_is_refused_and_not_left_out() -> None:
    with cluster() as address:
        options = ("--validate", "--disable-openapi-validation", "--kube-apiserver", address, "--namespace", NAMESPACE)
        plain = helm("template", RELEASE, CHART, *options)
        assert plain.returncode == 0, plain.stderr
        for value, kind in (("serviceMonitor", "ServiceMonitor"), ("prometheusRule", "PrometheusRule")):
            result = helm("template", RELEASE, CHART, *options, *setting(f"{value}.enabled=true"))
            assert result.returncode != 0
            assert f'no matches for kind "{kind}"' in result.stderr
