"""Claims of many ranges: looked at piece by piece, so that one claim does not keep all others waiting."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from lowwater import errors
from lowwater.v1 import workers_pb2 as pb
from lowwater_authority.core.requests import DIGESTED_TOGETHER, PIECE, ClaimRequest, finished
from lowwater_authority.core.times import MAX, MIN
from lowwater_authority.rpc import codec
from lowwater_authority.rpc.workers import in_turns

NEAR = (0, 1, DIGESTED_TOGETHER, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE - 1, 2 * PIECE)


def keys(count: int) -> list[bytes]:
    return [index.to_bytes(4, "big") for index in range(1, count + 1)]


def message(bounds: list[bytes]) -> pb.ClaimRequest:
    return pb.ClaimRequest(computation="c", worker="w", bounds=bounds, request_id=b"r" * 16, bound_micros=[7])


@pytest.mark.parametrize("count", [at for at in NEAR if at > 1])
@pytest.mark.parametrize("end", [b"", b"\xff"])
def test_what_is_decoded_in_pieces_is_what_was_asked(count: int, end: bytes) -> None:
    bounds = [*keys(count - 1), end]
    asked = finished(codec.claim(message(bounds)))
    whole = ClaimRequest(bounds, "w", request_id=b"r" * 16, bound_micros=np.array([7], dtype=np.int64))
    assert asked.bounds == bounds
    assert asked.digest == whole.digest, "the journal has it: it must not depend on the pieces"


@pytest.mark.parametrize("wrong", NEAR[1:])
@pytest.mark.parametrize("end", [b"", b"\xff"])
def test_bounds_that_do_not_rise_are_refused_wherever_pieces_meet(wrong: int, end: bytes) -> None:
    bounds = [*keys(2 * PIECE + 9), end]
    for bad in (bounds[wrong - 1], b""):
        asked = message([*bounds[:wrong], bad, *bounds[wrong + 1 :]])
        with pytest.raises(errors.InvalidArgument, match=rf"bounds\[{wrong}\] .* does not come after"):
            finished(codec.claim(asked))


@pytest.mark.parametrize("place", NEAR)
def test_a_key_that_is_too_long_is_refused_wherever_it_stands(place: int) -> None:
    bounds = keys(2 * PIECE + 9)
    bounds[place] += b"x" * codec.MAX_KEY
    with pytest.raises(errors.InvalidArgument, match="too long"):
        finished(codec.claim(message(bounds)))


async def test_others_have_their_turn_while_a_claim_is_decoded() -> None:
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(neighbour())
    asked = await in_turns(codec.claim(message(keys(10 * PIECE))))
    task.cancel()
    assert len(asked.bounds) == 10 * PIECE
    assert turns >= 2 * 10 - 2, "one for each piece that is checked, and that is digested"


def test_where_the_ranges_of_a_claim_stand_is_said_as_protobuf_says_it() -> None:
    for values in ([], [MIN], [MIN, -1, 0, 1, MAX] * 50):
        response = pb.ClaimResponse(sequencer=3, epoch=4)
        codec.claim_watermarks(response, np.array(values, dtype=np.int64))
        plain = pb.ClaimResponse(sequencer=3, epoch=4, watermarks_micros=values)
        assert response.SerializeToString() == plain.SerializeToString()
