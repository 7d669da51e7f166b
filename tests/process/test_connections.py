"""An unused connection over HTTP costs its owner a place for a while, and nobody else anything."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowwater
from lowwater_authority.engine.writes import StoreState
from lowwater_authority.ops.endpoint import Exposition
from lowwater_page.board import Board
from lowwater_page.follower import Follower
from lowwater_page.page import Page
from lowwater_server.connections import IDLE_SECONDS, OF_FILES
from lowwater_server.http import HttpServer
from lowwater_server.sockets import listen
from tests.kit.eventually import eventually
from tests.process.browsing import Viewer, ask
from tests.process.scrape import Scrape
from tests.process.serving import Serving

pytestmark = pytest.mark.process

FILES = 256
"""Files that a process may open in these tests: a quarter are connections."""

CUT_OFF = 5.0
"""Seconds after which it cuts off a connection that asks nothing, instead of IDLE_SECONDS; many times as long as it takes to open them all."""

LIMITED = """
import sys
from lowwater_server import connections
connections.IDLE_SECONDS = float(sys.argv.pop(1))
from lowwater_authority.serve import main
sys.exit(main(sys.argv[1:]))
"""

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 8 << 20


def connected(page: str, sent: bytes = b"", buffer: int = 1 << 16) -> socket.socket:
    place = urllib.parse.urlsplit(page)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(3 * IDLE_SECONDS)
    connection.connect((place.hostname, place.port))
    connection.sendall(sent)
    return connection


def is_cut_off(connection: socket.socket) -> bool:
    """Return True if the other side has ended it; takes what had been sent. Waits for either."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


class Limited(Serving):
    """One that may open few files."""

    def program(self) -> list[str]:
        return ["prlimit", f"--nofile={FILES}", sys.executable, "-c", LIMITED, f"{CUT_OFF}"]


def test_idle_connections_take_their_places_and_no_more(tmp_path: Path) -> None:
    """More than the process may open files: those who report do not notice, and the page answers again once they are cut off."""
    with Limited(tmp_path / "data", "--log-format", "json") as server, contextlib.ExitStack() as stack:
        for _ in range(FILES + 44):
            stack.enter_context(connected(server.endpoint))
        lw = stack.enter_context(lowwater.connect(server.address, timeout=10))
        lw.register("a")
        lease = lw.worker("a").claim()
        lease.advance(None, oldest=None, frontier=1_000_000)
        lease.flush(10)
        assert server.process is not None
        opened = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert opened < FILES - 64
        eventually(lambda: answers(server), seconds=3 * IDLE_SECONDS)
        events = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
        refused = [line for line in events if line["event"] == "page_refused"]
        assert 1 <= len(refused) <= 6
        assert str(FILES // OF_FILES) in refused[0]["reason"]
        assert not any(line["event"] == "log" and line["level"] == "error" for line in events)


OTHER_PROTOCOLS = {
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "a bad head": b"GET / HTTP/1.1\r\nHost: x\r\nBad\x00Header: y\r\n\r\n",
    "a bad body": b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc",
    "something behind a request": REQUEST + bytes(range(256)),
}


def test_another_protocol_is_one_line_and_counted(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", "--log-format", "json") as server:
        for _ in range(5):
            for sent in OTHER_PROTOCOLS.values():
                with connected(server.endpoint, sent) as connection:
                    assert is_cut_off(connection)
        scrape = Scrape(server)
        assert scrape.value("page_not_http_total") == 5 * len(OTHER_PROTOCOLS)
        log = (tmp_path / "serve.log").read_text()
        lines = [line for line in map(json.loads, log.splitlines()) if line["level"] not in ("info", "debug")]
        [line] = [line for line in lines if line["event"] != "journal_created"]
    assert (line["event"], line["count"]) == ("page_not_http", 1)
    assert "127.0.0.1" in line["message"]
    assert "exception" not in line


def answered(server: Serving, source: str, path: str = "/healthz") -> int:
    place = urllib.parse.urlsplit(server.endpoint)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, 30, (source, 0))
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0


def test_one_address_cannot_take_the_places_of_all(tmp_path: Path) -> None:
    """Else whoever reaches the page has the process restarted, whose health is asked there."""
    with Limited(tmp_path / "data", "--log-format", "json") as server, contextlib.ExitStack() as stack:
        for _ in range(FILES):
            stack.enter_context(connected(server.endpoint))
        assert answered(server, "127.0.0.1") == 0, "it is full for who fills it"
        assert answered(server, "127.0.0.2") == 200


def answers(server: Serving) -> bool:
    with contextlib.suppress(OSError):
        return ask(server.endpoint, "healthz").status == 200
    return False


@contextlib.contextmanager
def large_page(tmp_path: Path) -> Iterator[str]:
    """A page in this process, whose metrics are large, and which waits a second only."""
    board = Board()
    with Serving(tmp_path / "data") as server:
        follower = Follower(lambda _: lowwater.connect(server.address), board, clock=lambda: 1, sharded=False)
        listening = listen("127.0.0.1", 0)
        page = Page(board, follower, version="0", clock=lambda: 1, beat=1.5)
        http = HttpServer(
            listening,
            [page, Exposition(lambda _: (b"#" * LARGE, "text/plain"), lambda: StoreState.TAKES)],
            idle_seconds=1.0,
        )
        follower.start()
        http.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        follower.close()
        http.close()


def test_who_asks_or_reads_nothing_is_cut_off_and_who_reads_or_watches_is_not(tmp_path: Path) -> None:
    """A stream of events is quiet for longer than an idle connection may be."""
    idle = [
        b"",
        b"GET /api/why?computation=",
        REQUEST.replace(b"metrics", b"healthz"),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
    ]
    with large_page(tmp_path) as page, contextlib.ExitStack() as stack:
        viewer = stack.enter_context(Viewer(page))
        deaf = stack.enter_context(connected(page, 3 * REQUEST, 4096))
        for connection in [stack.enter_context(connected(page, sent)) for sent in idle]:
            assert is_cut_off(connection)
        # It has got what the system's buffers hold, and what is left for it is dropped.
        eventually(lambda: not open_to(page, deaf), seconds=IDLE_SECONDS)
        assert len(ask(page, "metrics").body) == LARGE
        viewer.until(lambda view: sum(event.kind == "beat" for event in view.events))
        assert viewer.ends == 0


def open_to(page: str, connection: socket.socket) -> bool:
    """Return True if the server's end of a connection, in this very process, is open."""
    ours = f"{connection.getsockname()[1]:04X}"
    port = f"{urllib.parse.urlsplit(page).port or 0:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = "01"
    return any(row[1].endswith(f":{port}") and row[2].endswith(f":{ours}") and row[3] == established for row in lines)
