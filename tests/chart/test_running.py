"""An upgrade of what runs: helm looks the StatefulSet up, here in a server that answers for it as the API does."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import pytest

from tests.chart.rendering import CHART, NAMESPACE, RELEASE, SETS, Document, helm, stateful_set

KINDS: Final = {
    "kind": "APIResourceList",
    "groupVersion": "apps/v1",
    "resources": [{"name": "statefulsets", "namespaced": True, "kind": "StatefulSet", "verbs": ["get"]}],
}


@contextmanager
def cluster(running: Document | None) -> Iterator[str]:
    """The address of an API that knows one StatefulSet, or none."""
    answers: dict[str, Document] = {"/apis/apps/v1": KINDS}
    if running is not None:
        answers[f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{running['metadata']['name']}"] = running

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            body = json.dumps(answer or {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404})
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def upgraded(running: Document | None, name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """What helm says of a set of values where that runs."""
    with cluster(running) as address:
        asked = ("--dry-run=server", "--kube-apiserver", address, "--namespace", NAMESPACE, "--values", SETS[name])
        return helm("template", RELEASE, CHART, *asked, *flags)


def scaled(name: str, replicas: int) -> Document:
    """The StatefulSet of a set of values, with so many replicas."""
    found = stateful_set(name)
    return {**found, "spec": {**found["spec"], "replicas": replicas}}


@pytest.mark.parametrize(
    ("before", "after", "over"), [("volume", "redis-secret", "a volume"), ("redis", "off", "Redis")]
)
def test_nothing_that_runs_changes_its_journal_for_an_empty_one(before: str, after: str, over: str) -> None:
    said = upgraded(scaled(before, 1), after, "--is-upgrade")
    assert said.returncode != 0, "it was rendered"
    assert f"lw-lowwater runs over {over}, and would begin an empty journal" in said.stderr
    assert "scale to 0 and copy the journal first: docs/helm.md, From a volume to Redis" in said.stderr
    done = upgraded(scaled(before, 0), after, "--is-upgrade")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("running", "name"),
    [("default", "tls"), ("redis", "redis-secret"), (None, "redis")],
    ids=["volume", "Redis", "none"],
)
def test_other_upgrades_go_on(running: str | None, name: str) -> None:
    said = upgraded(None if running is None else scaled(running, 1), name, "--is-upgrade")
    assert said.returncode == 0, said.stderr
