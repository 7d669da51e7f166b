"""attach(): what is seen of a query, and that the query does not notice."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window
from pyspark.sql.streaming.query import StreamingQuery

import lowwater
import lowwater_spark as lws
from lowwater.core.advice import Advice
from lowwater.watermark import MIN
from lowwater_spark.attach import attachment
from lowwater_spark.notebook import HTML
from tests.kit.eventually import eventually
from tests.kit.times import mark
from tests.process.serving import Serving
from tests.spark.support import Feed, row

# The first test also waits for the JVM, which on a busy machine takes half of the usual time.
pytestmark = pytest.mark.timeout(400)


class Windows:
    """Hourly counts by Spark's own watermark, ten minutes behind the newest row; each file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.feed = Feed(folder / "in")
        self.out: list[tuple[int, str, int]] = []
        self.broken = False

    def start(
        self, name: str | None = "hourly", checkpoint: str = "ck", watermark: str | None = "10 minutes", **trigger: Any
    ) -> StreamingQuery:
        rows = self.spark.readStream.schema("key string, t timestamp").option("maxFilesPerTrigger", 1)
        frame = rows.json(str(self.feed.folder))
        if watermark is not None:
            frame = frame.withWatermark("t", watermark).groupBy(window("t", "1 hour")).count()
        writer = frame.writeStream.option("checkpointLocation", str(self.folder / checkpoint))
        writer = writer.format("noop") if watermark is None else writer.foreachBatch(self.take)
        writer = writer if name is None else writer.queryName(name)
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def take(self, rows: DataFrame, batch: int) -> None:
        if self.broken:
            msg = "broken on purpose"
            raise RuntimeError(msg)
        self.out += [(batch, f"{row.window.start:%H:%M}", row["count"]) for row in rows.collect()]


@pytest.fixture
def windows(spark: SparkSession, tmp_path: Path) -> Iterator[Windows]:
    yield Windows(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def attached(spark: SparkSession) -> Iterator[Callable[..., lws.Attachment]]:
    opened: list[lws.Attachment] = []

    def attach(*args: Any, session: SparkSession = spark, **options: Any) -> lws.Attachment:
        opened.append(lws.attach(session, *args, **options))
        return opened[-1]

    yield attach
    for one in opened:
        one.stop()


Attach = Callable[..., lws.Attachment]


def test_silent_drops_are_seen(windows: Windows, authority: Serving, attached: Attach, lw: lowwater.Client) -> None:
    seen = attached(authority.address)
    windows.feed.put([row("fast", 12), row("slow", 9)])
    query = windows.start()
    eventually(lambda: lw.get("spark.hourly")["spark.hourly"].low == mark(11, 50), "the watermark of the fast one")
    windows.feed.put([row("slow", 7, 10), row("slow", 8, 20), row("slow", 9, 30), row("slow", 9, 40)])
    # Four, and two of them count as one: Spark adds up the rows of a window and task before it looks whether they are late.
    eventually(lambda: seen.status().query("hourly").late_rows == 3, "the rows are dropped")
    found = seen.status().query("spark.hourly")
    assert (found.watermark, found.reported, found.published) == (mark(11, 50),) * 3
    assert (found.rows, found.state, found.state_rows) == (6, "running", 1)
    assert found.batches >= 3
    view = lw.get("spark.hourly")["spark.hourly"]
    assert view.estimated
    assert view.holder is not None
    assert view.holder.worker == f"query {query.id}"
    assert windows.out == [(1, "09:00", 1)], "the four are in no window"

    lw.register("sensors")
    with lw.worker("sensors", name="bring") as worker:
        lease = worker.claim()
        for hour in (8, 9):
            lease.advance(None, oldest=None, frontier=mark(hour))
            lease.flush()

    def judged() -> Advice | None:
        delays, window = [timedelta(minutes=10), timedelta(hours=6)], timedelta(hours=1)
        advice = seen.advise(low="sensors", delays=delays, window=window)
        return advice if advice.waits is not None and advice.waits.by_rows else None

    advice = eventually(judged, "Spark says that it is idle, so that it has read nothing else by then")
    assert advice is not None
    assert (advice.rows, advice.unjudged_rows, advice.missing_batches) == (4, 2, 0)
    assert [loss.rows for loss in advice.losses] == [(4, 4), (0, 0)], "Spark dropped all four, behind 11:50"
    assert advice.waits is not None
    assert (advice.waits.steps, advice.waits.median) == (1, (3 * 3600, 3 * 3600))
    assert "To lose none of the rows Spark would have needed a delay of 4 h." in str(advice)
    with pytest.raises(KeyError):
        seen.advise("dayly")

    query.stop()
    assert seen.status(wait=100).query("hourly").state == "ended"
    [ended] = lw.ranges("spark.hourly")
    assert (ended.state, ended.watermark) == (lowwater.RangeState.UNOWNED, mark(11, 50))

    # A restart from the checkpoint goes on.
    windows.feed.put([row("fast", 14)])
    windows.start()
    eventually(lambda: lw.get("spark.hourly")["spark.hourly"].low == mark(13, 50), "it goes on")
    assert seen.status().query("hourly").late_rows == 3
    assert (seen.status().swallowed, seen.status().authority) == (0, "answers")


def test_a_query_without_watermark_or_name_is_counted(
    windows: Windows, authority: Serving, attached: Attach, lw: lowwater.Client
) -> None:
    windows.feed.put([row("a", 9), row("b", 10)])
    query = windows.start(name=None, watermark=None)
    seen = attached(authority.address, prefix="nb-", namespace="me")  # it runs already
    name = f"nb-query-{query.id}"
    eventually(lambda: any(each.computation == name for each in seen.status().queries), "found among the running")
    windows.feed.put([row("c", 11)])
    eventually(lambda: seen.status().query(name).rows >= 1, "a batch")
    eventually(lambda: lw.get(f"me/{name}")[f"me/{name}"].registered, "registered")
    view = lw.get(f"me/{name}")[f"me/{name}"]
    assert (view.low.micros, view.estimated) == (MIN, True)


def test_idle_and_failed_are_shown(windows: Windows, authority: Serving, attached: Attach, spark: SparkSession) -> None:
    seen = attached(authority.address)
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "200")
    try:
        windows.feed.put([row("a", 9)])
        windows.start()
        eventually(lambda: seen.status().query("hourly").idle_beats >= 2 if seen.status().queries else False, "idle")
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert seen.status().query("hourly").state == "idle"

    windows.broken = True
    windows.start("other", checkpoint="other")
    eventually(lambda: [each for each in seen.status().queries if each.state == "ended"], "it ended")
    assert "broken on purpose" in seen.status().query("other").failure


def fed(windows: Windows) -> None:
    """Put a backlog of eight hours."""
    for hour in range(1, 9):
        windows.feed.put([row("a", hour), row("b", hour, 30)], mtime=1e9 + hour)  # Spark reads files by age


def test_the_same_rows_come_out_of_a_frozen_authority(windows: Windows, authority: Serving, attached: Attach) -> None:
    fed(windows)
    windows.start(availableNow=True).awaitTermination(100)
    alone, windows.out = windows.out, []
    assert len(alone) >= 7
    authority.signal(signal.SIGSTOP)
    seen = attached(authority.address)
    assert windows.start(checkpoint="seen", availableNow=True).awaitTermination(100)
    assert windows.out == alone
    with pytest.raises(TimeoutError):
        seen.status(wait=5)
    status = seen.status()
    assert status.query("hourly").state == "ended", "Spark has told of it, and the authority has not answered"
    assert (status.swallowed, status.query("hourly").rows) == (0, 16)
    eventually(lambda: seen.status().failures >= 1, "somebody tried")
    assert seen.status().query("hourly").reported.unknown
    authority.signal(signal.SIGCONT)
    assert seen.status(wait=100).query("hourly").reported == mark(8, 20), "the newest has come through"


def test_no_error_of_ours_reaches_a_query(
    windows: Windows, authority: Serving, attached: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = attached(authority.address)

    def broken(_: Any) -> Any:
        msg = "a progress of another shape"
        raise KeyError(msg)

    monkeypatch.setattr(attachment, "read_progress", broken)
    windows.feed.put([row("a", 9)], mtime=1e9)
    windows.feed.put([row("a", 11)])
    query = windows.start(availableNow=True)
    assert query.awaitTermination(100)
    assert query.exception() is None
    assert windows.out == [(2, "09:00", 1)]
    eventually(lambda: seen.status().swallowed >= 2, "they are counted")
    assert "another shape" in seen.status().last_swallowed
    eventually(lambda: seen.status().query("hourly").state == "ended", "the next event is taken as ever")


def test_attaching_twice_is_attaching_once(spark: SparkSession, authority: Serving, attached: Attach) -> None:
    one = attached(authority.address)
    assert attached(authority.address) is one
    active = SparkSession.getActiveSession()
    assert active is not None
    assert attached(authority.address, session=active) is one
    with pytest.raises(ValueError, match="attached already"):
        attached(authority.address, prefix="other.")
    one.stop()
    assert attached(authority.address, prefix="other.") is not one


def test_without_an_address_an_authority_comes_along(
    windows: Windows,
    attached: Attach,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOWWATER_ADDRESS", raising=False)
    seen = attached(data=tmp_path / "journal")
    assert seen.embedded is not None
    assert seen.page
    assert f"lowwater watch --address {seen.address}, or {seen.page}" in capsys.readouterr().out
    windows.feed.put([row("a", 9)], mtime=1e9)
    windows.feed.put([row("a", 10)])
    windows.start(availableNow=True).awaitTermination(100)
    with lowwater.connect(seen.address) as lw:
        eventually(lambda: lw.get("spark.hourly")["spark.hourly"].low == mark(9, 50), "published")
    assert re.fullmatch(rf"<Attachment {seen.address} answers; spark\.hourly>", repr(seen))
    shown = ("<b>hourly</b>", "ended", "2013-01-09T09:50:00Z", seen.page)  # Spark tells of the end later
    eventually(lambda: all(words in HTML[lws.Attachment](seen) for words in shown), "the end is shown")
    seen.stop()
    assert seen.embedded.ended
    assert repr(seen) == "<Attachment not attached>"


def test_the_kill_switch(spark: SparkSession, windows: Windows, authority: Serving, attached: Attach) -> None:
    spark.conf.set("spark.lowwater.enabled", "false")
    try:
        off, on = attached(authority.address), attached(authority.address, enabled=True)
    finally:
        spark.conf.unset("spark.lowwater.enabled")
    assert (off.status().enabled, off.address, on.status().enabled) == (False, "", True)
    on.stop()
    windows.feed.put([row("a", 9)])
    windows.start(availableNow=True).awaitTermination(100)
    assert (on.status().enabled, on.status().queries) == (False, ())
