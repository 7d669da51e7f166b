"""What is away for a moment holds a stage and does not end its query: files of the checkpoint, and an authority that is slow to grant a claim."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import lowwater
import lowwater_spark as lws
from lowwater import errors
from lowwater_spark.checkpoint import durable
from lowwater_spark.track.plain import Plain
from lowwater_spark.track.run import Run
from lowwater_spark.track.status import in_short
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.proxy import Proxy
from tests.spark.support import Upstream, low, row

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("kind", ["plain", "function"])
def test_rule11_a_checkpoint_that_cannot_be_read_for_a_moment_holds(
    kind: str, flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """A directory that leads to itself answers ELOOP, as one of a lost mount answers ESTALE or EIO."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    if kind == "plain":
        stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
        query = stage.start(flow.read(), checkpoint=flow.folder / "ck", format="noop")
        flow.queries.append(query)
    else:
        query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "all that 10:00 covers is read")
    # The source log is read when a batch is: what the clock reads without one are the plan and the commits.
    looped = flow.folder / "ck/offsets"
    looped.rename(flow.folder / "aside")
    looped.symlink_to(looped)
    upstream.at(11)
    flow.eventually(
        lambda: any(str(looped) in path for path in query.stage_status().waiting_for), "what it waits for is named"
    )
    flow.eventually(
        lambda: in_short(query.stage_status().waiting_for) in lw.why("stage").sentence, "also by the authority"
    )
    assert query.query.isActive
    assert low(lw, "stage") == mark(10)
    looped.unlink()
    (flow.folder / "aside").rename(looped)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
    flow.eventually(lambda: query.stage_status().waiting_for == (), "and waits for nothing")
    flow.feed.put([row("b", 11)])
    flow.eventually(lambda: query.stage_status().batch == 1, "batches, too")


def test_rule11_a_batch_that_begins_waits_for_a_checkpoint_that_cannot_be_written(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    batches = flow.folder / "ck/lowwater/batches"
    batches.parent.mkdir(parents=True)
    batches.symlink_to(batches)
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start(flow.plain)
    flow.eventually(lambda: any(str(batches) in why for why in query.stage_status().waiting_for), "it says why")
    assert query.query.isActive
    batches.unlink()
    flow.eventually(lambda: low(lw, "stage") == mark(10), "the batch begins")
    assert flow.batches == [(0, str(mark(10)), False)]


def test_a_glance_that_fails_brings_a_look_which_says_why(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raised would keep the clock from the look, again and again."""
    upstream.at(10)
    stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
    query = stage.start(flow.read(), checkpoint=flow.folder / "ck", format="noop")
    flow.queries.append(query)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "nothing is there to be read")

    def ready(_plain: Plain) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(flow.folder / "ck/commits"))

    monkeypatch.setattr(Plain, "ready", ready)
    assert query._run.news()


def test_head_of_w_a_source_that_is_not_mounted_for_a_moment_holds(
    flow: Flow, lw: lowwater.Client, upstream: Upstream
) -> None:
    """An empty directory stands there meanwhile, and Spark sees no reason to fail. A neighbour over another directory goes on."""

    def stage(name: str) -> lws.Stage:
        return lws.stage(flow.spark, name, inputs=["source"], key="key", event_time="t", address=flow.address)

    flow.feed.put([row("a", 9)])
    (flow.folder / "elsewhere").mkdir()
    upstream.at(10)
    query = stage("stage").foreach_batch(flow.read(), flow.plain, checkpoint=flow.folder / "ck")
    elsewhere = flow.spark.readStream.schema("key string, t timestamp").json(str(flow.folder / "elsewhere"))
    flow.queries += [query, stage("neighbour").start(elsewhere, checkpoint=flow.folder / "ck2", format="noop")]
    flow.eventually(lambda: low(lw, "stage") == low(lw, "neighbour") == mark(10), "all that 10:00 covers is read")
    mounted = flow.feed.folder
    volume = mounted.rename(flow.folder / "volume")
    mounted.mkdir()
    upstream.at(11)
    flow.eventually(
        lambda: any("mount its volume" in why for why in query.stage_status().waiting_for), "it holds, and says why"
    )
    flow.eventually(
        lambda: in_short(query.stage_status().waiting_for) in lw.why("stage").sentence, "and so does the authority"
    )
    flow.eventually(lambda: low(lw, "neighbour") == mark(11), "the neighbour does not wait")
    assert low(lw, "stage") == mark(10)
    mounted.rmdir()
    volume.rename(mounted)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "what was read is still known")
    flow.feed.put([row("b", 11)])
    flow.eventually(lambda: query.stage_status().batch == 1, "and what comes is read")
    assert query.stage_status().waiting_for == ()


def test_the_last_look_is_made_again_when_files_are_away(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that ends by itself may have one look alone, and what is committed would wait for the next start to be reported."""
    stale = [OSError(errno.ESTALE, "Stale file handle", str(flow.folder / "ck/commits")) for _ in range(2)]
    look = Run.tick

    def ticked(run: Run, *, last: bool = False) -> None:
        if last and stale:
            raise stale.pop()
        if last:
            look(run, last=last)

    monkeypatch.setattr(Run, "tick", ticked)
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
    query = stage.foreach_batch(flow.read(), flow.plain, checkpoint=flow.folder / "ck", trigger={"availableNow": True})
    flow.queries.append(query)
    assert query.await_termination(60)
    assert (stale, low(lw, "stage")) == ([], mark(10))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPIPE], ids=["removed", "the JVM of HDFS's client has ended"])
def test_the_last_look_does_not_wait_for_what_does_not_come_back(
    number: int, flow: Flow, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[bool] = []
    tick = Run.tick

    def ticked(run: Run, *, last: bool = False) -> None:
        if not last:
            tick(run)
            return
        looks.append(last)
        raise OSError(number, os.strerror(number), str(flow.folder / "out"))

    monkeypatch.setattr(Run, "tick", ticked)
    upstream.at(10)
    stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
    query = stage.start(flow.read(), checkpoint=flow.folder / "ck", format="noop", trigger={"availableNow": True})
    flow.queries.append(query)
    assert query.await_termination(60)
    assert looks == [True]
    assert "its next start reports it" in caplog.text


def test_a_call_to_the_authority_that_times_out_is_no_unreadable_file(
    flow: Flow, lw: lowwater.Client, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Timeout`` is an OSError, as Python's TimeoutError is."""
    late, looks = threading.Event(), threading.Semaphore(0)
    tick = Run.tick

    def ticked(run: Run, *, last: bool = False) -> None:
        if late.is_set():
            looks.release()
            raise errors.Timeout("the authority did not answer in time")
        tick(run, last=last)

    monkeypatch.setattr(Run, "tick", ticked)
    upstream.at(10)
    stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", address=flow.address)
    query = stage.start(flow.read(), checkpoint=flow.folder / "ck", format="noop")
    flow.queries.append(query)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "nothing is there to be read")
    late.set()
    for _ in range(2):
        assert looks.acquire(timeout=60), "the clock looks again"
    assert query.stage_status().waiting_for == ()
    upstream.at(11)
    late.clear()
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")


def test_what_cannot_be_synced_is_not_tried_again(tmp_path: Path) -> None:
    """A second fsync may succeed without the data: the kernel forgets what it could not write."""
    # Of a file without storage the kernel refuses to sync anything.
    with pytest.raises(durable.NotDurable, match="cannot be made durable"):
        durable.sync_file(Path("/proc/self/status"))
    with pytest.raises(FileNotFoundError):
        durable.sync_file(tmp_path / "missing")


class SlowClaims(Proxy):
    """Lets nothing pass at first, and then everything but claims."""

    def __init__(self, target: str) -> None:
        super().__init__(target, lambda _: False)
        self.opened = threading.Event()
        self.claiming = threading.Event()
        self.granting = threading.Event()

    def _forward(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self.opened.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        if method.endswith("/Claim"):
            self.claiming.set()
            self.granting.wait(300)
        yield from super()._forward(method, requests, context)


def test_rule11_a_batch_does_not_wait_for_a_claim(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    upstream.at(10)
    with SlowClaims(flow.address) as proxy, lowwater.connect(proxy.address, timeout=300) as client:
        stage = lws.stage(flow.spark, "stage", inputs=["source"], key="key", event_time="t", client=client)
        query = stage.foreach_batch(flow.read(), flow.plain, checkpoint=flow.folder / "ck")
        flow.queries.append(query)
        flow.feed.put([row("a", 9)])
        flow.eventually(lambda: query.stage_status().batch == 0, "a batch of a stage that nobody answers")
        proxy.opened.set()
        flow.eventually(proxy.claiming.is_set, "the claim is on its way")
        flow.feed.put([row("b", 9)])
        flow.eventually((flow.folder / "ck/commits/1").exists, "a batch begins and ends meanwhile")
        assert not proxy.granting.is_set()
        assert query.stage_status().batch == 0, "nobody was told of it, and asking does not wait either"
        proxy.granting.set()
        flow.eventually(lambda: low(lw, "stage") == mark(10), "claimed, and reported")
        query.stop()
