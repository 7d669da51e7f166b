"""A short absence holds a stage and does not end its query: files of the checkpoint, and an authority that is slow to grant a claim."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint import durable
from lowwater_spark.track.run.status import in_short
from tests.kit.times import mark
from tests.spark.flow import Flow
from tests.spark.proxy import Proxy
from tests.spark.support import Upstream, low, row

pytestmark = pytest.mark.timeout(400)


def test_rule11_a_checkpoint_unreadable_for_a_moment_holds(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
    """A directory that leads to itself answers ELOOP, as one of a lost mount answers ESTALE or EIO."""
    flow.feed.put([row("a", 9)])
    upstream.at(10)
    query = flow.start(flow.plain)
    flow.eventually(lambda: low(lw, "stage") == mark(10), "all that 10:00 covers is read")
    # The source log is read when a batch is: what the clock reads without one are the plan and the commits.
    looped = flow.folder / "ck/offsets"
    looped.rename(flow.folder / "aside")
    looped.symlink_to(looped)
    upstream.at(11)
    flow.eventually(lambda: any(str(looped) in path for path in query.stage_status().waiting_for), "it is named")
    flow.eventually(lambda: in_short(query.stage_status().waiting_for) in lw.why("stage").sentence, "the authority too")
    assert query.query.isActive
    assert low(lw, "stage") == mark(10)
    looped.unlink()
    (flow.folder / "aside").rename(looped)
    flow.eventually(lambda: low(lw, "stage") == mark(11), "it goes on")
    flow.eventually(lambda: query.stage_status().waiting_for == (), "and waits for nothing")
    flow.feed.put([row("b", 11)])
    flow.eventually(lambda: query.stage_status().batch == 1, "batches, too")


def test_rule11_a_batch_waits_for_an_unwritable_checkpoint(flow: Flow, lw: lowwater.Client, upstream: Upstream) -> None:
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

    def forward(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self.opened.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        if method.endswith("/Claim"):
            self.claiming.set()
            self.granting.wait(300)
        yield from super().forward(method, requests, context)


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
