"""Leases and tasks as programs and shells use them, against a real ``lowwater serve``."""

from __future__ import annotations

import json
from concurrent import futures
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lowwater
import lowwater.aio
from lowwater import TaskState, Watermark, errors
from lowwater.cli import main
from tests.kit.eventually import eventually
from tests.process.serving import Serving

DAY = timedelta(days=1)
FIRST = datetime(2013, 1, 1, tzinfo=UTC)


def injector(lw: lowwater.Client) -> lowwater.Lease:
    lw.register("flights")
    return lw.worker("flights").claim()


def test_a_day_is_closed_once_from_the_watermark_to_the_commit(server: Serving, lw: lowwater.Client) -> None:
    source = injector(lw)
    daily = lw.tasks("flights")
    group = daily.create_group("daily", every=DAY, start=FIRST, configuration=b"v1")
    assert group == daily.create_group("daily", every=DAY, start=FIRST, configuration=b"v1")
    assert (group.closed, group.start, group.every, group.configuration_version) == (
        Watermark.of(FIRST),
        Watermark.of(FIRST),
        DAY,
        1,
    )
    assert daily.take("daily") is None
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(daily.take, "daily", worker="closer", wait=120)
        source.advance(None, oldest=None, frontier=FIRST + DAY)
        lease = waiting.result()
    assert lease is not None
    assert (lease.task.at, lease.task.until) == (Watermark.of(FIRST), Watermark.of(FIRST + DAY))
    assert (lease.configuration, lease.task.worker, lease.lasts) == (b"v1", "closer", timedelta(minutes=1))
    close = lease.output("close.csv")
    assert close.startswith("daily/2013-01-01T000000Z/2-")

    server.kill()
    server.start()
    lease.renew()
    again = daily.resume(lease.token)  # in another process
    again.commit([close], digest=b"sum")
    lease.commit([close], digest=b"sum")
    [done] = daily.list("daily")
    assert (done.state, done.outputs, done.digest, done.worker) == (TaskState.DONE, (close,), b"sum", "closer")
    [group] = daily.groups()
    assert (group.closed, group.ready, group.leased, group.done) == (Watermark.of(FIRST + DAY), 0, 0, 1)
    with pytest.raises(errors.TaskConflict):
        lease.commit([lease.output("other.csv")])
    source.finish()
    last = daily.take("daily", wait=60)
    assert last is not None
    assert last.task.until.finished
    last.release()
    last.release()
    [task] = daily.list("daily", state=TaskState.READY)
    assert (task.at, task.version) == (Watermark.of(FIRST + DAY), 3)
    with pytest.raises(errors.StaleLease):
        last.commit()


def test_the_command(server: Serving, lw: lowwater.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = injector(lw)
    here = ["--address", server.address]

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["tasks", *arguments, *here]) == code
        return capsys.readouterr().out

    def answer(*arguments: str) -> Any:
        return json.loads(run(*arguments, "--json"))

    assert "no group of tasks" in run("list", "flights")
    group = answer("create-group", "flights", "daily", "--every", "1d", "--start", "2013-01-01T00:00Z")
    assert (group["every_seconds"], group["start"], group["closed"]) == (86400, "2013-01-01T00:00:00Z", group["start"])
    run("take", "flights", "daily", code=1)
    source.advance(None, oldest=None, frontier=FIRST + DAY)
    eventually(lambda: answer("list", "flights", "--group", "daily")["total"])
    lease = tmp_path / "lease.json"
    lease.write_text(run("take", "flights", "daily", "--worker", "shell", "--wait", "30s"))
    close = run("output", str(lease), "close.csv").strip()
    assert close.startswith("daily/")
    assert "no other worker is offered it for 1 min" in run("renew", str(lease))
    run("release", str(lease))
    run("done", str(lease), "--output", close, code=2)
    lease.write_text(run("take", "flights", "daily"))
    close = run("output", str(lease), "close.csv").strip()
    run("done", str(lease), "--output", close, "--digest", "0x00ff")
    run("done", str(lease), "--output", close, "--digest", "0x00ff")
    [task] = answer("list", "flights", "--group", "daily", "--state", "done")["tasks"]
    assert (task["outputs"], task["digest"], task["version"]) == ([close], "00ff", 4)
    assert "2013-01-01T00:00:00Z to 2013-01-02T00:00:00Z" in run("list", "flights", "--group", "daily")
    assert "version 1" in run("list", "flights")
    run("configure", "flights", "daily", "--configuration", "v2", "--version", "1")
    run("create-group", "flights", "repairs")
    run("create", "flights", "repairs", "n1", "--at", "2013-01-09T14:00Z", "--payload", "late")
    assert answer("list", "flights", "--group", "repairs")["tasks"][0]["payload"] == "late"
    run("create", "flights", "nowhere", "n1", "--at", "2013-01-09T14:00Z", code=2)
