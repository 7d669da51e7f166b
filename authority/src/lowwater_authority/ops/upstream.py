"""Low watermarks that other shards serve, for the lags and holders of this shard's computations.

A scrape cannot ask other shards, because it would wait for each that is away. So a task of the
event loop asks each shard now and then, and a scrape reads the last answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from lowwater import errors
from lowwater.core.events import event
from lowwater_authority.core.times import MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lowwater_authority.engine.shard import Shard

PERIOD: Final = 5.0
"""Seconds between two rounds of questions."""

MOST_NAMES: Final = 200
"""Most computations in one question, which takes some milliseconds of the event loop; and most a
second on average, if there are very many."""

ASK_SECONDS: Final = 5.0
"""Longest wait for an answer of a shard, in seconds."""

GOOD_SECONDS: Final = 30.0
"""Seconds after which an answer no longer counts."""

log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    low: int
    """Low watermark; MIN: unknown, or no answer yet."""
    confirmed: float
    """Time of the monotonic clock, in seconds, at which the answer was the newest. Before the first
    answer, the time of the first question."""


class Upstream:
    """Asks the other shards, on one event loop. ``low`` and ``stale_for`` are for any thread.

    ``monotonic`` gives seconds; ``period`` is the time between two rounds of questions.
    """

    def __init__(
        self, shard: Shard, *, monotonic: Callable[[], float] = time.monotonic, period: float = PERIOD
    ) -> None:
        self._shard = shard
        self._period = period
        self._monotonic = monotonic
        self._answers: dict[str, _Answer] = {}
        self._complete = False
        """True after the first round of questions."""

    def low(self, name: str) -> int:
        """Return the low watermark of another shard's computation; MIN if it is not known. O(1)."""
        answer = self._answers.get(name)
        if answer is None or self._monotonic() - answer.confirmed > GOOD_SECONDS:
            return MIN
        return answer.low

    @property
    def stale_for(self) -> float | None:
        """Age of the oldest answer, in seconds; None before the first round. O(answers)."""
        if not self._complete:
            return None
        now = self._monotonic()
        return max((now - answer.confirmed for answer in list(self._answers.values())), default=0.0)

    async def run(self) -> None:
        """Ask every ``period`` seconds, less often for very many computations, until cancelled.

        A failed round is logged, and the next one begins anew.
        """
        while True:
            try:
                await self.ask()
            except Exception:
                log.exception("other shards could not be asked; trying again", extra=event("internal_error"))
            await asyncio.sleep(max(self._period, len(self._answers) / MOST_NAMES))

    async def ask(self) -> None:
        """Ask once for all needed computations.

        Shards are asked side by side, so a shard that is away does not delay the others.
        """
        placement = self._shard.placement
        names = await asyncio.to_thread(needed, self._shard)  # in a thread, because a large graph would delay rounds
        now = self._monotonic()
        self._answers = {name: self._answers.get(name) or _Answer(MIN, now) for name in names}
        by_shard: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._answers:
            by_shard[placement.home(name)].append(name)
        await asyncio.gather(*map(self._ask_one, by_shard.values()))
        self._complete = True

    async def _ask_one(self, names: Sequence[str]) -> None:
        for i in range(0, len(names), MOST_NAMES):
            began = self._monotonic()
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    lows = await self._shard.placement.lows(names[i : i + MOST_NAMES])
            except (TimeoutError, errors.LowwaterError) as error:
                log.debug("other shards are asked again later: %s", error)
                return
            self._answers.update({name: _Answer(low, began) for name, (_, low) in lows.items()})


def needed(shard: Shard) -> set[str]:
    """Return the inputs and upstream injectors of this shard's computations that others serve.

    O(edges upstream). From any thread.
    """
    computations = shard.topology.computations
    names: set[str] = set()
    here = frozenset(shard.served.names())
    reached, pending = set(here), list(here)
    while pending:
        name = pending.pop()
        spec = computations.get(name)
        inputs = () if spec is None else spec.inputs
        if name in here:
            names.update(input_ for input_ in inputs if input_ not in here)
        elif not inputs:
            names.add(name)
        pending += [input_ for input_ in inputs if input_ not in reached]
        reached.update(inputs)
    return names
