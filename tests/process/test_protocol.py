"""The protocol as docs/reference/protocol.md and conformance/README.md have it: exchanges, reasons, limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lowwater import errors
from lowwater.core.attempts import AGAIN
from lowwater.core.router import MOST_NAMES
from lowwater_authority.core import batches, groups
from lowwater_authority.core import topology as graph
from lowwater_authority.core.computation import SENDERS_KEPT
from lowwater_authority.core.cut import MAX_SLICES
from lowwater_authority.rpc import codec, refusals, streams
from lowwater_authority.rpc import watermarks as reads
from lowwater_authority.serve import MESSAGE_BYTES
from tests.process.exchanges import PAGE, Replay, Step, blocks
from tests.process.serving import serving
from tests.process.sharding import Sharded, move

PROTOCOL = Path(__file__).parents[2] / "docs/reference/protocol.md"

OWN = {errors.Closed.reason, errors.Timeout.reason, errors.StaleEpoch.reason}
"""Reasons that only this client makes: no authority sends them."""

AGAIN_BY_REASON = {
    **dict.fromkeys(("MOVED", "OTHER_SLICE"), "elsewhere"),
    **dict.fromkeys(("OLD_STREAM", "INPUT_VERSION", "INCARNATION_CHANGED", "UNCONFIRMED"), "anew"),
    **dict.fromkeys(
        ("IDENTITY_MISMATCH", "OLDER_CLAIM", "REWOUND", "STALE_ADOPTION", "STALE_LEASE", "STALE_SEQUENCER"), "stop"
    ),
    **{error.reason: "as it is" for error in AGAIN},
}

LIMITS = {
    "bytes of a message": MESSAGE_BYTES,
    "bytes of a key": codec.MAX_KEY,
    "ranges of a claim": codec.MAX_RANGES,
    "slices of a computation": MAX_SLICES,
    "characters of `worker`, `host`, `identity`": codec.MAX_NAME,
    "bytes of a digest": codec.MAX_DIGEST,
    "bytes of `waiting_for`": codec.MAX_WAITING_FOR,
    "inputs of a computation": graph.MAX_INPUTS,
    "heuristic shares of a computation": graph.MAX_HEURISTICS,
    "buckets of a histogram": codec.MAX_BUCKETS,
    "records of a claim's mass": groups.MOST_RECORDS,
    "names in `GetWatermarks`, `Watch`": MOST_NAMES,
    "ranges in a page, completions in a page": reads.MAX_PAGE,
    "holders in `CheckComplete`": reads.MAX_HOLDERS,
    "attempts of a batch": batches.MAX_PARTS,
    "reports of a stream that wait for the journal": streams.IN_FLIGHT,
    "senders of a claim": SENDERS_KEPT,
}


def alone(steps: list[Step]) -> bool:
    return not any(step.place for step in steps)


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    with serving(tmp_path) as server, server.channel() as channel:
        one = Replay({"": (server.address, channel)})
        yield one
        one.close()


def test_the_exchanges_with_one_authority_are_what_it_says(replay: Replay) -> None:
    exchanges = [steps for steps in blocks() if alone(steps)]
    assert len(exchanges) >= 5
    for steps in exchanges:
        replay.run(steps)


@pytest.mark.long  # Redis and two shards, for one exchange: what moves is tested in test_shards_operations.py
def test_the_exchanges_with_two_authorities_are_what_they_say(tmp_path: Path) -> None:
    [steps] = [steps for steps in blocks() if not alone(steps)]
    with Sharded(tmp_path, 2, dead_after=10) as world, world.connect() as lw:
        first, second = world.shards
        lw.register("orders", heuristics=[])
        move(lw, second, "orders")
        with first.channel() as one, second.channel() as two:
            replay = Replay({"10.0.0.1:7420": (first.address, one), "10.0.0.2:7420": (second.address, two)})
            replay.run(steps)
            replay.close()


def test_an_exchange_that_is_not_what_it_says_is_noticed(replay: Replay, tmp_path: Path) -> None:
    old, new = "low_micros: 3600000000\n", "low_micros: 3600000001\n"
    text = PAGE.read_text()
    assert old in text
    page = tmp_path / "page.md"
    page.write_text(text.replace(old, new, 1))
    with pytest.raises(AssertionError, match="the page"):
        replay.run(blocks(page)[0])


def test_the_reasons_are_those_of_the_code_and_say_which_may_be_repeated() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \| ([a-z ]+) \|", PROTOCOL.read_text(), re.MULTILINE)
    listed = {reason: (status, again) for reason, status, again in rows}
    assert len(listed) == len(rows)
    other = grpc.StatusCode.FAILED_PRECONDITION
    assert listed == {
        reason: (refusals.CODES.get(reason, other).name, AGAIN_BY_REASON.get(reason, "never"))
        for reason in errors.BY_REASON.keys() - OWN
    }


def test_the_limits_are_those_of_the_code() -> None:
    section = PROTOCOL.read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|;]+?)(?:;[^|]*)? \| ([\d,]+) \|", section, re.MULTILINE)
    assert {what: int(value.replace(",", "")) for what, value in rows} == LIMITS
