"""The Kafka that tests of sources run on: tests/kit/kafka.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.kafka import Kafka, Row


@pytest.mark.slow
def test_three_brokers_go_on_without_one(tmp_path: Path) -> None:
    with Kafka(tmp_path / "kafka", brokers=3) as kafka:
        kafka.create("flights")
        kafka.put("flights", ["a"])
        kafka.create("grows")
        with pytest.raises(AssertionError, match="_UNKNOWN_PARTITION"):
            kafka.put("grows", [Row(b"z", partition=1)])
        kafka.grow("grows", 2)
        kafka.put("grows", [Row(b"z", partition=1)])
        leader = kafka.admin.list_topics("flights").topics["flights"].partitions[0].leader
        next(broker for broker in kafka.brokers if broker.number == leader).kill()
        kafka.put("flights", ["b"])
        assert [row.value for row in kafka.rows("flights")] == [b"a", b"b"]
