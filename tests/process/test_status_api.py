"""The API of the status page, against real authorities: what it shows is what workers have really reported."""

from __future__ import annotations

import contextlib
import re
import socket
import time
import urllib.parse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import lowwater
from lowwater_page.assets import FOLDER
from lowwater_page.board import Board
from lowwater_page.follower import Follower
from lowwater_page.page import SLICE, STALLED_SECONDS
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.browsing import Json, Viewer, ask
from tests.process.following import Work
from tests.process.serving import Serving

pytestmark = pytest.mark.process

NOON = 1_767_268_800_000_000
ANY = "127.0.0.1:0"
RAW, ENRICHED, HOURLY = "flights/raw", "flights/en-riched_2", "flights/hourly.v1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("page") / "data", page=ANY) as one:
        yield one


@pytest.fixture(scope="module")
def lw(server: Serving) -> Iterator[lowwater.Client]:
    with lowwater.connect(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def pipeline(server: Serving, lw: lowwater.Client) -> Iterator[Json]:
    lw.register(RAW)
    lw.register(ENRICHED, inputs=[RAW])
    lw.register(HOURLY, inputs=[ENRICHED], heuristics=(0.99, 0.5))
    injector = lw.worker(RAW, name="reader").claim()
    injector.advance(None, oldest=None, frontier=NOON + 2 * HOUR)
    injector.flush(30)
    worker = lw.worker(ENRICHED, name="exec-7")
    eventually(lambda: worker.inputs().low.micros == NOON + 2 * HOUR)
    slow, fast = worker.claim(b"", b"\x44"), worker.claim(b"\x44", b"")
    slow.advance(worker.inputs(), oldest=NOON + HOUR)
    fast.advance(worker.inputs(), oldest=None)
    slow.flush(30)
    fast.flush(30)
    reader = lw.worker(HOURLY, name="exec-8")
    eventually(lambda: reader.inputs().low.micros == NOON + HOUR)
    last = reader.claim()
    last.advance(reader.inputs(), oldest=NOON)
    last.flush(30)
    with Viewer(server.page) as viewer:
        viewer.until(lambda shown: shown.low(HOURLY) == NOON)
        yield viewer.shown


def test_the_snapshot_is_what_was_reported(server: Serving, lw: lowwater.Client, pipeline: Json) -> None:
    answer = ask(server.page, "api/snapshot")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert abs(answer.json["time_micros"] / 1e6 - time.time()) < 60
    assert 0 <= answer.json["stale_for"] < 10
    assert answer.json["shards"] == []  # it is alone
    computations = {computation["name"]: computation for computation in answer.json["computations"]}
    raw, enriched, hourly = computations[RAW], computations[ENRICHED], computations[HOURLY]
    assert raw["low"] == {"micros": NOON + 2 * HOUR, "state": "time"}
    assert (raw["local_lag_seconds"], raw["global_lag_seconds"]) == (None, None)
    assert enriched["low"] == {"micros": NOON + HOUR, "state": "time"}
    assert (enriched["inputs"], enriched["ranges"]) == ([RAW], 2)
    assert (enriched["local_lag_seconds"], enriched["global_lag_seconds"]) == (3600.0, 3600.0)
    assert (hourly["local_lag_seconds"], hourly["global_lag_seconds"]) == (3600.0, 7200.0)
    assert [share["share"] for share in hourly["shares"]] == [0.99, 0.5]
    holder = enriched["holder"]
    assert (holder["start"], holder["end"], holder["label"]) == ("", "44", "[.., D)")
    assert (holder["worker"], holder["state"]) == ("exec-7", "owned")
    real = lw.get(ENRICHED)[ENRICHED]
    assert (enriched["incarnation"], enriched["epoch"]) == (real.incarnation, real.epoch)
    assert enriched["since_micros"] == real.since_micros
    assert real.holder is not None
    assert holder["sequencer"] == str(real.holder.sequencer)


@pytest.mark.parametrize(
    ("path", "options", "status", "named"),
    [
        ("ranges", {}, 400, "computation"),
        ("why", {"computation": "never/registered"}, 404, "never/registered"),
        ("history", {"computation": RAW, "colour": "red"}, 400, "colour"),
        ("ranges", {"computation": RAW, "limit": "1e3"}, 400, "from 1 to "),
        ("heat", {"span": "1y"}, 400, "give one of 1h, 6h, 24h, 7d"),
    ],
)
def test_bad_query_is_named(server: Serving, pipeline: Json, path: str, options: Json, status: int, named: str) -> None:
    answer = ask(server.page, f"api/{path}", **options)
    assert answer.status == status
    assert named in answer.json["error"]


def test_it_only_reads(server: Serving) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = ask(server.page, "api/snapshot", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
        assert "GET" in answer.json["error"]
    pages = [f"{server.page}{path}" for path in ("", "api/snapshot", "api/events", "healthz")]
    for url in (*pages, server.metrics, f"{server.endpoint}healthz"):
        answer = ask(url, "", "HEAD")
        assert (answer.status, answer.body) == (200, b"")


def test_the_page_comes_from_here_alone(server: Serving) -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert FOLDER / "index.html" in files
    types = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
    for path in files:
        place = f"static/{path.relative_to(FOLDER).as_posix()}"
        answer = ask(server.page, place)
        assert (answer.status, answer.body) == (200, path.read_bytes())
        assert answer.headers["Content-Type"].partition(";")[0] == types.get(path.suffix, "text/plain")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Strict-Transport-Security" not in answer.headers, "it is not served over TLS"
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        again = ask(server.page, place, headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status, again.body) == (304, b"")
    assert ask(server.page, "").body == (FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize(
    "path", ["static/../http.py", "static/%2e%2e/http.py", "static//etc/passwd", "static/", "nothing"]
)
def test_nothing_but_the_page_can_be_asked_for(server: Serving, path: str) -> None:
    host, _, port = server.page.removeprefix("http://").removesuffix("/").partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:  # urllib would tidy the path up
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b'{"error"' in answer


def test_a_viewer_sees_each_computation_come_to_what_was_reported(server: Serving, lw: lowwater.Client) -> None:
    lw.register("live")
    lease = lw.worker("live").claim()
    with Viewer(server.page) as one, Viewer(server.page) as other:
        for viewer in (one, other):
            viewer.until(lambda shown: "live" in shown.shown)
        began, micros = time.monotonic(), 0
        while time.monotonic() - began < 3:
            micros += 1
            lease.advance(None, oldest=None, frontier=micros)
            lease.flush(30)
        for viewer in (one, other):
            viewer.until(lambda shown: shown.low("live") == micros)
            came = [event.at for event in viewer.events if event.kind == "changes"]
            assert len(came) <= 4 * (came[-1] - came[0]) + 2
            lows = viewer.lows["live"]
            assert all(earlier <= later for earlier, later in pairwise(lows))
            assert len(lows) < micros
        sent = [{event.data for event in viewer.events if event.kind == "changes"} for viewer in (one, other)]
        assert len(sent[0] & sent[1]) >= min(map(len, sent)) - 2


def test_rule7_a_viewer_that_stalls_costs_a_bounded_buffer_and_finds_news(server: Serving, lw: lowwater.Client) -> None:
    names = [f"wide/{i:03}" for i in range(200)]
    for name in names:
        lw.register(name)
    before = resident(server)
    with Work(lw, names) as work, Viewer(server.page) as viewer, opened(server, 4096) as stalled:
        viewer.until(lambda shown: sum(len(event.data) for event in shown.events) > 30 * SLICE, 60)
        assert resident(server) - before < 64 << 20
        target = work.done
        received, began = b"", time.monotonic()
        newest = re.compile(rb'"name":"wide/000".*?"low":\{"micros":(\d+)')
        while not any(int(low) >= target for low in newest.findall(received[-(1 << 19) :])):
            read = stalled.recv(1 << 16)
            assert read, f"it was cut off, as is right after {STALLED_SECONDS:g} s: this machine is too busy"
            received += read
            assert time.monotonic() - began < 60
        sent = sum(len(event.data) for event in viewer.events)
    # The buffers on the way hold some 6 to 9 slices. Both viewers get the events that follow the stall, and a slow
    # machine sends more of those: only the difference tells how much of the backlog the stalled viewer was spared.
    assert sent - len(received) > 15 * SLICE, "the stalled viewer was sent what had long been replaced"


def resident(server: Serving) -> int:
    assert server.process is not None
    text = Path(f"/proc/{server.page_pid()}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


def opened(server: Serving, buffer: int = 1 << 16) -> socket.socket:
    place = urllib.parse.urlsplit(server.page)
    connection = socket.socket()
    connection.settimeout(30)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((place.hostname, place.port))
    connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection


def test_every_change_is_followed_only_while_somebody_looks(tmp_path: Path) -> None:
    """A follower of every change costs those who report: while nobody looks, the board is filled by a question now and then."""
    with Serving(tmp_path / "data") as server, lowwater.connect(server.address) as lw:
        lw.register("looked")
        lease = lw.worker("looked").claim()
        lease.advance(None, oldest=None, frontier=NOON)
        lease.flush(30)
        board = Board()

        def shows(micros: int) -> bool:
            view = board.view("looked")
            return view is not None and view.low.micros == micros

        follower = Follower(
            lambda interval: lowwater.connect(server.address, timeout=5, watch_interval=interval),
            board,
            clock=lambda: time.time_ns() // 1000,
            sharded=False,
        )
        follower.start()
        with contextlib.closing(follower):
            eventually(lambda: shows(NOON))
            lease.advance(None, oldest=None, frontier=NOON + 1)
            eventually(lambda: shows(NOON + 1))
            assert subscribers(server) == 0
            follower.look()
            eventually(lambda: subscribers(server) == 1)
            lease.advance(None, oldest=None, frontier=NOON + 2)
            eventually(lambda: shows(NOON + 2))
            follower.looked_seconds = 0.0
            eventually(lambda: subscribers(server) == 0)  # the worker repeats itself, so there is news to find it by
            lease.advance(None, oldest=None, frontier=NOON + 3)
            eventually(lambda: shows(NOON + 3))


def subscribers(server: Serving) -> float:
    match = re.search(r"^lowwater_subscribers (\S+)$", ask(server.endpoint, "metrics").body.decode(), re.MULTILINE)
    assert match
    return float(match[1])
