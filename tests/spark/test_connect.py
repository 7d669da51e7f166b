"""Queries that are started through Spark Connect, with a real server: a sidecar tracks them exactly, and the client's notebook may start it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect import functions as cf
from pyspark.sql.connect.session import SparkSession as ConnectSession

import lowwater
import lowwater_spark as lws
from lowwater_spark.checkpoint.log import CheckpointLog
from lowwater_spark.sources.files.sink_log import list_sink
from tests.kit.eventually import eventually
from tests.kit.times import at, mark
from tests.process.serving import Serving
from tests.spark.connect import ConnectServer, Relay, alive, sidecars
from tests.spark.retained import Oracle
from tests.spark.support import Feed, Upstream, low, row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:StreamingQueryListenerBus"),  # of a connection that is closed, or cut
]

HOUR = timedelta(hours=1)

SCHEMA = "key string, t timestamp"


def hourly(spark: Any, folder: Path) -> Any:
    """Start windows of an hour over the feed, which drop nothing that is less than two hours late."""
    rows = spark.readStream.schema(SCHEMA).json(str(folder / "in")).withWatermark("t", "2 hours")
    counts = rows.groupBy(cf.window("t", "1 hour"), "key").count()
    frame = counts.select("key", cf.col("window.start").alias("t"), "count")
    options = {"path": str(folder / "out"), "checkpointLocation": str(folder / "ck")}
    return frame.writeStream.format("json").options(**options).queryName("hourly").start()


def written(out: Path) -> dict[tuple[str, datetime], int]:
    """Return the count of each window in the output; a window that is there twice is a failure."""
    lines = [line for file in list_sink(str(out)) for line in Path(file.path).read_text().splitlines()]
    windows = [json.loads(line) for line in lines]
    counts = {(window["key"], datetime.fromisoformat(window["t"])): window["count"] for window in windows}
    assert len(counts) == len(windows)
    return counts


def unfailed(query: Any) -> Callable[[], None]:
    def check() -> None:
        assert query.exception() is None

    return check


def batch_answer(rows: list[dict[str, str]], until: datetime) -> dict[tuple[str, datetime], int]:
    starts = [(r["key"], datetime.fromisoformat(r["t"]).replace(minute=0)) for r in rows]
    return Counter(window for window in starts if window[1] + HOUR <= until)


def test_a_query_of_connect_is_tracked_exactly_through_kills(
    connect: ConnectServer,
    authority: Serving,
    lw: lowwater.Client,
    upstream: Upstream,
    tmp_path: Path,
) -> None:
    feed, log = Feed(tmp_path / "in"), CheckpointLog(tmp_path / "ck")
    rows: list[dict[str, str]] = []

    def put(hour: int, *earlier: int) -> None:
        """Put rows of an hour, and late ones of those before, into two files."""
        for key, some in (
            ("a", [row("a", hour, 40), *(row("a", hour - 1, m) for m in earlier)]),
            ("b", [row("b", hour)]),
        ):
            rows.extend(some)
            feed.put(some, f"{hour}{key}.json")
        upstream.at(hour, 10)

    lw.register("hourly", inputs=["source"], key_hash="xxhash64")
    oracle = Oracle(authority.address, tmp_path / "out")
    with ExitStack() as ending, oracle.watching("hourly"):
        put(9)
        with connect.client() as spark:
            query = hourly(spark, tmp_path)
            with pytest.raises(
                ValueError, match="checkpoint, inputs, promises, state, retention, output_mode"
            ) as asked:
                lws.track("hourly", query=query, address=authority.address)
            call = re.search(r"^lws\.track\(.*^\)$", str(asked.value), re.MULTILINE | re.DOTALL)
            assert call is not None
            blanks = {"<the query's checkpointLocation>": tmp_path / "ck", "<append or update>": "append", "<1h>": "1h"}
            blanks |= {
                "<each computation whose output it reads>": "source",
                "<a local directory that stays>": tmp_path / "s",
            }
            pasted = call[0]
            for blank, value in blanks.items():
                pasted = pasted.replace(blank, str(value))
            with pytest.raises(ValueError, match="hourly promises <history>, which is none of"):
                eval(pasted, {"lws": lws, "query": query})
            pasted = re.sub('"<([a-z-]+)>"', r'"\1"', pasted)
            pasted = pasted.replace('output_mode="append"', 'output_mode="append", stamp="1h"')
            (tmp_path / "other").mkdir()
            (tmp_path / "other/metadata").write_text('{"id":"another"}')
            with pytest.raises(lws.CheckpointMismatch, match=f"is of the query .*, and not of {query.id}"):
                eval(pasted.replace(str(tmp_path / "ck"), str(tmp_path / "other")), {"lws": lws, "query": query})
            sidecar: lws.Sidecar = eval(pasted, {"lws": lws, "query": query})
            ending.callback(sidecar.stop)
            put(13, 5, 50)
            # Spark's watermark of 11:40 has closed the hour of ten.
            eventually(lambda: low(lw, "hourly") == mark(10), "the notebook's sidecar follows", check=unfailed(query))
            sidecar.stop()
        declared = tmp_path / "queries.toml"
        declared.write_text(
            f'[[query]]\nname = "hourly"\ncheckpoint = "{tmp_path}/ck"\ninputs = ["source"]\nsources = ["files:{tmp_path}/in"]\n'
            f'retention = "1h"\nstamp = "1h"\noutput_mode = "append"\noutput = "{tmp_path}/out"\n'
            'promises = ["sink-visible-before-commit", "nothing-skipped", "history"]\n'
        )

        def begin() -> subprocess.Popen[bytes]:
            process = ending.enter_context(subprocess.Popen(sidecars(declared, tmp_path / "s", authority.address)))
            ending.callback(process.kill)
            return process

        beside, planned = begin(), log.last_planned() or 0
        put(15, 20)
        with connect.client() as spark:
            query = hourly(spark, tmp_path)
            eventually(lambda: (log.last_planned() or 0) > planned, "a batch is planned", check=unfailed(query))
            connect.kill()
        beside.kill()
        put(16, 30)
        connect.start()
        beside = begin()
        with connect.client() as spark:
            query = hourly(spark, tmp_path)
            put(18, 30)
            eventually(lambda: low(lw, "hourly") == mark(15), "both go on", check=unfailed(query))
            beside.kill()
            put(20, 59)
            begin()
            eventually(lambda: low(lw, "hourly") == mark(17), "the frontier is reached", check=unfailed(query))
            query.stop()
    assert oracle.broken() == []
    assert len(oracle.values()) >= 2
    assert written(tmp_path / "out") == batch_answer(rows, at(18))


def test_what_needs_a_classic_driver_names_the_way_without(connect: ConnectServer, tmp_path: Path) -> None:
    with connect.client() as spark:
        rows = spark.readStream.schema(SCHEMA).json(str(tmp_path))
        calls: dict[str, tuple[Callable[[], object], str]] = {
            "A stage": (lambda: lws.stage(spark, "s", inputs=["source"], key="key", event_time="t"), r"lws\.track\("),
            "An injector": (lambda: lws.injector(spark, "s", key="key", event_time="t"), r"\.worker\("),
            "A driven query": (lambda: lws.drive(rows, inputs=["source"], event_time="t"), r"lws\.track\("),
        }
        for what, (call, fix) in calls.items():
            with pytest.raises(lws.Unsupported, match=rf"^{what} in .* only the Python of a classic driver .*{fix}"):
                call()


def test_a_session_whose_client_was_killed_is_taken_up_again(
    connect: ConnectServer, authority: Serving, lw: lowwater.Client, tmp_path: Path
) -> None:
    feed, session = Feed(tmp_path / "in"), str(uuid.uuid4())
    feed.put([row("a", 12)])
    with subprocess.Popen(
        [sys.executable, "-m", __name__, connect.url, session, authority.address, str(tmp_path)]
    ) as first:
        log = CheckpointLog(tmp_path / "ck")
        eventually(lambda: log.last_committed() is not None, "the first client's query runs", check=alive(first))
        first.kill()
    with connect.client(session) as spark, lws.attach(spark, authority.address) as seen:
        [query] = spark.streams.active
        assert seen.status().query("hourly").query == query.id
        feed.put([row("a", 14)])
        feed.put([row("a", 15)])
        # Spark's watermark of the batch before the last one, at least: two hours behind 14:00.
        eventually(lambda: lw.get("spark.hourly")["spark.hourly"].low >= mark(12), "it goes on", check=unfailed(query))
        assert lw.get("spark.hourly")["spark.hourly"].estimated
        query.stop()


def test_what_a_broken_connection_has_missed_is_counted(
    connect: ConnectServer, authority: Serving, tmp_path: Path
) -> None:
    feed, log = Feed(tmp_path / "in"), CheckpointLog(tmp_path / "ck")
    feed.put([row("a", 12), row("b", 12)])
    with Relay(connect) as relay, connect.client(by=relay.url) as spark:
        spark.client.set_retry_policies([])
        with lws.attach(spark, authority.address) as seen:
            query = hourly(spark, tmp_path)
            eventually(lambda: seen.status().query("hourly").rows == 2, "the first batch", check=unfailed(query))
            before = log.last_committed() or 0
            relay.cut()
            feed.put([row("a", 16)])
            eventually(lambda: (log.last_committed() or 0) > before, "a batch that no event tells of")
            relay.mend()
            eventually(lambda: seen.status().query("hourly").rows == 3, "it is counted all the same")
            feed.put([row("a", 17), row("b", 17)])
            eventually(lambda: seen.status().query("hourly").rows == 5, "the events come again", check=unfailed(query))
            assert seen.status().swallowed == 0
            query.stop()


def main(url: str, session: str, address: str, folder: Path) -> None:
    """Start a query in a session, attach it, and wait to be killed."""
    spark: Any = ConnectSession.builder.remote(f"{url}/;session_id={session}").create()
    lws.attach(spark, address)
    hourly(spark, folder)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
