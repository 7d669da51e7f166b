"""What a shard still serves although another shard should have taken it over long ago.

Perhaps the other shard cannot read the log. Then the memory of this process is the only good copy,
and would be lost with it: so this shard writes the log whole, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowwater_authority.engine.holding import Holding
    from lowwater_authority.engine.holdings import Holdings

LOOK_SECONDS: Final = 10.0
"""Seconds between two looks. The other shard has this time at least, and twice this time at most,
before its log is written whole."""

WHOLE_AT_ONCE: Final = 4
"""Logs that one look names at most: each costs a snapshot, and a whole deployment may wait for
shards of a newer release."""


class Untaken:
    """The computations that a shard holds and other shards are to serve.

    ``mine`` says whether a computation is to be served here; ``monotonic`` returns seconds.
    """

    def __init__(self, holdings: Holdings, mine: Callable[[str], bool], monotonic: Callable[[], float]) -> None:
        self._holdings = holdings
        self._mine = mine
        self._monotonic = monotonic
        self._look_at = float("-inf")
        """Time of the next look."""
        self._whole_until: dict[str, int] = {}
        """Last position of the log when the log was first to be written whole, 0 before, by name of
        the computations that other shards should have taken over by the last look."""
        self._state = 0, 0, 0

    def look(self) -> list[str]:
        """Look again if it is time; return the names whose logs are to be written whole now.

        A name is returned at every look until the store has the whole log: the shard may be too
        busy to begin. Cost: a look at the view for each computation served here, or, when nothing
        has changed since the last look, for each that others are to serve.
        """
        if self._monotonic() < self._look_at:
            return []
        self._look_at = self._monotonic() + LOOK_SECONDS
        holdings = self._holdings
        state = holdings.logs.view, holdings.topology.version, holdings.losses
        before, names = self._whole_until, self._whole_until if state == self._state else holdings.served
        self._whole_until = {
            name: before.get(name, 0) for name in names if name in holdings.served and not self._mine(name)
        }
        self._state = state
        waiting = [holdings.served[name] for name in self._whole_until.keys() & before.keys()]
        late = sorted(filter(self._is_due, waiting), key=lambda holding: (holding.log.refused, holding.name))
        for holding in late[:WHOLE_AT_ONCE]:
            self._whole_until[holding.name] = self._whole_until[holding.name] or holding.log.position
        return [holding.name for holding in late[:WHOLE_AT_ONCE]]

    def _is_due(self, holding: Holding) -> bool:
        """Return whether a log has records behind its snapshot, and was not written whole yet."""
        # An unwritten change is repaired by the engine first, and takes no place here until then.
        log, whole_until = holding.log, self._whole_until[holding.name]
        return holding.unwritten is None and log.behind > 0 and not 0 < whole_until <= log.snapshot_position
