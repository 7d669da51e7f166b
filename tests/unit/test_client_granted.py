"""A claim takes ranges from the older claims of the same worker, before they have reported anything."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowwater import aio
from lowwater.core.cover import Cover
from lowwater.v1 import workers_pb2
from tests.kit.served import scripted, served

KEYS = [bytes([number]) for number in range(12)]


def bounds(random: Random) -> list[bytes]:
    """Return bounds of a claim; an empty last one means no upper bound."""
    chosen = sorted(random.sample(KEYS, random.randint(2, 6)))
    return [*chosen[1:], b""] if random.random() < 0.5 else chosen


class Granting:
    """Grants every claim, of which nobody else hears; ``grants`` are the sequencers and the inputs, with their version."""

    def __init__(self) -> None:
        self.grants: Iterator[tuple[int, list[str], int]] = ((number, [], 0) for number in itertools.count(1))

    def claim(self, request: workers_pb2.ClaimRequest) -> workers_pb2.ClaimResponse:
        sequencer, inputs, version = next(self.grants)
        return workers_pb2.ClaimResponse(
            server_token="t",
            sequencer=sequencer,
            epoch=1,
            incarnation=1,
            inputs=inputs,
            input_version=version,
            input_incarnations=[0] * len(inputs),
            watermarks_micros=[0] * (len(request.bounds) - 1),
        )


@pytest.fixture
def granting() -> Granting:
    return Granting()


@pytest.fixture
async def lw(granting: Granting) -> AsyncIterator[aio.Client]:
    service = scripted("lowwater.v1.WorkerService", Claim=(workers_pb2.ClaimRequest, granting.claim))
    async with served(service) as address, aio.connect(address) as client:
        yield client


def covered(within: tuple[bytes, ...], handle: int) -> set[bytes]:
    start, end = within[handle], within[handle + 1]
    return {key for key in [*KEYS, b"\xff"] if start <= key and (not end or key < end)}


async def test_a_claim_takes_every_range_it_has_a_part_of(lw: aio.Client) -> None:
    reported = 0
    for seed in range(50):
        random, worker = Random(seed), lw.worker(f"c{seed}")
        leases = [await worker.claim(bounds=bounds(random)) for _ in range(random.randint(1, 6))]
        for number, lease in enumerate(leases):
            later = leases[number + 1 :]
            lost = set().union(*(covered(other.bounds, handle) for other in later for handle in range(len(other))))
            assert lease.lost == {handle for handle in range(len(lease)) if covered(lease.bounds, handle) & lost}
            assert lease.over == (len(lease.lost) == len(lease))
        reported += sum(not lease.over for lease in leases)
        assert lw.statistics().reporter.leases == reported


@pytest.mark.parametrize(
    ("claims", "lost", "reported"),
    [
        ([(11, [b"", b""]), (10, [b"", b""])], [0, 1], 1),
        ([(13, [b"b", b"m"]), (12, [b"", b"k", b"m", b""]), (11, [b"", b""])], [0, 2, 1], 2),
    ],
)
async def test_a_claim_that_was_answered_late_yields_to_a_newer_one(
    lw: aio.Client, granting: Granting, claims: list[tuple[int, list[bytes]]], lost: list[int], reported: int
) -> None:
    """Claims that are answered in another order than they were granted in end the same: the worker reports what it owns, once."""
    granting.grants = iter([(sequencer, [], 0) for sequencer, _ in claims])
    worker = lw.worker("c")
    leases = [await worker.claim(bounds=bounds_) for _, bounds_ in claims]
    assert ([len(lease.lost) for lease in leases], lw.statistics().reporter.leases) == (lost, reported)


async def test_a_claim_answered_late_leaves_the_inputs_of_a_newer_one(lw: aio.Client, granting: Granting) -> None:
    """The inputs were set in between: a fold of those before is refused, until somebody claims again."""
    granting.grants = iter([(12, ["a", "b"], 2), (11, ["a"], 1)])
    worker = lw.worker("c")
    for _ in range(2):
        await worker.claim()
    assert (await worker.inputs()).input_version == 2


@given(
    spans=st.lists(
        st.tuples(st.sampled_from([b"", *KEYS[1:]]), st.sampled_from([*KEYS[1:], b""]), st.booleans()), max_size=40
    )
)
def test_a_cover_meets_whatever_has_keys_in_common(spans: list[tuple[bytes, bytes, bool]]) -> None:
    over, rest = set[int](), dict[int, tuple[bytes, bytes]]()
    cover = Cover[int](over.__contains__)
    for number, (start, end, ends) in enumerate(spans):
        if end and start >= end:
            continue
        met = cover.add(number, start, end)
        common = {other for other, (low, high) in rest.items() if (not end or low < end) and (not high or start < high)}
        assert set(met) - over == common
        assert len(set(met)) == len(met)
        rest[number] = start, end
        if ends:  # of itself, of which the cover hears nothing
            over.add(number)
            del rest[number]
        elif met and number % 2:
            cover.remove(met[0])
            rest.pop(met[0], None)
    assert set(cover) - over == set(rest)
    for number_ in list(cover):
        cover.remove(number_)
    assert len(cover) == 0
