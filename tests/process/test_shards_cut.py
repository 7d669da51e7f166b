"""A shard that its clients reach and its store does not: it says how old its values are, lets its clients go, and comes back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

import lowwater
from lowwater.v1 import watermarks_pb2
from lowwater_authority.engine.settings import ShardSettings
from tests.kit.eventually import eventually
from tests.kit.times import HOUR
from tests.process.peer import Peer, reason
from tests.process.sharding import DEAD_AFTER, Sharded, move
from tests.process.store_proxy import StoreProxy

WAIT_SECONDS = ShardSettings().wait_seconds

GONE_WITHIN = 4 * DEAD_AFTER
"""Seconds; twice ``dead_after`` is meant."""


def test_rule11_a_shard_cut_off_from_its_store_lets_its_clients_go(tmp_path: Path) -> None:
    with Sharded(tmp_path, 1) as d, StoreProxy(d.redis.port) as network:
        [other] = d.shards
        cut = d.more(network.url)
        d.start(cut)
        with (
            lowwater.connect(other.address) as client,
            lowwater.connect(f"{cut.address},{other.address}") as lw,
            lw.inputs("a") as reader,
            ThreadPoolExecutor() as pool,
        ):
            client.register("a")
            move(client, cut, "a")
            lease = lw.worker("a").claim()
            lease.advance(None, oldest=None, frontier=HOUR)
            lease.flush(30)
            eventually(lambda: reader.read().low.micros == HOUR)
            epoch = client.get("a")["a"].epoch
            peer = Peer(cut)
            stream = peer.watermarks.Watch(watermarks_pb2.WatchRequest(computations=["a"]), timeout=30)
            assert next(stream).watermarks[0].low_micros == HOUR
            up = peer.open()
            assert next(up).HasField("opened")

            network.swallow()
            since = time.time_ns() // 1000
            began = time.monotonic()
            client.pin("a", other.address)  # so that it does not go back at once
            lease.advance(None, oldest=None, frontier=2 * HOUR)
            waiting: Any = peer.watermarks.GetWatermarks.future(
                watermarks_pb2.GetWatermarksRequest(computations=["a"]), timeout=30
            )
            ended: list[float] = []
            waiting.add_done_callback(lambda _: ended.append(time.monotonic()))
            ages: list[float] = []

            def watch_age() -> bool:
                folded = reader.read()
                ages.append(folded.stale_for)
                return folded.low.micros == 2 * HOUR

            watching = pool.submit(eventually, watch_age)
            messages = list(stream)
            assert time.monotonic() - began < GONE_WITHIN
            assert messages[-1].go_away.reason == "the authority is cut off from its store"
            assert not any(message.watermarks for message in messages)
            # What was confirmed while the last words of the store were on their way counts.
            assert all(message.time_micros <= since for message in messages)
            assert messages[-1].clock_micros - messages[-1].time_micros > DEAD_AFTER * 1e6 / 2
            assert [message.WhichOneof("kind") for message in up] == ["go_away"]
            print(f"gone after {time.monotonic() - began:.2f} s")
            for ask in (
                peer.low,
                lambda: next(peer.watermarks.Watch(watermarks_pb2.WatchRequest(computations=["a"]))),
                lambda: peer.claim("a"),
                lambda: peer.register("b"),
            ):
                with pytest.raises(grpc.RpcError) as failure:
                    ask()
                assert reason(failure.value)[:2] == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
            lease.flush(30)
            watching.result()
            print(f"served elsewhere after {time.monotonic() - began:.2f} s; a reader saw {max(ages):.2f} s of age")
            assert max(ages) > DEAD_AFTER / 2
            assert [shard.address for shard in client.shards()] == [other.address]
            assert client.get("a")["a"].epoch > epoch

            # What was asked before anybody knew that it is cut off waits for the store once, and hears how old the news here is.
            code, name, metadata = reason(waiting.exception())
            assert (code, name) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
            eventually(lambda: bool(ended))
            print(f"a read was refused after {ended[0] - began:.2f} s, {metadata['stale_micros']} us old")
            assert ended[0] - began < WAIT_SECONDS + 1
            assert WAIT_SECONDS - 1 < int(metadata["stale_micros"]) / 1e6 < WAIT_SECONDS + 2

            network.heal()
            eventually(lambda: len(client.shards()) == 2)
            eventually(lambda: "the store is back" in cut.log)
            lease.advance(None, oldest=None, frontier=3 * HOUR)
            lease.flush(30)
            answer = peer.watermarks.GetWatermarks(watermarks_pb2.GetWatermarksRequest(computations=["a"]))
            assert [(redirect.address, len(answer.watermarks)) for redirect in answer.redirects] == [(other.address, 0)]
            first = next(peer.watermarks.Watch(watermarks_pb2.WatchRequest(computations=["a"])))
            assert [(redirect.address, len(first.watermarks)) for redirect in first.redirects] == [(other.address, 0)]
            move(client, cut, "a")
            assert peer.low() == 3 * HOUR
            peer.sent.put(None)
            peer.channel.close()
