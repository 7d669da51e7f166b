"""The client in Go of examples/go, built here: it passes the conformance suite, and works with real authorities.

Long: the first build compiles gRPC for a minute, and the client in Python shows the same of the suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.__main__ import check_client
from conformance.client_scenarios import HOUR, SCENARIOS
from conformance.program import Program
from scripts import go_client
from tests.kit.eventually import eventually
from tests.process.sharding import Sharded, move

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def program() -> list[str]:
    return [str(go_client.build())]


@pytest.fixture
def client(program: list[str]) -> Iterator[Program]:
    one = Program(program)
    yield one
    one.end()


def test_it_does_what_a_client_has_to_do(program: list[str]) -> None:
    lines: list[str] = []
    assert check_client(program, SCENARIOS, lines.append) == [], "\n".join(lines)


def test_it_follows_a_computation_from_shard_to_shard(client: Program, tmp_path: Path) -> None:
    with Sharded(tmp_path, 2) as world, world.connect() as lw:
        client.do("connect", address=world.shards[0].address)
        client.do("register", name="clicks", inputs=[])
        client.do("claim", name="clicks", bounds=["", "6d", ""], **{"as": "claim"})
        client.do("watch", name="clicks")
        for hour in range(1, 5):
            client.do("advance", claim="claim", micros=[hour * HOUR, (hour + 1) * HOUR])
            client.do("flush", claim="claim")
            eventually(lambda: lw.get("clicks")["clicks"].low.micros == hour * HOUR)  # noqa: B023 - asked within its turn
            client.until_seen("clicks", hour * HOUR)
            move(lw, world.shards[hour % 2], "clicks")
        assert client.do("get", name="clicks") == {"low": 4 * HOUR, "registered": True}
        # The one that it was given dies, and serves the computation.
        world.shards[0].kill()
        client.do("advance", claim="claim", micros=[8 * HOUR, 9 * HOUR])
        client.do("flush", claim="claim")
        client.until_seen("clicks", 8 * HOUR)
        lows = [low for _, _, low in client.shown]
        assert lows == sorted(lows)
