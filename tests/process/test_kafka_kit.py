"""The Kafka that tests of sources run on: tests/kit/kafka.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.kafka import Kafka


@pytest.mark.slow
def test_three_brokers_go_on_without_one(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka", brokers=3) as kafka:
        kafka.create("flights")
        kafka.put("flights", ["a"])
        leader = kafka.admin.list_topics("flights").topics["flights"].partitions[0].leader
        next(broker for broker in kafka.brokers if broker.number == leader).kill()
        kafka.put("flights", ["b"])
        assert [row.value for row in kafka.rows("flights")] == [b"a", b"b"]
