"""What a shard still serves although another one was to take it long ago.

Perhaps the other one cannot read the log. Then memory here has the only good copy, which must not
end with this process: so the log is written whole, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.holdings import Holdings
    from lowwater_authority.engine.logs import Log

__all__ = ["LOOK_SECONDS", "WHOLE_AT_ONCE", "Untaken"]

LOOK_SECONDS: Final = 10.0
"""How long at least, twice that at most, it is waited for another shard to take what it is to
serve. Then the log is written whole."""

WHOLE_AT_ONCE: Final = 4
"""Logs that are written whole in that time: each costs a snapshot, and a whole deployment may wait
for shards of a newer release."""


@dataclass(slots=True)
class _Kept:
    """One computation that another shard was to take already at the last look."""

    until: int = 0
    """The position up to which its log was to be written whole when that was asked for first; 0: it
    was not."""

    def due(self, log: Log) -> bool:
        """Whether it is to be written whole: something is behind its snapshot, and the store has not taken what was asked for."""
        return bool(log.behind) and not 0 < self.until <= log.snapshot_position


class Untaken:
    """The computations of one shard that others are to serve.

    ``mine`` says whether one is to be served here.
    """

    def __init__(self, held: Holdings, mine: Callable[[str], bool]) -> None:
        self._held = held
        self._mine = mine
        self._kept: dict[str, _Kept] = {}
        self._state = 0, 0, 0

    def look(self) -> list[str]:
        """Look again, ``LOOK_SECONDS`` after the last time; return whose logs are to be written whole now.

        What is asked for is asked for again until the store has it: the shard may have too much to do to begin it. Cost: a look at the
        view for each that is served, and when nothing has changed since the last time, for each that others are to serve.
        """
        held = self._held
        state = held.logs.view, held.topology.version, held.losses
        before, names = self._kept, self._kept if state == self._state else held.served
        self._kept = {n: before.get(n) or _Kept() for n in names if n in held.served and not self._mine(n)}
        self._state = state
        late = [held.served[name] for name in self._kept.keys() & before.keys() if self._is_due(held.served[name])]
        late.sort(key=lambda holding: (holding.log.refused, holding.name))
        for holding in late[:WHOLE_AT_ONCE]:
            kept = self._kept[holding.name]
            kept.until = kept.until or holding.log.position
        return [holding.name for holding in late[:WHOLE_AT_ONCE]]

    def _is_due(self, holding: Holding) -> bool:
        # What is unwritten is put right by other means, and takes nobody's place here until then.
        return holding.unwritten is None and self._kept[holding.name].due(holding.log)
