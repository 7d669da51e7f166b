"""Journals of earlier releases are read, whole; those of later ones are refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.make_journal import BOUNDS, HOUR, JOURNALS, Peer, ask
from tests.kit.program import run_program
from tests.kit.times import MIN
from tests.process.serving import Serving

RELEASES = sorted(path.name for path in JOURNALS.iterdir())
ADDED = {"claimed_micros", "estimated", "history_step_micros", "last_report_micros", "newest_claim"}
"""Fields of answers that not all releases here had, or that no journal keeps."""


def copy(release: str, folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    shutil.copy(JOURNALS / release / "journal.sqlite", data)
    return data


def answered(release: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((JOURNALS / release / "answers.json").read_text())
    return answers


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(release: str, tmp_path: Path) -> Iterator[Serving]:
    with Serving(copy(release, tmp_path)) as one:
        yield one


@pytest.fixture
def peer(server: Serving) -> Iterator[Peer]:
    one = Peer(server.address, stream=3)
    yield one
    one.close()


def without_added(answer: Any) -> Any:
    if isinstance(answer, dict):
        if "newest_claim" in answer:  # and the incarnation came with it
            answer = {key: value for key, value in answer.items() if key != "incarnation"}
        return {key: without_added(value) for key, value in answer.items() if key not in ADDED}
    return [without_added(item) for item in answer] if isinstance(answer, list) else answer


def lows_of(answer: dict[str, Any]) -> dict[str, int]:
    return {watermark["computation"]: int(watermark["low_micros"]) for watermark in answer["watermarks"]["watermarks"]}


def test_every_release_has_a_journal() -> None:
    images = JOURNALS.parents[2] / "proto/released"
    assert sorted(path.stem for path in images.glob("*.binpb")) == RELEASES


def test_the_server_answers_what_the_release_answered(release: str, peer: Peer) -> None:
    assert without_added(ask(peer)) | {"claims": answered(release)["claims"]} == without_added(answered(release))


def test_a_repeated_claim_of_then_is_recognised(release: str, peer: Peer) -> None:
    answers = answered(release)["claims"]
    assert peer.claim("records flights", "records/flights") == answers["records flights"]
    assert peer.claim("snapshot flights", "snapshot/flights") == answers["snapshot flights"]


def test_owners_of_then_go_on(release: str, server: Serving, peer: Peer) -> None:
    answers = answered(release)
    before = lows_of(answers)
    assert len({low for low in before.values() if low != MIN}) >= 3
    for part in ("snapshot", "records"):
        peer.report(f"{part}/flights", answers["claims"][f"{part} flights"], 19, 20, handles=[0, 2])
        peer.batch(f"{part}/hourly", answers["claims"][f"{part} hourly"], 2, 11, version=1)
    newer = peer.claim("newer", "records/flights", *BOUNDS)
    assert newer > max(answers["claims"].values())
    peer.report("records/flights", newer, 21, handles=[0])
    server.kill()
    peer.close()
    server.start()
    after = Peer(server.address, stream=4)
    lows = lows_of(ask(after))
    after.close()
    assert lows.keys() == before.keys()
    for name, low in lows.items():
        assert low >= before[name], name
    assert lows["snapshot/flights"] == 19 * HOUR
    assert lows["snapshot/hourly"] == 11 * HOUR


def test_a_journal_of_a_later_release_is_refused(tmp_path: Path) -> None:
    data = copy(RELEASES[-1], tmp_path)
    with closing(sqlite3.connect(data / "journal.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET format = format + 1")
    before = (data / "journal.sqlite").read_bytes()
    command = [sys.executable, "-m", "lowwater_authority", "--data", str(data), "--listen", "127.0.0.1:0"]
    done = run_program(command, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "upgrade lowwater-authority" in done.stderr
    assert (data / "journal.sqlite").read_bytes() == before
