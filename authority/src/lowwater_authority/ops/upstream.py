"""How far the computations are that other shards serve, as far as lags and holders of what is served here need it.

A scrape cannot ask for it: it would wait for every shard that is away. So a task of the event loop asks now and then, each shard by itself,
and a scrape reads what was answered last.
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

ASKED: Final = 200
"""Computations in one question, which hold the event loop for some milliseconds; and in a second,
on average, of very many."""

ASK_SECONDS: Final = 5.0
"""How long a shard may take for an answer."""

GOOD_SECONDS: Final = 30.0
"""How long an answer is good for a lag."""

log = logging.getLogger(__name__)


class _Answer(NamedTuple):
    low: int
    """MIN: unknown, or never answered."""
    confirmed: float
    """Seconds of the monotonic clock: when it was known to be the newest; while nobody has
    answered, since when it is asked for."""


class Upstream:
    """Asks the other shards. For one event loop; ``low`` and ``stale_for`` are for any thread.

    ``monotonic`` gives seconds, ``period`` lie between two rounds of questions. A process that is
    alone has nobody to ask, and nothing is ever stale.
    """

    def __init__(
        self, shard: Shard, *, monotonic: Callable[[], float] = time.monotonic, period: float = PERIOD
    ) -> None:
        self._shard = shard
        self._period = period
        self._monotonic = monotonic
        self._answers: dict[str, _Answer] = {}
        self._asked = False

    def low(self, name: str) -> int:
        """Return the published low watermark of a computation that another shard serves; MIN when nobody told it lately. O(1)."""
        answer = self._answers.get(name)
        if answer is None or self._monotonic() - answer.confirmed > GOOD_SECONDS:
            return MIN
        return answer.low

    @property
    def stale_for(self) -> float | None:
        """Seconds since all that is needed was known to be the newest; None before the first round of questions. O(computations asked for)."""
        if not self._asked:
            return None
        now = self._monotonic()
        return max((now - answer.confirmed for answer in list(self._answers.values())), default=0.0)

    async def run(self) -> None:
        """Ask every ``period`` seconds, less often for very many, until cancelled.

        A round that fails is told, and the next one begins anew.
        """
        while True:
            try:
                await self.ask()
            except Exception:
                log.exception("other shards could not be asked; trying again", extra=event("internal_error"))
            await asyncio.sleep(max(self._period, len(self._answers) / ASKED))

    async def ask(self) -> None:
        """Ask once for all that is needed.

        Shards are asked side by side, so one that is away leaves the others' answers as new as they
        are.
        """
        placement = self._shard.placement
        names = await asyncio.to_thread(needed, self._shard)  # a large graph would hold up those who commit
        now = self._monotonic()
        self._answers = {name: self._answers.get(name) or _Answer(MIN, now) for name in names}
        by_shard: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._answers:
            by_shard[placement.home(name)].append(name)
        await asyncio.gather(*map(self._ask_one, by_shard.values()))
        self._asked = True

    async def _ask_one(self, names: Sequence[str]) -> None:
        for i in range(0, len(names), ASKED):
            began = self._monotonic()
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    lows = await self._shard.placement.lows(names[i : i + ASKED])
            except (TimeoutError, errors.LowwaterError) as error:
                log.debug("what others serve is asked for later: %s", error)
                return
            self._answers.update({name: _Answer(low, began) for name, (_, low) in lows.items()})


def needed(shard: Shard) -> set[str]:
    """Return what others serve of the inputs of what is served here, and of the injectors upstream of it. O(edges upstream). On any thread."""
    computations = shard.topology.computations
    found: set[str] = set()
    here = frozenset(shard.served.names())
    seen, left = set(here), list(here)
    while left:
        name = left.pop()
        spec = computations.get(name)
        inputs = () if spec is None else spec.inputs
        if name in here:
            found.update(each for each in inputs if each not in here)
        elif not inputs:
            found.add(name)
        left += [each for each in inputs if each not in seen]
        seen.update(inputs)
    return found
