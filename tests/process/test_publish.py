"""``lowwater publish`` and ``lowwater complete --from --to`` against a real authority, real files and a real HTTP server."""

from __future__ import annotations

import hmac
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import lowwater
from lowwater.cli import main
from tests.kit.times import at
from tests.process import publishing_child
from tests.process.serving import Serving

FROM = ["--every", "1h", "--from", "2013-01-09T10:00Z"]


class Receiver:
    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.posts.append(json.loads(receiver.bodies[-1]))
                receiver.headers.append(dict(self.headers))
                answer = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(answer)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                receiver.posts.append({"id": "a GET"})
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Ignore the error of a caller that was killed."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def hours(self) -> list[str]:
        return [post["id"].split("/")[3][11:13] for post in self.posts]

    @contextmanager
    def serving(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as hook:
        yield hook


@pytest.fixture
def lease(lw: lowwater.Client) -> lowwater.Lease:
    """flights, of which everything before 13:30 is here."""
    lw.register("flights")
    lease = lw.worker("flights", name="exec-7").claim()
    come(lease, 13.5)
    return lease


def come(lease: lowwater.Lease, hour: float) -> None:
    lease.advance(None, oldest=None, frontier=at(0) + timedelta(hours=hour))
    lease.flush()


def publish(server: Serving, cursor: Path, to: str, *more: str) -> list[str]:
    return ["publish", "flights", *FROM, "--cursor", str(cursor), "--to", to, "--address", server.address, *more]


def markers(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_marker_is_written_for_each_interval_that_is_complete_and_for_no_other(
    server: Serving, lease: lowwater.Lease, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = publish(server, tmp_path / "c" / "cursor", f"file:{out}/%Y-%m-%d/%H/_SUCCESS", "--once")
    assert main(command) == 0
    assert markers(out) == [f"2013-01-09/{hour}/_SUCCESS" for hour in (10, 11, 12)]
    assert capsys.readouterr().out.splitlines()[0] == (
        f"2013-01-09T10:00:00Z to 2013-01-09T11:00:00Z is complete in flights: told {out}/2013-01-09/10/_SUCCESS"
    )
    (out / "2013-01-09/10/_SUCCESS").unlink()
    assert main([*command, "--json"]) == 0
    assert (capsys.readouterr().out, markers(out)[0]) == ("", "2013-01-09/11/_SUCCESS"), "nothing is told twice"
    come(lease, 14)
    assert main([*command, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["from"], body["to"], body["incarnation"]) == ("2013-01-09T13:00:00Z", "2013-01-09T14:00:00Z", 1)
    assert json.loads((out / "2013-01-09/13/_SUCCESS").read_text())["id"] == body["id"]


def test_a_webhook_is_asked_again_until_it_takes_an_interval_and_then_comes_the_next(
    server: Serving,
    lease: lowwater.Lease,
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOWWATER_PUBLISH_TOKEN", "secret")
    monkeypatch.setenv("LOWWATER_PUBLISH_KEY", "signing-secret")
    receiver.statuses = [503, 302]
    command = publish(server, tmp_path / "cursor", receiver.url, "--until", "2013-01-09T12:00Z")
    assert main(command) == 0
    assert receiver.hours() == ["10", "10", "10", "11"], "a redirect is no answer"
    assert len({post["id"] for post in receiver.posts}) == 2
    first = receiver.posts[0]
    assert receiver.posts[:3] == [first] * 3
    assert (first["specversion"], first["type"], first["subject"]) == ("1.0", "lowwater.interval.complete", "flights")
    assert first["data"]["to"] == "2013-01-09T11:00:00Z"
    assert receiver.headers[0]["Authorization"] == "Bearer secret"
    signed = hmac.digest(b"signing-secret", receiver.bodies[0], "sha256").hex()
    assert receiver.headers[0]["X-Lowwater-Signature"] == f"sha256={signed}"
    assert receiver.headers[0]["Content-Type"] == "application/cloudevents+json"
    output = capsys.readouterr()
    assert [line.split(";")[0].rpartition(" answers ")[2] for line in output.err.splitlines()] == [
        "with 503, and not with 2xx",
        "with 302, and not with 2xx",
    ]
    assert "secret" not in output.err + output.out
    assert main(command) == 0
    assert len(receiver.posts) == 4, "all up to --until was told"


def test_kills_leave_no_gaps(server: Serving, lease: lowwater.Lease, receiver: Receiver, tmp_path: Path) -> None:
    come(lease, 22)
    command = publish(server, tmp_path / "cursor", receiver.url, "--until", "2013-01-09T22:00Z")
    done = subprocess.run(
        [sys.executable, publishing_child.__file__, "16", *command], stdout=subprocess.PIPE, text=True, check=True
    )
    ends = json.loads(done.stdout)
    assert ends[-1] == 0
    assert ends.count(-9) >= 12, "each was killed, for as long as there was something left to do"
    hours = receiver.hours()
    assert list(dict.fromkeys(hours)) == [f"{hour}" for hour in range(10, 22)]
    assert len(hours) > 12, "one that was killed between the target and the cursor tells it again"
    assert hours == sorted(hours), "in order"


def test_what_cannot_be_published_is_refused(
    server: Serving, lw: lowwater.Client, lease: lowwater.Lease, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(command: list[str], text: str, reason: str) -> None:
        assert main([*command, "--json"]) == 2
        failed = json.loads(capsys.readouterr().out)["error"]
        assert (failed["reason"], text in failed["message"]) == (reason, True), failed
        assert failed["fix"]

    out = f"file:{tmp_path}/out/%Y-%m-%d/%H"
    lw.register("guess", estimated=True)
    command = publish(server, tmp_path / "cursor", out, "--once")
    refused(["publish", "guess", *command[2:]], "only estimated", "ESTIMATED_INPUT")
    refused(["publish", "flihgts", *command[2:]], "did you mean flights?", "UNKNOWN_COMPUTATION")
    assert not (tmp_path / "cursor").exists()
    assert main(command) == 0
    capsys.readouterr()
    for option, value in (("--every", "2h"), ("--from", "2013-01-09T11:00Z")):
        at_it = command.index(option) + 1
        refused([*command[:at_it], value, *command[at_it + 1 :]], "was begun", "INVALID_ARGUMENT")
    lw.register("other")
    refused(["publish", "other", *command[2:]], "was begun for flights", "INVALID_ARGUMENT")
    cursor = json.loads((tmp_path / "cursor").read_text())
    (tmp_path / "cursor").write_text(json.dumps(cursor | {"server_token": "another"}))
    refused(command, "belongs to the deployment another", "SERVER_TOKEN_MISMATCH")
    for broken in ("", json.dumps(cursor | {"format": 2})):
        (tmp_path / "cursor").write_text(broken)
        refused(command, "no cursor of this release", "INVALID_ARGUMENT")


def test_two_publishers_cannot_share_a_cursor(
    server: Serving, lease: lowwater.Lease, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = publish(server, tmp_path / "cursor", f"file:{tmp_path}/out/%Y-%m-%d/%H")
    with subprocess.Popen([sys.executable, "-m", "lowwater.cli", *command], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        assert main([*command, "--once"]) == 2
        assert "another publisher uses" in capsys.readouterr().err
        child.terminate()
