"""What a slice hears when the computation that it is a slice of is taken over in the middle of its report."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowwater import errors
from lowwater_authority.core.requests import Fold
from lowwater_authority.core.times import MIN
from lowwater_authority.engine.rounds import GivenUp
from lowwater_authority.engine.slices import Asked, RangeHere, Told

TOLD = Told(
    incarnation=1,
    fold=Fold(0, ()),
    current=True,
    vouched=MIN,
    low=5,
    retired=False,
    kept=(),
    oldest_operation=0,
    waiting_for="",
)
ASKED = Asked(
    "hourly", "hourly~0", (b"", b"\x80"), host="", epoch=1, claims=1, bound=0, request_id=b"id", identity="hourly~"
)


async def test_a_root_that_another_process_takes_meanwhile_is_a_reason_to_try_again() -> None:
    """A round of the shard that is given up ends its reports by no error of the protocol: it must not end the slice's task, which would be silent for ever."""

    def report(*_: Any, **__: Any) -> asyncio.Future[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(GivenUp())
        return answer

    graph = SimpleNamespace(get=lambda _: SimpleNamespace(incarnation=1), required=lambda _: Fold(0, ()))
    shard: Any = SimpleNamespace(topology=graph, report=report)
    with pytest.raises(errors.Unavailable, match="has taken hourly over"):
        await RangeHere(shard, ASKED, 1, 0).say(TOLD, None)
